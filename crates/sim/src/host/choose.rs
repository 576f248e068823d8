//! The choices of CPU libraries, which use tables, not costs.

use weftlink_plan::choose::measured::{PACKET_BYTES, across, measured};
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Collective};

use super::{Choice, Hosts, open_mpi};
use crate::setup::Library;

/// Gloo's largest segment (`kMaxSegmentSize`), and minimum number of segments of every rank's part.
const GLOO_SEGMENT_BYTES: u64 = 1 << 20;
const GLOO_SEGMENTS: u32 = 2;
/// Size of a float: with fewer floats than segments, some segments are empty.
const FLOAT_BYTES: u64 = 4;
/// Range of Weft's message size, memory of all messages of a host, and messages per FIFO.
const WEFT_MESSAGE_BYTES: (u64, u64) = (4 << 10, 64 << 10);
const WEFT_BULK_BYTES: u64 = 64 << 20;
const WEFT_MESSAGES_PER_FIFO: u64 = 5;

/// The library's choice for a call; `None` if it has no such call.
pub(super) fn choose(hosts: &Hosts, collective: &Collective, bytes: u64) -> Option<Choice> {
    match hosts.library {
        Library::Gloo => gloo(hosts, collective, bytes),
        Library::OpenMpi => {
            let algorithm = open_mpi::algorithm(collective, u64::from(hosts.ranks()), bytes)?;
            Some(Choice {
                algorithm,
                protocol: Protocol::Simple,
                message_bytes_max: open_mpi::segment_bytes(algorithm, collective),
                parts_min: 1,
            })
        }
        Library::Weft => weft(hosts, collective, bytes),
        _ => None,
    }
}

/// PyTorch's Gloo: a ring for all-reduces of any size (`gloo/allreduce.cc`), for all-gathers and reduce-scatters, a tree for a broadcast
/// (`broadcast.cc`), a chain for a reduce (`reduce.cc`), and messages between all pairs for an all-to-all.
fn gloo(hosts: &Hosts, collective: &Collective, bytes: u64) -> Option<Choice> {
    let algorithm = match collective {
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => Algorithm::Ring,
        Collective::Broadcast { .. } => Algorithm::Tree,
        Collective::Reduce { .. } => Algorithm::Chain,
        Collective::AllToAll => Algorithm::Pairwise,
        Collective::SendReceive { .. } => Algorithm::Linear,
        _ => return None,
    };
    let is_cut = *collective == Collective::AllReduce && !has_empty_segments(hosts, bytes);
    Some(Choice {
        algorithm,
        protocol: Protocol::Simple,
        message_bytes_max: GLOO_SEGMENT_BYTES,
        parts_min: if is_cut { GLOO_SEGMENTS } else { 1 },
    })
}

/// Whether some of Gloo's segments are empty, and so cost nothing.
pub(super) fn has_empty_segments(hosts: &Hosts, bytes: u64) -> bool {
    bytes / FLOAT_BYTES < u64::from(GLOO_SEGMENTS) * u64::from(hosts.ranks())
}

/// Weft's communicators: their initial table within a host; between hosts, few rounds for small calls and little network traffic for
/// large ones.
fn weft(hosts: &Hosts, collective: &Collective, bytes: u64) -> Option<Choice> {
    let ranks = hosts.ranks() as usize;
    let (inputs, outputs) = collective.blocks(ranks as u32);
    let block = bytes as usize / inputs.max(outputs).max(1) as usize;
    if hosts.hosts > 1 {
        let algorithm = across(collective.name(), block);
        return Some(Choice {
            algorithm,
            protocol: Protocol::Simple,
            message_bytes_max: WEFT_MESSAGE_BYTES.1,
            parts_min: 1,
        });
    }
    let at = Collective::NAMES.iter().position(|name| *name == collective.name())?;
    let rows = &measured(ranks, hosts.memory)[at];
    let (_, algorithm, packets) = *rows.iter().find(|(up_to, ..)| block <= *up_to).or(rows.last())?;
    let packets = packets || algorithm == Algorithm::ExchangeLl;
    let messages = WEFT_MESSAGES_PER_FIFO * ranks as u64 * (ranks as u64 - 1);
    let bulk = 1 << (WEFT_BULK_BYTES / messages.max(1)).max(1).ilog2();
    Some(Choice {
        algorithm,
        protocol: if packets { Protocol::Ll } else { Protocol::Simple },
        message_bytes_max: match algorithm {
            _ if packets => PACKET_BYTES as u64,
            // These work in place and do not split messages.
            Algorithm::OneShot | Algorithm::TwoShot => u64::MAX,
            _ => u64::clamp(bulk, WEFT_MESSAGE_BYTES.0, WEFT_MESSAGE_BYTES.1),
        },
        parts_min: 1,
    })
}
