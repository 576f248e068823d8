//! How many GPU pairs have which path: a fabric's matrix in a few lines, whatever its size.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::network::Plug;
use super::{Bound, Exit, Path, Paths, Width};
use crate::id::DeviceId;

/// GPU pairs that have the same path; where the two directions differ, in the worse one.
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
                    match shape.path(*b, *a).zip(shape.path(*a, *b)).map(|(there, back)| worse(there, back)) {
                        Some(path) => *pairs.entry(path).or_default() += shape.count,
                        // Joined to the same things but not to each other: the network is all they have.
                        None => {
                            for island in self.islands.all().iter().filter(|island| island.shape == number) {
                                let (a, b) = (island.members[*a as usize], island.members[*b as usize]);
                                *pairs.entry(worse(self.path(b, a), self.path(a, b))).or_default() += 1;
                            }
                        }
                    }
                }
            }
        }
        self.count_across(&self.leavers(), &mut pairs);
        let mut classes: Vec<PairClass> =
            pairs.into_iter().map(|(path, pairs)| PairClass { path, pairs }).collect();
        classes.sort_by_key(|class| badness(&class.path));
        classes
    }

    /// Counts the pairs on different islands. Switches that are cabled alike are interchangeable as long as the two ends of
    /// a pair are plugged into different ones, so pairs are counted by kinds of switches; only those that meet at
    /// a switch of both are looked at one by one.
    fn count_across(&self, leavers: &[Leavers], pairs: &mut FxHashMap<Path, u64>) {
        let mut add = |a: &Leavers, b: &Leavers, count: u64| {
            if count > 0 {
                let way = |from: &Leavers, to: &Leavers| {
                    self.best_exits(&from.ways.0, &to.ways.1).map_or(Path::NONE, |(path, _, _)| path)
                };
                *pairs.entry(worse(way(a, b), way(b, a))).or_default() += count;
            }
        };
        let sorts = self.sorts(leavers);
        let mut by_switch: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
        let mut counted: FxHashMap<(usize, usize), u64> = FxHashMap::default();
        let mut meeting: Vec<Vec<usize>> = Vec::with_capacity(leavers.len());
        for (index, a) in leavers.iter().enumerate() {
            for exit in a.ways.0.iter().chain(&a.ways.1) {
                by_switch.entry(exit.plug.switch).or_default().push(index);
            }
            let shared = a
                .ways
                .0
                .iter()
                .chain(&a.ways.1)
                .filter_map(|exit| by_switch.get(&exit.plug.switch))
                .flatten();
            let mut met: Vec<usize> = shared.copied().collect();
            met.sort_unstable();
            met.dedup();
            for other in &met {
                let b = &leavers[*other];
                let count = if *other == index { a.pairs_within() } else { a.pairs_with(b) };
                add(a, b, count);
                *counted.entry((sorts.of[index], sorts.of[*other])).or_default() += count;
            }
            meeting.push(met);
        }
        for (x, a) in sorts.all.iter().enumerate() {
            for (y, b) in sorts.all.iter().enumerate().take(x + 1) {
                let all = if x == y { a.pairs_within() } else { a.pairs_with(b) };
                let mut done = counted.get(&(x, y)).copied().unwrap_or(0);
                if x != y {
                    done += counted.get(&(y, x)).copied().unwrap_or(0);
                }
                // Any two that do not meet speak for all of them.
                let apart = sorts.members[x].iter().find_map(|i| {
                    let other = sorts.members[y].iter().find(|j| {
                        let (late, early) = (*i.max(*j), *i.min(*j));
                        late != early && meeting[late].binary_search(&early).is_err()
                    });
                    other.map(|j| (*i.max(j), *i.min(j)))
                });
                // Without any such two, what is left are GPUs that have no way out at all.
                let (late, early) = apart.unwrap_or((sorts.members[x][0], sorts.members[y][0]));
                add(&leavers[late], &leavers[early], all - done);
            }
        }
    }

    /// Groups of leavers whose switches are cabled alike.
    fn sorts(&self, leavers: &[Leavers]) -> Sorts {
        let twins = self.network.twins();
        let mut index: FxHashMap<Ways, usize> = FxHashMap::default();
        let mut sorts = Sorts { of: Vec::new(), all: Vec::new(), members: Vec::new() };
        for (number, leaver) in leavers.iter().enumerate() {
            let alike = |exit: &Exit| Exit {
                plug: Plug { switch: twins[exit.plug.switch as usize], ..exit.plug },
                ..*exit
            };
            let ways = |exits: &[Exit]| exits.iter().map(alike).collect();
            let ways: Ways = (ways(&leaver.ways.0), ways(&leaver.ways.1));
            let sort = *index.entry(ways).or_insert_with_key(|ways| {
                sorts.all.push(Leavers { ways: ways.clone(), gpus: 0, by_island: BTreeMap::new() });
                sorts.members.push(Vec::new());
                sorts.all.len() - 1
            });
            sorts.of.push(sort);
            sorts.members[sort].push(number);
            let group = &mut sorts.all[sort];
            group.gpus += leaver.gpus;
            for (island, count) in &leaver.by_island {
                *group.by_island.entry(*island).or_default() += count;
            }
        }
        sorts
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

/// The worse of two paths: of the farther type, the narrower, the longer.
pub fn worse(a: Path, b: Path) -> Path {
    if badness(&a) >= badness(&b) { a } else { b }
}

fn badness(path: &Path) -> impl Ord + use<> {
    let Width { links, nominal, effective } = path.width;
    (path.kind, Reverse(effective), path.hops, Reverse(nominal), Reverse(links))
}

/// Leavers grouped by how their switches are cabled.
struct Sorts {
    /// The group of each.
    of: Vec<usize>,
    all: Vec<Leavers>,
    members: Vec<Vec<usize>>,
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
