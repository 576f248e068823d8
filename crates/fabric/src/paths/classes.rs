//! How many GPU pairs have which path: a fabric's matrix in a few lines, whatever its size.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Bound, Exit, Path, Paths};
use crate::device::DeviceId;

/// GPU pairs that have the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairClass {
    /// The path they have.
    pub path: Path,
    /// How many unordered pairs have it.
    pub pairs: u64,
}

/// How a GPU's data leaves its island, and how others' data comes in.
type Ways = (Vec<Exit>, Vec<Exit>);

/// GPUs that leave their islands in the same way.
struct Leavers {
    ways: Ways,
    gpus: u64,
    /// How many of them are on each island.
    by_island: BTreeMap<u32, u64>,
}

impl Paths<'_> {
    /// The classes of GPU pairs, best path first.
    pub fn classes(&self) -> Vec<PairClass> {
        let mut pairs: FxHashMap<Path, u64> = FxHashMap::default();
        for (number, shape) in self.shapes.iter().enumerate() {
            for (position, a) in shape.gpus.iter().enumerate() {
                for b in &shape.gpus[..position] {
                    match shape.path(*b, *a) {
                        Some(path) => *pairs.entry(path).or_default() += shape.count,
                        // Joined to the same things but not to each other: the network is all they have.
                        None => {
                            for island in self.islands.all().iter().filter(|island| island.shape == number) {
                                let (a, b) = (island.members[*a as usize], island.members[*b as usize]);
                                *pairs.entry(self.path(b, a)).or_default() += 1;
                            }
                        }
                    }
                }
            }
        }
        let leavers = self.leavers();
        for (position, a) in leavers.iter().enumerate() {
            for b in &leavers[..=position] {
                let count = if std::ptr::eq(a, b) { a.pairs_within() } else { a.pairs_with(b) };
                if count > 0 {
                    let way = self.best_exits(&b.ways.0, &a.ways.1);
                    *pairs.entry(way.map_or(Path::NONE, |(path, _, _)| path)).or_default() += count;
                }
            }
        }
        let mut classes: Vec<PairClass> =
            pairs.into_iter().map(|(path, pairs)| PairClass { path, pairs }).collect();
        classes.sort_by_key(|PairClass { path, .. }| (path.kind, Reverse(path.width.effective), path.hops));
        classes
    }

    fn leavers(&self) -> Vec<Leavers> {
        let mut index: FxHashMap<Ways, usize> = FxHashMap::default();
        let mut all: Vec<Leavers> = Vec::new();
        for &gpu in self.fabric.gpus() {
            // Which NIC it is does not matter, only where it is plugged in and how it is reached.
            let nameless = |exit: &Exit| Exit { nic: exit.nic.map(|_| DeviceId(0)), ..*exit };
            let exits = |bound| self.exits(gpu, bound).iter().map(nameless).collect();
            let group = *index.entry((exits(Bound::Out), exits(Bound::In))).or_insert_with_key(|ways| {
                all.push(Leavers { ways: ways.clone(), gpus: 0, by_island: BTreeMap::new() });
                all.len() - 1
            });
            let Some(place) = self.islands.place(gpu) else {
                continue;
            };
            let leavers = &mut all[group];
            leavers.gpus += 1;
            *leavers.by_island.entry(place.island).or_default() += 1;
        }
        all
    }
}

impl Leavers {
    /// Pairs of two of these on different islands.
    fn pairs_within(&self) -> u64 {
        let same: u64 = self.by_island.values().map(|count| count * (count - 1) / 2).sum();
        self.gpus * (self.gpus - 1) / 2 - same
    }

    /// Pairs of one of these and one of the others on different islands.
    fn pairs_with(&self, other: &Self) -> u64 {
        let (few, many) =
            if self.by_island.len() < other.by_island.len() { (self, other) } else { (other, self) };
        let same =
            |(island, count): (&u32, &u64)| many.by_island.get(island).map_or(0, |others| count * others);
        self.gpus * other.gpus - few.by_island.iter().map(same).sum::<u64>()
    }
}
