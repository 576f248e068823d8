//! The links of GPUs to each other, to NVSwitches and to their CPU.

use std::collections::BTreeMap;

use weftlink_fabric::catalog::gpus::Vendor;
use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::link::LinkKind;
use weftlink_fabric::rate::{OneWay, Pair as PairScope, Rate};
use weftlink_fabric::{DeviceId, Fabric};

use super::gpus::model;
use super::view::{Pair, Part, View};
use super::{C2C, NVLINK, differs};
use crate::finding::{Finding, Outcome, Severity};
use crate::job::counted;

/// The links of each GPU to other GPUs and switches: NVLink, xGMI, Xe Link. GPUs that differ in the same way are one finding.
pub(super) fn links(pair: &Pair<'_>) -> Vec<Outcome> {
    let mut others: Vec<(Difference, Vec<&Part>)> = Vec::new();
    let (mut counts, mut unknown) = (Vec::new(), Vec::new());
    for (found, expected) in pair.same_gpus() {
        let (was, should) = (Links::of(&pair.found, found.id), Links::of(&pair.expected, expected.id));
        if was.count == 0 && should.count == 0 {
            continue;
        }
        if was.count == 0 && is_without_driver(&pair.found, found) {
            unknown.push(pair.found.name_of(found.id));
            continue;
        }
        match compare(pair, (found, &was), (expected, &should)) {
            // Another model has other links.
            Some(_)
                if was.count >= should.count
                    && model(&pair.found, found) != model(&pair.expected, expected) => {}
            Some(what) => {
                let severity = match was.count {
                    0 => Severity::Critical,
                    count if count > should.count => Severity::Note,
                    _ => Severity::Warning,
                };
                let difference = Difference { severity, what, was: was.words(), should: should.words() };
                match others.iter_mut().find(|(known, _)| *known == difference) {
                    Some((_, gpus)) => gpus.push(found),
                    None => others.push((difference, vec![found])),
                }
            }
            None => counts.push(was.count),
        }
    }
    let mut outcomes: Vec<Outcome> = others
        .into_iter()
        .map(|(difference, gpus)| Outcome::Found(difference.finding(pair, &gpus)))
        .collect();
    if !unknown.is_empty() {
        outcomes.push(Outcome::Unknown {
            what: format!("the links of {} to other GPUs", unknown.join(", ")),
            needs: "the driver of the GPUs: a probe without it sees PCIe only".to_owned(),
        });
    }
    if let (true, Some(count)) = (outcomes.is_empty(), counts.first()) {
        outcomes.push(Outcome::Fine(format!(
            "{} with {count} links to other GPUs each",
            counted(counts.len() as u64, "GPU")
        )));
    }
    outcomes
}

/// Whether a GPU was found on the PCI bus, but no driver reported on it.
fn is_without_driver(view: &View<'_>, gpu: &Part) -> bool {
    let device = view.fabric.device(gpu.id);
    // A driver's report gives the GPU its name.
    device.bus.is_some() && device.label.is_none()
}

/// How the links of some GPUs differ.
#[derive(PartialEq, Eq)]
struct Difference {
    severity: Severity,
    what: String,
    was: String,
    should: String,
}

impl Difference {
    fn finding(self, pair: &Pair<'_>, gpus: &[&Part]) -> Finding {
        let names: Vec<String> = gpus.iter().map(|gpu| pair.found.name_of(gpu.id)).collect();
        let has = if names.len() == 1 { "has" } else { "each have" };
        let what = format!("{} {has} {}", names.join(", "), self.what);
        let finding = differs(NVLINK, self.severity, what, self.was, self.should);
        let vendor = gpus
            .iter()
            .find_map(|gpu| pair.found.fabric.device(gpu.id).kind.gpu_model())
            .map(|model| model.vendor);
        let finding = match vendor {
            Some(Vendor::Amd) => {
                finding.fixed_by("rocm-smi --showtopo --showxgmierr shows the state of the xGMI links")
            }
            Some(Vendor::Intel) => finding.fixed_by("xpu-smi topology -m shows the state of the Xe Links"),
            _ => finding.fixed_by(
                "nvidia-smi nvlink -s and nvidia-smi nvlink -e show the state and the errors of the links",
            ),
        };
        let has_switches =
            gpus.iter().any(|gpu| !pair.found.nvswitches.is_empty() || on_switches(&pair.found, gpu));
        match has_switches || !pair.expected.nvswitches.is_empty() {
            false => finding.fixed_by("if the GPUs are joined by bridges or cables: reseat them, with the width that the slots need"),
            true => finding.fixed_by(
                "systemctl status nvidia-fabricmanager: it must run, in the version of the driver; then reset the GPUs (nvidia-smi \
                    -r) or restart the host",
            ),
        }
    }
}

/// Whether links of a GPU lead to switches, such as those of its rack.
fn on_switches(view: &View<'_>, gpu: &Part) -> bool {
    let is_switch = |id: DeviceId| matches!(view.fabric.device(id).kind, DeviceKind::NvSwitch { .. });
    view.links(gpu.id, LinkKind::is_gpu_fabric, is_switch).0 > 0
}

