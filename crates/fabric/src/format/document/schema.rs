//! The schema of a document, as serde reads and writes it. Names are not resolved here.

use serde::{Deserialize, Serialize};

use crate::figure::{Basis, Source};
use crate::link::{LinkKind, Network};

/// The format version that this program reads and writes.
pub(super) const VERSION: u32 = 1;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) weft: Option<u32>,
    pub(super) name: Option<String>,
    pub(super) base: Option<String>,
    pub(super) peer_access: Option<bool>,
    #[serde(default)]
    pub(super) notes: Vec<String>,
    #[serde(default)]
    pub(super) host: Vec<HostEntry>,
    #[serde(default)]
    pub(super) device: Vec<DeviceEntry>,
    #[serde(default)]
    pub(super) link_type: Vec<LinkTypeEntry>,
    #[serde(default)]
    pub(super) link: Vec<LinkEntry>,
    #[serde(default, rename = "override")]
    pub(super) overrides: Vec<OverrideEntry>,
}

/// The version alone, to distinguish a later format from a mistake.
#[derive(Debug, Deserialize)]
pub(super) struct Version {
    pub(super) weft: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostEntry {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) system: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) like: Option<String>,
}

/// `extra` is a list of pairs because their order matters and names may repeat.
pub(super) type Pairs = Vec<(Box<str>, Box<str>)>;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceEntry {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bus: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) class: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sm: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) ranks: Vec<RankEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) numa: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<Box<CpuEntry>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<u8>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) ports: Vec<PortEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) extra: Pairs,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RankEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dev: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rank: Option<i32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) extra: Pairs,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CpuEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) arch: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vendor: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) family: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Network>,
    pub(super) gb_per_s_each_way: f64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) extra: Pairs,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkTypeEntry {
    pub(super) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<LinkKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nominal: Option<RateEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effective: Option<RateEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<LatencyEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateEntry {
    pub(super) gb_per_s_each_way: f64,
    pub(super) basis: Basis,
    pub(super) source: Source,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) checked: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LatencyEntry {
    pub(super) ns: u64,
    pub(super) basis: Basis,
    pub(super) source: Source,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) checked: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkEntry {
    pub(super) between: (String, String),
    #[serde(rename = "type")]
    pub(super) link_type: String,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) count: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) oneway: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverrideEntry {
    pub(super) between: (String, String),
    #[serde(rename = "type")]
    pub(super) link_type: Option<String>,
    #[serde(default)]
    pub(super) oneway: bool,
    pub(super) gb_per_s_each_way: Option<f64>,
    pub(super) source: Option<Source>,
    pub(super) count: Option<u32>,
    #[serde(default)]
    pub(super) remove: bool,
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}
