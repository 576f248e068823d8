//! Predictions as people read them.

use std::io::{self, Write};

use weftlink_fabric::Fabric;
use weftlink_fabric::bytes::Bytes;
use weftlink_sim::Setup;
use weftlink_sim::predict::{Case, Row};

use crate::counted;

/// Library and version.
pub(super) fn library(setup: &Setup) -> String {
    match setup.version {
        Some(version) => format!("{} {version}", setup.library.name()),
        None => format!("{}, newest known", setup.library.name()),
    }
}

pub(super) fn head(out: &mut impl Write, case: &Case) -> io::Result<()> {
    let setup = &case.setup;
    writeln!(out, "{} on {}: {}", case.collective(), case.name, counted(setup.ranks(), "GPU"))?;
    writeln!(out, "seen as {}", setup.name())?;
    writeln!(out, "library {}: {}", library(setup), setup.library.evidence())?;
    for text in case.assumptions() {
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
        row.limited_by(fabric)
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

pub(super) fn foot(out: &mut impl Write, setup: &Setup, rows: &[Row]) -> io::Result<()> {
    let Some(last) = rows.last() else { return Ok(()) };
    let used = last.execution.outcome.as_ref().map(|outcome| outcome.utilisation()).unwrap_or_default();
    if !used.is_empty() {
        let each = used.iter().map(|(kind, part)| format!("{kind} {:.0}%", part * 1e2));
        writeln!(out, "\nused at {}: {}", size(last.bytes), each.collect::<Vec<_>>().join(", "))?;
    }
    let Some((median, ninetieth)) = last.expected_error else { return Ok(()) };
    writeln!(
        out,
        "Expected error at {}: median {:.0}%, 90th percentile {:.0}% ({}, machines outside the fit)",
        size(last.bytes),
        median * 1e2,
        ninetieth * 1e2,
        weftlink_sim::accuracy::Class::of(setup).name(),
    )
}

/// The median of the expected error.
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
