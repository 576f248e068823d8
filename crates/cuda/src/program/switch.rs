//! Plans with a switch: which buffers it accesses, and what it cannot do.
//!
//! A GPU accesses the memory of all ranks through the NVLink switch at multicast addresses, 16 bytes at a time; a load returns sums.

use weftlink_plan::plan::{Buffer, Group, Input, Output, Step, Switch};
use weftlink_plan::{DataType, Plan, Reduction, Shape};

use super::Unfit;
use crate::arena::steps_of;

/// Bytes of an access.
pub(crate) const VECTOR_BYTES: usize = 16;

/// How a plan uses a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SwitchUse {
    /// Whether it accesses the input and the output of all ranks.
    pub(crate) buffers: [bool; 2],
    /// Whether it adds.
    pub(crate) sums: bool,
    /// Whether GPUs can take all steps of the plan.
    is_fit: bool,
}

impl SwitchUse {
    /// How a plan uses a switch; nothing if it uses none.
    pub(crate) fn of(plan: &Plan) -> Option<SwitchUse> {
        if plan.groups.is_empty() {
            return None;
        }
        let is_of_all = |group: &Group| {
            group.switch == Switch::Nvswitch && group.members.iter().copied().eq(0..plan.ranks)
        };
        let mut found = SwitchUse { is_fit: plan.groups.iter().all(is_of_all), ..SwitchUse::default() };
        for step in plan.programs.iter().flat_map(|program| &program.lanes).flat_map(steps_of) {
            found.add(&step);
        }
        Some(found)
    }

    fn add(&mut self, step: &Step<u32>) {
        let mut grouped = Vec::new();
        for input in &step.inputs {
            match input {
                Input::Local(_) => {}
                Input::Switch(all) => {
                    grouped.push(all.buffer);
                    self.sums = true;
                }
                Input::Peer(_) | Input::Received { .. } => self.is_fit = false,
            }
        }
        for output in &step.outputs {
            match output {
                Output::Local(_) => {}
                Output::Multicast(all) => grouped.push(all.buffer),
                Output::Peer(_) | Output::Sent { .. } => self.is_fit = false,
            }
        }
        self.is_fit &= grouped.is_empty() || (step.inputs.len(), step.outputs.len()) == (1, 1);
        for buffer in grouped {
            match buffer {
                Buffer::Input => self.buffers[0] = true,
                Buffer::Output => self.buffers[1] = true,
                Buffer::Scratch => self.is_fit = false,
            }
        }
    }

    /// Whether a program can have blocks of these lengths. All ranks find the same.
    pub(super) fn check(self, shape: &Shape) -> Result<(), Unfit> {
        let bytes = shape.count * shape.element_bytes;
        match self.is_fit {
            false => Err(Unfit::Switch),
            true if shape.uneven.is_some() => Err(Unfit::Length),
            true if !bytes.is_multiple_of(VECTOR_BYTES) => Err(Unfit::SwitchLength { bytes }),
            true => Ok(()),
        }
    }
}

/// Whether a switch adds elements of a type for an operation. An average is divided afterwards.
pub(crate) fn can_sum(data_type: DataType, reduction: Reduction) -> bool {
    matches!(data_type, DataType::F32 | DataType::F16 | DataType::Bf16)
        && matches!(reduction, Reduction::Sum | Reduction::Average)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use weftlink_plan::{Algorithm, Aliasing, Collective, Layout};

    use super::*;

    #[test]
    fn the_buffers_that_a_switch_accesses_are_found() {
        let cases = [
            (Collective::AllReduce, [true, true], true),
            (Collective::AllGather, [false, true], false),
            (Collective::ReduceScatter, [true, false], true),
            (Collective::Broadcast { root: 1 }, [false, true], false),
            (Collective::Reduce { root: 2 }, [true, false], true),
        ];
        for (collective, buffers, sums) in cases {
            let plan = Algorithm::Nvls.flat(&collective, 4, 1).unwrap();
            assert_eq!(SwitchUse::of(&plan), Some(SwitchUse { buffers, sums, is_fit: true }), "{collective}");
            let alone = Algorithm::Nvls.flat(&collective, 1, 1);
            assert_eq!(alone.map(|plan| SwitchUse::of(&plan)).unwrap_or_default(), None);
        }
        assert_eq!(SwitchUse::of(&Algorithm::TwoShot.plan(4, 1)), None);
    }

    #[test]
    fn other_uses_of_a_switch_are_refused() {
        let shape = |count| Shape { aliasing: Aliasing::InPlace, element_bytes: 2, count, uneven: None };
        let all_reduce = |algorithm: Algorithm, layout: &Layout| {
            SwitchUse::of(&algorithm.recipe(&Collective::AllReduce, layout).unwrap().plan()).unwrap()
        };
        let nvls = all_reduce(Algorithm::Nvls, &Layout::flat(4, 1));
        assert_eq!(nvls.check(&shape(24)), Ok(()));
        assert_eq!(nvls.check(&shape(0)), Ok(()));
        assert_eq!(nvls.check(&shape(23)), Err(Unfit::SwitchLength { bytes: 46 }));
        for algorithm in [Algorithm::NvlsTree, Algorithm::CollnetDirect] {
            let found = all_reduce(algorithm, &Layout::grid(2, 4, 1));
            assert_eq!(found.check(&shape(24)), Err(Unfit::Switch), "{algorithm}");
        }
    }

    #[test]
    fn switches_add_three_types() {
        let can = |data_type: &DataType| can_sum(*data_type, Reduction::Sum);
        let types: Vec<_> = DataType::ALL.into_iter().filter(can).collect();
        assert_eq!(types, [DataType::F16, DataType::Bf16, DataType::F32]);
        assert!(can_sum(DataType::Bf16, Reduction::Average));
        assert!(!can_sum(DataType::F32, Reduction::Maximum));
        assert!(!can_sum(DataType::F32, Reduction::PremultipliedSum));
    }
}
