//! Reads the case files: groups of lists, each of which stands for combinations of its entries.
//!
//! A group is a table of lists, one for each parameter. [`Case::skip`] leaves out combinations that a plan cannot run. Of the
//! rest `take = "all"` takes everything; `take = "pairs"`, the default, takes only enough of them that every two entries of different lists
//! that occur together occur in some case. The selection is deterministic:
//!
//! 1. list all combinations, and shuffle them with a fixed seed;
//! 2. in this order, take those with many pairs that no case taken so far has; then those with fewer, down to one;
//! 3. restore the original order.

use serde::Deserialize;
use weftlink_plan::{Algorithm, Aliasing, Collective, DataType, Plan, Reduction};

use super::{By, Case, Counts, Memory, doing, mix};

/// In the order of [`Collective::NAMES`].
const FILES: [&str; 13] = [
    include_str!("../../../../testdata/cases/all-reduce.toml"),
    include_str!("../../../../testdata/cases/reduce.toml"),
    include_str!("../../../../testdata/cases/broadcast.toml"),
    include_str!("../../../../testdata/cases/all-gather.toml"),
    include_str!("../../../../testdata/cases/reduce-scatter.toml"),
    include_str!("../../../../testdata/cases/all-to-all.toml"),
    include_str!("../../../../testdata/cases/gather.toml"),
    include_str!("../../../../testdata/cases/scatter.toml"),
    include_str!("../../../../testdata/cases/scan.toml"),
    include_str!("../../../../testdata/cases/exclusive-scan.toml"),
    include_str!("../../../../testdata/cases/send-receive.toml"),
    include_str!("../../../../testdata/cases/neighbours.toml"),
    include_str!("../../../../testdata/cases/barrier.toml"),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    group: Vec<Group>,
}

/// Each list has at least one entry; [`ALL`] in a list of names stands for all there are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[expect(dead_code, reason = "documents the group in the file")]
    about: String,
    ranks: Vec<u32>,
    /// Elements of a block.
    #[serde(default)]
    counts: Vec<usize>,
    /// Elements of the longest block; the others are shorter.
    #[serde(default)]
    uneven: Vec<usize>,
    #[serde(default = "bytes")]
    types: Vec<String>,
    /// Empty for collectives without a reduction.
    #[serde(default)]
    ops: Vec<String>,
    /// Roots, lists of messages or tori, by name: see [`variant`].
    #[serde(default = "the_only_one")]
    variants: Vec<String>,
    aliasing: Vec<Aliasing>,
    memory: Vec<Memory>,
    /// `chosen`, an algorithm, or an algorithm and `:ll`.
    plans: Vec<String>,
    #[serde(default = "one")]
    lanes: Vec<u32>,
    #[serde(default)]
    take: Take,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Take {
    All,
    #[default]
    Pairs,
}

const ALL: &str = "all";

fn bytes() -> Vec<String> {
    vec!["u8".to_owned()]
}

fn the_only_one() -> Vec<String> {
    vec!["only".to_owned()]
}

fn one() -> Vec<u32> {
    vec![1]
}

/// All cases of a collective, by its name.
///
/// # Panics
/// If there is no such collective, or its file is invalid.
pub fn cases_of(collective: &str) -> Vec<Case> {
    let at = Collective::NAMES.iter().position(|name| *name == collective);
    let text = FILES[at.unwrap_or_else(|| panic!("there is no collective called {collective:?}"))];
    let file: File = toml::from_str(text).unwrap_or_else(|error| panic!("{collective}.toml: {error}"));
    file.group.iter().flat_map(|group| group.cases(collective)).collect()
}

/// The entry of each list in a combination.
type Entries = [usize; LISTS];

const LISTS: usize = 9;
const TYPE: usize = 7;
const OP: usize = 8;

impl Group {
    fn cases(&self, collective: &str) -> Vec<Case> {
        let (all, shapes) = self.combinations(collective);
        let mut taken = match self.take {
            Take::All => (0..all.len()).collect(),
            Take::Pairs => pairs(&all.iter().map(|(entries, _)| *entries).collect::<Vec<_>>()),
        };
        taken.sort_unstable();
        let (types, ops) = (self.types(), self.ops());
        let case = |at: usize| {
            let (entries, shape) = &all[at];
            Case { data_type: types[entries[TYPE]], reduction: ops[entries[OP]], ..shapes[*shape].clone() }
        };
        taken.into_iter().map(case).collect()
    }

    fn types(&self) -> Vec<DataType> {
        named(&self.types, &DataType::ALL, str::parse)
    }

    fn ops(&self) -> Vec<Option<Reduction>> {
        let ops = named(&self.ops, &Reduction::NAMED, str::parse);
        if ops.is_empty() { vec![None] } else { ops.into_iter().map(Some).collect() }
    }

