//! `weft topo --cliff`: the bandwidth cliff, as bars.

use std::io::{self, Write};

use weftlink_fabric::Paths;
use weftlink_fabric::cliff::{cliff, steps};

use crate::table::Table;

/// Characters of the longest bar.
const BAR_WIDTH: f64 = 40.0;

pub(super) fn print(out: &mut impl Write, paths: &Paths<'_>) -> io::Result<()> {
    let levels = cliff(paths);
    let Some(top) = levels.first() else {
        return writeln!(out, "Nothing is known about the GPUs' bandwidths here.");
    };
    let mut table = Table::new(["level", "nominal", "effective", "step", "", "over"]);
    let lowest = levels.iter().map(|level| level.nominal.gb()).fold(f64::INFINITY, f64::min);
    // Bars are logarithmic: each level would vanish beside the one above it otherwise.
    let scale = BAR_WIDTH / (10.0 * top.nominal.gb() / lowest).ln();
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
    writeln!(
        out,
        "Rates are each way per GPU; a step says how many times wider the level above is. Bars are logarithmic."
    )
}
