//! The order of a program's steps as constants of the kernel: runs of steps of one shape. A kernel that knows them reads only addresses
//! and numbers from the program.

use std::fmt::Write;

use super::direct::Direct;
use super::steps::Draft;
use crate::records;

/// The most inputs and outputs of a shape that is a constant: each input takes registers, and kinds have 4 bits.
const OPERANDS_MAX: usize = 16;
/// The most runs of a kernel whose waits are inline.
const INLINE_RUNS_MAX: usize = 4;
/// The most runs of a kernel, each of which is code.
const RUNS_MAX: usize = 32;

/// The sequences of a kernel, and the lanes that have each. Lanes without one read the shapes of their steps from the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sequences {
    known: Vec<(Vec<usize>, Vec<Run>)>,
    /// Whether every lane has one.
    is_complete: bool,
    /// How many lanes there are; 0 if the kernel is for any number.
    lanes: usize,
    /// The ranks of a plan in which the first step of every lane waits for the entries of all; 0 otherwise.
    enters: u32,
    /// Whether the program is in the parameters of the kernel.
    pub(super) in_parameters: bool,
    /// Whether the plan uses a switch.
    pub(super) has_switch: bool,
    /// The constants of a kernel for packets.
    pub(super) direct: Option<Direct>,
}

/// Steps of one shape that follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    count: usize,
    /// `None` if there are too many operands.
    shape: Option<Shape>,
}

/// What a kernel knows of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    entries: usize,
    polls: usize,
    inputs: usize,
    outputs: usize,
    posts: usize,
    flags: u8,
    /// The kinds of inputs and of outputs, 4 bits each, of a step with packets.
    kinds: (u64, u64),
}

impl Shape {
    pub(super) fn of(draft: &Draft) -> Option<Shape> {
        let fits = draft.inputs.len() <= OPERANDS_MAX && draft.outputs.len() <= OPERANDS_MAX;
        fits.then(|| Shape {
            entries: draft.step.entries.into(),
            polls: draft.polls.len(),
            inputs: draft.inputs.len(),
            outputs: draft.outputs.len(),
            posts: draft.posts.len(),
            flags: draft.step.flags,
            kinds: if draft.step.flags & records::PACKETS != 0 {
                (kinds(&draft.inputs), kinds(&draft.outputs))
            } else {
                (0, 0)
            },
        })
    }

    /// The arguments of the template `Shape`.
    pub(super) fn arguments(&self) -> String {
        let Shape { entries, polls, inputs, outputs, posts, flags, kinds: (ins, outs) } = self;
        format!("{entries}, {polls}, {inputs}, {outputs}, {posts}, {ins:#x}ull, {outs:#x}ull, {flags}")
    }
}

impl Sequences {
    /// The sequences of a kernel for any program.
    pub(crate) fn none() -> Sequences {
        Sequences {
            known: Vec::new(),
            is_complete: false,
            lanes: 0,
            enters: 0,
            in_parameters: false,
            has_switch: false,
            direct: None,
        }
    }

    /// The sequences of lanes whose steps have the same shapes in every tile.
    pub(super) fn of(first: &[Vec<Draft>], last: &[Vec<Draft>], repeats: usize, ranks: u32) -> Sequences {
        let mut sequences: Vec<(Vec<usize>, Vec<Run>)> = Vec::new();
        let mut runs = 0;
        for (lane, (first, last)) in std::iter::zip(first, last).enumerate() {
            let sequence = runs_of(last);
            if repeats > 0 && runs_of(first) != sequence {
                continue;
            }
            if let Some((lanes, _)) = sequences.iter_mut().find(|(_, other)| *other == sequence) {
                lanes.push(lane);
            } else if runs + sequence.len() <= RUNS_MAX {
                runs += sequence.len();
                sequences.push((vec![lane], sequence));
            }
        }
        let known: usize = sequences.iter().map(|(lanes, _)| lanes.len()).sum();
        let lanes = last.len();
        let enters = ranks > 1
            && last
                .iter()
                .all(|steps| steps.first().is_some_and(|draft| u32::from(draft.step.entries) == ranks - 1));
        Sequences {
            known: sequences,
            is_complete: known == lanes,
            lanes,
            enters: if enters { ranks } else { 0 },
            in_parameters: false,
            has_switch: false,
            direct: None,
        }
    }

    /// The sequences of a kernel for any program of plans with a switch.
    #[cfg(test)]
    pub(crate) fn with_switch() -> Sequences {
        Sequences { has_switch: true, ..Sequences::none() }
    }

    /// Whether calls of one tile run without a program.
    #[cfg(test)]
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The macro that `device/run.h` expands.
    pub(crate) fn macros(&self) -> String {
        let mut text = if self.is_complete { "" } else { "#define WEFT_ANY_STEPS\n" }.to_owned();
        text += "#define WEFT_SEQUENCES";
        for (lanes, runs) in &self.known {
            text += " SEQUENCE(";
            lanes.iter().for_each(|lane| _ = write!(text, "LANE({lane}) "));
            text += ",";
            for Run { count, shape } in runs {
                _ = match shape {
                    Some(shape) => write!(text, " STEPS({count}, {})", shape.arguments()),
                    None => write!(text, " ANY_STEPS({count})"),
                };
            }
            text += ")";
        }
        let runs: usize = self.known.iter().map(|(_, runs)| runs.len()).sum();
        if self.is_complete && runs <= INLINE_RUNS_MAX && self.direct.is_none() {
            text += "\n#define WEFT_FEW_STEPS";
        }
        if self.lanes > 0 {
            _ = write!(text, "\n#define WEFT_LANES {}", self.lanes);
        }
        if self.enters > 0 {
            _ = write!(text, "\n#define WEFT_ENTERS {}", self.enters);
        }
        if self.has_switch {
            text += "\n#define WEFT_SWITCH";
        }
        text += if self.in_parameters { "\n#define WEFT_IN_PARAMETERS\n" } else { "\n" };
        self.direct.iter().for_each(|direct| text += &direct.macros());
        text
    }
}

fn kinds(operands: &[records::Operand]) -> u64 {
    operands.iter().rev().fold(0, |all, operand| all << 4 | u64::from(operand.kind))
}

fn runs_of(drafts: &[Draft]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for shape in drafts.iter().map(Shape::of) {
        match runs.last_mut() {
            Some(run) if run.shape == shape => run.count += 1,
            _ => runs.push(Run { count: 1, shape }),
        }
    }
    runs
}
