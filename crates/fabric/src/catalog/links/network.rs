//! Network ports.

use crate::figure::{Figure, Nanoseconds};
use crate::link::{LinkKind, LinkSpec, Network};
use crate::rate::{Link, OneWay, Rate};

const FITTED: &str = "fit over published nccl-tests tables of this network";
const ASSUMED: &str = "unverified: the share of the line rate that other networks reach in published tables";

/// A network port of `gbit` Gb/s. One of an unknown network has no rate.
pub fn network(network: Network, gbit: u32) -> LinkSpec {
    if network == Network::Unknown {
        return LinkSpec {
            kind: LinkKind::Network { network, gbit: 0 },
            nominal: None,
            effective: None,
            latency: None,
        };
    }
    let line: Rate<Link, OneWay> = Rate::from_gbit(gbit.into());
    let effective = match network {
        Network::TcpX => line.bytes_per_second() / 100 * 84,
        // Kernel TCP on one host CPU moves about 3.3 GB/s of GPU data per NIC, independent of the NIC.
        Network::Ethernet => line.bytes_per_second().min(3_300_000_000),
        _ => line.bytes_per_second() / 1000 * 993,
    };
    let source = if is_fitted(network, gbit) { FITTED } else { ASSUMED };
    LinkSpec {
        kind: LinkKind::Network { network, gbit },
        nominal: Some(Figure::nominal(line, "line rate of the port")),
        effective: Some(Figure::effective(Rate::from_bytes(effective), source)),
        latency: latency(network, gbit),
    }
}

/// Port to port through one switch. NDR and XDR have none: the maker publishes no figure, and those that others measured for
/// NDR differ by a factor of two.
fn latency(network: Network, gbit: u32) -> Option<Figure<Nanoseconds>> {
    let (ns, source) = match (network, gbit) {
        (Network::InfiniBand, 100) => (90, "NVIDIA SB7800 product brief: port to port (unverified)"),
        (Network::InfiniBand, 200) => (130, "NVIDIA Quantum QM8700 brief: port to port"),
        (Network::Slingshot, 200) => {
            (350, "De Sensi et al. 2020, An In-Depth Analysis of the Slingshot Interconnect")
        }
        _ => return None,
    };
    Some(Figure::nominal(Nanoseconds(ns), source))
}

/// The networks of which `testdata/measurements/published.csv` has scored tables.
fn is_fitted(network: Network, gbit: u32) -> bool {
    matches!(
        (network, gbit),
        (Network::InfiniBand, 200 | 400)
            | (Network::Roce, 200 | 400 | 800)
            | (Network::EfaV1 | Network::EfaV2, 100)
            | (Network::EfaV3, 200)
            | (Network::Slingshot | Network::TcpX | Network::TcpXo, 200)
            | (Network::Ethernet, 25 | 200)
    )
}
