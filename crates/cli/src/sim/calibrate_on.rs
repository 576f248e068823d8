//! `weft sim accuracy --calibrate-on`: what calibration on some tables of a system does to its others.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use weftlink_sim::Constants;
use weftlink_sim::accuracy::{BANDS, Class, TableError, summary};
use weftlink_sim::calibrate::{calibrate, of_rows};
use weftlink_sim::corrections::Calibrated;
use weftlink_sim::parallel::in_parallel;
use weftlink_sim::published::Row;
use weftlink_sim::setup::Operation;

use crate::progress::Counted;
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

    /// Whether the calibration uses a row. `fewest` is the number of nodes of the system's smallest tables.
    fn uses(self, row: &Row, fewest: u32) -> bool {
        match self {
            Self::Collective(operation) => row.operation == operation,
            Self::FewestNodes => row.setup.nodes == fewest,
        }
    }
}

/// The rows that no calibration was made with, of systems that were calibrated, and the calibration of each row's system.
pub(super) fn calibrated(
    rows: &[Row],
    on: CalibrateOn,
    shipped: &Constants,
) -> (Vec<Row>, Vec<Arc<Calibrated>>) {
    let mut systems: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.operation.is_copy()) {
        let system = if row.system.is_empty() { &row.id } else { &row.system };
        systems.entry(system).or_default().push(row);
    }
    let systems: Vec<Vec<&Row>> = systems.into_values().collect();
    let progress = Counted::new(systems.len());
    let each = in_parallel(&systems, |rows| {
        progress.begin("calibrating on the tables of a system");
        let fewest = rows.iter().map(|row| row.setup.nodes).min().unwrap_or(0);
        let (on, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| on.uses(row, fewest));
        if on.is_empty() || others.is_empty() {
            return None;
        }
        let (places, calls) = of_rows(on.into_iter());
        let fitted = calibrate(shipped, &places, &calls);
        Some((others, Arc::new(fitted.calibrated())))
    });
    drop(progress);
    let mut left_out = Vec::new();
    let mut models = Vec::new();
    for (others, of_system) in each.into_iter().flatten() {
        models.extend(std::iter::repeat_n(of_system, others.len()));
        left_out.extend(others.into_iter().cloned());
    }
    (left_out, models)
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
