//! Predictions as people read them.

use std::io::{self, Write};

use weftlink_fabric::Fabric;
use weftlink_fabric::bytes::Bytes;
use weftlink_sim::Setup;
use weftlink_sim::setup::Launch;

use super::collective::Row;
use crate::counted;

/// A link that is used so much of the time is what limits a call; below that, latency does.
const LIMITS: f64 = 0.5;
/// The same where most of the time goes into moving data, while pipelines fill and run empty.
const LIMITS_MOVING: f64 = 0.35;

/// Library and version.
pub(super) fn library(setup: &Setup) -> String {
    match setup.version {
        Some(version) => format!("{} {version}", setup.library.name()),
        None => format!("{}, newest known", setup.library.name()),
    }
}

/// What is assumed where nobody said otherwise.
pub(super) fn assumed(setup: &Setup) -> Vec<&'static str> {
    let launch = match (setup.launch, setup.launch()) {
        (Some(_), _) => None,
        (None, Launch::ProcessPerGpu) => Some("a process for each GPU"),
        (None, Launch::OneThread) => Some("one thread starts the kernels of all GPUs (--launch process)"),
    };
    launch.into_iter().collect()
}

pub(super) fn head(out: &mut impl Write, what: &str, name: &str, setup: &Setup) -> io::Result<()> {
    writeln!(out, "{what} on {name}: {}", counted(setup.ranks(), "GPU"))?;
    writeln!(out, "seen as {}", setup.name())?;
    writeln!(out, "library {}: {}", library(setup), setup.library.evidence())?;
    for text in assumed(setup) {
        writeln!(out, "assumed {text}")?;
    }
    writeln!(out)
}

pub(super) fn columns(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:>10} {:>12} {:>9} {:>9}  {:<13} {:<8} {:>6}  limited by",
        "size", "time us", "algbw", "busbw", "algorithm", "protocol", "error"
    )
}

pub(super) fn row(out: &mut impl Write, fabric: &Fabric, row: &Row) -> io::Result<()> {
    let chosen = &row.execution.chosen;
    writeln!(
        out,
        "{:>10} {:>12} {:>9.2} {:>9.2}  {:<13} {:<8} {:>6}  {}",
        size(row.bytes),
        time(row.time_us()),
        row.algbw_gb_per_s,
        row.busbw_gb_per_s,
        row.execution.algorithm,
        chosen.protocol.to_string(),
        error(row),
        limit(fabric, row)
    )?;
    let Some((alone_us, beside)) = &row.undisturbed else { return Ok(()) };
    let slower =
        |time_us: f64, alone_us: f64| format!("{:.2}x of {} undisturbed", time_us / alone_us, time(alone_us));
    writeln!(out, "{:>10} {}", "", slower(row.time_us(), *alone_us))?;
    for other in beside {
        let (gpus, size) = (counted(other.gpus, "GPU"), size(other.bytes));
        let slower = slower(other.time_us, other.alone_us);
        writeln!(
            out,
            "{:>10} beside {} of {size} on {gpus}: {}, {slower}",
            "",
            other.what,
            time(other.time_us)
        )?;
    }
    Ok(())
}

/// What a call spends most of its time on.
pub(super) fn limit(fabric: &Fabric, row: &Row) -> String {
    let estimate = &row.execution.chosen.estimate;
    let busiest = row.execution.outcome.as_ref().and_then(|outcome| outcome.busiest());
    let latency = [
        (estimate.launch_us, "starting the kernels"),
        (estimate.hops_us, "latency of its steps"),
        (estimate.host_us, "the host that starts the kernels"),
    ];
    let waits_us: f64 = latency.iter().map(|(us, _)| us).sum();
    let is_moving = estimate.wire_us > waits_us;
    let limits = if is_moving { LIMITS_MOVING } else { LIMITS };
    match busiest {
        Some((resource, part)) if part >= limits => {
            let (from, to) = resource.link;
            format!(
                "{} {} to {}, {:.0}% busy",
                resource.kind,
                fabric.device_name(from),
                fabric.device_name(to),
                part * 1e2
            )
        }
        busiest => {
            let most = match is_moving {
                true => "what its lanes carry",
                false => latency.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or("", |(_, what)| what),
            };
            let used = busiest.map_or_else(String::new, |(resource, part)| {
                format!("; {} {:.0}% busy", resource.kind, part * 1e2)
            });
            format!("{most}{used}")
        }
    }
}

pub(super) fn foot(out: &mut impl Write, setup: &Setup, rows: &[Row]) -> io::Result<()> {
    let Some(last) = rows.last() else { return Ok(()) };
    let used = last.execution.outcome.as_ref().map(|outcome| outcome.utilisation()).unwrap_or_default();
    if !used.is_empty() {
        let each = used.iter().map(|(kind, part)| format!("{kind} {:.0}%", part * 1e2));
        writeln!(out, "\nused at {}: {}", size(last.bytes), each.collect::<Vec<_>>().join(", "))?;
    }
    let Some((_, ninetieth)) = last.expected_error else { return Ok(()) };
    writeln!(
        out,
        "error is what half of such predictions stayed below on machines that were not fitted to ({}); nine in ten of the last row's stayed below {:.0}%",
        weftlink_sim::accuracy::Class::of(setup).name(),
        ninetieth * 1e2
    )
}

/// What half of such predictions stay below.
pub(super) fn error(row: &Row) -> String {
    row.expected_error.map_or_else(|| "-".to_owned(), |(median, _)| format!("{:.0}%", median * 1e2))
}

/// Bytes as whoever doubles them counts, where they are so many.
pub(super) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(power, _)| bytes >> power > 0 && bytes.is_multiple_of(1 << power)) {
        Some((power, unit)) => format!("{} {unit}", bytes >> power),
        None => Bytes(bytes).to_string(),
    }
}

/// Microseconds with as many digits as mean something.
pub(super) fn time(us: f64) -> String {
    match us {
        ..100.0 => format!("{us:.2}"),
        ..10_000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}
