//! `weft sim accuracy --calibrate-on`: what calibration on some tables of a system does to its others.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use weftlink_sim::Constants;
use weftlink_sim::accuracy::{BANDS, Class, TableError, summary};
use weftlink_sim::calibrate::{Trust, calibrate, of_rows};
use weftlink_sim::parallel::in_parallel;
use weftlink_sim::published::Row;
use weftlink_sim::setup::Operation;

use crate::table::Table;

/// The tables of a system that it is calibrated on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CalibrateOn {
    Collective(Operation),
    FewestNodes,
}

impl CalibrateOn {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text == "fewest-nodes" {
            return Ok(Self::FewestNodes);
        }
        Ok(Self::Collective(
            weftlink_sim::predict::operation(super::kind(text)?).map_err(|error| error.to_string())?,
        ))
    }

    /// Whether a row is calibrated on, in a system with at least so many nodes.
    fn takes(self, row: &Row, fewest: u32) -> bool {
        match self {
            Self::Collective(operation) => row.operation == operation,
            Self::FewestNodes => row.setup.nodes == fewest,
        }
    }
}

/// For each row, the constants of its system; and whether it was left out of the calibration that made them.
pub(super) fn calibrated(
    rows: &[Row],
    on: CalibrateOn,
    shipped: &Constants,
) -> (Vec<Arc<Constants>>, Vec<bool>) {
    let mut systems: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        let system = if row.system.is_empty() { &row.id } else { &row.system };
        systems.entry(system).or_default().push(index);
    }
    let systems: Vec<Vec<usize>> = systems.into_values().collect();
    let each = in_parallel(&systems, |indices| {
        let fewest = indices.iter().map(|index| rows[*index].setup.nodes).min().unwrap_or(0);
        let (on, others): (Vec<usize>, Vec<usize>) = indices
            .iter()
            .partition(|index| !rows[**index].operation.is_copy() && on.takes(&rows[**index], fewest));
        if on.is_empty() || others.is_empty() {
            return (Vec::new(), Arc::new(shipped.clone()));
        }
        let (places, calls) = of_rows(on.iter().map(|index| &rows[*index]));
        let (fit, _) = calibrate(shipped, &places, &calls, &Trust::BEST);
        (others, Arc::new(fit.constants))
    });
    let shared = Arc::new(shipped.clone());
    let mut constants = vec![shared; rows.len()];
    let mut is_left_out = vec![false; rows.len()];
    for (indices, (others, of_system)) in systems.iter().zip(each) {
        indices.iter().for_each(|index| constants[*index] = Arc::clone(&of_system));
        others.iter().for_each(|index| is_left_out[*index] = true);
    }
    (constants, is_left_out)
}

/// The median errors of the tables that were left out, without and with calibration.
pub(super) fn print(out: &mut impl Write, before: &[TableError], after: &[TableError]) -> io::Result<()> {
    writeln!(
        out,
        "tables that were not calibrated on: median error in percent, without -> with calibration"
    )?;
    let [first, second, third, fourth] = BANDS.map(|(name, _)| name);
    let mut table = Table::new(["class", first, second, third, fourth]);
    for class in std::iter::once(None).chain(Class::ALL.map(Some)) {
        let cell = |band| {
            let (before, after) = (summary(before, band, class), summary(after, band, class));
            match after.tables {
                0 => "-".to_owned(),
                tables => format!("{:.1} -> {:.1} of {tables}", before.median * 1e2, after.median * 1e2),
            }
        };
        table.row([class.map_or("all", Class::name).to_owned(), cell(0), cell(1), cell(2), cell(3)]);
    }
    writeln!(out, "{table}")
}
