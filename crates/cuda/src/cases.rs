//! The cases that every backend must pass, as tests of device programs run them: their types and buffers.
//!
//! Programs depend on the size of elements and not on their arithmetic, which `tests/types.rs` compares with the CPU's. So each case runs
//! with a type that stands for all types of its size, and with an operation that stands for those of its family.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_plan::{Aliasing, DataType, Reduction};
use weftlink_testkit::cases::values::{Value, factor, input};
use weftlink_testkit::cases::{Case, Counts};
use weftlink_testkit::with_type;

use crate::{Operation, is_for_gpus, records};

/// Bytes on either side of a buffer that no rank may touch.
const MARGIN: usize = 64;
const CANARY: u8 = 0xa5;
/// Cases with longer blocks have more of the same tiles.
const COUNT_MAX: usize = 3_000;

/// What an operation does beside combining elements, which is what programs depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Plain,
    /// Changes results, as an average does.
    Finishing,
    /// Multiplies inputs.
    Scaling,
}

impl Family {
    fn of(reduction: Reduction) -> Family {
        match reduction {
            Reduction::PremultipliedSum => Family::Scaling,
            Reduction::Average | Reduction::LogicalAnd | Reduction::LogicalOr | Reduction::LogicalXor => {
                Family::Finishing
            }
            _ => Family::Plain,
        }
    }
}

/// The type and the operation that stand for all types of a size and all operations of a family.
pub(crate) fn representative(bytes: usize, family: Family) -> (DataType, Reduction) {
    let data_type = match bytes {
        1 => DataType::U8,
        2 => DataType::Bf16,
        4 => DataType::F32,
        8 => DataType::F64,
        16 => DataType::Complex128,
        _ => unreachable!("no type has {bytes} bytes"),
    };
    let reduction = match (family, data_type) {
        (Family::Plain, DataType::F64) => Reduction::Maximum,
        (Family::Plain, _) => Reduction::Sum,
        (Family::Finishing, DataType::U8) => Reduction::LogicalXor,
        (Family::Finishing, _) => Reduction::Average,
        (Family::Scaling, _) => Reduction::PremultipliedSum,
    };
    (data_type, reduction)
}

/// The family of a case's operation.
pub(crate) fn family_of(case: &Case) -> Family {
    case.reduction.map_or(Family::Plain, Family::of)
}

/// The operation of a rank's call.
pub(crate) fn operation_of(case: &Case, rank: u32) -> Operation {
    if family_of(case) != Family::Scaling {
        return case.reduction.unwrap_or(Reduction::Sum).into();
    }
    let mut bytes = Vec::new();
    with_type!(case.data_type, T => factor::<T>(rank).write(&mut bytes));
    Operation::premultiplied_sum(&bytes).unwrap()
}

/// The case with the type and operation that stand for its own; nothing if it is not for a device program.
pub(crate) fn adapted(case: Case) -> Option<Case> {
    let too_long = |count| count > COUNT_MAX;
    if case.ranks > 8 || matches!(case.counts, Counts::Even(count) | Counts::Uneven(count) if too_long(count))
    {
        return None;
    }
    if case.reduction.is_none() {
        return (case.data_type.bytes() == 1).then_some(case);
    }
    let (data_type, reduction) = representative(case.data_type.bytes(), family_of(&case));
    is_for_gpus(reduction, data_type).then_some(Case { data_type, reduction: Some(reduction), ..case })
}

/// The buffers of a rank, with margins.
pub(crate) struct Buffers {
    /// In place, only the first is used.
    pub(crate) memory: [Vec<u128>; 2],
    input: std::ops::Range<usize>,
    output: std::ops::Range<usize>,
    in_place: bool,
}

impl Buffers {
    pub(crate) fn new(case: &Case, rank: u32, seed: u64) -> Buffers {
        let size = case.data_type.bytes();
        // Elements lie at multiples of their size, at different places of 16 bytes.
        let first =
            MARGIN + if seed.is_multiple_of(2) { 0 } else { size * (rank as usize + seed as usize % 5) };
        let bytes = |lengths: Vec<usize>| lengths.iter().sum::<usize>() * size;
        let (given, gotten) = (bytes(case.given(rank)), bytes(case.gotten(rank)));
        let in_place = case.aliasing == Aliasing::InPlace;
        let (input_at, output_at, _) = case.in_one_buffer(rank);
        let [input_at, output_at] =
            if in_place { [input_at, output_at] } else { [0, 0] }.map(|at| first + at * size);
        let (input_range, output_range) = (input_at..input_at + given, output_at..output_at + gotten);
        let room = (input_range.end.max(output_range.end) + MARGIN).div_ceil(16);
        let mut memory = [0; 2].map(|_| vec![u128::from_ne_bytes([CANARY; 16]); room]);
        bytemuck::cast_slice_mut(&mut memory[0])[input_range.clone()].copy_from_slice(&input(case, rank));
        Buffers { memory, input: input_range, output: output_range, in_place }
    }

    pub(crate) fn view(&mut self) -> records::View {
        let at = |memory: &mut Vec<u128>, range: &std::ops::Range<usize>| {
            (memory.as_mut_ptr().addr() + range.start) as u64
        };
        let input = at(&mut self.memory[0], &self.input);
        let output = at(&mut self.memory[usize::from(!self.in_place)], &self.output);
        records::View { input, output }
    }

    pub(crate) fn output(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory[usize::from(!self.in_place)])[self.output.clone()]
    }

    /// Nothing but the output has changed.
    pub(crate) fn check(&self, case: &Case, rank: u32) {
        for (number, memory) in self.memory.iter().enumerate() {
            let bytes: &[u8] = bytemuck::cast_slice(memory);
            let is_output = number == usize::from(!self.in_place);
            for (at, byte) in bytes.iter().enumerate() {
                let is_used =
                    number == 0 && self.input.contains(&at) || is_output && self.output.contains(&at);
                assert!(
                    is_used || *byte == CANARY,
                    "{case}, rank {rank}: byte {at} of buffer {number} has changed"
                );
            }
        }
        if !self.in_place {
            assert_eq!(
                bytemuck::cast_slice::<_, u8>(&self.memory[0])[self.input.clone()],
                input(case, rank),
                "{case}"
            );
        }
    }
}
