//! All constants of the cost model, each with its source. `sim` refines the same numbers.
//!
//! Times are picoseconds. Most are from NCCL 2.30 (`src/graph/tuning.cc`: `baseLatencies`, `hwLatencies`;
//! `src/sym_kernels.cc`), fitted on NVIDIA's machines; they compare algorithms rather than predict absolute times on other
//! machines. Rates of links are not here: they come from the fabric.

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

    /// The time of one protocol.
    pub const fn of(self, protocol: Protocol) -> Picoseconds {
        match protocol {
            Protocol::Ll => self.ll,
            Protocol::Ll128 => self.ll128,
            Protocol::Simple => self.simple,
        }
    }
}

/// Start and end of a kernel that sends messages, the same for all algorithms, so that no part of a job takes longer to start
/// than the whole. `baseLatencies`, ring. NCCL's symmetric kernels start sooner with LL (4.5 us on Hopper, a hop included), but
/// exist for three collectives only.
pub const LAUNCH_MESSAGES: ByProtocol = ByProtocol::ns(6_600, 14_000, 8_400);
/// Start of a kernel in peer memory. The symmetric kernels take 7.8 us on Hopper, two barriers included.
pub const LAUNCH_PEER: Picoseconds = ns(5_200);

/// A message of a lane that always sends to the same peer. `hwLatencies`, ring: NVLINK, PCI, NET.
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
/// A flag that a rank writes to a peer, which polls it before it accesses memory. Half of what the symmetric kernels' launch leaves
/// for two barriers; over PCIe slower by the ratio of LL's hops; over a network a message with LL.
pub const HOP_PEER: [Picoseconds; 3] = [ns(1_300), ns(2_200), ns(5_000)];
/// A flag without data to one of several peers, as in a barrier: as with LL, the flag's word is all there is to poll.
/// `hwLatencies`, tree, LL.
pub const HOP_FLAG: [Picoseconds; 3] =
    [HOP_TO_ONE_OF_SEVERAL[0].ll, HOP_TO_ONE_OF_SEVERAL[1].ll, HOP_TO_ONE_OF_SEVERAL[2].ll];
/// A sum by the network's switches, up or down: half of NCCL's CollNetDirect (`hwLatencies`, NET), since up and down are
/// separate hops.
pub const HOP_NETWORK_SUM: Picoseconds = ns(15_500);

/// The time between two messages of a lane into the network. `NCCL_NET_OVERHEAD`, three times that for Simple.
pub const MESSAGE_ACROSS: ByProtocol = ByProtocol::ns(1_000, 1_000, 3_000);

/// The maximum rate of LL's payload inside an island, by the GPU's compute capability times ten (up to, rate). `llMaxBws`, one
/// node.
pub const LL_BYTES_PER_SECOND: [(u32, u64); 4] =
    [(79, 39_000_000_000), (89, 87_700_000_000), (99, 141_000_000_000), (u32::MAX, 282_000_000_000)];
/// The same between two islands, and between more. `llMaxBws`, the row of AMD's CPUs: Intel's are as fast or faster.
pub const LL_BYTES_PER_SECOND_ACROSS: [u64; 2] = [22_500_000_000, 19_000_000_000];

/// The payload's share of the bytes on the wire: LL sends 4 bytes of flag with 4 of data, LL128 8 with 120.
pub const fn payload(protocol: Protocol) -> (u64, u64) {
    match protocol {
        Protocol::Ll => (1, 2),
        Protocol::Ll128 => (120, 128),
        Protocol::Simple => (1, 1),
    }
}

/// The efficiency of NVSwitch's sums and multicasts, in thousandths of a port's rate: `nvlsEfficiency`, Hopper.
pub const NVLS_THOUSANDTHS_HOPPER: u64 = 850;
/// The same on Blackwell and later.
pub const NVLS_THOUSANDTHS_BLACKWELL: u64 = 740;
/// The lowest compute capability, times ten, of Blackwell.
pub const SM_BLACKWELL: u32 = 100;

/// The rate of one thread block through its GPU's links; see [`RINGS_ON_A_SWITCH`](crate::wiring::RINGS_ON_A_SWITCH).
pub const BLOCK_BYTES_PER_SECOND: u64 = 25_000_000_000;
/// The bytes that justify one more thread block: 512 threads times NCCL's thread thresholds, 8 bytes with LL and LL128, 64
/// with Simple (`src/enqueue.cc`).
pub const fn block_bytes(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Ll | Protocol::Ll128 => 512 * 8,
        Protocol::Simple => 512 * 64,
    }
}
/// The maximum number of thread blocks of a call: NCCL's `MAXCHANNELS`.
pub const BLOCKS_MAX: u32 = 64;
