//! Servers with GPUs behind PCIe switches: HGX boards, DGX-1 and cloud instances.

use super::System;
use super::chassis::{Chassis, Cpus};
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};
use crate::link::LinkKind;

/// A server as its data sheet and its PCI tree describe it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Server {
    /// Id of its GPUs.
    pub(super) gpu: &'static str,
    pub(super) cpus: Cpus,
    /// NUMA nodes as seen by the kernel.
    pub(super) numa_nodes: u32,
    /// The NUMA node of each PCIe switch, in the order of the GPUs below the switches.
    pub(super) switches: &'static [usize],
    /// PCIe generation of those switches.
    pub(super) pcie: u8,
    pub(super) gpus_per_switch: usize,
    /// Whether there is a drive below each switch.
    pub(super) drives: bool,
    pub(super) nics: Option<Nics>,
    pub(super) wiring: Wiring,
}

/// The NICs below each PCIe switch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nics {
    pub(super) per_switch: usize,
    pub(super) network: LinkKind,
    /// PCIe generation and width of each.
    pub(super) pcie: (u8, u8),
}

/// The links between the GPUs, besides PCIe.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wiring {
    /// Links of each GPU to each NVSwitch.
    NvSwitches(&'static [u32]),
    /// `(a, b, links)`.
    Pairs(&'static [(usize, usize, u32)]),
    /// This many links between each two GPUs.
    FullMesh(u32),
}

impl Server {
    /// The same server with other CPUs, GPUs and NICs.
    pub(super) const fn with(self, cpus: Cpus, gpu: &'static str, nics: Option<Nics>) -> Self {
        Self { cpus, gpu, nics, ..self }
    }

    /// The fabric of one such server.
    pub(super) fn build(&self, system: &'static System) -> Fabric {
        let mut chassis = Chassis::new(system);
        self.assemble(&mut chassis);
        chassis.finish()
    }

    /// Adds one such server; returns its NUMA nodes.
    pub(super) fn assemble(&self, chassis: &mut Chassis) -> Vec<DeviceId> {
        let (host, numa) = chassis.host(self.cpus, self.numa_nodes);
        let mut gpus = Vec::new();
        for &node in self.switches {
            let switch = chassis.pcie_switch(numa[node], self.pcie);
            for _ in 0..self.gpus_per_switch {
                gpus.push(chassis.gpu(switch, self.gpu));
            }
            if let Some(nics) = self.nics {
                for _ in 0..nics.per_switch {
                    chassis.nic(switch, nics.network, nics.pcie.0, nics.pcie.1);
                }
            }
            if self.drives {
                chassis.nvme(switch, 4);
            }
        }
        self.wire(chassis, host, &gpus);
        numa
    }

    fn wire(&self, chassis: &mut Chassis, host: HostId, gpus: &[DeviceId]) {
        match self.wiring {
            Wiring::NvSwitches(pattern) => {
                chassis.nvswitches(Some(host), gpus, pattern);
            }
            Wiring::Pairs(pairs) => chassis.wire_pairs(gpus, pairs),
            Wiring::FullMesh(links) => {
                let others = |a| (a + 1..gpus.len()).map(move |b| (a, b, links));
                let pairs: Vec<_> = (0..gpus.len()).flat_map(others).collect();
                chassis.wire_pairs(gpus, &pairs);
            }
        }
    }
}
