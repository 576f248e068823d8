//! The links of a machine: state, rates, traffic, error counters and far ends, for every kind of link.
//!
//! [`of_tree`] reads them from sysfs and from the driver's values, [`this_machine`] from the local machine, and [`read`] from the output
//! of `nvidia-smi`, `rocm-smi`, `amd-smi` or `xpu-smi`. [`rates`] compares two readings. All of them fill [`Links`].
//!
//! Deliberately absent: a judgement of what is wrong, which is the doctor's, and printing.

mod command;
mod counter;
mod driver;
mod ethernet;
mod infiniband;
mod live;
mod nvlink;
mod pcie;
mod rates;
mod source;
pub mod text;
mod watch;
mod xgmi;

use serde::Serialize;

pub use counter::{Counter, ErrorCounter};
pub use live::this_machine;
pub use rates::{Basis, Change, Flow, LinkRates, rates};
pub use source::{Files, LinkSource, NoDriver, WithFiles};
pub use text::{LinesError, Tool, read};
pub use watch::watch;

use crate::{ProbeError, Tree};

/// Everything that is known of the links of one machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Links {
    /// The links, by kind and device.
    pub links: Vec<Link>,
    /// What else the driver says of each GPU and matters to communication: the fields of `nvidia-smi -q`.
    pub gpus: Vec<GpuFields>,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

/// One link, as seen from one of its ends.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    /// What identifies it.
    pub id: LinkId,
    /// The PCI address of the device, where known: `0000:17:00.0`.
    pub bus: Option<String>,
    /// Whether it carries data.
    pub state: State,
    /// Its generation, as its kind counts: 4 for NVLink 4 and for PCIe 4.0.
    pub generation: Option<u8>,
    /// Lanes of PCIe, InfiniBand and Xe Link; the number of xGMI links to the same peer.
    pub width: Option<u8>,
    /// The generation that both ends support.
    pub generation_max: Option<u8>,
    /// The lanes that both ends support.
    pub width_max: Option<u8>,
    /// Bytes per second each way that the link should have.
    pub nominal: Option<u64>,
    /// Bytes per second each way for which it is trained now.
    pub trained: Option<u64>,
    /// Bytes sent.
    pub sent: Option<Counter>,
    /// Bytes received.
    pub received: Option<Counter>,
    /// Bytes per second that the driver measured over its own interval: sent and received.
    pub measured: Option<(u64, u64)>,
    /// Its error and event counters.
    pub errors: Vec<ErrorCounter>,
    /// Values of the link that are not counters, such as a bit error rate: name and text.
    pub values: Vec<(String, String)>,
    /// Its far end.
    pub remote: Option<Remote>,
    /// What it can do, and whether it does.
    pub capabilities: Vec<(String, bool)>,
}

impl Link {
    /// A link of which only the name is known.
    pub fn new(kind: Kind, device: impl Into<String>, number: Option<u32>) -> Self {
        Self {
            id: LinkId { kind, device: device.into(), number },
            bus: None,
            state: State::Unknown,
            generation: None,
            width: None,
            generation_max: None,
            width_max: None,
            nominal: None,
            trained: None,
            sent: None,
            received: None,
            measured: None,
            errors: Vec::new(),
            values: Vec::new(),
            remote: None,
            capabilities: Vec::new(),
        }
    }

    /// The value of an error counter.
    pub fn error(&self, name: &str) -> Option<u64> {
        self.errors.iter().find(|error| error.name == name).map(|error| error.count)
    }

    /// Adds an error counter, or replaces the one with its name.
    pub(crate) fn set_error(&mut self, name: &str, count: u64) {
        match self.errors.iter_mut().find(|error| error.name == name) {
            Some(error) => error.count = count,
            None => self.errors.push(ErrorCounter { name: name.to_owned(), count }),
        }
    }

    /// True if an error counter that should stay at 0 does not. Events that occur in normal operation are not counted.
    pub fn has_errors(&self) -> bool {
        self.errors.iter().any(|error| error.count > 0 && !error.is_normal())
    }
}

/// What identifies a link between two readings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LinkId {
    /// The kind.
    pub kind: Kind,
    /// The device at this end: `gpu0`, `mlx5_0`, `eth0`, `nvme0`.
    pub device: String,
    /// The number of the link or port on the device, where it has several.
    pub number: Option<u32>,
}

/// `gpu0 link 3`, `mlx5_0 port 1`, `eth0`.
impl std::fmt::Display for LinkId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.kind {
            Kind::InfiniBand => "port",
            _ => "link",
        };
        match self.number {
            Some(number) => f.pad(&format!("{} {what} {number}", self.device)),
            None => f.pad(&self.device),
        }
    }
}

/// The kind of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// NVLink.
    NvLink,
    /// AMD Infinity Fabric between GPUs.
    Xgmi,
    /// Intel Xe Link.
    XeLink,
    /// PCI Express, between a device and the port above it.
    Pcie,
    /// A port of an RDMA device: InfiniBand, RoCE or EFA.
    InfiniBand,
    /// A network interface.
    Ethernet,
}

