//! Small calls, where every instruction counts: one tile, whose steps only copy or combine the rank's own buffers and packets. Their
//! steps are a list of their own, without lookups.

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
    /// In the caller's buffer, at this offset in bytes.
    Input(usize),
    Output(usize),
    /// In the packet that has arrived at a port.
    Packet(u32),
}

impl PacketStep {
    /// A tile as such steps, if it is the only one and they suffice.
    pub(crate) fn all_of(tile: &Tile, rank: u32) -> Option<Box<[PacketStep]>> {
        match &*tile.lanes {
            [lane] => lane.iter().map(|instruction| Self::of(instruction, rank)).collect(),
            _ => None,
        }
    }

    fn of(instruction: &Instruction, rank: u32) -> Option<Self> {
        let Instruction { op, bytes, needs, signals, .. } = instruction;
        let is_simple = |need: &Need| matches!(need, Need::Packet { .. } | Need::PacketCredit { .. });
        let can = *op != Op::Sync && *bytes > 0 && signals.is_empty();
        let own = |address: &Address| match address.base {
            base if base == base_of(rank, Buffer::Input) => Some(Operand::Input(address.offset)),
            base if base == base_of(rank, Buffer::Output) => Some(Operand::Output(address.offset)),
            _ => None,
        };
        let source = |source: &Source| match source {
            Source::Memory(address) => own(address),
            Source::Packet(port) => Some(Operand::Packet(*port)),
            Source::Message(_) => None,
        };
        let target = |target: &Target| match target {
            Target::Memory(address) => own(address),
            Target::Place(_) | Target::Carried(_) => None,
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
