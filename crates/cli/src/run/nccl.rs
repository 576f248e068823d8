//! `--nccl`: programs that were built for NCCL run on Weft's `libnccl.so.2` (docs/nccl.md).
//!
//! The library is loaded into the ranks by `LD_PRELOAD`: PyTorch finds its own by a path inside itself, which `LD_LIBRARY_PATH` does not change.
//! It is found on this host and must have the same path on the others, where the helper looks for it before any rank starts.
//!
//! Whether ranks use it shows at the first communicator, which they report ([`super::exit_report`]). An NCCL that is linked into a program
//! cannot be replaced; no rank reports then, and [`ADVICE`] says so.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use super::gpus::value;
use super::wire::Start;

const PRELOAD: &str = "LD_PRELOAD";
/// Where vLLM loads NCCL from.
const VLLM: &str = "VLLM_NCCL_SO_PATH";
/// Its name for programs, and as Cargo builds it.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// At the end of a job in which no rank has made a communicator.
pub(super) const ADVICE: &str = "--nccl: no rank made an NCCL communicator of Weft. Either the program did not use NCCL, or its NCCL \
    is linked statically and cannot be replaced: `nm -D libtorch_cuda.so | grep ncclAllReduce` prints U if it can be";

/// The library: the one that the user names, or the first of those that come with this command.
pub(super) fn find(given: Option<&Path>) -> anyhow::Result<String> {
    let path = match given {
        Some(path) => std::path::absolute(path)
            .with_context(|| format!("--nccl-library {}: cannot make it absolute", path.display()))?,
        None => beside(&std::env::current_exe().context("cannot find the path of this program")?)?,
    };
    let text = path.to_str().ok_or_else(|| anyhow!("{} is not UTF-8; use --nccl-library", path.display()))?;
    if text.contains([' ', ':', '$']) {
        return Err(anyhow!(
            "{text}: LD_PRELOAD cannot name a path with a space, colon or $; move the library"
        ));
    }
    Ok(text.to_owned())
}

/// The library that comes with the command at a path.
fn beside(weft: &Path) -> anyhow::Result<PathBuf> {
    let bin = weft.parent().unwrap_or(Path::new("/"));
    let root = bin.parent().unwrap_or(Path::new("/"));
    let mut folders = vec![bin.to_owned(), root.join("lib/weft"), root.join("lib"), root.join("lib64")];
    for lib in [root.join("lib"), root.join("lib64")] {
        let entries = std::fs::read_dir(lib).into_iter().flatten().flatten();
        let is_python = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("python3"))
        };
        let mut pythons: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_python).collect();
        pythons.sort();
        folders.extend(pythons.iter().map(|python| python.join("site-packages/weftlink/lib")));
    }
    let files = folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name)));
    files.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        let searched: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        anyhow!(
            "--nccl: there is no libnccl.so.2 in {} or {}/lib/python3*/site-packages/weftlink/lib. `make capi` builds it, Weft's Python \
             wheel has it, and --nccl-library PATH names another place",
            searched.join(", "),
            root.display()
        )
    })
}

/// Lets the ranks of this host load the library, if it is here. What they were to load before comes after it.
pub(super) fn assign(start: &mut Start) -> Result<(), String> {
    let Some(library) = start.nccl.clone() else { return Ok(()) };
    if !Path::new(&library).is_file() {
        return Err(format!(
            "--nccl: there is no {library} here. Install it at the same path on every host, or name one with --nccl-library"
        ));
    }
    let others = value(start, PRELOAD).filter(|others| !others.is_empty());
    let preload = others.map_or_else(|| library.clone(), |others| format!("{library}:{others}"));
    start.environment.push((PRELOAD.to_owned(), preload));
    if value(start, VLLM).is_none() {
        start.environment.push((VLLM.to_owned(), library));
    }
    Ok(())
}

/// What `--dry-run` shows for another host.
pub(super) fn assign_elsewhere(start: &mut Start) {
    let Some(library) = start.nccl.clone() else { return };
    start.environment.push((PRELOAD.to_owned(), format!("{library}:(what is set there)")));
    start.environment.push((VLLM.to_owned(), library));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_beside_the_command_and_in_its_environment() {
        let root = std::env::temp_dir().join(format!("weft-nccl-{}", std::process::id()));
        let weft = root.join("bin/weft");
        let found = || beside(&weft).map_err(|error| error.to_string());
        let make = |file: &str| {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            file
        };
        make("bin/weft");
        let why = found().unwrap_err();
        for words in
            ["/bin, ", "/lib, ", "site-packages/weftlink/lib", "make capi", "wheel", "--nccl-library"]
        {
            assert!(why.contains(words), "{why}");
        }
        // Each comes before those made earlier.
        for file in [
            "lib/python3.12/site-packages/weftlink/lib/libnccl.so.2",
            "lib/libnccl.so.2",
            "bin/libnccl.so",
            "bin/libnccl.so.2",
        ] {
            let file = make(file);
            assert_eq!(found().unwrap(), file);
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
