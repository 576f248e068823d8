//! Groups the devices of a matrix: those that share a switch, a tree of switches, a NUMA node.
//!
//! Distances nest: devices `PIX` apart form a group, groups `PXB` apart form a larger one, and so on up to the NUMA node.
//! A cell of NVLinks hides the PCIe distance of its pair, which may still follow from other devices.

use rustc_hash::FxHashMap;

use super::table::{Cell, Distance, Row, Table};
use crate::format::ReadError;

/// For every device, the first member of its group.
#[derive(Debug)]
pub(super) struct Groups {
    /// By PCIe switch.
    pub(super) switch: Vec<usize>,
    /// By tree of PCIe switches.
    pub(super) tree: Vec<usize>,
    /// By NUMA node.
    pub(super) numa: Vec<usize>,
}

impl Groups {
    /// Forms the groups, or fails where two cells contradict each other.
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
                            "{} to {} is {}, but through other devices they are only {} apart; correct one of the cells",
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
        Ok(Self { switch, tree, numa: merge_hidden(table, numa) })
    }
}

/// Groups the devices that are at most `distance` apart.
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

/// Merges NUMA groups that have only NVLink cells between them and the same NUMA node or CPUs.
fn merge_hidden<'t>(table: &'t Table, groups: Vec<usize>) -> Vec<usize> {
    // Numbers instead of CPU lists, which can be long.
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
    let mut groups = groups;
    for group in merged {
        for member in &group {
            groups[*member] = group[0];
        }
    }
    groups
}
