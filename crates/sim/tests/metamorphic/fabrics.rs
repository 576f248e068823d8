//! The fabrics of the metamorphic tests: all presets, some clusters, and random machines.

use weftlink_fabric::catalog::{gpus, links, systems};
use weftlink_fabric::device::{Gpu, Numa, Port, Tier};
use weftlink_fabric::link::Network;
use weftlink_fabric::rate::Rate;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, FabricBuilder, resolve};
use weftlink_testkit::random::Random;

/// Clusters with the features that presets lack.
const CLUSTERS: [&str; 9] = [
    "2x hgx-h100 + 8x ndr",
    "4x hgx-h100 + 8x ndr, leaf-spine, oversubscribed 4:1, leaf-ports 20",
    "4x hgx-a100 + 4x hdr",
    "3x dgx-1-v100 + 4x edr",
    "2x 4x-rtx4090 + 1x eth100",
    "2x 4x-a100-pcie-bridge + 2x hdr",
    "4x hgx-h100 + 8x roce400",
    "2x gb200-nvl72 + 4x ndr",
    "4x hgx-h100 + 1x slingshot",
];

/// Presets and a cluster of 72 to 256 GPUs, for tests that predict each call once or twice.
const LARGE: [&str; 3] = ["gb200-nvl72", "2x gb200-nvl72 + 4x ndr", "dgx-gh200"];

pub(crate) fn large() -> impl Iterator<Item = Fabric> {
    LARGE.into_iter().map(|spec| resolve(spec).unwrap_or_else(|error| panic!("{spec}: {error}")))
}

/// All presets with several GPUs, and the clusters.
pub(crate) fn described() -> Vec<Fabric> {
    let presets = systems::all().map(|system| system.fabric()).filter(|fabric| fabric.gpus().len() > 1);
    let clusters =
        CLUSTERS.into_iter().map(|spec| resolve(spec).unwrap_or_else(|error| panic!("{spec}: {error}")));
    presets.chain(clusters).collect()
}

/// The links between the GPUs of a random host.
#[derive(Clone, Copy)]
enum Inside {
    NvSwitch,
    Mesh,
    Pairs,
    Cards,
}

/// A random machine: one to four hosts, alike or not, slots of random width and generation, NICs of random number and speed, one or two
/// tiers of switches.
pub(crate) fn random(seed: u64) -> Fabric {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut pick = |most: u64| random.below(most);
    let inside = [Inside::NvSwitch, Inside::Mesh, Inside::Pairs, Inside::Cards][pick(4) as usize];
    let model = match inside {
        Inside::NvSwitch => ["h100", "a100", "b200"][pick(3) as usize],
        Inside::Mesh => ["a100", "v100"][pick(2) as usize],
        Inside::Pairs => "a100-pcie",
        Inside::Cards => ["rtx4090", "l40s", "rtx5090"][pick(3) as usize],
    };
    let model = gpus::by_id(model).expect("a model of the catalog");
    let hosts = 1 + pick(4);
    let is_uneven = pick(4) == 0;
    let most = [[2, 4, 8], [2, 4, 4]][usize::from(hosts > 2)][pick(3) as usize];
    let network = [Network::InfiniBand, Network::Roce, Network::Ethernet][pick(3) as usize];
    let gbit = [100, 200, 400][pick(3) as usize];
    let mut builder = FabricBuilder::new(format!("random {seed}"));
    let leaves: Vec<DeviceId> = match hosts {
        1 => Vec::new(),
        _ => (0..1 + pick(2)).map(|_| builder.add(None, DeviceKind::NetSwitch(Tier::Leaf))).collect(),
    };
    for number in 0..hosts {
        let host = builder.host(format!("host{number}"), None);
        let numas: Vec<DeviceId> =
            (0..2).map(|_| builder.add(Some(host), DeviceKind::Numa(Numa::default()))).collect();
        let socket = builder.spec(links::socket(weftlink_fabric::link::Socket::IntelSapphireRapids));
        builder.connect(numas[0], numas[1], 1, socket);
        let count = if is_uneven { 1 + pick(most) } else { most };
        let (generation, width) = (3 + pick(3) as u8, [4, 8, 16][pick(3) as usize]);
        let mut gpus = Vec::new();
        let mut ports = Vec::new();
        for gpu in 0..count {
            let port = builder.add(Some(host), DeviceKind::PcieSwitch);
            let trunk = builder.spec(links::pcie(generation, 16));
            builder.connect(numas[(gpu * 2 / count) as usize], port, 1, trunk);
            let kind =
                DeviceKind::Gpu(Gpu { model: Some(model), sm: Some(model.architecture), ranks: Vec::new() });
            let gpu = builder.add(Some(host), kind);
            // Some slots are narrower than the others.
            let lanes = if pick(8) == 0 { 4 } else { width };
            let slot = builder.spec(links::pcie(generation, lanes));
            builder.connect(port, gpu, 1, slot);
            gpus.push(gpu);
            ports.push(port);
        }
        if let Some((link, total)) = model.gpu_links() {
            let spec = builder.spec(link.clone());
            match inside {
                Inside::NvSwitch if gpus.len() > 1 => {
                    let switch = builder.add(Some(host), DeviceKind::NvSwitch { generation: None });
                    gpus.iter().for_each(|gpu| builder.connect(*gpu, switch, total, spec));
                }
                Inside::Mesh => {
                    let each = (total / (gpus.len().max(2) as u32 - 1)).max(1);
                    for (at, one) in gpus.iter().enumerate() {
                        gpus[at + 1..].iter().for_each(|other| builder.connect(*one, *other, each, spec));
                    }
                }
                Inside::Pairs => {
                    for pair in gpus.chunks_exact(2) {
                        builder.connect(pair[0], pair[1], total, spec);
                    }
                }
                _ => {}
            }
        }
        if leaves.is_empty() {
            continue;
        }
        let nics = 1 + pick(count);
        for nic in 0..nics {
            let rate = if pick(6) == 0 { gbit / 2 } else { gbit };
            let port = Port {
                name: None,
                network: Some(network),
                rate: Rate::from_gbit(rate.into()),
                extra: Vec::new(),
            };
            let device = builder.add(Some(host), DeviceKind::Nic(vec![port]));
            let slot = builder.spec(links::pcie(5, 16));
            builder.connect(ports[(nic * count / nics) as usize], device, 1, slot);
            let cable = builder.spec(links::network(network, rate));
            builder.connect(device, leaves[nic as usize % leaves.len()], 1, cable);
        }
    }
    if leaves.len() > 1 {
        let spine = builder.add(None, DeviceKind::NetSwitch(Tier::Spine));
        let cables = 1 + pick(8) as u32;
        let cable = builder.spec(links::network(network, gbit));
        leaves.iter().for_each(|leaf| builder.connect(*leaf, spine, cables, cable));
    }
    builder.finish().expect("a random fabric is valid")
}
