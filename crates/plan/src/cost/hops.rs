//! The times of launches and hops on a fabric, from the [constants](super::constants).

use weftlink_fabric::link::Network;
use weftlink_fabric::{DeviceKind, Fabric, LinkKind};

use super::Picoseconds;
use super::carried::{ONE, millionths, part_of};
use super::constants::{Constants, Name};
use crate::plan::Protocol;

/// The lowest compute capability, times ten, of Hopper.
const SM_HOPPER: u32 = 90;

/// A hop whose time grows with its message, up to a size from which it is constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hop {
    /// The time of a message of a few bytes.
    pub least: Picoseconds,
    /// The most that it grows, in millionths.
    growth: u64,
    /// Powers of two of eight bytes over which it grows.
    powers: u64,
    /// Whether it grows with the square of the power.
    is_squared: bool,
}

impl Hop {
    /// A hop that takes the same time for any message.
    pub(super) fn constant(least: Picoseconds) -> Self {
        Self { least, ..Self::default() }
    }

    /// The time of a message: longer ones use more threads, which wait for each other.
    pub fn of(&self, message: u64) -> Picoseconds {
        if self.growth == 0 {
            return self.least;
        }
        let power = libm::log2(message.max(8) as f64) - 3.0;
        let reached = (millionths(power) / self.powers).min(ONE);
        let reached = if self.is_squared { part_of(reached, reached) } else { reached };
        self.least + Picoseconds(part_of(self.least.0, part_of(self.growth, reached)))
    }
}

/// The times of a fabric's launches and hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hops {
    launch: Picoseconds,
    launch_across_simple: Picoseconds,
    ll: Hop,
    simple: Picoseconds,
    across_ll: Hop,
    across_simple: Picoseconds,
    /// With Simple, if protocols behaved alike on all networks.
    across_simple_alike: Picoseconds,
    /// Between islands of NVSwitches that add, and through switches of the network that add.
    across_switched: Picoseconds,
    /// A reduction by an NVSwitch, and what each GPU adds.
    nvls: (Picoseconds, Picoseconds),
    /// The time from one message of a lane into the network to the next.
    message_across: Picoseconds,
}

impl Hops {
    pub(super) fn of(constants: &Constants, fabric: &Fabric) -> Self {
        let network = fabric.links().iter().find_map(|link| match fabric.spec(link).kind {
            LinkKind::Network { network, .. } => Some(network),
            _ => None,
        });
        let sm = fabric.gpus().first().and_then(|gpu| match &fabric.device(*gpu).kind {
            DeviceKind::Gpu(gpu) => gpu.sm,
            _ => None,
        });
        Self::new(constants, network, sm.is_some_and(|sm| sm < SM_HOPPER), 0.0)
    }

    /// The times of hops over a network, between GPUs before Hopper or later ones. `staged_us` is added to each hop that stages its message.
    pub fn new(
        constants: &Constants,
        network: Option<Network>,
        is_before_hopper: bool,
        staged_us: f64,
    ) -> Self {
        let us = |name| Picoseconds::from_us(constants[name]);
        let staged = Picoseconds::from_us(staged_us);
        let across = staged
            + us(match network {
                Some(Network::Roce) => Name::HopRoceUs,
                Some(Network::Efa | Network::EfaV1 | Network::EfaV2 | Network::EfaV3 | Network::EfaV4) => {
                    if is_before_hopper {
                        Name::HopEfaFirstUs
                    } else {
                        Name::HopEfaUs
                    }
                }
                Some(Network::TcpXo) => Name::HopEfaUs,
                Some(Network::Slingshot) => Name::HopSlingshotUs,
                Some(Network::Ethernet | Network::Unknown) => Name::HopTcpUs,
                Some(Network::TcpX) => Name::HopTcpxUs,
                Some(Network::InfiniBand | Network::OmniPath) | None => Name::HopInfiniBandUs,
            });
        let times = |name| Picoseconds(part_of(across.0, millionths(constants[name])));
        Self {
            launch: us(Name::LaunchUs),
            launch_across_simple: us(Name::LaunchNetworkSimpleUs),
            ll: Hop {
                least: us(Name::HopLlUs),
                growth: millionths(constants[Name::HopLlGrowth]),
                powers: 9,
                is_squared: false,
            },
            simple: us(Name::HopSimpleUs),
            across_ll: Hop {
                least: across,
                growth: millionths(constants[Name::HopNetworkGrowth]),
                powers: 13,
                is_squared: true,
            },
            across_simple: match network {
                Some(Network::Slingshot) => us(Name::HopSlingshotSimpleUs) + staged,
                Some(Network::Ethernet | Network::Unknown) => us(Name::HopTcpSimpleUs),
                _ => times(Name::HopNetworkSimple),
            },
            across_simple_alike: times(Name::HopNetworkSimple),
            across_switched: times(Name::HopNetworkNvlsTree),
            nvls: (us(Name::NvlsUs), us(Name::NvlsPerGpuUs)),
            message_across: times(Name::AllToAllPeer),
        }
    }

