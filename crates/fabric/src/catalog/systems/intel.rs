//! Systems with Intel's Data Center GPU Max.

use super::System;
use super::chassis::{Chassis, SAPPHIRE_RAPIDS};
use crate::fabric::Fabric;
use crate::link::{LinkKind, Network};

/// The systems with Intel GPUs.
pub(super) static SYSTEMS: &[System] = &[System::new(
    "aurora-node",
    "6x Max 1550, two Xe Links between each pair, 8x Slingshot 200G",
    "ALCF Aurora machine overview for the parts; links of a pair and places of GPUs and NICs unverified",
    aurora_node,
)];

/// A node of Aurora: two sockets with three GPUs and four NICs each, all on root ports. Each of a GPU's two stacks has one link
/// to a stack of every other GPU, so that 10 of its 16 links are used.
fn aurora_node(system: &'static System) -> Fabric {
    let mut chassis = Chassis::new(system);
    let (_, numa) = chassis.host(SAPPHIRE_RAPIDS, 2);
    let mut gpus = Vec::new();
    for &socket in &numa {
        gpus.extend([(); 3].map(|()| chassis.gpu(socket, "max1550")));
        for _ in 0..4 {
            chassis.nic(socket, LinkKind::Network { network: Network::Slingshot, gbit: 200 }, 4, 16);
        }
    }
    let others = |a| (a + 1..gpus.len()).map(move |b| (a, b, 2));
    let pairs: Vec<_> = (0..gpus.len()).flat_map(others).collect();
    chassis.wire_pairs(&gpus, &pairs);
    chassis.finish()
}
