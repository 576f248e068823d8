//! What the checks of GPUs share: the GPUs that the driver reports, their values, and one outcome from many GPUs.

use std::collections::BTreeMap;
use std::str::FromStr;

use weftlink_fabric::catalog::gpus::{GpuLinks, GpuModel};
use weftlink_fabric::device::BusId;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric};
use weftlink_probe::Tree;

use crate::check::Machine;
use crate::finding::{Finding, Outcome};

/// More GPUs than any host has.
const GPUS_MAX: usize = 1024;
/// PCI's vendor id of NVIDIA.
const NVIDIA: &str = "0x10de";

/// A GPU that the driver reports.
pub(super) struct Gpu<'m> {
    tree: &'m dyn Tree,
    /// The driver's number.
    pub(super) number: usize,
    /// `0000:19:00.0`, as `nvidia-smi -i` takes it.
    pub(super) bus: String,
    /// In the fabric.
    pub(super) device: Option<DeviceId>,
    /// `gpu3`, the name in the fabric; the driver's number decides where the fabric lacks the GPU.
    pub(super) name: String,
    pub(super) model: Option<&'static GpuModel>,
}

/// A value that the driver may report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value<T> {
    Is(T),
    /// The GPU does not have it.
    Unsupported,
    /// Why it is unknown.
    Unknown(String),
}

impl Gpu<'_> {
    /// The path of a value.
    pub(super) fn path(&self, name: &str) -> String {
        format!("nvml/{}/{name}", self.number)
    }

    pub(super) fn text(&self, name: &str) -> Value<String> {
        let path = self.path(name);
        match self.tree.read(&path) {
            Some(text) if text == "not supported" => Value::Unsupported,
            Some(text) => Value::Is(text),
            None => {
                let reason = self.tree.read(&format!("{path}.reason"));
                Value::Unknown(reason.unwrap_or_else(|| format!("a driver or recording that reports {name}")))
            }
        }
    }

    pub(super) fn number<T: FromStr>(&self, name: &str) -> Value<T> {
        match self.text(name) {
            Value::Is(text) => match text.parse() {
                Ok(number) => Value::Is(number),
                Err(_) => Value::Unknown(format!("a readable {name}: the driver reports `{}`", short(&text))),
            },
            Value::Unsupported => Value::Unsupported,
            Value::Unknown(reason) => Value::Unknown(reason),
        }
    }

    /// A value that does not decide anything; None if it is unknown or unsupported.
    pub(super) fn any<T: FromStr>(&self, name: &str) -> Option<T> {
        match self.number(name) {
            Value::Is(number) => Some(number),
            _ => None,
        }
    }

    /// The states of its NVLinks, by number: `up nvlink4 0000:05:00.0 10de:22a3` or `down`.
    pub(super) fn links(&self) -> BTreeMap<u32, String> {
        let folder = self.path("nvlink");
        let names = self.tree.list(&folder);
        let link = |name: &String| Some((name.parse().ok()?, self.tree.read(&format!("{folder}/{name}"))?));
        names.iter().take(64).filter_map(link).collect()
    }

    /// True if its links lead to a bridge between cards.
    pub(super) fn is_bridgeable(&self) -> bool {
        matches!(self.model.map(|model| &model.links), Some(GpuLinks::Bridge { .. }))
    }

    /// True for a GPU that is not sold for desktops.
    pub(super) fn is_data_center(&self) -> bool {
        self.model.is_some_and(|model| !model.is_consumer())
    }
}

/// The GPUs that the driver reports, in its order.
pub(super) fn gpus<'m>(machine: &Machine<'m>) -> Vec<Gpu<'m>> {
    let (tree, fabric) = (machine.tree, machine.fabric);
    let by_bus = by_bus(fabric);
    let mut numbers: Vec<usize> = tree.list("nvml").iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let gpu = |number: usize| {
        let bus: BusId = tree.read(&format!("nvml/{number}/bus"))?.parse().ok()?;
        let device = by_bus.get(&bus).copied();
        let name = device.map_or_else(|| format!("gpu {number}"), |device| fabric.device_name(device));
        let model = device.and_then(|device| fabric.device(device).kind.gpu_model());
        Some(Gpu { tree, number, bus: bus.to_string(), device, name, model })
    };
    numbers.into_iter().take(GPUS_MAX).filter_map(gpu).collect()
}

fn by_bus(fabric: &Fabric) -> BTreeMap<BusId, DeviceId> {
    fabric.gpus().iter().filter_map(|gpu| Some((fabric.device(*gpu).bus?, *gpu))).collect()
}

/// NVIDIA's GPUs on the PCI bus, with their addresses.
pub(super) fn on_bus(machine: &Machine<'_>) -> Vec<(DeviceId, String)> {
    let fabric = machine.fabric;
    let found = fabric.gpus().iter().filter_map(|gpu| {
        let device = fabric.device(*gpu);
        let bus = device.bus?.to_string();
        let vendor = machine.tree.read(&format!("sys/bus/pci/devices/{bus}/vendor"));
        (device.class.is_some() && vendor.as_deref() == Some(NVIDIA)).then_some((*gpu, bus))
    });
    found.collect()
}

/// The NVSwitches, with their number on the PCI bus.
pub(super) fn nvswitches(fabric: &Fabric) -> (Vec<DeviceId>, usize) {
    let all: Vec<DeviceId> =
        fabric.devices_where(|kind| matches!(kind, DeviceKind::NvSwitch { .. })).collect();
    let listed = all.iter().filter(|switch| fabric.device(**switch).class.is_some()).count();
    (all, listed)
}

/// What a check says about one GPU.
pub(super) enum Verdict {
    Fine,
    /// The GPU does not have what is checked.
    Skip,
    Found(Box<Finding>),
    /// What would be needed.
    Unknown(String),
}

