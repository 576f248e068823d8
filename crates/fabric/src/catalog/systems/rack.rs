//! Racks of 72 GPUs in one NVLink domain, as NVIDIA and the clouds deliver them.

use super::System;
use super::chassis::{Chassis, Cpus, GRACE, VERA};
use super::server::Nics;
use crate::fabric::Fabric;
use crate::link::{LinkKind, Network};

/// 18 trays of two CPUs and four GPUs, with one NVLink between each GPU and each NVSwitch chip of the nine switch trays.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rack {
    gpu: &'static str,
    cpus: Cpus,
    slot: Slot,
    /// The NICs of each GPU.
    nics: Option<Nics>,
    /// NVSwitch chips.
    nvswitches: usize,
}

/// The place of a GPU's PCI function. Its data moves over C2C.
#[derive(Debug, Clone, Copy)]
enum Slot {
    /// On a root port, of this generation and width; NICs have root ports of their own.
    RootPort(u8, u8),
    /// Below a PCIe switch of this generation, which the NICs of the GPU share, with this uplink.
    Switch { generation: u8, uplink: (u8, u8) },
}

impl Rack {
    /// Generation and width of the PCI functions are unverified.
    pub(super) const GB200: Self =
        Self { gpu: "gb200", cpus: GRACE, slot: Slot::RootPort(5, 1), nics: None, nvswitches: 18 };

    /// Each GPU is behind the PCIe switch of a ConnectX-8 on the board, Gen6 to the GPU and Gen5 to Grace (unverified).
    pub(super) const GB300: Self = Self {
        gpu: "gb300",
        slot: Slot::Switch { generation: 6, uplink: (5, 16) },
        nics: Some(Nics {
            per_switch: 1,
            network: LinkKind::Network { network: Network::InfiniBand, gbit: 800 },
            pcie: (6, 16),
        }),
        ..Self::GB200
    };

    /// The PCI function of the GPU has two lanes of Gen6, as in a published topology dump. Its two ConnectX-9 are on the CPU
    /// here (unverified).
    pub(super) const RUBIN: Self = Self {
        gpu: "vr200",
        cpus: VERA,
        slot: Slot::RootPort(6, 2),
        nics: Some(Nics {
            per_switch: 2,
            network: LinkKind::Network { network: Network::InfiniBand, gbit: 800 },
            pcie: (6, 16),
        }),
        nvswitches: 36,
    };

    /// The two EFAs of a GPU and the GPU are below a switch of Gen5, whose link to Grace is one lane of Gen4. The EFAs have a
    /// second path, directly to Grace, which is left out.
    pub(super) const P6E_GB200: Self = Self {
        slot: Slot::Switch { generation: 5, uplink: (4, 1) },
        nics: Some(Nics {
            per_switch: 2,
            network: LinkKind::Network { network: Network::Efa, gbit: 200 },
            pcie: (5, 16),
        }),
        ..Self::GB200
    };

    /// The PCIe tree and the EFAs are those of [`Self::P6E_GB200`] (unverified).
    pub(super) const P6E_GB300: Self = Self { gpu: "gb300", ..Self::P6E_GB200 };

    /// The same rack with one NIC for each GPU, at the place of those it has.
    pub(super) const fn with_nic(self, network: Network, gbit: u32) -> Self {
        let pcie = match self.nics {
            Some(nics) => nics.pcie,
            None => (5, 16),
        };
        let nics = Nics { per_switch: 1, network: LinkKind::Network { network, gbit }, pcie };
        Self { nics: Some(nics), ..self }
    }

    /// The fabric of the rack.
    pub(super) fn build(&self, system: &'static System) -> Fabric {
        let mut chassis = Chassis::new(system);
        let mut gpus = Vec::new();
        for _ in 0..18 {
            let (_, numa) = chassis.host(self.cpus, 2);
            for node in numa {
                for _ in 0..2 {
                    let (parent, generation, width) = match self.slot {
                        Slot::RootPort(generation, width) => (node, generation, width),
                        Slot::Switch { generation, uplink } => {
                            (chassis.pcie_switch_over(node, generation, uplink), generation, 16)
                        }
                    };
                    gpus.push(chassis.gpu_in_slot(parent, self.gpu, (generation, width)));
                    if let Some(nics) = self.nics {
                        for _ in 0..nics.per_switch {
                            chassis.nic(parent, nics.network, nics.pcie.0, nics.pcie.1);
                        }
                    }
                }
            }
        }
        chassis.nvswitches(None, &gpus, &vec![1; self.nvswitches]);
        chassis.finish()
    }
}
