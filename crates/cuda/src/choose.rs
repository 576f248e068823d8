//! The plan of a call between ranks on GPUs of one host.
//!
//! Small calls send packets, whose flags travel with the data. Large ones read and write peers' memory, each input byte once and each output
//! byte once where an algorithm can: two-shot divides the work between all ranks and writes results to their owners; one-shot reads what a
//! rank gets. Scans and neighbour exchanges have no such algorithm and send messages.
//!
//! The limits were measured for an all-reduce of f32 on one H200 with 2, 4 and 8 ranks. Other collectives use the same limits, unmeasured.

use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Collective, DataType, Reduction, Verified, verify};

use crate::program::{VECTOR_BYTES, can_sum};
use crate::{Error, adapted};

/// The most bytes of a buffer that travel as packets, with at most [`FEW_RANKS`] ranks on a GPU, and with more.
const PACKET_BYTES_MAX: usize = 128 << 10;
const PACKET_BYTES_MAX_CROWDED: usize = 16 << 10;
const FEW_RANKS: usize = 4;

/// How a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol of its messages; `Simple` if it sends none.
    pub protocol: Protocol,
}

/// Chooses for a call whose largest buffer on a rank has this many bytes, if at most `ranks_on_gpu` ranks share a GPU. Large calls send
/// messages unless ranks access each other's buffers. Depends only on what all ranks know, so all choose the same.
pub fn choose(collective: &Collective, bytes: usize, ranks_on_gpu: usize, accesses_buffers: bool) -> Choice {
    let limit = if ranks_on_gpu > FEW_RANKS { PACKET_BYTES_MAX_CROWDED } else { PACKET_BYTES_MAX };
    let packets = |algorithm| Choice { algorithm, protocol: Protocol::Ll };
    let simple = |algorithm| Choice { algorithm, protocol: Protocol::Simple };
    match collective {
        Collective::Barrier => simple(Algorithm::OneShot),
        _ if bytes <= limit => packets(match collective {
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => Algorithm::Exchange,
            Collective::AllToAll => Algorithm::Pairwise,
            Collective::Scan | Collective::ExclusiveScan => Algorithm::RecursiveDoubling,
            _ => Algorithm::Linear,
        }),
        _ if !accesses_buffers => simple(match collective {
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => Algorithm::Ring,
            Collective::Scan
            | Collective::ExclusiveScan
            | Collective::Reduce { .. }
            | Collective::Broadcast { .. } => Algorithm::Chain,
            Collective::AllToAll => Algorithm::Pairwise,
            _ => Algorithm::Linear,
        }),
        Collective::AllReduce
        | Collective::Reduce { .. }
        | Collective::Broadcast { .. }
        | Collective::AllGather
        | Collective::AllToAll => simple(Algorithm::TwoShot),
        Collective::ReduceScatter
        | Collective::Gather { .. }
        | Collective::Scatter { .. }
        | Collective::SendReceive { .. } => simple(Algorithm::OneShot),
        Collective::Scan | Collective::ExclusiveScan => simple(Algorithm::Chain),
        Collective::Neighbours { .. } => simple(Algorithm::Linear),
    }
}

/// Chooses for a call whose input and output are in multicast windows or not: the switch, if it can access the call's buffers and add its
/// elements, and if they are more than travel as packets. A switch adds f32, f16 and bf16, for sums and averages, and accesses blocks of
/// multiples of 16 bytes. Depends only on what all ranks know, if all pass windows of the same kind.
///
/// No machine with such a switch has run this choice; the limit of packets is that of [`choose`].
pub fn choose_through_switch(
    collective: &Collective,
    ranks: u32,
    count: usize,
    data_type: DataType,
    reduction: Reduction,
    [input, output]: [bool; 2],
) -> Option<Choice> {
    let is_accessible = match collective {
        Collective::AllReduce => input && output,
        Collective::AllGather | Collective::Broadcast { .. } => output,
        Collective::ReduceScatter | Collective::Reduce { .. } => input,
        _ => false,
    };
    let (gives, gets) = collective.blocks(ranks);
    let block_bytes = count.checked_mul(data_type.bytes())?;
    let is_large = block_bytes.saturating_mul(gives.max(gets) as usize) > PACKET_BYTES_MAX;
    let is_fit =
        block_bytes.is_multiple_of(VECTOR_BYTES) && (!collective.reduces() || can_sum(data_type, reduction));
    (ranks > 1 && is_accessible && is_large && is_fit)
        .then_some(Choice { algorithm: Algorithm::Nvls, protocol: Protocol::Simple })
}