/// How the links of a GPU differ.
fn compare(
    pair: &Pair<'_>,
    (found, was): (&Part, &Links),
    (expected, should): (&Part, &Links),
) -> Option<String> {
    let kind = should.name();
    if was.count != should.count {
        let (missing, towards) = (was.count < should.count, towards(pair, found, expected));
        return Some(match missing {
            true => format!("{} instead of {}{towards}", of_kind(was.count, kind), should.count),
            false => format!(
                "{} more than the {} expected{towards}",
                of_kind(was.count - should.count, kind),
                should.count
            ),
        });
    }
    if (was.bytes_per_second as f64) < should.bytes_per_second as f64 * 0.99 {
        let rate = |bytes| Rate::<PairScope, OneWay>::from_bytes(bytes).amount().to_string();
        let (now, usual) = (rate(was.bytes_per_second), rate(should.bytes_per_second));
        return Some(format!("{} of {now} instead of {usual} each way", of_kind(was.count, kind)));
    }
    let towards = towards(pair, found, expected);
    (!towards.is_empty()).then(|| format!("{} in other places{towards}", of_kind(was.count, kind)))
}

fn of_kind(count: u32, kind: &str) -> String {
    counted(u64::from(count), kind)
}

/// `: gpu3 0 instead of 2`, the neighbours to which a GPU has another number of links. Switches count as one neighbour, because
/// virtual machines hide which is which. Neighbours compare only where no GPU is missing.
fn towards(pair: &Pair<'_>, found: &Part, expected: &Part) -> String {
    if pair.found.gpus.len() != pair.expected.gpus.len() {
        return String::new();
    }
    let count = |view: &View<'_>, part: &Part, wanted: &dyn Fn(DeviceId) -> bool| {
        view.links(part.id, LinkKind::is_gpu_fabric, wanted).0
    };
    let mut parts: Vec<(String, u32, u32)> = Vec::new();
    for (peer, wanted) in pair.same_gpus() {
        let (was, should) = (
            count(&pair.found, found, &|id| id == peer.id),
            count(&pair.expected, expected, &|id| id == wanted.id),
        );
        parts.push((pair.found.name_of(peer.id), was, should));
    }
    let is_switch =
        |fabric: &Fabric, id: DeviceId| matches!(fabric.device(id).kind, DeviceKind::NvSwitch { .. });
    let was = count(&pair.found, found, &|id| is_switch(pair.found.fabric, id));
    let should = count(&pair.expected, expected, &|id| is_switch(pair.expected.fabric, id));
    parts.push(("switches".to_owned(), was, should));
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, was, should)| was != should)
        .map(|(name, was, should)| format!("{was} instead of {should} to {name}"))
        .collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// The links of one GPU to other GPUs and switches.
struct Links {
    count: u32,
    bytes_per_second: u64,
    kind: Option<LinkKind>,
}

impl Links {
    fn of(view: &View<'_>, id: DeviceId) -> Self {
        let (count, bytes_per_second) = view.links(id, LinkKind::is_gpu_fabric, |_| true);
        let mut kinds = view.fabric.links_from(id).iter().map(|link| view.fabric.spec(link).kind);
        Self { count, bytes_per_second, kind: kinds.find(|kind| kind.is_gpu_fabric()) }
    }

    fn name(&self) -> &'static str {
        match self.kind {
            Some(LinkKind::Xgmi { .. }) => "xGMI link",
            Some(LinkKind::XeLink) => "Xe Link",
            Some(LinkKind::UaLink) => "UALink",
            _ => "NVLink",
        }
    }

    fn words(&self) -> String {
        let rate = Rate::<PairScope, OneWay>::from_bytes(self.bytes_per_second);
        match self.kind {
            Some(kind) if self.count > 0 => format!("{}x {kind}, {} each way", self.count, rate.amount()),
            _ => "none".to_owned(),
        }
    }
}

/// The links of GPUs to the CPU of their package. GPUs that differ in the same way are one finding.
pub(super) fn c2c(pair: &Pair<'_>) -> Vec<Outcome> {
    let is_c2c = |kind: LinkKind| kind == LinkKind::C2c;
    let mut others: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (found, expected) in pair.same_gpus() {
        let (was, was_rate) = pair.found.links(found.id, is_c2c, |_| true);
        let (should, should_rate) = pair.expected.links(expected.id, is_c2c, |_| true);
        let is_unknown = was == 0 && is_without_driver(&pair.found, found);
        if is_unknown || should == 0 || was == should && was_rate as f64 >= should_rate as f64 * 0.99 {
            continue;
        }
        let words = |count: u32, bytes: u64| match count {
            0 => "none".to_owned(),
            _ => format!(
                "{} of {} in all",
                counted(count.into(), "link"),
                Rate::<PairScope, OneWay>::from_bytes(bytes).amount()
            ),
        };
        let key = (words(was, was_rate), words(should, should_rate));
        others.entry(key).or_default().push(pair.found.name_of(found.id));
    }
    let outcome = |((was, should), names): ((String, String), Vec<String>)| {
        let what = format!("NVLink-C2C between {} and the CPU: {was} instead of {should}", names.join(", "));
        let finding = differs(C2C, Severity::Warning, what, was, should);
        Outcome::Found(finding.fixed_by(
            "nvidia-smi c2c -s shows the state of the links; update driver and firmware, and restart the \
            host",
        ))
    };
    others.into_iter().map(outcome).collect()
}
