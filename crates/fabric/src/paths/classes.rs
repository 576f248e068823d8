//! The number of GPU pairs with each path: a fabric's matrix in a few lines, for any size.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::network::Plug;
use super::{Direction, Exit, Path, Paths, Width};
use crate::id::DeviceId;

/// GPU pairs with the same path, taken in the worse direction where the two differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairClass {
    /// Their path.
    pub path: Path,
    /// The number of unordered pairs.
    pub pairs: u64,
}

/// The exits of a GPU, for data that leaves and for data that arrives.
type Exits = (Vec<Exit>, Vec<Exit>);

/// GPUs with the same exits.
struct ExitGroup {
    exits: Exits,
    gpus: u64,
    /// GPUs of the group on each island.
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
                        // No path inside the island: only the network connects them.
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
        self.count_across(&self.exit_groups(), &mut pairs);
        let mut classes: Vec<PairClass> =
            pairs.into_iter().map(|(path, pairs)| PairClass { path, pairs }).collect();
        classes.sort_by_key(|class| badness(&class.path));
        classes
    }

    /// Counts the pairs on different islands. Switches with identical cabling are interchangeable as long as the two ends
    /// of a pair are attached to different ones, so those pairs are counted by kind of switch. Only pairs that share a
    /// switch are counted group by group.
    fn count_across(&self, groups: &[ExitGroup], pairs: &mut FxHashMap<Path, u64>) {
        let mut add = |a: &ExitGroup, b: &ExitGroup, count: u64| {
            if count > 0 {
                let path = |from: &ExitGroup, to: &ExitGroup| {
                    self.best_exits(&from.exits.0, &to.exits.1).map_or(Path::NONE, |(path, _, _)| path)
                };
                *pairs.entry(worse(path(a, b), path(b, a))).or_default() += count;
            }
        };
        let kinds = self.exit_kinds(groups);
        let mut by_switch: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
        let mut counted: FxHashMap<(usize, usize), u64> = FxHashMap::default();
        let mut sharing: Vec<Vec<usize>> = Vec::with_capacity(groups.len());
        for (index, a) in groups.iter().enumerate() {
            for exit in a.exits.0.iter().chain(&a.exits.1) {
                by_switch.entry(exit.plug.switch).or_default().push(index);
            }
            let shared = a
                .exits
                .0
                .iter()
                .chain(&a.exits.1)
                .filter_map(|exit| by_switch.get(&exit.plug.switch))
                .flatten();
            let mut others: Vec<usize> = shared.copied().collect();
            others.sort_unstable();
            others.dedup();
            for other in &others {
                let b = &groups[*other];
                let count = if *other == index { a.pairs_within() } else { a.pairs_with(b) };
                add(a, b, count);
                *counted.entry((kinds.of[index], kinds.of[*other])).or_default() += count;
            }
            sharing.push(others);
        }
        for (x, a) in kinds.all.iter().enumerate() {
            for (y, b) in kinds.all.iter().enumerate().take(x + 1) {
                let all = if x == y { a.pairs_within() } else { a.pairs_with(b) };
                let mut done = counted.get(&(x, y)).copied().unwrap_or(0);
                if x != y {
                    done += counted.get(&(y, x)).copied().unwrap_or(0);
                }
                // Any two groups that share no switch represent all of them.
                let apart = kinds.members[x].iter().find_map(|i| {
                    let other = kinds.members[y].iter().find(|j| {
                        let (late, early) = (*i.max(*j), *i.min(*j));
                        late != early && sharing[late].binary_search(&early).is_err()
                    });
                    other.map(|j| (*i.max(j), *i.min(j)))
                });
                // If there are none, only GPUs without any exit are left.
                let (late, early) = apart.unwrap_or((kinds.members[x][0], kinds.members[y][0]));
                add(&groups[late], &groups[early], all - done);
            }
        }
    }

    /// Merges groups whose switches have identical cabling.
    fn exit_kinds(&self, groups: &[ExitGroup]) -> ExitKinds {
        let twins = self.network.twins();
        let mut index: FxHashMap<Exits, usize> = FxHashMap::default();
        let mut kinds = ExitKinds { of: Vec::new(), all: Vec::new(), members: Vec::new() };
        for (number, group) in groups.iter().enumerate() {
            let to_twin = |exit: &Exit| Exit {
                plug: Plug { switch: twins[exit.plug.switch as usize], ..exit.plug },
                ..*exit
            };
            let merged = |exits: &[Exit]| exits.iter().map(to_twin).collect();
            let exits: Exits = (merged(&group.exits.0), merged(&group.exits.1));
            let kind = *index.entry(exits).or_insert_with_key(|exits| {
                kinds.all.push(ExitGroup { exits: exits.clone(), gpus: 0, by_island: BTreeMap::new() });
                kinds.members.push(Vec::new());
                kinds.all.len() - 1
            });
            kinds.of.push(kind);
            kinds.members[kind].push(number);
            let merged = &mut kinds.all[kind];
            merged.gpus += group.gpus;
            for (island, count) in &group.by_island {
                *merged.by_island.entry(*island).or_default() += count;
            }
        }
        kinds
    }

    fn exit_groups(&self) -> Vec<ExitGroup> {
        let mut index: FxHashMap<Exits, usize> = FxHashMap::default();
        let mut all: Vec<ExitGroup> = Vec::new();
        for &gpu in self.fabric.gpus() {
            // The identity of the NIC does not matter, only its attachment and the path to it.
            let anonymous = |exit: &Exit| Exit { nic: exit.nic.map(|_| DeviceId(0)), ..*exit };
            let exits = |direction| self.exits(gpu, direction).iter().map(anonymous).collect();
            let exits = (exits(Direction::Out), exits(Direction::In));
            let number = *index.entry(exits).or_insert_with_key(|exits| {
                all.push(ExitGroup { exits: exits.clone(), gpus: 0, by_island: BTreeMap::new() });
                all.len() - 1
            });
            let Some(place) = self.islands.place(gpu) else {
                continue;
            };
            let group = &mut all[number];
            group.gpus += 1;
            *group.by_island.entry(place.island).or_default() += 1;
        }
        all
    }
}

/// The worse of two paths: by type, then width, then length.
pub fn worse(a: Path, b: Path) -> Path {
    if badness(&a) >= badness(&b) { a } else { b }
}

fn badness(path: &Path) -> impl Ord + use<> {
    let Width { links, nominal, effective } = path.width;
    (path.kind, Reverse(effective), path.hops, Reverse(nominal), Reverse(links))
}

/// Exit groups merged by the cabling of their switches.
struct ExitKinds {
    /// The kind of each group.
    of: Vec<usize>,
    all: Vec<ExitGroup>,
    /// The groups of each kind.
    members: Vec<Vec<usize>>,
}

impl ExitGroup {
    /// Pairs of two of its GPUs on different islands.
    fn pairs_within(&self) -> u64 {
        let same: u64 = self.by_island.values().map(|count| count * (count - 1) / 2).sum();
        self.gpus * (self.gpus - 1) / 2 - same
    }

    /// Pairs of one of its GPUs and one of `other` on different islands.
    fn pairs_with(&self, other: &Self) -> u64 {
        let (few, many) =
            if self.by_island.len() < other.by_island.len() { (self, other) } else { (other, self) };
        let same =
            |(island, count): (&u32, &u64)| many.by_island.get(island).map_or(0, |others| count * others);
        self.gpus * other.gpus - few.by_island.iter().map(same).sum::<u64>()
    }
}
