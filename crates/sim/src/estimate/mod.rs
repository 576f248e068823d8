//! A closed form for the cost of a library's algorithm on a machine: libraries choose by it, and it approximates an executed plan.
//!
//! The terms are those of an executed plan: a launch; hops on the longest path, each with the latency of its link and protocol; bytes
//! through the narrowest resource (a GPU's port, a slot, a node's NICs, lanes); and the time to fill the pipeline, which with steps of
//! optimal length is proportional to the square root of latency times transfer.

mod collective;
mod later;
mod machine;
mod message;
mod parts;
mod working;

use weftlink_plan::plan::Protocol;

pub use machine::Machine;
pub(crate) use machine::{slot_line, x16_gbytes_per_second};
pub use working::{FillTerm, HopTerm, Over, WireTerm, Working};

use crate::constants::{Constants, Name};
use crate::setup::{LibraryAlgorithm, Operation};
use crate::tuner::ll_relative_to_intel;

/// Whose view of the network a cost reflects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The view of the library's tuner, which assumes that protocols behave alike on all networks.
    Tuner,
    /// The actual behaviour.
    Actual,
}

/// The cost of a call, by component.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Starting and ending the kernel.
    pub launch_us: f64,
    /// Hops on the longest path.
    pub hops_us: f64,
    /// Bytes through the narrowest resource.
    pub wire_us: f64,
    /// Filling the pipeline.
    pub fill_us: f64,
    /// Host time to launch the call, which limits the rate of calls.
    pub host_us: f64,
    /// Exponent of the norm that combines host and device time: 1 adds them, larger values overlap them more.
    pub host_norm: f64,
    /// The numbers behind hops, wire and fill.
    pub working: Working,
}

impl Default for Estimate {
    /// Zero, with host and device times added.
    fn default() -> Self {
        Self {
            launch_us: 0.0,
            hops_us: 0.0,
            wire_us: 0.0,
            fill_us: 0.0,
            host_us: 0.0,
            host_norm: 1.0,
            working: Working::default(),
        }
    }
}

impl Estimate {
    /// From the start of the first kernel to the end of the last.
    pub fn device_us(&self) -> f64 {
        self.launch_us + self.hops_us + self.wire_us + self.fill_us
    }

    /// Total time: the norm of device and host time, which exceeds the larger of the two where they delay each other.
    pub fn total_us(&self) -> f64 {
        self.with_device(self.device_us())
    }

    /// Total time for a given device time.
    pub fn with_device(&self, device_us: f64) -> f64 {
        let norm = self.host_norm;
        libm::pow(libm::pow(device_us, norm) + libm::pow(self.host_us, norm), 1.0 / norm)
    }
}

/// The cost of a call with an algorithm and a protocol; `None` if they cannot be combined.
pub fn estimate(
    constants: &Constants,
    machine: &Machine,
    view: View,
    operation: Operation,
    bytes: f64,
    algorithm: LibraryAlgorithm,
    protocol: Protocol,
) -> Option<Estimate> {
    let case = Case { constants, machine, view, operation, bytes, protocol };
    use LibraryAlgorithm as A;
    use Operation as O;
    match (operation, algorithm) {
        (O::CopyOneWay | O::CopyBothWays, _) => Some(case.copy()),
        (O::AllToAll, A::Direct) => Some(case.all_to_all()),
        (O::SendReceive, A::Direct) => Some(case.send_receive()),
        (O::Gather | O::Scatter, A::Direct) => Some(case.at_root()),
        (O::AllToAll | O::SendReceive | O::Gather | O::Scatter, _) => None,
        (O::Scan | O::ExclusiveScan | O::Neighbours | O::Barrier, _) => None,
        (_, A::Ring) => Some(case.ring()),
        (O::AllReduce, A::Tree) => Some(case.tree()),
        (O::AllReduce, A::Nvls) if machine.islands == 1 => Some(case.nvls()),
        (O::AllReduce, A::NvlsTree | A::Nvls) => Some(case.nvls_tree()),
        (O::AllGather | O::ReduceScatter, A::Nvls) => Some(case.nvls_parts()),
        (O::AllGather | O::ReduceScatter, A::Pat) if machine.island == 1.0 => Some(case.pat()),
        (O::AllReduce | O::AllGather | O::ReduceScatter, A::Symmetric) if machine.islands == 1 => {
            Some(case.symmetric())
        }
        (O::AllReduce, A::CollnetDirect) => Some(case.collnet(Name::CollnetDirect)),
        (O::AllReduce, A::CollnetChain) => Some(case.collnet(Name::CollnetChain)),
        _ => None,
    }
}

