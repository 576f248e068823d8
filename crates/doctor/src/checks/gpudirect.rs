//! The way from GPUs to NICs: on the same socket, and without a copy in host memory (GPUDirect RDMA).

use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::link::Network;
use weftlink_fabric::{PathType, Paths};

use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};
use crate::host_cost;

pub(super) static CHECKS: &[Check] = &[
    Check {
        id: "gpu-nic-socket",
        finds: "GPUs whose nearest fast NIC is on another socket",
        reads: "the PCI tree, `/sys/bus/pci/devices/*/numa_node`",
        run: sockets,
    },
    Check {
        id: "gpudirect-rdma",
        finds: "A missing way for NICs to access the memory of GPUs",
        reads: "/sys/module/nvidia_peermem, /proc/driver/nvidia/version, /proc/sys/kernel/osrelease",
        run: gpudirect,
    },
];

/// Gb/s from which an Ethernet port without RDMA counts as one for data, not for management.
const FAST_GBIT: u64 = 25;
/// The first kernel that exports GPU memory to RDMA devices as a dma-buf.
const DMA_BUF_KERNEL: (u32, u32) = (5, 12);

fn is_fast(kind: &DeviceKind) -> bool {
    let DeviceKind::Nic(ports) = kind else { return false };
    ports.iter().any(|port| {
        let gbit = port.rate.bytes_per_second() / 125_000_000;
        gbit > 0 && (port.network.is_some_and(|network| network != Network::Ethernet) || gbit >= FAST_GBIT)
    })
}

fn sockets(machine: &Machine<'_>) -> Vec<Outcome> {
    let fabric = machine.fabric;
    let nics: Vec<_> = fabric.devices_where(is_fast).collect();
    let nodes = fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_))).count();
    let gpus = reads::functions(machine, reads::is_gpu);
    if nics.is_empty() || gpus.is_empty() || nodes < 2 {
        return Vec::new();
    }
    let hidden: Vec<String> = reads::functions(machine, |kind| reads::is_gpu(kind) || is_fast(kind))
        .into_iter()
        .filter(|function| !has_node(machine, &function.address))
        .map(|function| function.name)
        .collect();
    if !hidden.is_empty() {
        return vec![Outcome::Unknown {
            what: format!("the socket of {}", reads::some_of(&hidden)),
            needs: "a BIOS or hypervisor that reports the NUMA node of PCI devices".to_owned(),
        }];
    }
    let paths = Paths::of(fabric);
    let nearest =
        |gpu| nics.iter().map(|nic| (paths.path(gpu, *nic).kind, *nic)).min_by_key(|(kind, _)| *kind);
    // With NVLink, NCCL sends through a GPU next to the NIC (PXN).
    let far: Vec<_> = gpus
        .iter()
        .filter_map(|gpu| Some((gpu, nearest(gpu.id)?)))
        .filter(|(_, (kind, _))| *kind == PathType::Pxn || *kind >= PathType::Sys)
        .collect();
    let Some((gpu, (_, nic))) = far.iter().max_by_key(|(gpu, (kind, _))| (*kind, std::cmp::Reverse(gpu.id)))
    else {
        let what = format!("{} with a fast NIC on the same socket", reads::count(gpus.len(), "GPU"));
        return vec![Outcome::Fine(what)];
    };
    let names: Vec<String> = far.iter().map(|(gpu, _)| gpu.name.clone()).collect();
    let (severity, way) = match far.iter().any(|(_, (kind, _))| *kind >= PathType::Sys) {
        true => (Severity::Warning, "data between hosts crosses the sockets"),
        false => {
            (Severity::Note, "data between hosts takes the way of another GPU, which has to share its NIC")
        }
    };
    let what = format!("the nearest fast NIC of {} is on another socket: {way}", reads::some_of(&names));
    let nic_address = fabric.device(*nic).bus.map(|bus| bus.to_string()).unwrap_or_default();
    let shown = |address: &str| {
        let file = format!("{}/{address}/numa_node", reads::FUNCTIONS);
        (format!("/{file}"), machine.tree.read(&file).unwrap_or_default())
    };
    let (gpu_node, nic_node) = (shown(&gpu.address), shown(&nic_address));
    vec![Outcome::Found(
        Finding::new("gpu-nic-socket", severity, what)
            .shown_by(gpu_node.0, gpu_node.1)
            .shown_by(nic_node.0, format!("{} ({})", nic_node.1, fabric.device_name(*nic)))
            .fixed_by("move a NIC to a slot of the other socket, best below the PCIe switch of the GPUs; the board's manual shows the slots")
            .fixed_by("until then, use the GPUs of the NIC's socket first: `CUDA_VISIBLE_DEVICES`, in the order of `weft topo`"),
    )]
}

/// True if a function has a NUMA node, of its own or of a bridge above it.
fn has_node(machine: &Machine<'_>, address: &str) -> bool {
    let mut chain = reads::above(machine.tree, address);
    chain.push(address.to_owned());
    let node = |address: &String| machine.tree.read(&format!("{}/{address}/numa_node", reads::FUNCTIONS));
    chain.iter().filter_map(node).any(|node| node.parse::<i32>().is_ok_and(|node| node >= 0))
}

