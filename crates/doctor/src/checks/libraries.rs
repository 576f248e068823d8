//! Copies of NCCL: several versions, or one that is too old for the GPUs.
//!
//! The NCCL that first has machine code of an architecture is that whose makefile (`makefiles/common.mk`) first names it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use weftlink_probe::Tree;

use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[
    Check {
        id: "nccl-copies",
        finds: "Several versions of libnccl that a program may load",
        reads: "/proc/self/maps, LD_LIBRARY_PATH, Python's packages, the system's folders",
        run: copies,
    },
    Check {
        id: "nccl-age",
        finds: "A libnccl without machine code for the GPUs",
        reads: "files named `libnccl.so*`, the GPUs' architecture",
        run: age,
    },
];

/// Libraries that a scan reports.
const LIBRARIES_MAX: usize = 1024;
/// Compute capability times ten, its name, and the NCCL that first had machine code for it.
const FIRST_NCCL: [(u32, &str, [u32; 3]); 3] =
    [(100, "Blackwell", [2, 25, 1]), (90, "Hopper", [2, 15, 1]), (80, "Ampere", [2, 7, 3])];

/// A library that the scan found.
#[derive(Clone, Debug)]
pub(super) struct Library {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) version: Option<String>,
    found_in: String,
}

impl Library {
    fn is_weft(&self) -> bool {
        self.path.contains("weft")
    }
}

/// The libraries with a name; None if nothing was scanned.
pub(super) fn scanned(tree: &dyn Tree, names: &[&str]) -> Option<Vec<Library>> {
    tree.read("software/done")?;
    let mut numbers: Vec<u32> = tree.list("software").iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let library = |number: u32| {
        let read = |file: &str| tree.read(&format!("software/{number}/{file}"));
        let name = read("name").filter(|name| names.contains(&name.as_str()))?;
        Some(Library {
            name,
            path: read("path")?,
            version: read("version"),
            found_in: read("found_in").unwrap_or_default(),
        })
    };
    Some(numbers.into_iter().take(LIBRARIES_MAX).filter_map(library).collect())
}

/// The first numbers of a version: `2.21.5+cuda12.4` is `[2, 21, 5]`.
pub(super) fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

pub(super) fn unscanned(what: &str) -> Vec<Outcome> {
    vec![Outcome::Unknown {
        what: what.to_owned(),
        needs: "a scan for libraries, which a recording may lack".to_owned(),
    }]
}

/// The paths of libnccl that this process has loaded.
fn loaded(tree: &dyn Tree) -> BTreeSet<String> {
    let maps = tree.read("proc/self/maps").unwrap_or_default();
    let path = |line: &str| {
        let path = line.split_whitespace().nth(5)?;
        let name = path.rsplit('/').next()?;
        (name == "libnccl.so" || name.starts_with("libnccl.so.")).then(|| path.to_owned())
    };
    maps.lines().filter_map(path).collect()
}

fn copies(machine: &Machine<'_>) -> Vec<Outcome> {
    if machine.fabric.gpus().is_empty() {
        return Vec::new();
    }
    let loaded = loaded(machine.tree);
    if loaded.len() > 1 {
        let what = format!(
            "this process has loaded {} copies of libnccl: calls of one communicator may reach both",
            loaded.len()
        );
        let finding = loaded
            .iter()
            .take(4)
            .fold(Finding::new("nccl-copies", Severity::Critical, what), |finding, path| {
                finding.shown_by("/proc/self/maps", reads::shown(path))
            });
        return vec![Outcome::Found(fix_copies(finding))];
    }
    let Some(found) = scanned(machine.tree, &["libnccl"]) else {
        return unscanned("which libnccl a program loads");
    };
    let mut versions: BTreeMap<[u32; 3], Vec<&Library>> = BTreeMap::new();
    for library in found.iter().filter(|library| !library.is_weft()) {
        versions.entry(library.version.as_deref().map_or([0; 3], numbers)).or_default().push(library);
    }
    let all = versions.values().flatten();
    match versions.len() {
        0 => {
            return vec![Outcome::Fine(
                "no libnccl in the usual folders: programs bring their own, or have none".to_owned(),
            )];
        }
        1 => {
            let only = all.into_iter().next().map_or(String::new(), |library| described(library));
            return vec![Outcome::Fine(format!("one version of libnccl: {only}"))];
        }
        _ => {}
    }
    // LD_LIBRARY_PATH comes before the run path of Python's packages.
    let overrides = found.iter().any(|library| library.found_in == "LD_LIBRARY_PATH")
        && found.iter().any(|library| library.found_in == "python");
    let severity = if overrides { Severity::Warning } else { Severity::Note };
    let what = match overrides {
        true => format!(
            "{} versions of libnccl, and LD_LIBRARY_PATH puts one before that of the Python packages",
            versions.len()
        ),
        false => {
            format!("{} versions of libnccl: ranks that load different ones fail or hang", versions.len())
        }
    };
    let finding = all.take(6).fold(Finding::new("nccl-copies", severity, what), |finding, library| {
        finding.shown_by(library.path.clone(), described(library))
    });
    vec![Outcome::Found(fix_copies(finding))]
}

fn fix_copies(finding: Finding) -> Finding {
    finding
        .fixed_by("see which one a program loads: `NCCL_DEBUG=VERSION python train.py`, or `grep libnccl /proc/PID/maps`")
        .fixed_by("keep one: take folders with another out of LD_LIBRARY_PATH; for PyTorch keep that of its package (`pip show nvidia-nccl-cu12`)")
        .fixed_by("use the same container image on every host")
}

pub(super) fn described(library: &Library) -> String {
    let version = library.version.as_deref().unwrap_or("of unknown version");
    format!("{} {version} ({}, {})", library.name, library.path, library.found_in)
}

