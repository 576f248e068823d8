//! Matrix to groups: which devices share a switch, a switch of switches, a NUMA node.
//!
//! Distances nest: what is `PIX` apart is in one group, groups that are `PXB` apart are in a larger one, and so on up
//! to the NUMA node. A cell of NVLinks hides the PCIe distance of its pair; third devices may still give it away.

use rustc_hash::FxHashMap;

use super::table::{Cell, Distance, Row, Table};
use crate::format::ReadError;

/// For every device, the first member of the group it is in.
#[derive(Debug)]
pub(super) struct Groups {
    /// Groups of devices on one PCIe switch.
    pub(super) switch: Vec<usize>,
    /// Groups on one tree of PCIe switches.
    pub(super) tree: Vec<usize>,
    /// Groups on one NUMA node.
    pub(super) numa: Vec<usize>,
}

impl Groups {
    /// Finds the groups, or two cells that contradict each other.
    pub(super) fn of(table: &Table) -> Result<Self, ReadError> {
        let levels = [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node]
            .map(|distance| (distance, joined(table, distance)));
        for (i, row) in table.rows.iter().enumerate() {
            for (j, cell) in row.cells[..i].iter().enumerate() {
                let Cell::Pcie(distance) = *cell else { continue };
                let nearer = levels.iter().find(|(level, group)| *level < distance && group[i] == group[j]);
                if let Some((level, _)) = nearer {
                    return Err(ReadError::at(
                        row.line,
                        format!(
                            "{} to {} is {}, but by way of other devices they are {} apart; the cells contradict each \
                             other",
                            row.name,
                            table.rows[j].name,
                            distance.name(),
                            level.name()
                        ),
                    ));
                }
            }
        }
        let [(_, switch), (_, tree), _, (_, numa)] = levels;
        Ok(Self { switch, tree, numa: settle_hidden(table, numa) })
    }
}

/// Joins what is at most `distance` apart.
fn joined(table: &Table, distance: Distance) -> Vec<usize> {
    let mut parent: Vec<usize> = (0..table.rows.len()).collect();
    for (i, row) in table.rows.iter().enumerate() {
        for (j, cell) in row.cells[..i].iter().enumerate() {
            if matches!(cell, Cell::Pcie(d) if *d <= distance) {
                let (a, b) = (find(&mut parent, i), find(&mut parent, j));
                parent[a.max(b)] = a.min(b);
            }
        }
    }
    (0..parent.len()).map(|i| find(&mut parent, i)).collect()
}

fn find(parent: &mut [usize], mut at: usize) -> usize {
    while parent[at] != at {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    at
}

/// Puts on one NUMA node the groups between which every cell is NVLinks, if they name the same node or CPUs.
fn settle_hidden<'t>(table: &'t Table, groups: Vec<usize>) -> Vec<usize> {
    // Rows at the same place get the same number: CPU lists can be long.
    let mut places: FxHashMap<(Option<u32>, Option<&'t str>), usize> = FxHashMap::default();
    let place = |row: &'t Row| {
        let next = places.len();
        *places.entry((row.numa, row.cpus.as_deref().filter(|_| row.numa.is_none()))).or_insert(next)
    };
    let places: Vec<usize> = table.rows.iter().map(place).collect();
    let mut merged: Vec<Vec<usize>> = Vec::new();
    for first in 0..groups.len() {
        if groups[first] != first {
            continue;
        }
        let members: Vec<usize> = (first..groups.len()).filter(|i| groups[*i] == first).collect();
        let hidden = |i: usize, j: usize| matches!(table.rows[i].cells[j], Cell::NvLinks(_));
        let fits = |other: &Vec<usize>| {
            places[other[0]] == places[first] && other.iter().all(|i| members.iter().all(|j| hidden(*i, *j)))
        };
        match merged.iter_mut().find(|other| fits(other)) {
            Some(other) => other.extend(members),
            None => merged.push(members),
        }
    }
    let mut settled = groups;
    for group in merged {
        for member in &group {
            settled[*member] = group[0];
        }
    }
    settled
}
