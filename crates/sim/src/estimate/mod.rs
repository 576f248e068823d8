//! The closed form of a library's call on a machine: libraries choose by it, and a run refines it.
//!
//! The form is that of [`Form`]: a launch, hops, bytes through the narrowest resource, and the time to fill the pipeline. Here are the hops,
//! bytes and rates of the libraries' algorithms, which are those of an executed plan as their tuners see them: a GPU's port, a slot, a
//! node's NICs, lanes.

mod collective;
mod later;
mod machine;
mod message;
mod parts;
mod working;

use weftlink_plan::Work;
use weftlink_plan::cost::{Form, Picoseconds, Prediction, millionths};
use weftlink_plan::plan::Protocol;

pub use machine::Machine;
pub(crate) use machine::{slot_line, x16_gbytes_per_second};
pub use working::{FillTerm, HopTerm, Over, Through, WireTerm, Working};

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
    /// The terms of a closed form, without time of the host.
    pub(crate) fn of(form: &Form, cost: &Prediction, through: Through) -> Self {
        // What is hidden may include the fill.
        let is_hidden = cost.hidden > Picoseconds(0);
        let hideable = if is_hidden { cost.fill } else { Picoseconds(0) };
        let latency = cost.inside + cost.across + cost.messages;
        Self {
            working: Working::of(form, cost, through),
            launch_us: cost.launch.us(),
            hops_us: (latency + hideable).beyond(cost.hidden).us(),
            wire_us: cost.transfer.us(),
            fill_us: if is_hidden { 0.0 } else { cost.fill.us() },
            ..Self::default()
        }
    }

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
    let (form, through) = case.form(algorithm)?;
    let (host_us, host_norm) = (case.host_us(), constants[Name::HostNorm]);
    Some(Estimate { host_us, host_norm, ..Estimate::of(&form, &form.predict(), through) })
}

/// The hops and bytes of a call inside islands, or between them.
#[derive(Clone, Copy, Default)]
struct Side {
    /// Hops on the longest path.
    hops: f64,
    /// The latency of each.
    hop_us: f64,
    /// Bytes through the narrowest resource.
    bytes: f64,
    /// Its rate.
    gbytes_per_second: f64,
}

impl Side {
    /// A whole number of hops that take as long.
    fn whole_hops(&self) -> (u64, Picoseconds) {
        let hops = self.hops.ceil().max(1.0);
        (whole(self.hops.ceil()), Picoseconds::from_us(self.hop_us * self.hops / hops))
    }

    /// The rate; nothing if nothing limits it.
    fn bytes_per_second(&self) -> Option<u64> {
        self.gbytes_per_second.is_finite().then(|| whole(self.gbytes_per_second * 1e9).max(1))
    }
}

/// The nearest whole number.
fn whole(count: f64) -> u64 {
    count.round() as u64
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

    /// The closed form with an algorithm, and what its hops and bytes go through; `None` if the algorithm cannot do the operation.
    fn form(&self, algorithm: LibraryAlgorithm) -> Option<(Form, Through)> {
        use LibraryAlgorithm as A;
        use Operation as O;
        match (self.operation, algorithm) {
            (O::CopyOneWay | O::CopyBothWays, _) => Some(self.copy()),
            (O::AllToAll, A::Direct) => Some(self.all_to_all()),
            (O::SendReceive, A::Direct) => Some(self.send_receive()),
            (O::Gather | O::Scatter, A::Direct) => Some(self.at_root()),
            (O::AllToAll | O::SendReceive | O::Gather | O::Scatter, _) => None,
            (O::Scan | O::ExclusiveScan | O::Neighbours | O::Barrier, _) => None,
            (_, A::Ring) => Some(self.ring()),
            (O::AllReduce, A::Tree) => Some(self.tree()),
            (O::AllReduce, A::Nvls) if self.machine.islands == 1 => Some(self.nvls()),
            (O::AllReduce, A::NvlsTree | A::Nvls) => Some(self.nvls_tree()),
            (O::AllGather | O::ReduceScatter, A::Nvls) => Some(self.nvls_parts()),
            (O::AllGather | O::ReduceScatter, A::Pat) if self.machine.island == 1.0 => Some(self.pat()),
            (O::AllReduce | O::AllGather | O::ReduceScatter, A::Symmetric) if self.machine.islands == 1 => {
                Some(self.symmetric())
            }
            (O::AllReduce, A::CollnetDirect) => Some(self.collnet(Name::CollnetDirect)),
            (O::AllReduce, A::CollnetChain) => Some(self.collnet(Name::CollnetChain)),
            _ => None,
        }
    }

    /// The closed form of hops and bytes inside islands and between them, with this part of the fill.
    fn form_of(&self, inside: Side, across: Side, fill: f64) -> Form {
        let [(hops_inside, hop_inside), (hops_across, hop_across)] =
            [inside.whole_hops(), across.whole_hops()];
        Form {
            bytes: whole(self.bytes),
            work: Work {
                hops_inside,
                hops_across,
                rank_bytes: whole(inside.bytes),
                island_bytes: whole(across.bytes),
            },
            launch: Picoseconds::from_us(self.launch_us()),
            hop_inside,
            hop_across,
            inside_bytes_per_second: inside.bytes_per_second(),
            across_bytes_per_second: across.bytes_per_second(),
            fill: millionths(fill),
            fill_bytes: whole(self.constant(Name::FillBytes)),
            ..Form::default()
        }
    }

    /// Whether NICs with this protocol and number of lanes are limited by the lanes.
    fn nics_or_lanes(&self, lanes: f64) -> Over {
        if self.lanes_carry(lanes) < self.machine.nics * self.payload() { Over::Lanes } else { Over::Nics }
    }

    /// Starting and ending the kernel.
    fn launch_us(&self) -> f64 {
        if self.operation.is_copy() {
            return self.constant(Name::LaunchUs);
        }
        let is_across = self.machine.islands > 1;
        let mut launch_us = self.machine.hops.launch(Some(self.protocol), is_across).us();
        if is_across && self.machine.rccl {
            launch_us += self.constant(Name::LaunchRcclUs);
        }
        if self.machine.launched_by_thread == 0 {
            launch_us += self.enqueued_us();
        }
        launch_us
    }

    /// Host time to launch the call.
    fn host_us(&self) -> f64 {
        if self.operation.is_copy() {
            return 0.0;
        }
        let launches = f64::from(self.machine.launched_by_thread);
        launches * self.constant(Name::LaunchOneThreadUs) + self.enqueued_us()
    }

    /// Host time to enqueue the messages of a call to all ranks.
    fn enqueued_us(&self) -> f64 {
        match self.operation {
            Operation::AllToAll | Operation::Gather | Operation::Scatter => {
                self.machine.messages_by_thread * self.constant(Name::MessageCallUs)
            }
            _ => 0.0,
        }
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
        self.machine.hops.inside(self.protocol).of(whole(message)).us()
    }

    /// Latency of a hop between islands, with a message of this size.
    pub(crate) fn hop_across(&self, message: f64) -> f64 {
        let hops = match self.view {
            View::Tuner => self.machine.hops.alike(),
            View::Actual => self.machine.hops,
        };
        let hop_us = hops.across(self.protocol).of(whole(message)).us();
        if self.protocol == Protocol::Ll { hop_us + self.rendezvous(message) } else { hop_us }
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
