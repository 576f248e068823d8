//! What calibration does to the tables of a system that were not calibrated on.

use std::collections::{BTreeMap, BTreeSet};

use weftlink_sim::Constants;
use weftlink_sim::accuracy::{BANDS, Class, TableError, by_table, predict_rows, summary};
use weftlink_sim::calibrate::{calibrate, of_rows};
use weftlink_sim::corrections::Calibrated;
use weftlink_sim::parallel::in_parallel;
use weftlink_sim::published::Row;
use weftlink_sim::setup::Operation;

/// How the tables to calibrate on are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// One table; the others have the same machine, as many nodes and the same library.
    SameConfiguration,
    /// One table; the others have the same collective, too.
    SameCollective,
    /// All tables of all-reduce; the others are of other collectives.
    OtherCollectives,
    /// The tables with the fewest nodes; the others have more.
    MoreNodes,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::SameConfiguration => "one other table of the same machine and number of nodes",
            Self::SameCollective => "one other table of the same machine, number of nodes and collective",
            Self::OtherCollectives => "all-reduce, and others predicted",
            Self::MoreNodes => "the fewest nodes, and more predicted",
        }
    }
}

/// A calibration: the tables to calibrate on, and those to predict.
struct Case<'c> {
    way: Way,
    base: &'c Constants,
    on: Vec<Row>,
    others: Vec<Row>,
}

pub(crate) fn run(rows: &[Row], sites: &[(Vec<usize>, Constants)]) {
    let cases: Vec<Case<'_>> = sites.iter().flat_map(|(indices, base)| cases(rows, indices, base)).collect();
    println!(
        "{} calibrations: median error of left-out tables in percent, without -> with calibration\n",
        cases.len()
    );
    let before = in_parallel(&cases, |case| errors(&case.base.clone().into(), &case.others));
    let after = in_parallel(&cases, |case| {
        let (places, measured) = of_rows(case.on.iter());
        errors(&calibrate(case.base, &places, &measured).calibrated(), &case.others)
    });
    print(&cases, &before, &after);
}

fn errors(by: &Calibrated, rows: &[Row]) -> Vec<TableError> {
    by_table(rows, &predict_rows(by, rows, &mut |_| {}))
}

/// The calibrations of a site's systems.
fn cases<'c>(rows: &[Row], indices: &[usize], base: &'c Constants) -> Vec<Case<'c>> {
    let mut systems: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in indices.iter().map(|index| &rows[*index]).filter(|row| !row.operation.is_copy()) {
        systems.entry(&row.system).or_default().push(row);
    }
    let mut cases = Vec::new();
    for rows in systems.values() {
        let mut add = |way, on: &dyn Fn(&Row) -> bool, others: &dyn Fn(&Row) -> bool| {
            let of = |which: &dyn Fn(&Row) -> bool| {
                rows.iter().filter(|row| which(row)).map(|row| (*row).clone()).collect::<Vec<_>>()
            };
            let (on, others) = (of(on), of(others));
            if !on.is_empty() && !others.is_empty() {
                cases.push(Case { way, base, on, others });
            }
        };
        let tables: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        for table in tables {
            let first = rows.iter().find(|row| row.id == table).map(|row| &row.setup);
            let same = |row: &Row| row.id != table && first.is_some_and(|setup| *setup == row.setup);
            add(Way::SameConfiguration, &|row| row.id == table, &same);
            let operation = rows.iter().find(|row| row.id == table).map(|row| row.operation);
            add(Way::SameCollective, &|row| row.id == table, &|row| {
                same(row) && Some(row.operation) == operation
            });
        }
        let is_reduced = |row: &Row| row.operation == Operation::AllReduce;
        add(Way::OtherCollectives, &is_reduced, &|row| !is_reduced(row));
        let least = rows.iter().map(|row| row.setup.nodes).min().unwrap_or(0);
        add(Way::MoreNodes, &|row| row.setup.nodes == least, &|row| row.setup.nodes > least);
    }
    cases
}

/// Prints the median error over left-out tables, by way and class.
fn print(cases: &[Case<'_>], before: &[Vec<TableError>], after: &[Vec<TableError>]) {
    println!("| calibrated on | class | {} |", BANDS.map(|(name, _)| name).join(" | "));
    println!("|---|---|---:|---:|---:|---:|");
    for way in [Way::SameConfiguration, Way::SameCollective, Way::OtherCollectives, Way::MoreNodes] {
        for class in std::iter::once(None).chain(Class::ALL.map(Some)) {
            let of = |all: &[Vec<TableError>], band: usize| {
                let tables = cases.iter().zip(all).filter(|(case, _)| case.way == way);
                let tables: Vec<TableError> = tables.flat_map(|(_, tables)| tables).cloned().collect();
                summary(&tables, band, class)
            };
            let cells: [String; BANDS.len()] =
                std::array::from_fn(|band| match (of(before, band), of(after, band)) {
                    (before, _) if before.tables == 0 => String::new(),
                    (before, after) => {
                        format!("{:.1} -> {:.1} of {}", before.median * 1e2, after.median * 1e2, after.tables)
                    }
                });
            if cells.iter().any(|cell| !cell.is_empty()) {
                println!("| {} | {} | {} |", way.name(), class.map_or("all", Class::name), cells.join(" | "));
            }
        }
    }
}