/// A call to estimate.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) constants: &'a Constants,
    pub(crate) machine: &'a Machine,
    pub(crate) view: View,
    pub(crate) operation: Operation,
    pub(crate) bytes: f64,
    pub(crate) protocol: Protocol,
}

impl Case<'_> {
    fn constant(&self, name: Name) -> f64 {
        self.constants[name]
    }

    /// Sets the time of hops on the longest path: number and latency of each kind.
    fn set_hops(estimate: &mut Estimate, hops: &[(&'static str, f64, f64)]) {
        estimate.working.hops = Default::default();
        for (term, (what, count, each_us)) in estimate.working.hops.iter_mut().zip(hops) {
            *term = HopTerm { what, count: *count, each_us: *each_us };
        }
        estimate.hops_us = hops.iter().map(|(_, count, each_us)| count * each_us).sum();
    }

    /// Sets the time of bytes through a resource.
    fn set_wire(estimate: &mut Estimate, bytes: f64, gbytes_per_second: f64, over: Over) {
        estimate.working.wire = WireTerm { bytes, gbytes_per_second, over };
        estimate.wire_us = Self::transfer_us(bytes, gbytes_per_second);
    }

    /// Whether NICs with this protocol and number of lanes are limited by the lanes.
    fn nics_or_lanes(&self, lanes: f64) -> Over {
        if self.lanes_carry(lanes) < self.machine.nics * self.payload() { Over::Lanes } else { Over::Nics }
    }

    /// Microseconds for bytes at GB/s. Nothing takes no time, also over a link that a single rank does not have.
    fn transfer_us(bytes: f64, gbytes_per_second: f64) -> f64 {
        if bytes > 0.0 { bytes / gbytes_per_second / 1e3 } else { 0.0 }
    }

    /// The launch, with its host time.
    fn launch(&self) -> Estimate {
        let simple = self.protocol == Protocol::Simple;
        let mut launch_us = self.constant(Name::LaunchUs);
        if self.machine.islands > 1 {
            if simple {
                launch_us += self.constant(Name::LaunchNetworkSimpleUs);
            }
            if self.machine.rccl {
                launch_us += self.constant(Name::LaunchRcclUs);
            }
        }
        let host_us = self.machine.launched_by_thread as f64 * self.constant(Name::LaunchOneThreadUs);
        Estimate { launch_us, host_us, ..self.zero() }
    }

    /// A cost of zero.
    fn zero(&self) -> Estimate {
        Estimate { host_norm: self.constant(Name::HostNorm), ..Estimate::default() }
    }

    /// Adds the time to fill the pipeline: with steps of optimal length, the square root of hops times transfer, of which `fraction`
    /// is not hidden. Steps are no longer than buffers, so the time is constant from some size on.
    fn with_fill(&self, mut estimate: Estimate, fraction: f64) -> Estimate {
        let (latency_us, wire_us) = (estimate.hops_us, estimate.wire_us);
        let fill = FillTerm::Steps { fraction, latency_us, wire_us, growth: self.step_growth() };
        (estimate.fill_us, estimate.working.fill) = (fill.us(), fill);
        estimate
    }

    /// Position of a message between 8 bytes and a full lane, on a log scale from 0 to 1: with LL, longer messages use more threads,
    /// which wait for each other. Beyond that, more lanes are used.
    fn threads_part(message: f64) -> f64 {
        (libm::log2((message / 8.0).max(1.0)) / 9.0).min(1.0)
    }

    /// Number of lanes that LL uses. All-gather and reduce-scatter get few.
    fn lanes_ll(&self) -> f64 {
        if self.is_partitioned() && !self.machine.slow_ll {
            return self.constant(Name::LanesFew);
        }
        match (self.machine.islands, self.machine.pcie) {
            (1, false) => self.constant(Name::LanesInside),
            (1, true) => self.constant(Name::LanesFew),
            _ => 2.0 * self.machine.lanes,
        }
    }

    /// Whether each rank has a part of the buffer.
    fn is_partitioned(&self) -> bool {
        matches!(self.operation, Operation::AllGather | Operation::ReduceScatter)
    }

    /// Latency of a hop inside an island, with a message of this size.
    fn hop_inside(&self, message: f64) -> f64 {
        match self.protocol {
            Protocol::Ll => {
                self.constant(Name::HopLlUs)
                    * (1.0 + self.constant(Name::HopLlGrowth) * Self::threads_part(message))
            }
            // Between the two, as for hops across.
            Protocol::Ll128 => (self.constant(Name::HopLlUs) * self.constant(Name::HopSimpleUs)).sqrt(),
            Protocol::Simple => self.constant(Name::HopSimpleUs),
        }
    }

    /// Latency of a hop between islands, with a message of this size.
    pub(crate) fn hop_across(&self, message: f64) -> f64 {
        let hop = self.machine.hop_across_us;
        let simple = match self.view {
            View::Tuner => self.constant(Name::HopNetworkSimple) * hop,
            View::Actual => self.machine.hop_across_simple_us,
        };
        match self.protocol {
            Protocol::Ll => {
                let part = (libm::log2((message / 8.0).max(1.0)) / 13.0).min(1.0);
                let growth = 1.0 + self.constant(Name::HopNetworkGrowth) * part * part;
                hop * growth + self.rendezvous(message)
            }
            Protocol::Ll128 => (hop * simple).sqrt(),
            Protocol::Simple => simple,
        }
    }

    /// Extra latency of a message that needs a rendezvous.
    fn rendezvous(&self, message: f64) -> f64 {
        let needs_rendezvous = self.machine.slingshot
            && self.view == View::Actual
            && message > self.constant(Name::RendezvousBytes);
        if needs_rendezvous { self.constant(Name::RendezvousUs) } else { 0.0 }
    }

    /// Fraction of the pipeline fill between islands that is not hidden: all of it where every step needs a rendezvous.
    fn fill_network(&self) -> f64 {
        if self.machine.slingshot { 1.0 } else { self.constant(Name::Fill) }
    }

    /// GB/s of a GPU's port with this protocol.
    fn port(&self) -> f64 {
        self.machine.port
            * match self.protocol {
                Protocol::Ll if self.is_partitioned() && !self.machine.pcie => {
                    self.constant(Name::LlPart) * self.constant(Name::LlFewLanes)
                }
                Protocol::Ll => self.constant(Name::LlPart),
                Protocol::Ll128 => self.constant(Name::Ll128Part),
                Protocol::Simple => 1.0,
            }
    }

    /// GB/s of a node's NICs with this protocol and number of lanes.
    fn nics(&self, lanes: f64) -> f64 {
        (self.machine.nics * self.payload()).min(self.lanes_carry(lanes))
    }

    /// Fraction of the bytes on the wire that is data: half of LL's bytes are flags.
    fn payload(&self) -> f64 {
        if self.protocol == Protocol::Ll { 0.5 } else { 1.0 }
    }

    fn lanes_carry(&self, lanes: f64) -> f64 {
        // The tuner's LL bandwidth depends on the CPU vendor; the actual one was fitted over both vendors.
        let vendor = match (self.view, self.machine.cpu) {
            (View::Tuner, Some(vendor)) if self.protocol == Protocol::Ll => {
                ll_relative_to_intel(vendor, self.machine.islands)
            }
            _ => 1.0,
        };
        vendor * self.lanes_actually_carry(lanes)
    }

    fn lanes_actually_carry(&self, lanes: f64) -> f64 {
        match self.protocol {
            Protocol::Ll if self.machine.slow_ll && self.view == View::Tuner => {
                let half = if self.machine.islands == 2 { 1.0 } else { 0.5 };
                lanes * self.constant(Name::LlLaneChosenGBps) * half
            }
            Protocol::Ll if self.machine.slow_ll => lanes * self.constant(Name::LlLaneSlowGBps),
            Protocol::Ll => lanes * self.constant(Name::LlLaneGBps),
            Protocol::Ll128 => lanes * self.constant(Name::Ll128LaneGBps),
            Protocol::Simple => f64::INFINITY,
        }
    }
}
