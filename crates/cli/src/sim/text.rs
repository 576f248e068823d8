//! Predictions as a table.

use std::io::{self, Write};

use weftlink_fabric::link::Network;
use weftlink_fabric::{Fabric, LinkKind};
use weftlink_sim::Setup;
use weftlink_sim::accuracy::Class;
use weftlink_sim::accuracy::evidence::sites_of;
use weftlink_sim::library::version_of;
use weftlink_sim::predict::{Case, Explanation, Row};
use weftlink_sim::setup::Launch;

use super::asked::LibraryArgs;
use crate::counted;
use crate::screen::say;
use crate::table::Table;
use crate::units::size;

/// Library and version.
pub(super) fn library(setup: &Setup) -> String {
    match version_of(setup) {
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
    let newest = if setup.version.is_none() && version_of(setup).is_some() { " (newest known)" } else { "" };
    say!(out, "library {}{newest}: {}", library(setup), setup.library.evidence())?;
    if let Some(plan) = case.plan() {
        say!(
            out,
            "plan {:?} for {}, proved (hash {:016x})",
            plan.name,
            counted(plan.ranks, "rank"),
            plan.hash()
        )?;
    }
    for text in case.assumptions() {
        let otherwise =
            if setup.launch() == Launch::OneThread { " (otherwise --launch process)" } else { "" };
        say!(out, "assumed {text}{otherwise}")?;
    }
    options.calibration.print(out)?;
    for option in options.without_effect(setup) {
        say!(out, "{option} has no effect: calls inside one host use no NIC")?;
    }
    writeln!(out)
}

/// A row for each call.
pub(super) fn table(fabric: &Fabric, rows: &[Row]) -> Table {
    let headings =
        ["size", "time us", "algbw GB/s", "busbw GB/s", "algorithm", "protocol", "90% us", "limited by"];
    let mut table = Table::new(headings).numbers(&["size", "90% us"]).optional(&["algbw GB/s"]);
    for row in rows {
        table.row([
            size(row.bytes),
            time(row.time_us()),
            format!("{:.2}", row.algbw_gb_per_s),
            format!("{:.2}", row.busbw_gb_per_s),
            row.execution.algorithm.to_string(),
            row.execution.chosen.protocol.to_string(),
            interval(row),
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
    let Some(intervals) = last.intervals else {
        let library = case.setup.library.name();
        return say!(out, "No interval: there are no published measurements of {library}.");
    };
    let class = Class::of(&case.setup);
    say!(
        out,
        "At {}, half of all machines like this take {} us and nine of ten {} us ({}; from {} left out of the fit).",
        size(last.bytes),
        range(intervals.half_us),
        range(intervals.most_us),
        class.name(),
        counted(sites_of(class), "site"),
    )?;
    for why in &last.outside {
        say!(out, "Outside the evidence: {why}.")?;
    }
    Ok(())
}

/// The terms of a prediction, each with the numbers behind it.
pub(super) fn explanation(out: &mut impl Write, row: &Row, explanation: &Explanation) -> io::Result<()> {
    let (algorithm, protocol) = (row.execution.algorithm, row.execution.chosen.protocol);
    say!(out, "\n{} with {algorithm}, {protocol}:\n", size(row.bytes))?;
    let mut table = Table::new(["term", "time us", "from"]).numbers(&["time us"]);
    for term in &explanation.terms {
        table.row([term.name.to_owned(), format!("{:.2}", term.us), term.how.clone()]);
    }
    let closed = explanation.closed_form_us;
    table.row(["sum".to_owned(), format!("{closed:.2}"), "the closed form".to_owned()]);
    write!(out, "{table}")?;
    if explanation.is_simulated {
        // Without a minus before zero.
        let percent = (explanation.change() * 1e3).round() / 10.0 + 0.0;
        say!(out, "the run: {:.2} us ({percent:+.1} %)", explanation.time_us)?;
    } else {
        say!(out, "The call was not simulated: the closed form is the prediction.")?;
    }
    if explanation.correction != 1.0 {
        let (by, corrected) = (explanation.correction, row.time_us());
        say!(out, "corrected by the calibration: x {by:.3} = {corrected:.2} us")?;
    }
    Ok(())
}

/// Why an Ethernet port is busy far below its rate.
pub(super) const TCP_NOTE: &str = "Ethernet means plain TCP, which passes about 3.3 GB/s per NIC whatever its rate; for RDMA write roce100.";

pub(super) fn is_limited_by_tcp(row: &Row) -> bool {
    let busiest = row.execution.outcome.as_ref().and_then(|outcome| outcome.busiest());
    busiest.is_some_and(|(resource, _)| {
        matches!(resource.kind, LinkKind::Network { network: Network::Ethernet, .. })
    })
}

/// The times that nine of ten machines take.
pub(super) fn interval(row: &Row) -> String {
    row.intervals.map_or_else(|| "-".to_owned(), |of| range(of.most_us))
}

/// Lower and upper bound: `95.1..120`.
fn range((low, high): (f64, f64)) -> String {
    let digits = |us: f64| match us {
        ..10.0 => format!("{us:.2}"),
        ..100.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    };
    format!("{}..{}", digits(low), digits(high))
}

/// Microseconds with the significant digits.
pub(super) fn time(us: f64) -> String {
    match us {
        ..100.0 => format!("{us:.2}"),
        ..10_000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}
