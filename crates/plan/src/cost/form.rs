//! The closed form: the time of a call from its hops, its bytes and how they overlap. Weft's own plans and the models of other libraries
//! are priced by it.

use super::carried::part_of;
use super::{Picoseconds, over};
use crate::Work;

/// The most tiles of a call.
const TILES_MAX: u64 = 64;

/// A call as the closed form sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// Its bytes, as nccl-tests count them.
    pub bytes: u64,
    /// Its hops and the bytes that they move.
    pub work: Work,
    /// The time to start and to end.
    pub launch: Picoseconds,
    /// A hop inside an island.
    pub hop_inside: Picoseconds,
    /// A hop between islands.
    pub hop_across: Picoseconds,
    /// Sending messages into the network one after the other.
    pub posting: Posting,
    /// The rate of the busiest rank's data inside its island; nothing if no data moves there.
    pub inside_bytes_per_second: Option<u64>,
    /// The rate of the busiest island's data to the others.
    pub across_bytes_per_second: Option<u64>,
    /// The rates of the slowest lane's data inside and across, one after the other.
    pub serial_bytes_per_second: (Option<u64>, Option<u64>),
    /// The rate of the cut that bounds every algorithm, in bytes of the call.
    pub cut_bytes_per_second: Option<u64>,
    /// The bytes that a rank moves in a step.
    pub message: u64,
    /// How the data flows through the ranks.
    pub flow: Flow,
    /// The part of the time to fill a pipeline of optimal steps that is not hidden, in millionths.
    pub fill: u64,
    /// The bytes from which steps are as long as buffers and grow no further.
    pub fill_bytes: u64,
}

/// How a call's data flows through its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Each step moves another part of the data.
    #[default]
    Steps,
    /// The same, but steps inside islands and between them follow each other.
    Phases,
    /// The same along a ring: a chunk waits for the slowest link, which hides hops over the others.
    Ring,
    /// Whole buffers pass from rank to rank, in tiles that follow each other. On the way of a chunk, a hop takes this part of the time of a
    /// rank's own steps, in millionths.
    Tiles(u64),
}

/// The time to send messages into the network one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// It passes while the first messages are on their way.
    Beside(Picoseconds),
    /// It adds to their time.
    After(Picoseconds),
}

impl Default for Posting {
    fn default() -> Self {
        Self::Beside(Picoseconds(0))
    }
}

/// The predicted time of a call, by its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prediction {
    /// Hops and bytes.
    pub work: Work,
    /// The time to start and to end.
    pub launch: Picoseconds,
    /// All hops inside islands.
    pub inside: Picoseconds,
    /// All hops between islands.
    pub across: Picoseconds,
    /// The time to send messages into the network one after the other, beyond the time of the hops.
    pub messages: Picoseconds,
    /// The bytes.
    pub transfer: Picoseconds,
    /// Filling the pipeline.
    pub fill: Picoseconds,
    /// The part of the hops that takes no time, because data waits for a slower link meanwhile.
    pub hidden: Picoseconds,
    /// Tiles that are pipelined through the plan.
    pub tiles: u32,
    /// The bottleneck of the bytes.
    pub limit: Limit,
}

/// The bottleneck of a call's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The links inside islands.
    Inside,
    /// The links between islands.
    Across,
    /// A lane that takes its steps one after the other.
    Serial,
    /// The cut that bounds every algorithm.
    Cut,
}

impl Prediction {
    /// The sum of all terms.
    pub fn time(&self) -> Picoseconds {
        let terms = [self.launch, self.inside, self.across, self.messages, self.transfer, self.fill];
        terms.into_iter().sum::<Picoseconds>().beyond(self.hidden)
    }
}

impl Form {
    /// The predicted time.
    pub fn predict(&self) -> Prediction {
        let Self { work, bytes, launch, .. } = *self;
        let by_inside = over(work.rank_bytes, self.inside_bytes_per_second);
        let by_across = over(work.island_bytes, self.across_bytes_per_second);
        let by_links = match by_across > by_inside {
            true => (by_across, Limit::Across),
            false => (by_inside, Limit::Inside),
        };
        let (serial_inside, serial_across) = self.serial_bytes_per_second;
        let serial = over(work.rank_bytes, serial_inside) + over(work.island_bytes, serial_across);
        let serial = if self.flow == Flow::Phases { serial.max(by_inside + by_across) } else { serial };
        let by_cut = over(bytes, self.cut_bytes_per_second);
        // The more informative limits come first: a later one replaces them only if it is clearly slower.
        let slower = |a: (Picoseconds, Limit), b: (Picoseconds, Limit)| {
            if b.0.beyond(a.0) > Picoseconds(a.0.0 / 100) { b } else { a }
        };
        let (_, limit) = slower(slower(by_links, (serial, Limit::Serial)), (by_cut, Limit::Cut));
        let transfer = by_links.0.max(serial).max(by_cut);
        let (inside, across) = self.hops();
        let messages = match self.posting {
            Posting::Beside(time) => time.beyond(inside + across),
            Posting::After(time) => time,
        };
        let latency = self.latency();
        let (fill, tiles) = match self.flow {
            Flow::Tiles(per_hop) => self.by_tiles(latency, transfer, per_hop),
            Flow::Steps | Flow::Phases | Flow::Ring => (self.by_steps(latency, transfer), 1),
        };
        let hidden = match self.flow {
            Flow::Ring => transfer.beyond(self.alone()).min(latency + fill),
            Flow::Steps | Flow::Phases | Flow::Tiles(_) => Picoseconds(0),
        };
        Prediction { work, launch, inside, across, messages, transfer, fill, hidden, tiles, limit }
    }

