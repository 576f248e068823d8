//! What several checks of the host read from a machine's tree: PCI functions, RDMA ports, network interfaces, the kernel's log, the
//! environment. Folders that list more than the limits are cut.

use weftlink_fabric::{DeviceId, DeviceKind};
use weftlink_probe::Tree;

use crate::check::Machine;
use crate::finding::{Finding, Outcome};

pub(super) const FUNCTIONS: &str = "sys/bus/pci/devices";
pub(super) const NET: &str = "sys/class/net";
pub(super) const RDMA: &str = "sys/class/infiniband";
/// Interfaces, RDMA devices or ports of one.
const NAMES_MAX: usize = 1024;
/// Bridges above a function.
const DEPTH_MAX: usize = 64;
/// Characters of a line that is shown.
const LINE_MAX: usize = 300;

/// The vendor of virtio devices, which have no PCIe link.
const VIRTIO: &str = "0x1af4";

/// A device of the fabric with a PCI function.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) id: DeviceId,
    /// As in sysfs: `0000:17:00.0`.
    pub(super) address: String,
    /// `gpu3 (0000:17:00.0)`.
    pub(super) name: String,
}

impl Function {
    pub(super) fn path(&self, file: &str) -> String {
        format!("{FUNCTIONS}/{}/{file}", self.address)
    }

    pub(super) fn read(&self, tree: &dyn Tree, file: &str) -> Option<String> {
        tree.read(&self.path(file))
    }
}

/// The devices of these kinds, by their numbers.
pub(super) fn functions(machine: &Machine<'_>, wanted: impl Fn(&DeviceKind) -> bool) -> Vec<Function> {
    let fabric = machine.fabric;
    let function = |id: DeviceId| {
        let address = fabric.device(id).bus?.to_string();
        let name = format!("{} ({address})", fabric.device_name(id));
        Some(Function { id, address, name })
    };
    fabric.devices_where(wanted).filter_map(function).collect()
}

/// Those of them that have a PCIe link, also if it is hidden.
pub(super) fn linked_functions(machine: &Machine<'_>, wanted: impl Fn(&DeviceKind) -> bool) -> Vec<Function> {
    let is_virtual = |function: &Function| function.read(machine.tree, "vendor").as_deref() == Some(VIRTIO);
    functions(machine, wanted).into_iter().filter(|function| !is_virtual(function)).collect()
}

pub(super) fn is_gpu(kind: &DeviceKind) -> bool {
    matches!(kind, DeviceKind::Gpu(_))
}

pub(super) fn is_nic(kind: &DeviceKind) -> bool {
    matches!(kind, DeviceKind::Nic(_))
}

/// The addresses of the functions above one, outermost first.
pub(super) fn above(tree: &dyn Tree, address: &str) -> Vec<String> {
    let link = tree.link(&format!("{FUNCTIONS}/{address}")).unwrap_or_default();
    let parts = link.split('/').filter(|part| is_address(part) && *part != address);
    parts.take(DEPTH_MAX).map(str::to_owned).collect()
}

/// True for `0000:17:00.0`.
pub(super) fn is_address(part: &str) -> bool {
    let shape = |c: char| if c.is_ascii_hexdigit() { 'x' } else { c };
    let shaped: String = part.chars().map(shape).collect();
    shaped.len() <= 16 && shaped.ends_with(":xx:xx.x") && shaped.starts_with("xxxx")
}

/// The innermost PCI function on the path of a class entry such as `sys/class/net/eth0`.
pub(super) fn function_of(tree: &dyn Tree, entry: &str) -> Option<String> {
    tree.link(entry)?.split('/').rfind(|part| is_address(part)).map(str::to_owned)
}

/// A port of an RDMA device.
#[derive(Clone, Debug)]
pub(super) struct RdmaPort {
    /// `mlx5_0`.
    pub(super) device: String,
    /// `mlx5_0`, or `mlx5_0:1` if the device has several.
    pub(super) name: String,
    /// `sys/class/infiniband/mlx5_0/ports/1`.
    pub(super) folder: String,
    pub(super) number: String,
}

impl RdmaPort {
    pub(super) fn read(&self, tree: &dyn Tree, file: &str) -> Option<String> {
        tree.read(&format!("{}/{file}", self.folder))
    }

    pub(super) fn number(&self, tree: &dyn Tree, file: &str) -> Option<u64> {
        self.read(tree, file)?.parse().ok()
    }

    /// RDMA over Ethernet.
    pub(super) fn is_roce(&self, tree: &dyn Tree) -> bool {
        self.read(tree, "link_layer").as_deref() == Some("Ethernet") && !self.device.starts_with("efa")
    }

    pub(super) fn is_active(&self, tree: &dyn Tree) -> bool {
        self.read(tree, "state").is_some_and(|state| state.contains("ACTIVE"))
    }

    /// The network interfaces of the same PCI function.
    pub(super) fn interfaces(&self, tree: &dyn Tree) -> Vec<String> {
        let Some(function) = function_of(tree, &format!("{RDMA}/{}", self.device)) else { return Vec::new() };
        let same = |name: &String| function_of(tree, &format!("{NET}/{name}")).as_ref() == Some(&function);
        interfaces(tree).into_iter().filter(same).collect()
    }

