//! How the terms of an estimate come about: the numbers that multiply to each of them.

use weftlink_plan::cost::{Flow, Form, Limit, Picoseconds, Prediction};

/// Kinds of hops.
pub(super) const INSIDE: &str = "inside an island";
const ACROSS: &str = "between islands";

/// The numbers behind an estimate. All are zero for calls without a closed form.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Working {
    /// Hops by kind.
    pub hops: [HopTerm; 2],
    /// The bytes through the narrowest resource.
    pub wire: WireTerm,
    /// Filling the pipeline, before anything is hidden.
    pub fill: FillTerm,
    /// Posting messages into the network one after the other.
    pub messages_us: f64,
    /// Hops and fill that take no time, because data waits for the narrowest link meanwhile.
    pub hidden_us: f64,
}

/// What the hops and the bytes of a closed form go through, inside islands and between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Through {
    /// The hops.
    pub hops: [&'static str; 2],
    /// The bytes.
    pub bytes: [Over; 2],
}

/// Hops of a kind on the longest path.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct HopTerm {
    /// The kind of hop.
    pub what: &'static str,
    /// Their number.
    pub count: f64,
    /// The latency of each.
    pub each_us: f64,
}

/// Bytes at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct WireTerm {
    /// Bytes through the resource.
    pub bytes: f64,
    /// Its rate.
    pub gbytes_per_second: f64,
    /// The resource.
    pub over: Over,
}

/// The narrowest resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Over {
    /// No bytes take time.
    #[default]
    Nothing,
    /// The links of one GPU to others, each way.
    Port,
    /// The same, of a GPU that forwards data up and down a chain.
    Chain,
    /// Reductions and multicasts by NVSwitches, over the links of one GPU.
    Switches,
    /// The NICs of an island, each way.
    Nics,
    /// The share of one GPU in the NICs of its island.
    NicsOfGpu,
    /// The lanes of the library, which carry less than the links.
    Lanes,
    /// The steps of one lane, which are taken one after the other.
    Serial,
    /// The cut of the fabric that bounds every algorithm.
    Cut,
}

/// The time to fill a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum FillTerm {
    /// None.
    #[default]
    Nothing,
    /// `fraction * sqrt(latency * wire * growth)`: steps of optimal length, of which a fraction is not hidden. Steps grow no further than
    /// buffers.
    Steps {
        /// The fraction.
        fraction: f64,
        /// Latency of the hops.
        latency_us: f64,
        /// Time of the bytes.
        wire_us: f64,
        /// Length of the steps, relative to those that would be optimal.
        growth: f64,
    },
    /// The way of the first tile through the other ranks.
    Tiles {
        /// Number of tiles.
        tiles: u32,
        /// Its time.
        time_us: f64,
    },
}

impl Default for Through {
    /// Links of a GPU, and NICs.
    fn default() -> Self {
        Self { hops: [INSIDE, ACROSS], bytes: [Over::Port, Over::Nics] }
    }
}

impl Working {
    /// The numbers behind a prediction.
    pub(super) fn of(form: &Form, cost: &Prediction, through: Through) -> Self {
        let work = &cost.work;
        let hops = |what, count: u64, time: Picoseconds| HopTerm {
            what,
            count: count as f64,
            each_us: time.us() / count.max(1) as f64,
        };
        let (bytes, over) = match cost.limit {
            Limit::Inside => (work.rank_bytes, through.bytes[0]),
            Limit::Across => (work.island_bytes, through.bytes[1]),
            Limit::Serial => (work.rank_bytes.max(work.island_bytes), Over::Serial),
            Limit::Cut => (form.bytes, Over::Cut),
        };
        let wire = match cost.transfer {
            Picoseconds(0) => WireTerm::default(),
            time => WireTerm { bytes: bytes as f64, gbytes_per_second: bytes as f64 / time.us() / 1e3, over },
        };
        let fill = match form.flow {
            _ if cost.fill == Picoseconds(0) => FillTerm::Nothing,
            Flow::Tiles(_) => FillTerm::Tiles { tiles: cost.tiles, time_us: cost.fill.us() },
            Flow::Steps | Flow::Phases | Flow::Ring => FillTerm::Steps {
                fraction: form.fill as f64 / 1e6,
                latency_us: form.latency().us(),
                wire_us: cost.transfer.us(),
                growth: form.step_growth(),
            },
        };
        Self {
            hops: [
                hops(through.hops[0], work.hops_inside, cost.inside),
                hops(through.hops[1], work.hops_across, cost.across),
            ],
            wire,
            fill,
            messages_us: cost.messages.us(),
            hidden_us: cost.hidden.us(),
        }
    }
}

impl HopTerm {
    /// Their time.
    pub fn us(&self) -> f64 {
        self.count * self.each_us
    }
}

impl WireTerm {
    /// The time of the bytes.
    pub fn us(&self) -> f64 {
        if self.bytes > 0.0 && self.gbytes_per_second > 0.0 {
            self.bytes / self.gbytes_per_second / 1e3
        } else {
            0.0
        }
    }
}

impl FillTerm {
    /// Its time.
    pub fn us(&self) -> f64 {
        match *self {
            Self::Nothing => 0.0,
            Self::Steps { fraction, latency_us, wire_us, growth } => {
                fraction * (latency_us * wire_us * growth).sqrt()
            }
            Self::Tiles { time_us, .. } => time_us,
        }
    }
}
