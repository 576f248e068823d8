//! Calls of one tile whose steps only copy or combine the rank's own buffers and packets: the small ones, where every
//! instruction counts. Their steps are a list of their own, in which nothing is left to look up.

use weftlink_plan::plan::{Buffer, Op};

use super::{Address, Instruction, Need, Source, Target, Tile, base_of, words_of};

/// A step of such a call.
#[derive(Debug)]
pub(crate) struct PacketStep {
    pub(crate) instruction: Instruction,
    pub(crate) words: usize,
    pub(crate) sources: Box<[Operand]>,
    pub(crate) targets: Box<[Operand]>,
}

/// Where data is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand {
    /// In the buffer that the caller passed, so many bytes from its start.
    Input(usize),
    Output(usize),
    /// In the message that has arrived at an end.
    Packet(u32),
}

impl PacketStep {
    /// A tile as such steps, if it is all there is and they can do it.
    pub(crate) fn all_of(tile: &Tile, rank: u32) -> Option<Box<[PacketStep]>> {
        match &*tile.lanes {
            [lane] => lane.iter().map(|instruction| Self::of(instruction, rank)).collect(),
            _ => None,
        }
    }

    fn of(instruction: &Instruction, rank: u32) -> Option<Self> {
        let Instruction { op, bytes, needs, slots, signals, .. } = instruction;
        let is_simple = |need: &Need| matches!(need, Need::Message { .. } | Need::Credit { .. });
        let can = *op != Op::Sync && *bytes > 0 && slots.is_empty() && signals.is_empty();
        let own = |address: &Address| match address.base {
            base if base == base_of(rank, Buffer::Input) => Some(Operand::Input(address.offset)),
            base if base == base_of(rank, Buffer::Output) => Some(Operand::Output(address.offset)),
            _ => None,
        };
        let source = |source: &Source| match source {
            Source::Memory(address) => own(address),
            Source::Packet(end) => Some(Operand::Packet(*end)),
            Source::Slot(_) | Source::Wire(_) => None,
        };
        let target = |target: &Target| match target {
            Target::Memory(address) => own(address),
            Target::Slot(_) | Target::Wire(_) => None,
        };
        if !can || !needs.iter().all(is_simple) {
            return None;
        }
        Some(Self {
            words: words_of(*bytes),
            sources: instruction.sources.iter().map(source).collect::<Option<_>>()?,
            targets: instruction.targets.iter().map(target).collect::<Option<_>>()?,
            instruction: instruction.clone(),
        })
    }
}
