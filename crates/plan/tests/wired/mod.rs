//! Fabrics for tests: the catalog, the files in testdata, and those under `WEFT_SHARED`.

// Every test that uses this module uses a part of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use weftlink_fabric::catalog::systems;
use weftlink_fabric::{Fabric, format, resolve};
use weftlink_plan::Layout;

/// The fabric of a spec.
pub(crate) fn fabric(spec: &str) -> Fabric {
    resolve(spec).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

/// The layout of a spec's fabric.
pub(crate) fn layout(spec: &str) -> Layout {
    let fabric = fabric(spec);
    let layout = Layout::of(&fabric);
    is_sound(spec, &fabric, &layout);
    layout
}

/// Checks that every rank is once on every ring, in every tree and in one island.
pub(crate) fn is_sound(name: &str, fabric: &Fabric, layout: &Layout) {
    let ranks: Vec<u32> = (0..fabric.gpus().len() as u32).collect();
    let sorted = |mut ranks: Vec<u32>| {
        ranks.sort_unstable();
        ranks
    };
    assert_eq!(sorted(layout.islands.concat()), ranks, "{name}: islands");
    for ring in &layout.rings {
        assert_eq!(sorted(ring.clone()), ranks, "{name}: ring {ring:?}");
    }
    assert_eq!(layout.rings.is_empty(), ranks.is_empty(), "{name}: {} rings", layout.rings.len());
}

/// All of the catalog and of testdata.
pub(crate) fn every_fabric() -> impl Iterator<Item = (String, Fabric)> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let files = ["topology", "smi", "fabrics"].map(|folder| files(&testdata.join(folder)));
    let catalog = systems::all().map(|system| (system.name.to_owned(), system.fabric()));
    catalog.chain(files.into_iter().flatten().filter_map(|file| read(&file)))
}

/// The topology files of other projects under `WEFT_SHARED`; logs a skip if it is unset.
pub(crate) fn samples() -> Vec<(String, Fabric)> {
    let Some(folder) = std::env::var_os("WEFT_SHARED") else {
        eprintln!("skipped: WEFT_SHARED is not set");
        return Vec::new();
    };
    files(&Path::new(&folder).join("samples/topology")).iter().filter_map(|file| read(file)).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be listed").path()).collect();
    files.sort();
    files
}

/// The fabric in a file; nothing if the file does not describe one.
fn read(file: &Path) -> Option<(String, Fabric)> {
    let name = file.file_name()?.to_string_lossy().into_owned();
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    match format::read(&bytes, &name, None) {
        Ok(fabric) => Some((name, fabric)),
        Err(error) => {
            eprintln!("{name}: {error}");
            None
        }
    }
}
