//! Versions of the library and of the driver.

use std::collections::{BTreeMap, BTreeSet};

use super::{Context, LogCheck, listed, shown_by, unknown};
use crate::finding::{Finding, Outcome, Severity};
use crate::log::model::Seen;

pub(super) const CHECKS: &[LogCheck] = &[
    LogCheck {
        id: "log-versions",
        finds: "ranks with different versions of NCCL or of the driver",
        run: versions,
    },
    LogCheck {
        id: "log-driver",
        finds: "a driver that is older than the CUDA version NCCL was built with",
        run: driver,
    },
];

/// The number in a version: `2.21.5` of `2.21.5+cuda12.4`.
pub(super) fn number(text: &str) -> &str {
    let end = text.find(|letter: char| letter != '.' && !letter.is_ascii_digit()).unwrap_or(text.len());
    text[..end].trim_end_matches('.')
}

fn versions(context: &Context<'_>) -> Vec<Outcome> {
    let log = context.log;
    let mut known: BTreeMap<(&str, &str), &Seen> = BTreeMap::new();
    for version in &log.versions {
        known.entry((version.library, number(&version.text))).or_insert(&version.seen);
    }
    let is_mismatch =
        |text: &str| text.contains("Mismatched NCCL version") || text.contains("NCCL version mismatch");
    let warned: Vec<&Seen> = log
        .warnings
        .iter()
        .filter(|warning| is_mismatch(&warning.text))
        .map(|warning| &warning.seen)
        .collect();
    let mut found = Vec::new();
    if known.len() > 1 || !warned.is_empty() {
        let names = listed(known.keys().map(|(library, number)| format!("{library} {number}")));
        let what = match known.len() {
            0 | 1 => "ranks have different versions of NCCL".to_owned(),
            _ => format!("ranks have different versions: {names}"),
        };
        // The library refuses to go on; otherwise the ranks may belong to different jobs.
        let severity = if warned.is_empty() { Severity::Warning } else { Severity::Critical };
        let finding = shown_by(Finding::new("log-versions", severity, what), warned.into_iter().chain(known.values().copied()))
            .fixed_by("run `python -c 'import torch; print(torch.cuda.nccl.version())'` on every host, and install the same build everywhere")
            .fixed_by("run `LD_DEBUG=libs COMMAND 2>&1 | grep libnccl` to see which copy a process loads; remove LD_LIBRARY_PATH and LD_PRELOAD entries that lead to another one");
        found.push(Outcome::Found(finding));
    }
    let drivers: BTreeMap<u32, BTreeSet<&str>> =
        log.processes.iter().fold(BTreeMap::new(), |mut drivers: BTreeMap<u32, BTreeSet<&str>>, process| {
            if let Some(version) = process.cuda_driver {
                drivers.entry(version).or_default().insert(process.host.as_str());
            }
            drivers
        });
    if drivers.len() > 1 {
        let each = drivers.iter().map(|(version, hosts)| {
            format!("CUDA {}.{} on {}", version / 1000, version % 1000 / 10, listed(hosts))
        });
        let what = format!("hosts have different drivers: {}", listed(each));
        let finding = Finding::new("log-versions", Severity::Warning, what).fixed_by(
            "install one driver version on all hosts (`nvidia-smi --query-gpu=driver_version --format=csv`)",
        );
        found.push(Outcome::Found(finding));
    }
    if !found.is_empty() {
        return found;
    }
    match known.first_key_value() {
        Some(((library, number), _)) => vec![Outcome::Fine(format!("{library} {number}"))],
        None => unknown("which version of NCCL ran", "a log of a run with NCCL_DEBUG=VERSION or more"),
    }
}

fn driver(context: &Context<'_>) -> Vec<Outcome> {
    let log = context.log;
    let too_old = log.warnings.iter().find(|warning| warning.text.contains("CUDA Driver version found is"));
    let built = log.versions.iter().find_map(|version| {
        let (_, cuda) = version.text.split_once("+cuda")?;
        Some((cuda.split('.').next()?.parse::<u32>().ok()?, cuda, &version.seen))
    });
    let driver = log.processes.iter().filter_map(|process| process.cuda_driver).min();
    let is_older = built.zip(driver).is_some_and(|((major, ..), driver)| driver / 1000 < major);
    if too_old.is_none() && !is_older {
        return match (built, driver) {
            (Some((_, cuda, _)), Some(driver)) => {
                vec![Outcome::Fine(format!(
                    "NCCL was built with CUDA {cuda}; the driver supports {}.{}",
                    driver / 1000,
                    driver % 1000 / 10
                ))]
            }
            // AMD has no such line, and versions before 2.14 do not print it.
            _ => Vec::new(),
        };
    }
    let what = match (built, driver) {
        (Some((_, cuda, _)), Some(driver)) => {
            format!(
                "the driver supports CUDA {}.{}, and NCCL was built with CUDA {cuda}",
                driver / 1000,
                driver % 1000 / 10
            )
        }
        _ => "the driver is older than NCCL needs".to_owned(),
    };
    let lines = too_old.map(|warning| &warning.seen).into_iter().chain(built.map(|(.., seen)| seen));
    let finding = shown_by(Finding::new("log-driver", Severity::Critical, what), lines)
        .fixed_by("install a newer driver, or a build of the framework for the driver's CUDA version (`nvidia-smi` prints it)")
        .fixed_by("on data-centre GPUs the package cuda-compat adds newer CUDA versions to an older driver");
    vec![Outcome::Found(finding)]
}