    /// The times if protocols behaved alike on all networks, as the tuners of libraries assume.
    #[must_use]
    pub fn alike(self) -> Self {
        Self { across_simple: self.across_simple_alike, ..self }
    }

    /// Starting and ending a kernel.
    pub fn launch(&self, protocol: Option<Protocol>, is_across: bool) -> Picoseconds {
        match protocol {
            Some(Protocol::Simple) if is_across => self.launch + self.launch_across_simple,
            _ => self.launch,
        }
    }

    /// A message inside an island.
    pub fn inside(&self, protocol: Protocol) -> Hop {
        match protocol {
            Protocol::Ll => self.ll,
            Protocol::Ll128 => Hop::constant(between(self.ll.least, self.simple)),
            Protocol::Simple => Hop::constant(self.simple),
        }
    }

    /// A message between islands.
    pub fn across(&self, protocol: Protocol) -> Hop {
        match protocol {
            Protocol::Ll => self.across_ll,
            Protocol::Ll128 => Hop::constant(between(self.across_ll.least, self.across_simple)),
            Protocol::Simple => Hop::constant(self.across_simple),
        }
    }

    /// A flag that a peer polls before it accesses memory: as long as Simple's message, because memory is fenced.
    pub(super) fn peer(&self) -> Hop {
        Hop::constant(self.simple)
    }

    /// A flag without data.
    pub(super) fn flag(&self) -> Hop {
        Hop::constant(self.ll.least)
    }

    /// The same between islands.
    pub(super) fn flag_across(&self) -> Hop {
        Hop::constant(self.across_ll.least)
    }

    /// A barrier and an access through an NVSwitch that adds or copies: half of a reduction, which takes two.
    pub fn nvls(&self, gpus: u32) -> Hop {
        let whole = self.nvls.0 + self.nvls.1.times(gpus.into());
        Hop::constant(Picoseconds(whole.0 / 2))
    }

    /// A message between islands of a plan in which switches add.
    pub fn across_switched(&self) -> Hop {
        Hop::constant(self.across_switched)
    }

    /// See [`message_across`](super::Terms::message_across).
    pub(super) fn message_across(&self) -> Picoseconds {
        self.message_across
    }
}

/// The geometric mean.
fn between(one: Picoseconds, other: Picoseconds) -> Picoseconds {
    let product = u128::from(one.0) * u128::from(other.0);
    Picoseconds(u64::try_from(product.isqrt()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_fabric::resolve;

    #[test]
    fn hops_grow_with_the_message_up_to_a_size() {
        let hops = Hops::of(&Constants::shipped(), &resolve("2x hgx-h100 + 8x ndr").unwrap());
        let ll = hops.inside(Protocol::Ll);
        assert_eq!(ll.of(0), ll.of(8));
        assert!(ll.of(8) < ll.of(64) && ll.of(64) < ll.of(100) && ll.of(100) < ll.of(4096));
        assert_eq!(ll.of(4096), ll.of(1 << 30));
        let [ll, ll128, simple] =
            [Protocol::Ll, Protocol::Ll128, Protocol::Simple].map(|protocol| hops.across(protocol).of(8));
        assert!(ll < ll128 && ll128 < simple);
        assert_eq!(hops.inside(Protocol::Simple).of(8), hops.inside(Protocol::Simple).of(1 << 20));
    }
}
