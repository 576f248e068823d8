//! Predictions as a table.

use std::io::{self, Write};

use weftlink_fabric::Fabric;
use weftlink_fabric::bytes::Bytes;
use weftlink_sim::Setup;
use weftlink_sim::predict::{Case, Row};

use crate::counted;
use crate::screen::say;
use crate::table::Table;

/// Library and version.
pub(super) fn library(setup: &Setup) -> String {
    match setup.version {
        Some(version) => format!("{} {version}", setup.library.name()),
        None => format!("{}, newest known", setup.library.name()),
    }
}

pub(super) fn head(out: &mut impl Write, case: &Case) -> io::Result<()> {
    let setup = &case.setup;
    say!(out, "{} on {}: {}", case.collective(), case.name, counted(setup.ranks(), "GPU"))?;
    say!(out, "seen as {}", setup.name())?;
    say!(out, "library {}: {}", library(setup), setup.library.evidence())?;
    for text in case.assumptions() {
        say!(out, "assumed {text}")?;
    }
    writeln!(out)
}

/// A row for each call.
pub(super) fn table(fabric: &Fabric, rows: &[Row]) -> Table {
    let headings = ["size", "time us", "algbw", "busbw", "algorithm", "protocol", "error", "limited by"];
    let mut table = Table::new(headings).numbers(&["size", "error"]).optional(&["algbw"]);
    for row in rows {
        table.row([
            size(row.bytes),
            time(row.time_us()),
            format!("{:.2}", row.algbw_gb_per_s),
            format!("{:.2}", row.busbw_gb_per_s),
            row.execution.algorithm.to_string(),
            row.execution.chosen.protocol.to_string(),
            error(row),
            row.limited_by(fabric),
        ]);
        let Some((alone_us, beside)) = &row.undisturbed else { continue };
        let slower = |time_us: f64, alone_us: f64| {
            format!("{:.2}x of {} undisturbed", time_us / alone_us, time(alone_us))
        };
        table.below(slower(row.time_us(), *alone_us));
        for other in beside {
            let (gpus, size) = (counted(other.gpus, "GPU"), size(other.bytes));
            let slower = slower(other.time_us, other.alone_us);
            table.below(format!(
                "beside {} of {size} on {gpus}: {}, {slower}",
                other.what,
                time(other.time_us)
            ));
        }
    }
    table
}

pub(super) fn foot(out: &mut impl Write, setup: &Setup, rows: &[Row]) -> io::Result<()> {
    let Some(last) = rows.last() else { return Ok(()) };
    let used = last.execution.outcome.as_ref().map(|outcome| outcome.utilisation()).unwrap_or_default();
    if !used.is_empty() {
        let each = used.iter().map(|(kind, part)| format!("{kind} {:.0}%", part * 1e2));
        writeln!(out)?;
        say!(out, "used at {}: {}", size(last.bytes), each.collect::<Vec<_>>().join(", "))?;
    }
    let Some((median, ninetieth)) = last.expected_error else { return Ok(()) };
    say!(
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

/// Bytes in binary units if that is a whole number.
pub(super) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(power, _)| bytes >> power > 0 && bytes.is_multiple_of(1 << power)) {
        Some((power, unit)) => format!("{} {unit}", bytes >> power),
        None => Bytes(bytes).to_string(),
    }
}

/// Microseconds with the significant digits.
pub(super) fn time(us: f64) -> String {
    match us {
        ..100.0 => format!("{us:.2}"),
        ..10_000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}
