//! A closed form for what a library's algorithm costs on a machine: what libraries choose with, and a quick stand-in for
//! plans that are executed.
//!
//! It is made of what an executed plan has, and of nothing else: a launch; hops on the longest way, each with the latency
//! of its link and protocol; bytes through the narrowest resource (a GPU's port, a slot, a node's NICs, lanes); and the
//! filling of the pipeline, which with steps of the best length is a multiple of the root of latency times transfer.

mod collective;
mod later;
mod machine;
mod message;
mod parts;

use weftlink_plan::plan::Protocol;

pub use machine::Machine;
pub(crate) use machine::slot_line;

use crate::constants::{Constants, Name};
use crate::setup::{LibraryAlgorithm, Operation};
use crate::tuner::ll_relative_to_intel;

/// Whose view of a network is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The library's, which takes all networks to be alike in how protocols do on them.
    Chooser,
    /// What happens.
    Real,
}

/// What a call costs, by what it is spent on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// To start and to end.
    pub launch_us: f64,
    /// Hops on the longest way.
    pub hops_us: f64,
    /// Bytes through the narrowest resource.
    pub wire_us: f64,
    /// Until the pipeline is full.
    pub fill_us: f64,
    /// What the host takes to start the call; calls cannot follow each other faster.
    pub host_us: f64,
    /// How host and device add up: 1 is one after the other, and the more the more they overlap.
    pub host_norm: f64,
}

impl Default for Estimate {
    /// What costs nothing, with a host and a device that take turns.
    fn default() -> Self {
        Self { launch_us: 0.0, hops_us: 0.0, wire_us: 0.0, fill_us: 0.0, host_us: 0.0, host_norm: 1.0 }
    }
}

impl Estimate {
    /// From the first kernel's start to the last one's end.
    pub fn device_us(&self) -> f64 {
        self.launch_us + self.hops_us + self.wire_us + self.fill_us
    }

    /// All of it. What the longer of device and host takes, and more where they take turns in being late: the root of the
    /// sum of squares.
    pub fn total_us(&self) -> f64 {
        self.with_device(self.device_us())
    }

    /// The same for a device that takes so long.
    pub fn with_device(&self, device_us: f64) -> f64 {
        let norm = self.host_norm;
        (device_us.powf(norm) + self.host_us.powf(norm)).powf(1.0 / norm)
    }
}

/// What a call costs with an algorithm and a protocol; nothing where they do not go together.
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
        (O::AllToAll | O::SendReceive, _) => None,
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

/// A call that is being estimated.
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

    /// Microseconds for bytes at GB/s.
    fn over(bytes: f64, gbytes_per_second: f64) -> f64 {
        bytes / gbytes_per_second / 1e3
    }

    /// To start and to end, with what the host takes for it.
    fn launched(&self) -> Estimate {
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
        Estimate { launch_us, host_us, ..self.nothing() }
    }

    /// What costs nothing.
    fn nothing(&self) -> Estimate {
        Estimate { host_norm: self.constant(Name::HostNorm), ..Estimate::default() }
    }

    /// With steps of the best length, filling the pipeline takes as long as the root of hops times transfer, some of it
    /// hidden. Steps are no longer than buffers are: from some size on it takes no longer.
    fn filled(&self, mut estimate: Estimate, part: f64) -> Estimate {
        estimate.fill_us = part * (estimate.hops_us * estimate.wire_us * self.growing()).sqrt();
        estimate
    }

    /// How far a message is on the way from 8 bytes to a full lane, in powers of two: with LL, more threads take part and
    /// wait for each other. After that, more lanes do.
    fn threads_part(message: f64) -> f64 {
        ((message / 8.0).max(1.0).log2() / 9.0).min(1.0)
    }

    /// Lanes that LL spreads bytes over. Parts that are gathered or scattered get few.
    fn lanes_ll(&self) -> f64 {
        if self.parts() && !self.machine.slow_ll {
            return self.constant(Name::LanesFew);
        }
        match (self.machine.islands, self.machine.pcie) {
            (1, false) => self.constant(Name::LanesInside),
            (1, true) => self.constant(Name::LanesFew),
            _ => 2.0 * self.machine.lanes,
        }
    }

    /// Whether ranks have a part each.
    fn parts(&self) -> bool {
        matches!(self.operation, Operation::AllGather | Operation::ReduceScatter)
    }

    /// A hop inside with a message of so many bytes.
    fn hop_inside(&self, message: f64) -> f64 {
        match self.protocol {
            Protocol::Ll => {
                self.constant(Name::HopLlUs)
                    * (1.0 + self.constant(Name::HopLlGrowth) * Self::threads_part(message))
            }
            // Between the two, as across.
            Protocol::Ll128 => (self.constant(Name::HopLlUs) * self.constant(Name::HopSimpleUs)).sqrt(),
            Protocol::Simple => self.constant(Name::HopSimpleUs),
        }
    }

    /// A hop across with a message of so many bytes.
    pub(crate) fn hop_across(&self, message: f64) -> f64 {
        let hop = self.machine.hop_across_us;
        let simple = match self.view {
            View::Chooser => self.constant(Name::HopNetworkSimple) * hop,
            View::Real => self.machine.hop_across_simple_us,
        };
        match self.protocol {
            Protocol::Ll => {
                let part = ((message / 8.0).max(1.0).log2() / 13.0).min(1.0);
                let growth = 1.0 + self.constant(Name::HopNetworkGrowth) * part * part;
                hop * growth + self.rendezvous(message)
            }
            Protocol::Ll128 => (hop * simple).sqrt(),
            Protocol::Simple => simple,
        }
    }

    /// What a message takes more that the receiver must be asked for.
    fn rendezvous(&self, message: f64) -> f64 {
        let asks = self.machine.slingshot
            && self.view == View::Real
            && message > self.constant(Name::RendezvousBytes);
        if asks { self.constant(Name::RendezvousUs) } else { 0.0 }
    }

    /// How well the filling of pipelines across is hidden; where every step is asked for, not at all.
    fn fill_network(&self) -> f64 {
        if self.machine.slingshot { 1.0 } else { self.constant(Name::Fill) }
    }

    /// What a GPU's port carries with this protocol.
    fn port(&self) -> f64 {
        self.machine.port
            * match self.protocol {
                Protocol::Ll if self.parts() && !self.machine.pcie => {
                    self.constant(Name::LlPart) * self.constant(Name::LlFewLanes)
                }
                Protocol::Ll => self.constant(Name::LlPart),
                Protocol::Ll128 => self.constant(Name::Ll128Part),
                Protocol::Simple => 1.0,
            }
    }

    /// What a node's NICs carry with this protocol, over so many lanes.
    fn nics(&self, lanes: f64) -> f64 {
        (self.machine.nics * self.payload()).min(self.lanes_carry(lanes))
    }

    /// What of bytes on the wire is data: half of what LL sends is flags.
    fn payload(&self) -> f64 {
        if self.protocol == Protocol::Ll { 0.5 } else { 1.0 }
    }

    fn lanes_carry(&self, lanes: f64) -> f64 {
        // What the tuner takes LL to carry depends on who made the CPU; what it does carry was fitted over both.
        let vendor = match (self.view, self.machine.cpu) {
            (View::Chooser, Some(vendor)) if self.protocol == Protocol::Ll => {
                ll_relative_to_intel(vendor, self.machine.islands)
            }
            _ => 1.0,
        };
        vendor * self.lanes_really_carry(lanes)
    }

    fn lanes_really_carry(&self, lanes: f64) -> f64 {
        match self.protocol {
            Protocol::Ll if self.machine.slow_ll && self.view == View::Chooser => {
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