    /// All combinations, each with the index of its shape, and the shapes: cases up to type and reduction.
    fn combinations(&self, collective: &str) -> (Vec<(Entries, usize)>, Vec<Case>) {
        let even = self.counts.iter().map(|&count| Counts::Even(count));
        let uneven = self.uneven.iter().map(|&count| Counts::Uneven(count));
        let counts: Vec<Counts> = even.chain(uneven).collect();
        let (types, ops) = (self.types(), self.ops());
        let (mut all, mut shapes) = (Vec::new(), Vec::new());
        for (r, v, ranks, name) in both(&self.ranks, &self.variants) {
            let Some(collective) = variant(collective, name, *ranks) else { continue };
            let possible: Vec<(By, Plan)> = doing(&collective, *ranks)
                .filter_map(|algorithm| Some((algorithm, algorithm.flat(&collective, *ranks, 1).ok()?)))
                .map(|(algorithm, plan)| (By::Algorithm { algorithm, packets: false, lanes: 1 }, plan))
                .collect();
            for (entry, lane, by) in self.bys(&collective, *ranks) {
                let shape = Case {
                    collective: collective.clone(),
                    ranks: *ranks,
                    counts: Counts::Even(0),
                    data_type: types[0],
                    reduction: ops[0],
                    aliasing: Aliasing::OutOfPlace,
                    memory: Memory::Symmetric,
                    by,
                };
                let plan = match shape.plan() {
                    None => None,
                    Some(Ok(plan)) => Some(plan),
                    Some(Err(_)) => continue,
                };
                for (c, &counts) in counts.iter().enumerate() {
                    for (a, m, &aliasing, &memory) in both(&self.aliasing, &self.memory) {
                        let shape = Case { counts, aliasing, memory, ..shape.clone() };
                        let can = |(by, plan): &(By, Plan)| {
                            Case { by: *by, ..shape.clone() }.skip(Some(plan)).is_none()
                        };
                        let none_to_choose = by == By::Chosen && !possible.iter().any(can);
                        if shape.skip(plan.as_ref()).is_some() || none_to_choose {
                            continue;
                        }
                        for (t, o, data_type, reduction) in both(&types, &ops) {
                            if reduction.is_none_or(|reduction| reduction.is_for(data_type.kind())) {
                                all.push(([r, v, entry, lane, c, a, m, t, o], shapes.len()));
                            }
                        }
                        shapes.push(shape);
                    }
                }
            }
        }
        (all, shapes)
    }

    /// The plans of the group, each with the entries of its name and of its lanes.
    fn bys(&self, collective: &Collective, ranks: u32) -> Vec<(usize, usize, By)> {
        let mut names = Vec::new();
        for name in &self.plans {
            if name == ALL {
                for algorithm in doing(collective, ranks) {
                    names.extend([algorithm.to_string(), format!("{algorithm}:ll")]);
                }
            } else {
                names.push(name.clone());
            }
        }
        let by = |name: &String| {
            if name == "chosen" {
                return vec![(0, 0, By::Chosen)];
            }
            let (name, packets) =
                name.strip_suffix(":ll").map_or((name.as_str(), false), |name| (name, true));
            let algorithm: Algorithm = name.parse().unwrap_or_else(|error| panic!("{error}"));
            let entry = 1 + 2 * algorithm as usize + usize::from(packets);
            let by = |(lane, &lanes)| (entry, lane, By::Algorithm { algorithm, packets, lanes });
            self.lanes.iter().enumerate().map(by).collect()
        };
        names.iter().flat_map(by).collect()
    }
}

/// Entries by name.
fn named<T: Copy>(names: &[String], all: &[T], parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
    match names {
        [name] if name == ALL => all.to_vec(),
        names => names.iter().map(|name| parse(name).unwrap_or_else(|error| panic!("{error}"))).collect(),
    }
}

/// All pairs of entries of two lists, after their indices.
fn both<'a, A, B>(one: &'a [A], other: &'a [B]) -> impl Iterator<Item = (usize, usize, &'a A, &'a B)> {
    let with = move |(a, first)| other.iter().enumerate().map(move |(b, second)| (a, b, first, second));
    one.iter().enumerate().flat_map(with)
}

/// A selection of the combinations that contains every pair of entries that any of them has.
fn pairs(all: &[Entries]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_cached_key(|&at| mix(at as u64));
    let most = all.iter().flatten().max().map_or(0, |most| most + 1);
    let mut seen = vec![false; (LISTS * most).pow(2)];
    let mut taken = Vec::new();
    let places = |at: usize| {
        let place = move |list: usize| list * most + all[at][list];
        (0..LISTS).flat_map(move |a| (a + 1..LISTS).map(move |b| place(a) * LISTS * most + place(b)))
    };
    let pairs_of_one = LISTS * (LISTS - 1) / 2;
    for wanted in [1, 2, 4, 6, 9, 12, 16, 24, pairs_of_one].into_iter().rev() {
        order.retain(|&at| {
            let fresh = places(at).filter(|place| !seen[*place]).count();
            if fresh >= wanted {
                places(at).for_each(|place| seen[place] = true);
                taken.push(at);
            }
            fresh > 0 && fresh < wanted
        });
    }
    taken
}

