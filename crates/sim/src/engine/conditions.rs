//! Disturbances during a run: slow, missing or flapping links, throttled GPUs, delayed steps.
//!
//! A plan run by classes applies a disturbance of one rank to its whole class: waiting for a class means waiting for its slowest rank. A
//! missing link changes the routes of one rank but not of its class, so such plans are run whole.

use rustc_hash::{FxHashMap, FxHashSet};
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, Link};
use weftlink_plan::cost::Picoseconds;

use super::SimError;

/// The disturbances of a run; none by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// All disturbances, at the same time.
    pub disturbances: Vec<Disturbance>,
}

/// A disturbance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Disturbance {
    /// The links between two devices, in both directions, run at a fraction of their rate. At 0 the links are missing, and routes avoid
    /// them.
    Slow {
        /// The devices.
        link: (DeviceId, DeviceId),
        /// From 0 to 1.
        fraction: f64,
    },
    /// The links between two devices, in both directions, are down at the start of each period.
    Flapping {
        /// The devices.
        link: (DeviceId, DeviceId),
        /// Time from one outage to the next; the first is at time 0.
        period: Picoseconds,
        /// Duration of each outage.
        down: Picoseconds,
    },
    /// A GPU's transfers and copies run at a fraction of the rate that they would have alone.
    Throttled {
        /// Its number in the fabric.
        gpu: u32,
        /// Above 0, up to 1.
        fraction: f64,
    },
    /// A step begins late.
    Delayed {
        /// Index of the job.
        job: usize,
        /// The rank in that job.
        rank: u32,
        /// The lane of that rank.
        lane: u32,
        /// Index of the step in its lane, over all tiles.
        step: u64,
        /// Delay.
        by: Picoseconds,
    },
}

/// The smallest fraction above 0.
const FRACTION_MIN: f64 = 1e-6;
/// The shortest period of a flapping link. Each change is an event, so the period limits the cost of a run.
const PERIOD_MIN: Picoseconds = Picoseconds(1_000_000);

impl Disturbance {
    /// The devices that it affects directly. The cables of a host affect that host, not all below the same switch.
    pub fn devices(&self, fabric: &Fabric) -> Vec<DeviceId> {
        match *self {
            Self::Slow { link: (a, b), .. } | Self::Flapping { link: (a, b), .. }
                if self.is_between_switches(fabric) =>
            {
                vec![a, b]
            }
            Self::Slow { link: (a, b), .. } | Self::Flapping { link: (a, b), .. } => {
                [a, b].into_iter().filter(|end| !is_net_switch(fabric, *end)).collect()
            }
            Self::Throttled { gpu, .. } => fabric.gpus().get(gpu as usize).copied().into_iter().collect(),
            Self::Delayed { .. } => Vec::new(),
        }
    }

    /// Whether it affects a cable between network switches.
    pub fn is_between_switches(&self, fabric: &Fabric) -> bool {
        let (Self::Slow { link, .. } | Self::Flapping { link, .. }) = self else { return false };
        is_net_switch(fabric, link.0) && is_net_switch(fabric, link.1)
    }
}

/// Whether a device is a switch of the network.
pub(crate) fn is_net_switch(fabric: &Fabric, id: DeviceId) -> bool {
    matches!(fabric.device(id).kind, DeviceKind::NetSwitch(_))
}

impl Conditions {
    /// A single disturbance.
    pub fn only(disturbance: Disturbance) -> Self {
        Self { disturbances: vec![disturbance] }
    }

    /// Whether there are no disturbances.
    pub fn is_empty(&self) -> bool {
        self.disturbances.is_empty()
    }

    /// The same disturbances with no effect: a run under them differs from one without conditions in nothing but its mode, since it
    /// simulates the same ranks as one under these.
    pub fn undisturbed(&self) -> Self {
        let without_effect = |disturbance: &Disturbance| match *disturbance {
            Disturbance::Slow { link, .. } => Disturbance::Slow { link, fraction: 1.0 },
            Disturbance::Flapping { link, period, .. } => {
                Disturbance::Flapping { link, period, down: Picoseconds(0) }
            }
            Disturbance::Throttled { gpu, .. } => Disturbance::Throttled { gpu, fraction: 1.0 },
            Disturbance::Delayed { job, rank, lane, step, .. } => {
                Disturbance::Delayed { job, rank, lane, step, by: Picoseconds(0) }
            }
        };
        Self { disturbances: self.disturbances.iter().map(without_effect).collect() }
    }

    /// The missing links.
    pub fn missing_links(&self) -> Vec<(DeviceId, DeviceId)> {
        let missing = |disturbance: &Disturbance| match *disturbance {
            Disturbance::Slow { link, fraction: 0.0 } => Some(link),
            _ => None,
        };
        self.disturbances.iter().filter_map(missing).collect()
    }

    /// Whether the disturbances do not change during a run.
    pub fn are_constant(&self) -> bool {
        let changes = |disturbance: &Disturbance| {
            matches!(disturbance, Disturbance::Flapping { .. } | Disturbance::Delayed { .. })
        };
        !self.disturbances.iter().any(changes)
    }