/// The ways that are there, and what shows them.
fn gpudirect(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let is_rdma = |kind: &DeviceKind| match kind {
        // Amazon's adapters have a way of their own.
        DeviceKind::Nic(ports) => {
            ports.iter().any(|port| matches!(port.network, Some(Network::InfiniBand | Network::Roce)))
        }
        _ => false,
    };
    let is_nvidia = |kind: &DeviceKind| kind.gpu_model().is_some_and(|model| model.vendor.pci_id() == 0x10de);
    let has = |wanted: &dyn Fn(&DeviceKind) -> bool| {
        machine.fabric.devices().iter().any(|device| wanted(&device.kind))
    };
    if !has(&is_rdma) || !has(&is_nvidia) {
        return Vec::new();
    }
    let modules = tree.read("proc/modules");
    let files = ["sys/module/nvidia_peermem/version", "sys/kernel/mm/memory_peers/nv_mem/version"];
    let file = files.into_iter().find(|file| tree.read(file).is_some());
    let is_listed =
        modules.as_deref().is_some_and(|text| text.lines().any(|line| line.starts_with("nvidia_peermem ")));
    if let Some(shown) = file.or(is_listed.then_some("proc/modules")) {
        return vec![Outcome::Fine(format!(
            "NICs access the memory of GPUs through nvidia_peermem (/{shown})"
        ))];
    }
    let driver = tree.read("proc/driver/nvidia/version");
    let release = tree.read("proc/sys/kernel/osrelease");
    let (Some(driver), Some(release)) = (driver, release) else {
        return vec![Outcome::Unknown {
            what: "whether NICs can access the memory of GPUs (GPUDirect RDMA)".to_owned(),
            needs:
                "/proc/modules and /proc/driver/nvidia/version: run it on the host, with the driver loaded"
                    .to_owned(),
        }];
    };
    let is_open = driver.contains("Open Kernel Module");
    if is_open && kernel(&release) >= DMA_BUF_KERNEL {
        return vec![Outcome::Fine(format!(
            "NICs access the memory of GPUs as dma-bufs (open kernel module, kernel {release})"
        ))];
    }
    let line = driver.lines().next().unwrap_or_default();
    vec![Outcome::Found(
        Finding::new(
            "gpudirect-rdma",
            Severity::Warning,
            "NICs cannot access the memory of GPUs: nvidia_peermem is not loaded, and the driver exports no dma-bufs; data between hosts is copied in host memory",
        )
        .shown_by("/proc/modules", "no line `nvidia_peermem`")
        .shown_by("/proc/driver/nvidia/version", reads::shown(line))
        .shown_by("/proc/sys/kernel/osrelease", reads::shown(&release))
        .costing(host_cost::of_no_gpudirect(machine.fabric))
        .fixed_by("sudo modprobe nvidia-peermem")
        .fixed_by("at every boot: `echo nvidia-peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf`")
        .fixed_by("or install the driver's open kernel modules (`nvidia-open`) on a kernel from 5.12; then no module is needed"),
    )]
}

/// `5.15.0-91-generic` is (5, 15).
fn kernel(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{Recorded, bare, healthy, healthy_text, is_fine, is_unknown};
    use super::*;

    #[test]
    fn gpus_without_a_nic_on_their_socket_are_found() {
        // All NICs of the second socket are down, and so have no rate.
        let down: Vec<String> =
            (4..8).map(|n| format!("sys/class/infiniband/mlx5_{n}/ports/1/state = 1: DOWN")).collect();
        let down: Vec<&str> = down.iter().map(String::as_str).collect();
        let shared = healthy(&down).finding(&CHECKS[0]);
        assert!(shared.severity == Severity::Note && shared.what.contains("of another GPU"), "{shared:#?}");
        let text = healthy_text();
        let cards: String =
            text.lines().filter(|line| !line.starts_with("nvml/")).flat_map(|line| [line, "\n"]).collect();
        let found = Recorded::new(&cards, &down).finding(&CHECKS[0]);
        assert!(found.severity == Severity::Warning && found.what.contains("gpu4"), "{found:#?}");
        assert!(!found.what.contains("gpu3"), "{}", found.what);
        assert_eq!(found.evidence[0].text, "1");
        assert!(is_fine(&healthy(&[]).run(&CHECKS[0])));
        let lost: Vec<String> = ["0000:16:01.0", "0000:17:00.0", "0000:18:00.0", "0000:19:00.0"]
            .map(|address| format!("sys/bus/pci/devices/{address}/numa_node = -1"))
            .to_vec();
        let lost: Vec<&str> = lost.iter().map(String::as_str).collect();
        assert!(is_unknown(&healthy(&lost).run(&CHECKS[0])));
    }

    #[test]
    fn gpudirect_needs_a_module_or_dma_bufs() {
        let closed = "proc/driver/nvidia/version = NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024";
        let unloaded = "sys/module/nvidia_peermem/version -";
        let with =
            |lines: &[&str]| healthy(&[&[unloaded, "proc/modules = nvidia 14000000 9"], lines].concat());
        let found = with(&[closed]).finding(&CHECKS[1]);
        assert!(found.cost.is_some_and(|cost| cost.usual_gb_per_s > 1.2 * cost.now_gb_per_s));
        let open = closed.replace("UNIX x86_64 Kernel Module", "UNIX Open Kernel Module for x86_64");
        assert!(is_fine(&with(&[&open]).run(&CHECKS[1])));
        let old = "proc/sys/kernel/osrelease = 4.18.0-513.el8.x86_64";
        assert_eq!(with(&[&open, old]).finding(&CHECKS[1]).id, "gpudirect-rdma");
        assert!(is_fine(
            &healthy(&[unloaded, closed, "proc/modules = nvidia_peermem 16384 0 - Live 0x0"]).run(&CHECKS[1])
        ));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[1])));
        assert_eq!((kernel("6.8.0-45-generic"), kernel("")), ((6, 8), (0, 0)));
    }
}
