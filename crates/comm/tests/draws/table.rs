//! The results of all draws, as a table.

use std::fmt::Write;

use crate::draw::{Kind, Transport};
use crate::scenario::Report;

/// Draws by kind and transport: their number, the time to the error of each rank, and the seeds that failed.
pub(crate) fn table(reports: &[Report]) -> String {
    let mut text = format!(
        "{:<11} {:<9} {:>6} {:>7} {:>8} {:>8}  {}\n",
        "kind", "transport", "draws", "skipped", "median s", "worst s", "failed seeds"
    );
    for kind in Kind::all() {
        for transport in Transport::ALL {
            let is_it = |report: &&Report| (report.draw.kind, report.draw.transport) == (kind, transport);
            let of: Vec<&Report> = reports.iter().filter(is_it).collect();
            if of.is_empty() {
                continue;
            }
            let mut seconds: Vec<f64> = of.iter().flat_map(|report| report.seconds.iter().copied()).collect();
            seconds.sort_by(f64::total_cmp);
            let shown = |value: Option<&f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
            let failed = of.iter().filter(|report| report.failure.is_some());
            let failed: Vec<String> = failed.map(|report| report.draw.seed.to_string()).collect();
            let (median, worst) = (shown(seconds.get(seconds.len() / 2)), shown(seconds.last()));
            let (kind, transport) = (format!("{kind:?}"), format!("{transport:?}"));
            let skipped = of.iter().filter(|report| report.skipped.is_some()).count();
            let (draws, failed) = (of.len() - skipped, failed.join(" "));
            let _ = writeln!(
                text,
                "{kind:<11} {transport:<9} {draws:>6} {skipped:>7} {median:>8} {worst:>8}  {failed}"
            );
        }
    }
    text
}