    /// Checks that the disturbed devices exist and that numbers are in range.
    pub(super) fn check(&self, fabric: &Fabric) -> Result<(), SimError> {
        let is_fraction = |fraction: f64| (FRACTION_MIN..=1.0).contains(&fraction);
        let linked = |(a, b): (DeviceId, DeviceId)| {
            let known = a.index() < fabric.devices().len() && b.index() < fabric.devices().len();
            let joined = known && fabric.links_from(a).iter().any(|link| link.target == b);
            let name = |id: DeviceId| match known {
                true => fabric.device_name(id),
                false => format!("device {}", id.0),
            };
            joined.then_some(()).ok_or_else(|| {
                format!("no link connects {} to {}: name two adjacent devices", name(a), name(b))
            })
        };
        let gpus = fabric.gpus().len();
        let check = |disturbance: &Disturbance| match *disturbance {
            Disturbance::Slow { link, fraction } if is_fraction(fraction) || fraction == 0.0 => linked(link),
            Disturbance::Slow { fraction, .. } => Err(not_a_fraction("link", fraction)),
            Disturbance::Flapping { link, period, down } => match () {
                () if period < PERIOD_MIN => {
                    Err(format!("a link cannot flap every {period}: use a period of at least {PERIOD_MIN}"))
                }
                () if down >= period => Err(format!(
                    "a link that is down for {down} of every {period} is always down: declare it missing"
                )),
                () => linked(link),
            },
            Disturbance::Throttled { gpu, .. } if gpu as usize >= gpus => {
                Err(format!("no GPU {gpu} to throttle: the fabric has {gpus}, counted from 0"))
            }
            Disturbance::Throttled { fraction, .. } if !is_fraction(fraction) => {
                Err(not_a_fraction("GPU", fraction))
            }
            Disturbance::Throttled { .. } | Disturbance::Delayed { .. } => Ok(()),
        };
        self.disturbances.iter().try_for_each(check).map_err(SimError::Conditions)?;
        self.check_flaps(fabric)
    }

    /// Checks that no link flaps with two periods.
    fn check_flaps(&self, fabric: &Fabric) -> Result<(), SimError> {
        let mut seen = FxHashSet::default();
        for disturbance in &self.disturbances {
            if let Disturbance::Flapping { link: (a, b), .. } = *disturbance
                && !seen.insert((a.min(b), a.max(b)))
            {
                let [a, b] = [a, b].map(|id| fabric.device_name(id));
                return Err(SimError::Conditions(format!(
                    "the link between {a} and {b} is given two flaps: keep one"
                )));
            }
        }
        Ok(())
    }
}

fn not_a_fraction(what: &str, fraction: f64) -> String {
    format!("a {what} cannot run at {fraction} of its rate: use a fraction from {FRACTION_MIN} to 1")
}

/// The conditions, indexed for lookup.
#[derive(Default)]
pub(super) struct Disturbed {
    /// Fraction of the rate of slow links, in both directions.
    fractions: FxHashMap<(DeviceId, DeviceId), f64>,
    /// Flapping links, in both directions, with the index of the flap.
    pub(super) flapping: FxHashMap<(DeviceId, DeviceId), usize>,
    pub(super) flaps: Vec<Flap>,
    /// Fraction of the rate of throttled GPUs.
    pub(super) throttled: FxHashMap<u32, f64>,
}

/// A periodic outage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flap {
    period: u64,
    down: u64,
    pub(super) is_down: bool,
}

impl Flap {
    /// Whether the link is down at a time.
    pub(super) fn is_down_at(&self, time: u64) -> bool {
        time % self.period < self.down
    }

    /// The time of the next change after a time.
    pub(super) fn changes_after(&self, time: u64) -> u64 {
        let phase = time % self.period;
        let next = if phase < self.down { self.down } else { self.period };
        (time - phase).saturating_add(next)
    }
}

impl Disturbed {
    /// The fraction of its rate at which a link runs.
    pub(super) fn fraction(&self, link: &Link) -> f64 {
        self.fractions.get(&(link.source, link.target)).copied().unwrap_or(1.0)
    }

    pub(super) fn new(conditions: &Conditions) -> Self {
        let mut disturbed = Self::default();
        for disturbance in &conditions.disturbances {
            match *disturbance {
                Disturbance::Slow { link: (a, b), fraction } => {
                    for pair in [(a, b), (b, a)] {
                        *disturbed.fractions.entry(pair).or_insert(1.0) *= fraction;
                    }
                }
                Disturbance::Flapping { link: (a, b), period, down } if down.0 > 0 => {
                    let number = disturbed.flaps.len();
                    disturbed.flaps.push(Flap { period: period.0, down: down.0, is_down: false });
                    disturbed.flapping.insert((a, b), number);
                    disturbed.flapping.insert((b, a), number);
                }
                Disturbance::Throttled { gpu, fraction } => {
                    *disturbed.throttled.entry(gpu).or_insert(1.0) *= fraction;
                }
                Disturbance::Flapping { .. } | Disturbance::Delayed { .. } => {}
            }
        }
        disturbed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flap_is_down_at_the_start_of_each_period() {
        let flap = Flap { period: 10, down: 3, is_down: false };
        let down: Vec<u64> = (0..20).filter(|time| flap.is_down_at(*time)).collect();
        assert_eq!(down, [0, 1, 2, 10, 11, 12]);
        assert_eq!([0, 2, 3, 9, 10].map(|time| flap.changes_after(time)), [3, 3, 10, 10, 13]);
    }
}