    /// The time of the hops, inside and across.
    fn hops(&self) -> (Picoseconds, Picoseconds) {
        (self.hop_inside.times(self.work.hops_inside), self.hop_across.times(self.work.hops_across))
    }

    /// The time until the first data arrives.
    pub fn latency(&self) -> Picoseconds {
        let (inside, across) = self.hops();
        let follows = match self.posting {
            Posting::Beside(_) => Picoseconds(0),
            Posting::After(time) => time,
        };
        inside + across + follows
    }

    /// How long steps are, relative to steps that grow with any size.
    pub fn step_growth(&self) -> f64 {
        (self.fill_bytes as f64 / self.bytes.max(1) as f64).min(1.0)
    }

    /// The way of one chunk, without other data on the links.
    fn alone(&self) -> Picoseconds {
        over(self.message, self.inside_bytes_per_second).times(self.work.hops_inside)
            + over(self.message, self.across_bytes_per_second).times(self.work.hops_across)
    }

    /// Tiles, as many as take a quarter of a hop each.
    fn by_tiles(&self, latency: Picoseconds, transfer: Picoseconds, per_hop: u64) -> (Picoseconds, u32) {
        let hops = self.work.hops_inside + self.work.hops_across;
        let path = Picoseconds(part_of(transfer.0, per_hop)).times(hops);
        let beyond = path.beyond(transfer);
        let least = (latency.0 / hops.max(1) / 4).max(1);
        let tiles = (transfer.0 / least).clamp(1, TILES_MAX);
        // Without rounding, so that longer calls never take less time.
        let part = u128::from(beyond.0) * u128::from(least) / u128::from(transfer.0.max(1));
        let fill = part.clamp(u128::from(beyond.0 / TILES_MAX), beyond.0.into());
        (Picoseconds::clamp(fill), tiles as u32)
    }

    /// With steps of optimal length, the square root of latency times transfer, of which a part is hidden. Steps grow no further than
    /// `fill_bytes`.
    fn by_steps(&self, latency: Picoseconds, transfer: Picoseconds) -> Picoseconds {
        let product = u128::from(latency.0) * u128::from(transfer.0);
        let grown = match self.bytes > self.fill_bytes {
            true => (product / u128::from(self.bytes)).saturating_mul(self.fill_bytes.into()),
            false => product,
        };
        Picoseconds(part_of(Picoseconds::clamp(grown.isqrt()).0, self.fill))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::carried::ONE;

    const US: u64 = 1_000_000;

    /// Four hops of a microsecond and a megabyte at 100 GB/s.
    fn form() -> Form {
        Form {
            bytes: 1_000_000,
            work: Work { hops_inside: 3, hops_across: 1, rank_bytes: 1_000_000, island_bytes: 0 },
            launch: Picoseconds(2 * US),
            hop_inside: Picoseconds(US),
            hop_across: Picoseconds(US),
            inside_bytes_per_second: Some(100_000_000_000),
            across_bytes_per_second: Some(50_000_000_000),
            message: 100_000,
            fill: ONE / 2,
            fill_bytes: u64::MAX,
            ..Form::default()
        }
    }

    #[test]
    fn steps_fill_in_the_square_root_of_latency_times_transfer() {
        let cost = form().predict();
        assert_eq!((cost.transfer, cost.inside + cost.across), (Picoseconds(10 * US), Picoseconds(4 * US)));
        // Half of the square root of 4 us times 10 us.
        assert_eq!(cost.fill, Picoseconds(3_162_277));
        assert_eq!(cost.time(), Picoseconds(19_162_277));
        // Steps that are a quarter as long fill in half the time.
        let short = Form { fill_bytes: 250_000, ..form() }.predict();
        assert_eq!(short.fill, Picoseconds(1_581_138));
    }

    #[test]
    fn a_ring_hides_hops_while_data_waits_for_the_slowest_link() {
        let cost = Form { flow: Flow::Ring, ..form() }.predict();
        // The way of a chunk: 3 times 1 us and once 2 us, of 10 us.
        assert_eq!(cost.hidden, Picoseconds(5 * US));
        let latency = Form { message: 1, flow: Flow::Ring, ..form() }.predict();
        assert_eq!(latency.hidden, Picoseconds(4 * US) + latency.fill);
    }

    #[test]
    fn phases_follow_each_other() {
        let work = Work { island_bytes: 1_000_000, ..form().work };
        let times = |flow| Form { work, flow, ..form() }.predict();
        assert_eq!(times(Flow::Steps).transfer, Picoseconds(20 * US));
        assert_eq!(
            (times(Flow::Phases).transfer, times(Flow::Phases).limit),
            (Picoseconds(30 * US), Limit::Serial)
        );
    }

    #[test]
    fn messages_are_posted_beside_hops_or_after_them() {
        let times = |posting| Form { posting, ..form() }.predict();
        assert_eq!(times(Posting::Beside(Picoseconds(3 * US))).messages, Picoseconds(0));
        assert_eq!(times(Posting::Beside(Picoseconds(5 * US))).messages, Picoseconds(US));
        let after = times(Posting::After(Picoseconds(5 * US)));
        assert_eq!(after.messages, Picoseconds(5 * US));
        assert!(after.fill > form().predict().fill);
    }

    #[test]
    fn tiles_take_a_quarter_of_a_hop() {
        let cost = Form { flow: Flow::Tiles(ONE), ..form() }.predict();
        assert_eq!(cost.tiles, 40);
        // The other three hops, for one of 40 tiles.
        assert_eq!(cost.fill, Picoseconds(30 * US / 40));
    }
}