impl Kind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [Self; 6] =
        [Self::NvLink, Self::Xgmi, Self::XeLink, Self::Pcie, Self::InfiniBand, Self::Ethernet];

    /// The field's own name: `NVLink`, `xGMI`, `PCIe`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NvLink => "NVLink",
            Self::Xgmi => "xGMI",
            Self::XeLink => "Xe Link",
            Self::Pcie => "PCIe",
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }
}

/// Whether a link carries data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It does.
    Up,
    /// It is trained but not yet usable: an InfiniBand port that waits for a subnet manager.
    Initializing,
    /// It does not.
    Down,
    /// The input does not say.
    Unknown,
}

/// The far end of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Remote {
    /// Its name, where it is a device of this machine: `gpu3`.
    pub device: Option<String>,
    /// Its PCI address.
    pub bus: Option<String>,
    /// The number of the link there.
    pub link: Option<u32>,
    /// What it is: `gpu`, `switch`, `cpu`, `port`.
    pub kind: Option<String>,
}

/// What the driver says of one GPU, apart from its links.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GpuFields {
    /// Its name here: `gpu0`.
    pub gpu: String,
    /// Its PCI address.
    pub bus: Option<String>,
    /// Name and value of each field. Units are in the names: `power_draw_mw`.
    pub fields: Vec<(String, String)>,
}

impl GpuFields {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

impl Links {
    /// The links of one kind.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| link.id.kind == kind)
    }

    /// The link with an id.
    pub fn link(&self, id: &LinkId) -> Option<&Link> {
        self.links.iter().find(|link| link.id == *id)
    }

    /// The fields of the GPUs as the files below `nvml/` that a driver would give, so that what reads those can read them.
    pub fn files(&self) -> Files {
        let mut files = Files::default();
        for (number, gpu) in self.gpus.iter().enumerate() {
            if let Some(bus) = &gpu.bus {
                files.add(format!("nvml/{number}/bus"), bus);
            }
            for (name, value) in &gpu.fields {
                match name.as_str() {
                    "driver_version" | "cuda_version" => files.add(format!("nvml/{name}"), value),
                    "product_name" => files.add(format!("nvml/{number}/name"), value),
                    _ => files.add(format!("nvml/{number}/{name}"), value),
                }
            }
        }
        files
    }

    /// The link with an id, which is added if it is not there yet.
    pub(crate) fn entry(&mut self, kind: Kind, device: &str, number: Option<u32>) -> &mut Link {
        let is_it =
            |link: &Link| link.id.number == number && link.id.kind == kind && link.id.device == device;
        // Lines of one link follow each other, so that the last one is usually the right one.
        let at = match self.links.last() {
            Some(last) if is_it(last) => Some(self.links.len() - 1),
            _ => self.links.iter().position(is_it),
        };
        let at = at.unwrap_or_else(|| {
            self.links.push(Link::new(kind, device, number));
            self.links.len() - 1
        });
        &mut self.links[at]
    }

    fn sort(&mut self) {
        self.links.sort_by(|one, other| {
            let key = |link: &Link| (link.id.kind, natural(&link.id.device), link.id.number);
            key(one).cmp(&key(other))
        });
    }
}

/// A key that sorts `gpu10` after `gpu9`.
fn natural(name: &str) -> (String, u64) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem.to_owned(), name[stem.len()..].parse().unwrap_or(0))
}

/// The links of the machine in `tree`: sysfs and, below `nvml/`, the values of NVIDIA's driver.
pub fn of_tree(tree: &dyn Tree) -> Result<Links, ProbeError> {
    let names = driver::Devices::read(tree)?;
    let mut links = Links::default();
    driver::add_fields(tree, &names, &mut links);
    nvlink::add(tree, &names, &mut links);
    xgmi::add(tree, &names, &mut links)?;
    pcie::add(tree, &names, &mut links);
    infiniband::add(tree, &mut links)?;
    ethernet::add(tree, &mut links)?;
    links.sort();
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_and_sort_as_people_write_them() {
        let id = |kind, device: &str, number| Link::new(kind, device, number).id;
        assert_eq!(id(Kind::NvLink, "gpu0", Some(3)).to_string(), "gpu0 link 3");
        assert_eq!(id(Kind::InfiniBand, "mlx5_0", Some(1)).to_string(), "mlx5_0 port 1");
        assert_eq!(id(Kind::Ethernet, "eth0", None).to_string(), "eth0");
        let mut links = Links::default();
        for (kind, device, number) in [
            (Kind::Pcie, "gpu0", None),
            (Kind::NvLink, "gpu10", Some(0)),
            (Kind::NvLink, "gpu9", Some(10)),
            (Kind::NvLink, "gpu9", Some(2)),
        ] {
            links.entry(kind, device, number);
            links.entry(kind, device, number);
        }
        links.sort();
        let names: Vec<String> = links.links.iter().map(|link| link.id.to_string()).collect();
        assert_eq!(names, ["gpu9 link 2", "gpu9 link 10", "gpu10 link 0", "gpu0"]);
    }
}
