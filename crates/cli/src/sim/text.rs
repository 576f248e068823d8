//! Predictions as a table.

use std::io::{self, Write};

use weftlink_fabric::link::Network;
use weftlink_fabric::{Fabric, LinkKind};
use weftlink_sim::Setup;
use weftlink_sim::predict::{Case, Row};
use weftlink_sim::setup::Launch;

use super::asked::LibraryArgs;
use crate::counted;
use crate::screen::say;
use crate::table::Table;
use crate::units::size;

/// Library and version.
pub(super) fn library(setup: &Setup) -> String {
    match setup.newest_version() {
        Some(version) => format!("{} {version}", setup.library.name()),
        None => setup.library.name().to_owned(),
    }
}

/// `used` is the setup of the GPUs that the call uses.
pub(super) fn head(out: &mut impl Write, case: &Case, used: &Setup, options: &LibraryArgs) -> io::Result<()> {
    let setup = &case.setup;
    let gpus = match setup.ranks() {
        all if all == used.ranks() => counted(all, "GPU"),
        all => format!("{} of {}", used.ranks(), counted(all, "GPU")),
    };
    say!(out, "{} on {}: {gpus}", case.collective(), case.name)?;
    say!(out, "seen as {}", used.name())?;
    let newest =
        if setup.version.is_none() && setup.newest_version().is_some() { " (newest known)" } else { "" };
    say!(out, "library {}{newest}: {}", library(setup), setup.library.evidence())?;
    for text in case.assumptions() {
        let otherwise =
            if setup.launch() == Launch::OneThread { " (otherwise --launch process)" } else { "" };
        say!(out, "assumed {text}{otherwise}")?;
    }
    for option in options.without_effect(setup) {
        say!(out, "{option} has no effect: calls inside one host use no NIC")?;
    }
    writeln!(out)
}

/// A row for each call.
pub(super) fn table(fabric: &Fabric, rows: &[Row]) -> Table {
    let headings =
        ["size", "time us", "algbw GB/s", "busbw GB/s", "algorithm", "protocol", "error", "limited by"];
    let mut table = Table::new(headings).numbers(&["size", "error"]).optional(&["algbw GB/s"]);
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
            format!("{:.2} times the {} us of the undisturbed call", time_us / alone_us, time(alone_us))
        };
        table.below(slower(row.time_us(), *alone_us));
        for other in beside {
            let (gpus, size) = (counted(other.gpus, "GPU"), size(other.bytes));
            let slower = slower(other.time_us, other.alone_us);
            table.below(format!(
                "beside {} of {size} on {gpus}: {} us, {slower}",
                other.what,
                time(other.time_us)
            ));
        }
    }
    table
}

pub(super) fn foot(out: &mut impl Write, case: &Case, rows: &[Row]) -> io::Result<()> {
    let Some(last) = rows.last() else { return Ok(()) };
    let used = last.execution.outcome.as_ref().map(|outcome| outcome.utilisation()).unwrap_or_default();
    if !used.is_empty() {
        let each = used.iter().map(|(kind, part)| format!("{kind} {:.0}%", part * 1e2));
        writeln!(out)?;
        say!(out, "used at {}: {}", size(last.bytes), each.collect::<Vec<_>>().join(", "))?;
    }
    if rows.iter().any(is_limited_by_tcp) {
        say!(out, "{TCP_NOTE}")?;
    }
    let Some((median, ninetieth)) = last.expected_error else {
        let (library, collective) = (case.setup.library.name(), case.collective());
        return say!(
            out,
            "No expected error: no published measurements of {collective} with {library} exist."
        );
    };
    say!(
        out,
        "Expected error at {}: median {:.0}%, 90th percentile {:.0}% ({}, machines the model was not fitted to)",
        size(last.bytes),
        median * 1e2,
        ninetieth * 1e2,
        weftlink_sim::accuracy::Class::of(&case.setup).name(),
    )
}

/// Why an Ethernet port is busy far below its rate.
pub(super) const TCP_NOTE: &str = "Ethernet means plain TCP, which passes about 3.3 GB/s per NIC whatever its rate; for RDMA write roce100.";

pub(super) fn is_limited_by_tcp(row: &Row) -> bool {
    let busiest = row.execution.outcome.as_ref().and_then(|outcome| outcome.busiest());
    busiest.is_some_and(|(resource, _)| {
        matches!(resource.kind, LinkKind::Network { network: Network::Ethernet, .. })
    })
}

/// The median of the expected error.
pub(super) fn error(row: &Row) -> String {
    row.expected_error.map_or_else(|| "-".to_owned(), |(median, _)| format!("{:.0}%", median * 1e2))
}

/// Microseconds with the significant digits.
pub(super) fn time(us: f64) -> String {
    match us {
        ..100.0 => format!("{us:.2}"),
        ..10_000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}
