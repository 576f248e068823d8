//! A driver that is older than the CUDA libraries need.
//!
//! Minimum drivers are those of NVIDIA's table of CUDA's minor version compatibility.

use weftlink_fabric::DeviceKind;
use weftlink_probe::Tree;

use super::libraries::{Library, described, numbers, scanned, unscanned};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[Check {
    id: "driver-age",
    finds: "A driver that is older than the CUDA libraries need",
    reads: "/proc/driver/nvidia/version, files named `libcudart.so*` and `libnvrtc.so*`",
    run: driver,
}];

/// A major version of CUDA, and the driver that it needs at least on Linux.
const FIRST_DRIVER: [(u32, [u32; 3]); 3] = [(13, [580, 65, 6]), (12, [525, 60, 13]), (11, [450, 80, 2])];

/// As in the version of a driver: `525.60.13`.
fn written(version: [u32; 3]) -> String {
    format!("{}.{:02}.{:02}", version[0], version[1], version[2])
}

/// The version of the driver, and where it was read.
fn driver_version(tree: &dyn Tree) -> Option<(String, &'static str)> {
    if let Some(text) = tree.read("proc/driver/nvidia/version") {
        let is_version = |word: &&str| {
            word.split('.').count() >= 2 && word.chars().all(|c| c.is_ascii_digit() || c == '.')
        };
        let line = text.lines().find(|line| line.contains("NVRM version"))?;
        return Some((line.split_whitespace().find(is_version)?.to_owned(), "proc/driver/nvidia/version"));
    }
    let files = ["sys/module/nvidia/version", "nvml/driver_version"];
    files.into_iter().find_map(|file| Some((tree.read(file)?, file)))
}

fn driver(machine: &Machine<'_>) -> Vec<Outcome> {
    let is_nvidia = |kind: &DeviceKind| kind.gpu_model().is_some_and(|model| model.vendor.pci_id() == 0x10de);
    if !machine.fabric.devices().iter().any(|device| is_nvidia(&device.kind)) {
        return Vec::new();
    }
    let Some((version, source)) = driver_version(machine.tree) else {
        return vec![Outcome::Unknown {
            what: "the version of the driver".to_owned(),
            needs: "a loaded NVIDIA driver: `sudo modprobe nvidia`, `nvidia-smi`".to_owned(),
        }];
    };
    let Some(found) = scanned(machine.tree, &["libcudart", "libnvrtc", "libcuda"]) else {
        return unscanned("the version of CUDA");
    };
    let (compat, toolkits): (Vec<Library>, Vec<Library>) =
        found.into_iter().partition(|library| library.name == "libcuda");
    let needed = |library: &Library| {
        let [major, ..] = numbers(library.version.as_deref()?);
        FIRST_DRIVER.into_iter().find(|(cuda, _)| *cuda == major).map(|(_, first)| first)
    };
    let known: Vec<(&Library, [u32; 3])> =
        toolkits.iter().filter_map(|library| Some((library, needed(library)?))).collect();
    let have = numbers(&version);
    let old: Vec<&(&Library, [u32; 3])> = known.iter().filter(|(_, first)| have < *first).collect();
    let Some((library, first)) = old.iter().max_by_key(|(_, first)| *first).copied() else {
        let newest = known.iter().max_by_key(|(library, _)| library.version.as_deref().map(numbers));
        return vec![Outcome::Fine(match newest {
            Some((library, _)) => format!("driver {version} is new enough for {}", described(library)),
            None => format!("driver {version}; no CUDA library in the usual folders"),
        })];
    };
    let severity = match (compat.is_empty(), old.len() == known.len()) {
        (false, _) => Severity::Note,
        (true, true) => Severity::Critical,
        (true, false) => Severity::Warning,
    };
    let what = format!("driver {version} is older than {} needs ({})", described(library), written(*first));
    let mut finding = Finding::new("driver-age", severity, what)
        .shown_by(format!("/{source}"), version.clone())
        .shown_by(library.path.clone(), library.version.clone().unwrap_or_default());
    if let Some(compat) = compat.first() {
        finding = finding
            .shown_by(compat.path.clone(), "a newer libcuda for data centre GPUs (forward compatibility)");
    }
    vec![Outcome::Found(
        finding
            .fixed_by(format!("update the driver to {} or later, and reboot: `sudo apt install nvidia-open`, or the package of the distribution", written(*first)))
            .fixed_by("or use software for an older CUDA, such as PyTorch's packages for `cu126`")
            .fixed_by("on data centre GPUs: install `cuda-compat` and put its folder first in LD_LIBRARY_PATH"),
    )]
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, is_fine, is_unknown};
    use super::super::libraries::tests::with;
    use super::*;

    #[test]
    fn an_old_driver_is_found() {
        let driver = |version: &str| {
            format!(
                "proc/driver/nvidia/version = NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Oct 19 12:42:37 UTC 2023"
            )
        };
        let cuda = ["libcudart 13.0.88 python", "libnvrtc 12.4.127 system"];
        let found = with(&cuda, &[&driver("535.129.03")]).finding(&CHECKS[0]);
        assert_eq!(found.severity, Severity::Warning);
        assert!(
            found.what.starts_with("driver 535.129.03 is older than libcudart 13.0.88")
                && found.what.ends_with("needs (580.65.06)"),
            "{}",
            found.what
        );
        assert_eq!(
            with(&cuda[..1], &[&driver("535.129.03")]).finding(&CHECKS[0]).severity,
            Severity::Critical
        );
        let compat =
            with(&[cuda[0], "libcuda 580.65.06 system"], &[&driver("550.54.14")]).finding(&CHECKS[0]);
        assert_eq!((compat.severity, compat.evidence.len()), (Severity::Note, 3));
        assert!(is_fine(&with(&cuda, &[&driver("580.65.06")]).run(&CHECKS[0])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
        assert!(is_unknown(&with(&cuda, &[]).run(&CHECKS[0])));
    }
}