/// The newest architecture of the GPUs, of those that a table lists.
fn newest(machine: &Machine<'_>) -> Option<(&'static str, [u32; 3])> {
    let architecture = |id: &weftlink_fabric::DeviceId| match &machine.fabric.device(*id).kind {
        weftlink_fabric::DeviceKind::Gpu(gpu) => {
            let nvidia = gpu.model.filter(|model| model.vendor.pci_id() == 0x10de);
            gpu.sm.or(nvidia.map(|model| model.architecture))
        }
        _ => None,
    };
    let newest = machine.fabric.gpus().iter().filter_map(architecture).max()?;
    FIRST_NCCL.into_iter().find(|(sm, _, _)| newest >= *sm).map(|(_, name, first)| (name, first))
}

fn age(machine: &Machine<'_>) -> Vec<Outcome> {
    let Some((architecture, first)) = newest(machine) else { return Vec::new() };
    let Some(found) = scanned(machine.tree, &["libnccl"]) else {
        return unscanned("the age of libnccl");
    };
    let known: Vec<(&Library, [u32; 3])> = found
        .iter()
        .filter(|library| !library.is_weft())
        .filter_map(|library| {
            Some((library, library.version.as_deref().filter(|version| version.contains('.')).map(numbers)?))
        })
        .collect();
    if known.is_empty() {
        return match found.iter().any(|library| !library.is_weft()) {
            true => vec![Outcome::Unknown {
                what: "the version of libnccl".to_owned(),
                needs: "`NCCL_DEBUG=VERSION` in front of a program".to_owned(),
            }],
            false => Vec::new(),
        };
    }
    let old: Vec<&(&Library, [u32; 3])> =
        known.iter().filter(|(_, version)| version.cmp(&first) == Ordering::Less).collect();
    let Some((library, _)) = old.first() else {
        let oldest = known
            .iter()
            .min_by_key(|(_, version)| *version)
            .map_or(String::new(), |(library, _)| described(library));
        return vec![Outcome::Fine(format!("libnccl is new enough for {architecture}: {oldest}"))];
    };
    let severity = if old.len() == known.len() { Severity::Critical } else { Severity::Warning };
    let [major, minor, patch] = first;
    let what = format!(
        "{} has no machine code for {architecture} GPUs, which NCCL has from {major}.{minor}.{patch}",
        described(library)
    );
    let finding =
        old.iter().take(4).fold(Finding::new("nccl-age", severity, what), |finding, (library, _)| {
            finding.shown_by(library.path.clone(), library.version.clone().unwrap_or_default())
        });
    vec![Outcome::Found(
        finding
            .fixed_by("update PyTorch, which brings its NCCL: `pip install -U torch`")
            .fixed_by("or NCCL alone: `pip install -U nvidia-nccl-cu13` (cu12 for CUDA 12), or the system's package `libnccl2`"),
    )]
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::host_tests::{Recorded, bare, is_fine, is_unknown};
    use super::*;

    /// Libraries as `name version found_in`.
    pub(in super::super) fn with(libraries: &[&str], more: &[&str]) -> Recorded {
        let mut lines: Vec<String> = vec!["software/done = some libraries".to_owned()];
        for (number, library) in libraries.iter().enumerate() {
            let words: Vec<&str> = library.split(' ').collect();
            let folder = format!("software/{number}");
            lines.push(format!("{folder}/name = {}", words[0]));
            lines.push(format!("{folder}/version = {}", words[1]));
            lines.push(format!("{folder}/found_in = {}", words[2]));
            lines.push(format!("{folder}/path = /somewhere/{number}/{}.so", words[0]));
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).chain(more.iter().copied()).collect();
        bare(&lines)
    }

    #[test]
    fn copies_are_found() {
        let two = with(&["libnccl 2.21.5 python", "libnccl 2.28.9 system"], &[]).finding(&CHECKS[0]);
        assert_eq!((two.severity, two.evidence.len()), (Severity::Note, 2));
        let first = with(&["libnccl 2.18.3+cuda12.2 LD_LIBRARY_PATH", "libnccl 2.28.9 python"], &[])
            .finding(&CHECKS[0]);
        assert!(
            first.severity == Severity::Warning && first.what.contains("LD_LIBRARY_PATH puts one before")
        );
        let maps = "proc/self/maps = 7f0-7f1 r-xp 0 08:01 1 /a/libnccl.so.2\\n7f1-7f2 r-xp 0 08:01 2 /b/libnccl.so.2.28.9\\n7f2-7f3 r-xp 0 08:01 2 /b/libnccl-net.so";
        assert_eq!(with(&[], &[maps]).finding(&CHECKS[0]).severity, Severity::Critical);
        assert!(is_fine(&with(&["libnccl 2.28.9 python", "libnccl 2.28.9 system"], &[]).run(&CHECKS[0])));
        assert!(is_fine(&with(&[], &[]).run(&CHECKS[0])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
    }

    #[test]
    fn an_old_nccl_is_found() {
        let old = with(&["libnccl 2.14.3+cuda11.7 python"], &[]).finding(&CHECKS[1]);
        assert_eq!(old.severity, Severity::Critical);
        assert!(old.what.contains("for Hopper GPUs, which NCCL has from 2.15.1"), "{}", old.what);
        assert_eq!(
            with(&["libnccl 2.14.3 system", "libnccl 2.28.9 python"], &[]).finding(&CHECKS[1]).severity,
            Severity::Warning
        );
        assert!(is_fine(&with(&["libnccl 2.28.9 python"], &[]).run(&CHECKS[1])));
        assert!(is_unknown(&with(&["libnccl 2 python"], &[]).run(&CHECKS[1])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[1])));
    }
}
