//! The cases every backend must pass, read from `testdata/cases/`: a collective call as data.

use serde::Deserialize;
use weftlink_plan::{Algorithm, Aliasing, Plan};

const ALL_REDUCE: &str = include_str!("../../../testdata/cases/all-reduce.toml");

/// One call that all ranks make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// How many ranks there are.
    pub ranks: u32,
    /// Elements per rank.
    pub count: usize,
    /// Whether input and output are one buffer.
    pub aliasing: Aliasing,
    /// What kind of memory they are.
    pub memory: Memory,
    /// What plan is run.
    pub algorithm: Algorithm,
    /// With how many lanes, where the algorithm can use several.
    pub lanes: u32,
}

/// What kind of memory a call's buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Memory of its rank only.
    Ordinary,
    /// Memory that all ranks allocated together and can reach.
    Symmetric,
}

/// The element types that cases use; more will follow.
#[derive(Clone, Copy, Debug, Deserialize)]
enum Type {
    #[serde(rename = "f32")]
    F32,
}

/// The reductions that cases use; more will follow.
#[derive(Clone, Copy, Debug, Deserialize)]
enum Op {
    #[serde(rename = "sum")]
    Sum,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    group: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[expect(dead_code, reason = "it is for those who read the file")]
    about: String,
    ranks: Vec<u32>,
    counts: Vec<usize>,
    types: Vec<Type>,
    ops: Vec<Op>,
    aliasing: Vec<Aliasing>,
    memory: Vec<Memory>,
    algorithms: Vec<String>,
    lanes: Vec<u32>,
}

/// All cases of all-reduce.
///
/// # Panics
/// If the file of cases is not right.
pub fn all_reduce() -> Vec<Case> {
    let file: File = toml::from_str(ALL_REDUCE).unwrap_or_else(|error| panic!("the file of cases: {error}"));
    file.group.iter().flat_map(Group::cases).collect()
}

impl Group {
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (Type::F32, Op::Sum) in self.types.iter().flat_map(|ty| self.ops.iter().map(move |op| (ty, op))) {
            for &ranks in &self.ranks {
                for name in &self.algorithms {
                    let algorithm: Algorithm = name.parse().unwrap_or_else(|error| panic!("{error}"));
                    for &lanes in &self.lanes {
                        for &count in &self.counts {
                            for &aliasing in &self.aliasing {
                                for &memory in &self.memory {
                                    cases.push(Case { ranks, count, aliasing, memory, algorithm, lanes });
                                }
                            }
                        }
                    }
                }
            }
        }
        cases
    }
}

impl Case {
    /// The plan it runs, not yet verified.
    pub fn plan(&self) -> Plan {
        self.algorithm.plan(self.ranks, self.lanes)
    }

    /// Why it cannot be run, if that follows from the plan alone.
    pub fn skip(&self, plan: &Plan) -> Option<&'static str> {
        if !plan.aliasing.contains(&self.aliasing) {
            Some("the plan does not claim this aliasing")
        } else if plan.needs_windows() && self.memory == Memory::Ordinary {
            Some("the plan reaches into peers' buffers, which are not symmetric")
        } else {
            None
        }
    }

    /// Each rank's input: numbers with full mantissas, so that another order of additions shows in the last bits.
    pub fn inputs(&self) -> Vec<Vec<f32>> {
        (0..self.ranks).map(|rank| (0..self.count).map(|at| number(rank, at)).collect()).collect()
    }
}

/// A number between 1 and 2 that looks random.
fn number(rank: u32, at: usize) -> f32 {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ u64::from(rank + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let bits = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 41;
    f32::from_bits(0x3f80_0000 | bits as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_cases_and_inputs_differ() {
        let cases = all_reduce();
        assert!(cases.len() > 1000, "{} cases", cases.len());
        let inputs = cases.iter().find(|case| case.ranks == 2 && case.count == 1000).unwrap().inputs();
        assert!(inputs.iter().flatten().all(|value| (1.0..2.0).contains(value)));
        assert!(inputs[0].iter().zip(&inputs[1]).all(|(a, b)| a != b));
    }
}
