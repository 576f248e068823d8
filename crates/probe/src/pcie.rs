//! The rate of a function's PCIe link, from what both of its ends report.

use weftlink_fabric::catalog::gpus::GpuModel;
use weftlink_fabric::catalog::links;
use weftlink_fabric::figure::Source;
use weftlink_fabric::link::LinkSpec;

use crate::pci::{Function, Lanes};

const ASSUMED: Source = Source::named(
    "assumed: the machine does not report this link; that of the GPU model, or PCIe 3.0 x16 as in NCCL",
);

/// The link above a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) spec: LinkSpec,
    /// The machine does not report the link, and the spec is a guess.
    pub(crate) is_assumed: bool,
    /// Problems of the link, to be printed after the device's name.
    pub(crate) problems: Vec<String>,
}

impl Slot {
    /// The link between `function` and the port `above` it; a GPU's model is used if the machine reports nothing.
    ///
    /// An idle GPU reduces the speed of its link to save power, and so does a switch with only GPUs below it
    /// (`slows_when_idle`). The speed of such a link is its maximum; its width and all other links are as reported.
    pub(crate) fn of(
        function: &Function,
        above: Option<&Function>,
        model: Option<&GpuModel>,
        slows_when_idle: bool,
    ) -> Self {
        let port = above.filter(|port| !port.is_virtual_port()).map_or(Lanes::default(), |port| port.max);
        let best = Lanes {
            generation: smaller(function.max.generation, port.generation),
            width: smaller(function.max.width, port.width),
        };
        let speed_now = function.now.generation.filter(|_| !slows_when_idle);
        let lanes =
            Lanes { generation: speed_now.or(best.generation), width: function.now.width.or(best.width) };
        let (spec, is_assumed) = match lanes {
            Lanes { generation: Some(generation), width: Some(width) } => {
                (links::pcie(generation, width), false)
            }
            _ => (assumed(lanes, model), true),
        };
        Self { spec, is_assumed, problems: problems(function, best, slows_when_idle) }
    }
}

fn problems(function: &Function, best: Lanes, slows_when_idle: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let width = smaller(function.now.width, best.width);
    if let (Some(now), Some(max)) = (width, function.max.width)
        && now < max
    {
        problems.push(format!("runs at x{now} instead of x{max}"));
    }
    // A port that is slower than the card is not a problem.
    if let (Some(now), Some(best)) = (function.now.generation, best.generation)
        && now < best
        && !slows_when_idle
    {
        problems.push(format!("runs at PCIe {now}.0, but both ends support {best}.0"));
    }
    problems
}

fn smaller(a: Option<u8>, b: Option<u8>) -> Option<u8> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// An unreported link: that of the model, or NCCL's default. It has no nominal rate.
pub(crate) fn assumed(lanes: Lanes, model: Option<&GpuModel>) -> LinkSpec {
    let (generation, width) = model.map_or((3, 16), |model| model.pcie);
    let mut spec = links::pcie(lanes.generation.unwrap_or(generation), lanes.width.unwrap_or(width));
    spec.nominal = None;
    if let Some(effective) = &mut spec.effective {
        effective.source = ASSUMED;
        effective.checked = false;
    }
    spec
}

#[cfg(test)]
mod tests {
    use weftlink_fabric::catalog::gpus;
    use weftlink_fabric::device::{BusId, PciClass};

    use super::*;
    use crate::pci::Role;

    fn slot_of(function: &Function, above: Option<&Function>, model: Option<&GpuModel>) -> Slot {
        Slot::of(function, above, model, function.role == Role::Gpu)
    }

    fn function(role: Role, now: (u8, u8), max: (u8, u8)) -> Function {
        let lanes = |(generation, width): (u8, u8)| Lanes {
            generation: (generation > 0).then_some(generation),
            width: (width > 0).then_some(width),
        };
        Function {
            bus: BusId::new(0, 1, 0, 0),
            slot: String::new(),
            above: Vec::new(),
            role,
            class: PciClass::GPU,
            vendor: 0x10de,
            device: 0,
            numa_node: -1,
            now: lanes(now),
            max: lanes(max),
        }
    }

    #[test]
    fn an_idle_gpu_has_its_maximum_speed() {
        let port = function(Role::Bridge, (1, 16), (4, 16));
        let slot = slot_of(&function(Role::Gpu, (1, 16), (5, 16)), Some(&port), None);
        assert_eq!(slot.spec, links::pcie(4, 16));
        assert!(slot.problems.is_empty() && !slot.is_assumed);
    }

    #[test]
    fn a_narrow_link_is_reported() {
        let port = function(Role::Bridge, (4, 8), (5, 8));
        let slot = slot_of(&function(Role::Gpu, (1, 8), (5, 16)), Some(&port), None);
        assert_eq!(slot.spec, links::pcie(5, 8));
        assert_eq!(slot.problems, ["runs at x8 instead of x16"]);
        let nic = slot_of(&function(Role::Nic, (3, 8), (5, 16)), Some(&port), None);
        assert_eq!(nic.spec, links::pcie(3, 8));
        assert_eq!(
            nic.problems,
            ["runs at x8 instead of x16", "runs at PCIe 3.0, but both ends support 5.0"]
        );
    }

    #[test]
    fn a_gpu_has_its_current_width_and_a_bridge_above_gpus_its_maximum_speed() {
        let port = function(Role::Bridge, (5, 16), (5, 16));
        let gpu = slot_of(&function(Role::Gpu, (1, 8), (5, 16)), Some(&port), None);
        assert_eq!(gpu.spec, links::pcie(5, 8));
        assert_eq!(gpu.problems, ["runs at x8 instead of x16"]);
        let switch = function(Role::Bridge, (1, 16), (5, 16));
        let [gpus_only, mixed] = [true, false].map(|idles| Slot::of(&switch, Some(&port), None, idles));
        assert_eq!((gpus_only.spec, gpus_only.problems.len()), (links::pcie(5, 16), 0));
        assert_eq!((mixed.spec, mixed.problems.len()), (links::pcie(1, 16), 1));
    }

    #[test]
    fn an_unreported_link_is_assumed() {
        let silent = function(Role::Gpu, (0, 0), (0, 0));
        let slot = slot_of(&silent, None, None);
        assert!(slot.is_assumed);
        assert_eq!((slot.spec.kind, slot.spec.nominal), (links::pcie(3, 16).kind, None));
        let model = slot_of(&silent, None, gpus::by_id("h100"));
        assert_eq!(model.spec.kind, links::pcie(5, 16).kind);
        assert!(model.is_assumed);
    }

    #[test]
    fn a_virtual_port_is_no_limit() {
        let mut port = function(Role::Bridge, (1, 1), (1, 1));
        port.vendor = 0x1b36;
        let slot = slot_of(&function(Role::Gpu, (5, 16), (5, 16)), Some(&port), None);
        assert_eq!(slot.spec, links::pcie(5, 16));
    }
}
