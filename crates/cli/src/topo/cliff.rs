//! `weft topo --cliff`: the bandwidth cliff, as bars.

use std::io::{self, Write};

use weftlink_fabric::Paths;
use weftlink_fabric::cliff::{cliff, steps};

use crate::screen::{self, say};
use crate::table::Table;

/// Characters of the longest bar where there is room for it.
const BAR_WIDTH: f64 = 40.0;
/// The columns of the other figures, with the gaps between them.
const FIGURES_WIDTH: usize = 46;

/// The longest bar beside details of this length.
fn bar_width(details: usize) -> f64 {
    let rest = screen::columns().saturating_sub(FIGURES_WIDTH + details);
    BAR_WIDTH.min(rest as f64).max(10.0)
}

pub(super) fn print(out: &mut impl Write, paths: &Paths<'_>) -> io::Result<()> {
    let levels = cliff(paths);
    let Some(top) = levels.first() else {
        return writeln!(out, "The bandwidths of these GPUs are unknown.");
    };
    let mut table = Table::new(["level", "nominal", "effective", "step", "", "over"]);
    let lowest = levels.iter().map(|level| level.nominal.gb()).fold(f64::INFINITY, f64::min);
    // Bars are logarithmic: each level would vanish beside the one above it otherwise.
    let details = levels.iter().map(|level| level.detail.len()).max().unwrap_or(0);
    let scale = bar_width(details) / (10.0 * top.nominal.gb() / lowest).ln();
    let steps = steps(&levels);
    for (index, level) in levels.iter().enumerate() {
        let bar = (scale * (10.0 * level.nominal.gb() / lowest).ln()).round().max(1.0) as usize;
        let step = index.checked_sub(1).and_then(|above| steps[above]);
        table.row([
            level.name.clone(),
            level.nominal.amount().to_string(),
            level.effective.map_or_else(|| "-".to_owned(), |rate| rate.amount().to_string()),
            step.map_or_else(String::new, |step| format!("{step:.1}x")),
            "█".repeat(bar),
            level.detail.clone(),
        ]);
    }
    writeln!(out, "{table}")?;
    say!(
        out,
        "Rates are each way per GPU; step: how many times faster the level above is. Bars are logarithmic."
    )
}