/// A collective and its variant by name; none if `ranks` are too few for the variant.
///
/// Roots are `first`, `middle` and `last`. Messages are `none`, around a `ring`, `to-one`, `both-ways` between two, to
/// the same rank (`self`), or `random-N`: up to three per rank, from seed N. Tori are a `row` of ranks in the last
/// dimension, a `column` in the first, a `plane` and a `box`.
fn variant(collective: &str, name: &str, ranks: u32) -> Option<Collective> {
    let root = match name {
        "middle" if ranks < 3 => return None,
        "middle" => ranks / 2,
        "last" if ranks < 2 => return None,
        "last" => ranks - 1,
        _ => 0,
    };
    Some(match collective {
        "all-reduce" => Collective::AllReduce,
        "reduce" => Collective::Reduce { root },
        "broadcast" => Collective::Broadcast { root },
        "all-gather" => Collective::AllGather,
        "reduce-scatter" => Collective::ReduceScatter,
        "all-to-all" => Collective::AllToAll,
        "gather" => Collective::Gather { root },
        "scatter" => Collective::Scatter { root },
        "scan" => Collective::Scan,
        "exclusive-scan" => Collective::ExclusiveScan,
        "send-receive" => Collective::SendReceive { messages: messages(name, ranks) },
        "neighbours" => Collective::Neighbours { torus: torus(name, ranks)? },
        "barrier" => Collective::Barrier,
        _ => panic!("there is no collective called {collective:?}"),
    })
}

fn messages(name: &str, ranks: u32) -> Vec<(u32, u32)> {
    let last = ranks - 1;
    match name {
        "none" => vec![],
        "ring" => (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect(),
        "to-one" => (1..ranks).map(|rank| (rank, 0)).collect(),
        "both-ways" => vec![(0, last), (last, 0), (0, last)],
        "self" => vec![(last, last), (0, last), (last, last)],
        _ => {
            let seed = name.strip_prefix("random-").and_then(|seed| seed.parse::<u64>().ok());
            let seed = seed.unwrap_or_else(|| panic!("there is no list of messages called {name:?}"));
            let word = |at: u64| mix(seed << 32 | u64::from(ranks) << 16 | at);
            let count = 1 + word(0) % (3 * u64::from(ranks));
            let rank = |at: u64| (word(at) % u64::from(ranks)) as u32;
            (1..=count).map(|at| (rank(2 * at), rank(2 * at + 1))).collect()
        }
    }
}

fn torus(name: &str, ranks: u32) -> Option<[u32; 3]> {
    let divisors = |of: u32| (2..of).filter(move |size| of.is_multiple_of(*size));
    match name {
        "row" => Some([1, 1, ranks]),
        "column" => (ranks > 1).then_some([ranks, 1, 1]),
        "plane" => divisors(ranks).next().map(|size| [1, size, ranks / size]),
        "box" => {
            let (x, rest) = divisors(ranks).next().map(|size| (size, ranks / size))?;
            divisors(rest).next().map(|y| [x, y, rest / y])
        }
        _ => panic!("there is no torus called {name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_file_has_cases_for_every_algorithm() {
        for name in Collective::NAMES {
            let cases = cases_of(name);
            assert!(cases.iter().all(|case| case.collective.name() == name));
            for algorithm in doing(&cases[0].collective, cases[0].ranks) {
                let is_it =
                    |case: &Case| matches!(case.by, By::Algorithm { algorithm: of, .. } if of == algorithm);
                assert!(cases.iter().any(is_it), "no {name} by {algorithm}");
            }
            println!("{name}: {} cases", cases.len());
        }
    }

    #[test]
    fn few_combinations_cover_all_pairs() {
        let group = Group {
            about: String::new(),
            ranks: vec![1, 2, 3, 4, 5, 8],
            counts: vec![0, 1, 7, 100],
            uneven: vec![50],
            types: vec!["f32".to_owned(), "u8".to_owned()],
            ops: vec![],
            variants: the_only_one(),
            aliasing: Aliasing::BOTH.to_vec(),
            memory: vec![Memory::Ordinary, Memory::Symmetric],
            plans: vec![ALL.to_owned(), "chosen".to_owned()],
            lanes: vec![1],
            take: Take::Pairs,
        };
        let all: Vec<Entries> =
            group.combinations("all-gather").0.into_iter().map(|(entries, _)| entries).collect();
        let taken = pairs(&all);
        let pairs_of = |at: usize| {
            let entries = all[at];
            (0..LISTS).flat_map(move |a| (0..LISTS).map(move |b| (a, entries[a], b, entries[b])))
        };
        let covered: HashSet<_> = taken.iter().flat_map(|&at| pairs_of(at)).collect();
        assert!((0..all.len()).flat_map(pairs_of).all(|pair| covered.contains(&pair)));
        assert!(taken.len() * 4 < all.len(), "{} of {}", taken.len(), all.len());
        assert_eq!(group.cases("all-gather"), group.cases("all-gather"));
    }

    #[test]
    fn random_messages_include_messages_to_self() {
        let all: Vec<_> = (1..=4).flat_map(|seed| messages(&format!("random-{seed}"), 5)).collect();
        assert!(all.iter().any(|(from, to)| from == to) && all.iter().all(|(a, b)| *a < 5 && *b < 5));
        assert_eq!(torus("box", 8), Some([2, 2, 2]));
        assert_eq!(torus("box", 4), None);
    }
}
