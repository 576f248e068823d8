//! The fastest algorithms by measurement for ranks on the cores of a host, which the cost model does not cover. Communicators start
//! from this table, which a tuning file can replace, and the simulator predicts by it.

use crate::Collective;
use crate::algorithms::Algorithm::{
    self, Chain, Exchange, ExchangeLl, Hierarchical, Linear, OneShot, Pairwise, RecursiveDoubling, Ring,
    Staged, Tree, TwoShot,
};

/// Bytes of the largest message that shares its cache lines with flags.
pub const PACKET_BYTES: usize = 1120;

/// Any number of bytes.
pub const ANY: usize = usize::MAX;

/// The largest block in bytes, the algorithm, and whether its messages share their cache lines with flags.
pub type Row = (usize, Algorithm, bool);

/// The kind of memory of a call's buffers, for all ranks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Memory {
    /// Private memory: data has to be sent or staged.
    Ordinary,
    /// Private memory that the kernel can read for peers.
    Readable,
    /// Memory that all ranks have mapped.
    Symmetric,
}

impl Memory {
    /// All of them.
    pub const ALL: [Memory; 3] = [Memory::Ordinary, Memory::Readable, Memory::Symmetric];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Ordinary => "ordinary",
            Memory::Readable => "readable",
            Memory::Symmetric => "symmetric",
        }
    }
}

/// The rows of the table for one kind of memory, in the order of [`Collective::NAMES`].
pub fn measured(ranks: usize, memory: Memory) -> [Vec<Row>; Collective::NAMES.len()] {
    let of = |up_to: usize, algorithm: Algorithm| Some((up_to, algorithm, false));
    let packets = |up_to: usize, algorithm: Algorithm| Some((up_to, algorithm, true));
    let row = |choices: &[Option<Row>]| choices.iter().copied().flatten().collect::<Vec<_>>();
    let (pair, few) = (ranks <= 2, ranks <= 4);
    let symmetric = memory == Memory::Symmetric;
    // Reading a peer's memory by a system call pays off where each long block goes to one rank.
    let readable = memory == Memory::Readable;
    // All ranks send to all: with more ranks, algorithms with fewer messages pay off at smaller sizes.
    let exchanged = (2048 / ranks.max(1)).min(PACKET_BYTES);
    let all_reduce = [
        of(if few { PACKET_BYTES } else { 64 }, ExchangeLl).filter(|_| ranks <= 8),
        packets(PACKET_BYTES, RecursiveDoubling).filter(|_| !few),
        if pair { of(128 << 10, Exchange) } else { of(16 << 10, RecursiveDoubling) }.filter(|_| !symmetric),
        of(ANY, if symmetric { TwoShot } else { Staged }),
    ];
    let reduce = [
        packets(PACKET_BYTES, Chain),
        of(16 << 10, Linear).filter(|_| few && !symmetric),
        of(ANY, if symmetric { TwoShot } else { Tree }),
        None,
    ];
    let broadcast = [
        packets(PACKET_BYTES, Chain),
        if few { of(16 << 10, Linear) } else { of(64 << 10, Staged) }.filter(|_| !symmetric),
        of(ANY, if symmetric { TwoShot } else { Tree }),
        None,
    ];
    let all_gather = match (symmetric, pair) {
        (true, _) => [of(exchanged, ExchangeLl), of(ANY, TwoShot), None, None, None],
        (false, true) => {
            let read = of(2 << 20, OneShot).filter(|_| readable);
            [of(exchanged, ExchangeLl), of(8 << 10, Staged), of(256 << 10, Ring), read, of(ANY, Ring)]
        }
        (false, false) => [of(exchanged, ExchangeLl), of(ANY, Staged), None, None, None],
    };
    let reduce_scatter = match (symmetric, pair) {
        (true, _) => [of(exchanged, ExchangeLl), of(ANY, OneShot), None, None],
        (false, true) => [of(exchanged, ExchangeLl), of(ANY, Exchange), None, None],
        (false, false) => {
            let long = of(ANY, if readable { OneShot } else { Ring });
            [of(exchanged, ExchangeLl), of(64 << 10, Exchange), of(256 << 10, Ring), long]
        }
    };
    let all_to_all = match pair {
        true => {
            let sent = of(64 << 10, Pairwise).filter(|_| !symmetric);
            [
                packets(PACKET_BYTES, Pairwise),
                sent,
                of(ANY, if memory == Memory::Ordinary { Staged } else { OneShot }),
                None,
            ]
        }
        false => [of(if symmetric { PACKET_BYTES } else { ANY }, Staged), of(ANY, OneShot), None, None],
    };
    let gather = match symmetric && few {
        true => [packets(PACKET_BYTES, Linear), of(4 << 10, Linear), of(ANY, OneShot), None],
        false => [packets(PACKET_BYTES, Linear), of(ANY, Linear), None, None],
    };
    let scatter = match symmetric {
        true => [packets(PACKET_BYTES, Linear), of(ANY, OneShot), None, None],
        false => {
            let sent = of(if readable { 64 << 10 } else { ANY }, Linear);
            [packets(PACKET_BYTES, Linear), sent, of(ANY, OneShot), None]
        }
    };
    let send_receive = match memory {
        Memory::Ordinary => [packets(PACKET_BYTES, Linear), of(ANY, Linear), None, None],
        Memory::Readable => [packets(PACKET_BYTES, Linear), of(512 << 10, Linear), of(ANY, OneShot), None],
        Memory::Symmetric => [packets(PACKET_BYTES, Linear), of(ANY, OneShot), None, None],
    };
    let sent = |algorithm| row(&[packets(PACKET_BYTES, algorithm), of(ANY, algorithm)]);
    [
        row(&all_reduce),
        row(&reduce),
        row(&broadcast),
        row(&all_gather),
        row(&reduce_scatter),
        row(&all_to_all),
        row(&gather),
        row(&scatter),
        sent(Chain),
        sent(Chain),
        row(&send_receive),
        sent(Linear),
        row(&[of(ANY, OneShot)]),
    ]
}

/// The first choice for ranks of several hosts, for a block of `bytes`: few rounds for small blocks, few bytes between hosts for
/// large ones. The threshold of the all-reduce was measured (`bench/runs/2026-11-15-tcp-16-core-vm`), but not hierarchical against
/// a plain ring, and not the other collectives.
pub fn across(collective: &str, bytes: usize) -> Algorithm {
    let small = bytes <= 64 << 10;
    match collective {
        "all-reduce" if small => RecursiveDoubling,
        "all-reduce" | "all-gather" | "reduce-scatter" if !small => Hierarchical,
        "broadcast" | "reduce" => Tree,
        "all-gather" => Ring,
        "reduce-scatter" | "all-to-all" => Pairwise,
        _ => Linear,
    }
}
