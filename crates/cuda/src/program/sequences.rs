//! The order of a program's steps as constants of the kernel: runs of steps of one shape. A kernel that knows them reads only addresses
//! and numbers from the program.

use std::fmt::Write;

use super::steps::Draft;
use crate::records;

/// The most inputs and outputs of a shape that is a constant: kinds have 4 bits each.
const OPERANDS_MAX: usize = 16;
/// The most runs of a kernel, each of which is code.
const RUNS_MAX: usize = 32;

/// The sequences of a kernel, and the lanes that have each. Lanes without one read the shapes of their steps from the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sequences(Vec<(Vec<usize>, Vec<Run>)>);

/// Steps of one shape that follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    count: usize,
    /// `None` if there are too many operands.
    shape: Option<Shape>,
}

/// What a kernel knows of a step: numbers of polls and operands, and the kinds of these.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shape {
    entries: usize,
    polls: usize,
    inputs: Vec<u8>,
    outputs: Vec<u8>,
    posts: usize,
    flags: u8,
}

impl Shape {
    fn of(draft: &Draft) -> Option<Shape> {
        let kinds = |operands: &[records::Operand]| operands.iter().map(|operand| operand.kind).collect();
        let fits = draft.inputs.len() <= OPERANDS_MAX && draft.outputs.len() <= OPERANDS_MAX;
        fits.then(|| Shape {
            entries: draft.step.entries.into(),
            polls: draft.polls.len(),
            inputs: kinds(&draft.inputs),
            outputs: kinds(&draft.outputs),
            posts: draft.posts.len(),
            flags: draft.step.flags,
        })
    }

    /// The arguments of the template `Shape`.
    fn arguments(&self) -> String {
        let kinds = |kinds: &[u8]| kinds.iter().rev().fold(0_u64, |all, kind| all << 4 | u64::from(*kind));
        let Shape { entries, polls, inputs, outputs, posts, flags } = self;
        let (ins, outs) = (inputs.len(), outputs.len());
        format!(
            "{entries}, {polls}, {ins}, {outs}, {posts}, {:#x}ull, {:#x}ull, {flags}",
            kinds(inputs),
            kinds(outputs)
        )
    }
}

impl Sequences {
    /// The sequences of lanes whose steps have the same shapes in every tile.
    pub(super) fn of(first: &[Vec<Draft>], last: &[Vec<Draft>], repeats: usize) -> Sequences {
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
        Sequences(sequences)
    }

    /// The macro that `device/run.h` expands.
    pub(crate) fn macros(&self) -> String {
        let mut text = "#define WEFT_SEQUENCES".to_owned();
        for (lanes, runs) in &self.0 {
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
        text + "\n"
    }
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