    /// The NIC in the fabric.
    pub(super) fn nic(&self, machine: &Machine<'_>) -> Option<DeviceId> {
        let has = |id: &DeviceId| match &machine.fabric.device(*id).kind {
            DeviceKind::Nic(ports) => ports.iter().any(|port| port.name.as_deref() == Some(&self.name)),
            _ => false,
        };
        machine.fabric.device_ids().find(has)
    }
}

/// All ports of RDMA devices on PCI, by name.
pub(super) fn rdma_ports(tree: &dyn Tree) -> Vec<RdmaPort> {
    let mut ports = Vec::new();
    for device in tree.list(RDMA).into_iter().take(NAMES_MAX) {
        // Devices in software (rxe, siw) have no function.
        if function_of(tree, &format!("{RDMA}/{device}")).is_none() {
            continue;
        }
        let numbers = tree.list(&format!("{RDMA}/{device}/ports"));
        for number in numbers.iter().take(NAMES_MAX) {
            let name = if numbers.len() > 1 { format!("{device}:{number}") } else { device.clone() };
            let folder = format!("{RDMA}/{device}/ports/{number}");
            ports.push(RdmaPort { device: device.clone(), name, folder, number: number.clone() });
        }
    }
    ports
}

/// The names of network interfaces. The folder also has control files of bonding.
pub(super) fn interfaces(tree: &dyn Tree) -> Vec<String> {
    let names = tree.list(NET).into_iter().take(NAMES_MAX);
    names.filter(|name| name != "bonding_masters").collect()
}

/// A file with a number, in decimal or with `0x` in front.
pub(super) fn number(tree: &dyn Tree, path: &str) -> Option<u64> {
    let text = tree.read(path)?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// True for a virtual machine, by the names that firmware gives it.
pub(super) fn is_virtual_machine(tree: &dyn Tree) -> bool {
    const VENDORS: [&str; 7] = ["QEMU", "Google", "VMware", "innotek", "OpenStack", "Xen", "Red Hat"];
    let read = |file: &str| tree.read(&format!("sys/class/dmi/id/{file}")).unwrap_or_default();
    let (vendor, product) = (read("sys_vendor"), read("product_name"));
    VENDORS.iter().any(|name| vendor.starts_with(name))
        || product == "Virtual Machine"
        || vendor == "Amazon EC2" && !product.ends_with(".metal")
}

/// The kernel's log, or why it cannot be read.
pub(super) fn kernel_log(tree: &dyn Tree) -> Result<String, String> {
    output(tree, "log/kernel")
}

/// The content of a virtual file such as `run/COMMAND`, or the reason why there is none.
pub(super) fn output(tree: &dyn Tree, path: &str) -> Result<String, String> {
    let missing = || tree.read(&format!("{path}.reason")).unwrap_or_else(|| "it was not read".to_owned());
    tree.read(path).ok_or_else(missing)
}

/// A variable that NCCL or a launcher reads.
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
    /// Where it is set: the environment, or NCCL's file.
    pub(super) source: &'static str,
}

/// The value of a variable.
pub(super) fn variable(tree: &dyn Tree, name: &str) -> Option<String> {
    variables(tree).into_iter().find(|variable| variable.name == name).map(|variable| variable.value)
}

/// The variables of this process's environment, whose entries end with NUL (in recordings also with line ends), and those of
/// `/etc/nccl.conf` that the environment does not set.
pub(super) fn variables(tree: &dyn Tree) -> Vec<Variable> {
    let entries = |file: &str, source: &'static str| -> Vec<Variable> {
        let text = tree.read(file).unwrap_or_default();
        let entry = |line: &str| {
            let (name, value) = line.split_once('=')?;
            Some(Variable { name: name.trim().to_owned(), value: value.trim().to_owned(), source })
        };
        text.split(['\0', '\n']).filter(|line| !line.starts_with('#')).filter_map(entry).collect()
    };
    let mut all = entries("proc/self/environ", "/proc/self/environ");
    for variable in entries("etc/nccl.conf", "/etc/nccl.conf") {
        if !all.iter().any(|known| known.name == variable.name) {
            all.push(variable);
        }
    }
    all
}

/// Evidence is one line of limited length.
pub(super) fn shown(text: &str) -> String {
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(LINE_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// `a, b, c and 5 more`.
pub(super) fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let first = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// `3 ports`, `1 port`.
pub(super) fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// One sentence for everything that is fine, one for everything that is unknown, and the findings.
pub(super) struct Outcomes {
    pub(super) findings: Vec<Finding>,
    pub(super) fine: Vec<String>,
    pub(super) unknown: Vec<String>,
}

impl Outcomes {
    pub(super) fn new() -> Self {
        Self { findings: Vec::new(), fine: Vec::new(), unknown: Vec::new() }
    }

    /// `fine` and `unknown` make the sentences, from the names of the things.
    pub(super) fn finish(
        self,
        fine: impl FnOnce(&[String]) -> String,
        unknown: impl FnOnce(&[String]) -> (String, String),
    ) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = self.findings.into_iter().map(Outcome::Found).collect();
        if !self.fine.is_empty() {
            outcomes.push(Outcome::Fine(fine(&self.fine)));
        }
        if !self.unknown.is_empty() {
            let (what, needs) = unknown(&self.unknown);
            outcomes.push(Outcome::Unknown { what, needs });
        }
        outcomes
    }
}