impl Verdict {
    pub(super) fn found(finding: Finding) -> Self {
        Self::Found(Box::new(finding))
    }
}

/// Looks at each GPU. The GPUs that are fine are one outcome, and those of which `what` is unknown are one for each reason.
pub(super) fn each(
    machine: &Machine<'_>,
    what: &str,
    fine: &str,
    mut look: impl FnMut(&Gpu<'_>) -> Verdict,
) -> Vec<Outcome> {
    let gpus = gpus(machine);
    if gpus.is_empty() {
        return without_driver(machine, what);
    }
    let (mut fine_names, mut unknown) = (Vec::new(), BTreeMap::<String, Vec<&str>>::new());
    let mut outcomes = Vec::new();
    for gpu in &gpus {
        match look(gpu) {
            Verdict::Fine => fine_names.push(gpu.name.as_str()),
            Verdict::Skip => {}
            Verdict::Found(finding) => outcomes.push(Outcome::Found(*finding)),
            Verdict::Unknown(needs) => unknown.entry(needs).or_default().push(&gpu.name),
        }
    }
    if !fine_names.is_empty() {
        outcomes.push(Outcome::Fine(format!("{}: {fine}", join(&fine_names))));
    }
    for (needs, names) in unknown {
        outcomes.push(Outcome::Unknown { what: format!("{what} of {}", join(&names)), needs });
    }
    outcomes
}

/// Nothing on a machine without NVIDIA's GPUs; otherwise unknown.
pub(super) fn without_driver(machine: &Machine<'_>, what: &str) -> Vec<Outcome> {
    let gpus = on_bus(machine);
    if gpus.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> = gpus.iter().map(|(gpu, _)| machine.fabric.device_name(*gpu)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    vec![Outcome::Unknown {
        what: format!("{what} of {}", join(&names)),
        needs: "the NVIDIA driver, which reports no GPU".to_owned(),
    }]
}

/// Merges findings that differ only in the GPU, `gpu3: persistence mode is off`: a setting that is wrong on all GPUs is one finding.
pub(super) fn merge(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let mut groups: Vec<Vec<Finding>> = Vec::new();
    let mut merged = Vec::new();
    for outcome in outcomes {
        match outcome {
            Outcome::Found(finding) => {
                let same =
                    |group: &&mut Vec<Finding>| group.first().is_some_and(|first| is_same(first, &finding));
                match groups.iter_mut().find(same) {
                    Some(group) => group.push(finding),
                    None => groups.push(vec![finding]),
                }
            }
            other => merged.push(other),
        }
    }
    merged.extend(groups.into_iter().filter_map(|group| Some(Outcome::Found(merge_group(group)?))));
    merged
}

/// The GPU and the rest of a sentence.
fn split(finding: &Finding) -> (&str, &str) {
    finding.what.split_once(": ").unwrap_or(("", &finding.what))
}

fn is_same(one: &Finding, other: &Finding) -> bool {
    one.severity == other.severity && split(one).1 == split(other).1
}

fn merge_group(group: Vec<Finding>) -> Option<Finding> {
    let names: Vec<&str> = group.iter().map(|finding| split(finding).0).collect();
    let what = format!("{}: {}", join(&names), split(group.first()?).1);
    let buses: Vec<String> = group.iter().filter_map(bus).collect();
    let mut group = group.into_iter();
    let mut first = group.next()?;
    if buses.len() > 1 {
        // `nvidia-smi -i` takes several addresses.
        let all = buses.join(",");
        first.fixes.iter_mut().for_each(|fix| *fix = fix.replace(&buses[0], &all));
    }
    first.what = what;
    first.evidence.extend(group.flat_map(|finding| finding.evidence));
    Some(first)
}

/// The address in the evidence `NVML, gpu3 (0000:3b:00.0)`.
fn bus(finding: &Finding) -> Option<String> {
    let source = &finding.evidence.first()?.source;
    Some(source.split_once('(')?.1.split_once(')')?.0.to_owned())
}

/// `gpu0`, `gpu0 and gpu2`, `gpu0 to gpu2, gpu5 and gpu6`.
pub(super) fn join(names: &[&str]) -> String {
    let number = |name: &str| name.strip_prefix("gpu").and_then(|number| number.parse::<usize>().ok());
    let follows = |one: &&str, next: &&str| {
        number(one).zip(number(next)).is_some_and(|(one, next)| Some(next) == one.checked_add(1))
    };
    let mut parts: Vec<String> = Vec::new();
    for run in names.chunk_by(follows) {
        match run {
            [first, _, .., last] if run.len() > 2 => parts.push(format!("{first} to {last}")),
            few => parts.extend(few.iter().map(|name| (*name).to_owned())),
        }
    }
    match &parts[..] {
        [] => "no GPU".to_owned(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

/// The start of a text that somebody else wrote, for a message.
pub(super) fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut start: String = line.chars().filter(|c| !c.is_control()).take(160).collect();
    if start.len() < line.len() {
        start.push_str("...");
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_joined() {
        assert_eq!(join(&["gpu0", "gpu1", "gpu2"]), "gpu0 to gpu2");
        assert_eq!(join(&["gpu0", "gpu1", "gpu2", "gpu5", "gpu6"]), "gpu0 to gpu2, gpu5 and gpu6");
        assert_eq!(join(&["gpu0", "gpu2"]), "gpu0 and gpu2");
        assert_eq!(join(&["gpu 0", "gpu1", "gpu3"]), "gpu 0, gpu1 and gpu3");
        assert_eq!(join(&["gpu5"]), "gpu5");
        assert_eq!(join(&[]), "no GPU");
        assert_eq!(short("a\u{7}b\nc"), "ab...");
    }
}
