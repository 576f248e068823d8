//! The constants of the cost model, all of them, each with its origin. `sim` refines the same numbers.
//!
//! Times are picoseconds. Most are from NCCL 2.30 (`src/graph/tuning.cc`: `baseLatencies`, `hwLatencies`;
//! `src/sym_kernels.cc`), which fitted them on NVIDIA's machines; they say how algorithms compare, not what a stopwatch
//! shows on other machines. How fast links are is not here: the fabric says it.

use super::Picoseconds;
use crate::plan::Protocol;

const fn ns(nanoseconds: u64) -> Picoseconds {
    Picoseconds(nanoseconds * 1_000)
}

/// A time for each of the three protocols.
#[derive(Clone, Copy, Debug)]
pub struct ByProtocol {
    /// With [`Protocol::Ll`].
    pub ll: Picoseconds,
    /// With [`Protocol::Ll128`].
    pub ll128: Picoseconds,
    /// With [`Protocol::Simple`].
    pub simple: Picoseconds,
}

impl ByProtocol {
    const fn ns(ll: u64, ll128: u64, simple: u64) -> Self {
        Self { ll: ns(ll), ll128: ns(ll128), simple: ns(simple) }
    }

    /// That of one protocol.
    pub const fn of(self, protocol: Protocol) -> Picoseconds {
        match protocol {
            Protocol::Ll => self.ll,
            Protocol::Ll128 => self.ll128,
            Protocol::Simple => self.simple,
        }
    }
}

/// To start a kernel that passes messages, and to end it, whatever it does with them: part of a job must not take longer to
/// start than all of it. `baseLatencies`, ring. NCCL's symmetric kernels start sooner with LL (4.5 us on Hopper, a hop
/// included), but there are such of three collectives only.
pub const LAUNCH_MESSAGES: ByProtocol = ByProtocol::ns(6_600, 14_000, 8_400);
/// To start a kernel in peer memory. The symmetric kernels take 7.8 us on Hopper, two barriers included.
pub const LAUNCH_PEER: Picoseconds = ns(5_200);

/// A message to the next in a row, always the same one. `hwLatencies`, ring: NVLINK, PCI, NET.
pub const HOP_IN_A_ROW: [ByProtocol; 3] = [
    ByProtocol::ns(600, 1_900, 3_400),
    ByProtocol::ns(1_000, 2_500, 5_700),
    ByProtocol::ns(2_700, 4_000, 14_000),
];
/// A message to one of several peers. `hwLatencies`, tree: NVLINK, PCI, NET.
pub const HOP_TO_ONE_OF_SEVERAL: [ByProtocol; 3] = [
    ByProtocol::ns(600, 1_250, 4_000),
    ByProtocol::ns(1_000, 1_900, 4_000),
    ByProtocol::ns(5_000, 8_500, 14_000),
];
/// A flag that is written to a peer and polled there, for what lies in its memory. Half of what the symmetric kernels' launch leaves for two barriers;
/// over PCIe as much slower as LL's hop is. A network takes what a message with LL does.
pub const HOP_PEER: [Picoseconds; 3] = [ns(1_300), ns(2_200), ns(5_000)];
/// A flag that no data comes with, to one of several peers, as a barrier has it: a word is there when it is seen, as with
/// LL. `hwLatencies`, tree, LL.
pub const HOP_FLAG: [Picoseconds; 3] =
    [HOP_TO_ONE_OF_SEVERAL[0].ll, HOP_TO_ONE_OF_SEVERAL[1].ll, HOP_TO_ONE_OF_SEVERAL[2].ll];
/// A sum that the network's switches make, there or back: half of what NCCL gives CollNetDirect (`hwLatencies`, NET), since
/// up and down are hops of their own.
pub const HOP_NETWORK_SUM: Picoseconds = ns(15_500);

/// What a lane takes to hand a message to the network before it can hand over the next. `NCCL_NET_OVERHEAD`, three times
/// that for Simple.
pub const MESSAGE_ACROSS: ByProtocol = ByProtocol::ns(1_000, 1_000, 3_000);

/// The most payload per second that LL's small words get through a GPU, by its compute capability times ten (up to, then
/// how much), where there is no network. `llMaxBws`, one node.
pub const LL_BYTES_PER_SECOND: [(u32, u64); 4] =
    [(79, 39_000_000_000), (89, 87_700_000_000), (99, 141_000_000_000), (u32::MAX, 282_000_000_000)];
/// The same between two islands, and between more. `llMaxBws`, the row of AMD's CPUs: Intel's are as fast or faster.
pub const LL_BYTES_PER_SECOND_ACROSS: [u64; 2] = [22_500_000_000, 19_000_000_000];

/// Which part of what crosses a wire is payload: LL sends 4 bytes of flag with 4 of data, LL128 8 with 120.
pub const fn payload(protocol: Protocol) -> (u64, u64) {
    match protocol {
        Protocol::Ll => (1, 2),
        Protocol::Ll128 => (120, 128),
        Protocol::Simple => (1, 1),
    }
}

/// What NVSwitch's sums and multicasts get of a port, in thousandths: `nvlsEfficiency`, Hopper.
pub const NVLS_THOUSANDTHS_HOPPER: u64 = 850;
/// The same on Blackwell and later.
pub const NVLS_THOUSANDTHS_BLACKWELL: u64 = 740;
/// The compute capability, times ten, from which on a GPU counts as Blackwell.
pub const SM_BLACKWELL: u32 = 100;

/// What one thread block moves through its GPU's links; see [`RINGS_ON_A_SWITCH`](crate::wiring::RINGS_ON_A_SWITCH).
pub const BLOCK_BYTES_PER_SECOND: u64 = 25_000_000_000;
/// Bytes that are worth a thread block of their own: 512 threads times NCCL's thread thresholds, 8 bytes with LL and LL128,
/// 64 with Simple (`src/enqueue.cc`).
pub const fn block_bytes(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Ll | Protocol::Ll128 => 512 * 8,
        Protocol::Simple => 512 * 64,
    }
}
/// Thread blocks of a call at most: NCCL's `MAXCHANNELS`.
pub const BLOCKS_MAX: u32 = 64;