impl Choice {
    /// The plan, adapted to GPUs and proved.
    pub fn plan(self, collective: &Collective, ranks: u32) -> Result<Verified, Error> {
        let refused = |why: String| Error::Misuse { attempt: format!("plan {collective}"), why };
        // One lane: a GPU runs each lane in parallel slices already.
        let plan = self.algorithm.flat_with(collective, ranks, 1, self.protocol);
        let plan = plan.map_err(|why| refused(why.to_string()))?;
        verify(adapted(plan)).map_err(|why| refused(why.to_string()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use weftlink_plan::{Aliasing, Shape};

    use super::*;
    use crate::program::{Arenas, Compiler, Spread};

    const SLICES_MAX: u32 = 132;

    fn collectives(ranks: u32) -> Vec<Collective> {
        let root = ranks - 1;
        let ring = (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
        let rooted = [
            Collective::Reduce { root },
            Collective::Broadcast { root },
            Collective::Gather { root },
            Collective::Scatter { root },
            Collective::SendReceive { messages: ring },
            Collective::Neighbours { torus: [1, 1, ranks] },
        ];
        Collective::KINDS.into_iter().chain(rooted).collect()
    }

    #[test]
    fn limits_are_those_that_were_measured() {
        let chosen = |bytes, ranks| choose(&Collective::AllReduce, bytes, ranks, true);
        let packets = Choice { algorithm: Algorithm::Exchange, protocol: Protocol::Ll };
        let memory = Choice { algorithm: Algorithm::TwoShot, protocol: Protocol::Simple };
        for (ranks, limit) in [(1, 128 << 10), (2, 128 << 10), (4, 128 << 10), (8, 16 << 10)] {
            assert_eq!((chosen(limit, ranks), chosen(limit + 1, ranks)), (packets, memory), "{ranks} ranks");
        }
    }

    #[test]
    fn large_calls_in_multicast_windows_go_through_the_switch() {
        let (ranks, root) = (4, 1);
        let choice = Choice { algorithm: Algorithm::Nvls, protocol: Protocol::Simple };
        let large = PACKET_BYTES_MAX;
        let chosen = |collective: &Collective, count, data_type, reduction, multicast| {
            choose_through_switch(collective, ranks, count, data_type, reduction, multicast).is_some()
        };
        for collective in collectives(ranks) {
            let plan = Algorithm::Nvls.flat(&collective, ranks, 1);
            let accessed = plan.is_ok().then(|| {
                let plan = choice.plan(&collective, ranks).unwrap();
                crate::program::SwitchUse::of(&plan).unwrap().buffers
            });
            for multicast in [[false, false], [false, true], [true, false], [true, true]] {
                let covers =
                    |needed: [bool; 2]| std::iter::zip(needed, multicast).all(|(needed, has)| has || !needed);
                let is_chosen = chosen(&collective, large, DataType::F32, Reduction::Sum, multicast);
                assert_eq!(is_chosen, accessed.is_some_and(covers), "{collective} {multicast:?}");
            }
        }
        let of_all = |collective: &Collective, count, data_type, reduction| {
            chosen(collective, count, data_type, reduction, [true, true])
        };
        let all_reduce =
            |count, data_type, reduction| of_all(&Collective::AllReduce, count, data_type, reduction);
        assert!(all_reduce(large, DataType::Bf16, Reduction::Average));
        assert!(!all_reduce(large, DataType::F64, Reduction::Sum));
        assert!(!all_reduce(large, DataType::F32, Reduction::Maximum));
        assert!(of_all(&Collective::Broadcast { root }, large, DataType::F64, Reduction::Maximum));
        // Blocks of whole vectors that are more than travel as packets.
        assert!(!all_reduce(large + 1, DataType::F32, Reduction::Sum));
        assert!(all_reduce(large + 4, DataType::F32, Reduction::Sum));
        assert!(!all_reduce(PACKET_BYTES_MAX / 4, DataType::F32, Reduction::Sum));
        assert!(all_reduce(PACKET_BYTES_MAX / 4 + 4, DataType::F32, Reduction::Sum));
        assert!(!all_reduce(usize::MAX / 4 * 2, DataType::F32, Reduction::Sum));
        let multicast = [true, true];
        let alone =
            choose_through_switch(&Collective::AllReduce, 1, large, DataType::F32, Reduction::Sum, multicast);
        assert_eq!(alone, None);
    }

    #[test]
    fn every_choice_has_a_proved_plan_that_fits_a_device_program() {
        let mut plans = 0;
        for ranks in 1..=8 {
            let both = [true, false].into_iter();
            let cases =
                both.flat_map(|accesses| collectives(ranks).into_iter().map(move |one| (one, accesses)));
            for (collective, accesses_buffers) in cases {
                let mut known: Option<(Choice, Vec<Compiler>)> = None;
                for bytes in [0_usize, 8, 16 << 10, 17 << 10, 128 << 10, 129 << 10, 1 << 20, 1 << 30] {
                    let choice = choose(&collective, bytes, ranks as usize, accesses_buffers);
                    if known.as_ref().is_none_or(|(known, _)| *known != choice) {
                        let plan = choice.plan(&collective, ranks).unwrap();
                        assert!(accesses_buffers || !plan.needs_windows(), "{collective} on {ranks}");
                        let compiler = |rank| Compiler::new(plan.clone(), rank, SLICES_MAX);
                        known = Some((choice, (0..ranks).map(compiler).collect()));
                        plans += 1;
                    }
                    let (_, compilers) = known.as_ref().unwrap();
                    compilers.iter().for_each(|compiler| fits(compiler, &collective, bytes));
                }
            }
        }
        assert!(plans > 200, "{plans} plans");
    }

    /// A call of every size of element compiles, and the arena stays small.
    fn fits(compiler: &Compiler, collective: &Collective, bytes: usize) {
        let (name, ranks) = (&compiler.plan().name, compiler.plan().ranks);
        assert!(compiler.arena.bytes <= 16 << 20, "{collective} on {ranks}: {}", compiler.arena.bytes);
        let (gives, gets) = collective.blocks(ranks);
        let arenas = Arenas {
            of_ranks: (0..u64::from(ranks)).map(|rank| (rank + 1) << 32).collect(),
            private: 1 << 48,
        };
        for element_bytes in [1, 2, 4, 8, 16] {
            let count = (bytes / element_bytes).checked_div(gives.max(gets) as usize).unwrap_or(0);
            let shape = Shape { aliasing: Aliasing::OutOfPlace, element_bytes, count, uneven: None };
            for (slices, threads) in [(1, 32), (compiler.arena.slices_max.min(16), 512)] {
                let chunk_bytes = (64 << 20) / ranks as usize;
                let program = compiler.compile(&shape, Spread { slices, threads, chunk_bytes }, &arenas);
                let case =
                    || format!("{name}: {collective} of {bytes} bytes in {element_bytes}s on {ranks} ranks");
                assert!(program.is_ok(), "{}: {}", case(), program.unwrap_err());
            }
        }
    }
}
