//! How the terms of an estimate come about: the numbers that multiply to each of them.

/// The numbers behind an estimate. All are zero for calls without a closed form.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Working {
    /// Hops by kind.
    pub hops: [HopTerm; 3],
    /// The bytes through the narrowest resource.
    pub wire: WireTerm,
    /// Filling the pipeline, before anything is hidden.
    pub fill: FillTerm,
    /// Posting messages into the network one after the other, beyond the hops.
    pub messages_us: f64,
    /// Hops and fill that take no time, because data waits for the narrowest link meanwhile.
    pub hidden_us: f64,
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
