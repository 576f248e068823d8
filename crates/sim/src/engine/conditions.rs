//! What is not as it should be during a run: links that are slow, missing or flap, GPUs that are throttled, steps that are late.
//!
//! A plan that is run by its classes suffers everywhere what one of a class suffers: whatever waits for a class waits for its slowest.
//! A link that is missing changes the ways of one rank and not of its like, so such plans are run whole.

use rustc_hash::{FxHashMap, FxHashSet};
use weftlink_fabric::{DeviceId, Fabric, Link};
use weftlink_plan::cost::Picoseconds;

use super::SimError;

/// What a run goes through; nothing by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// All of it, at the same time.
    pub disturbances: Vec<Disturbance>,
}

/// One thing that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Disturbance {
    /// The links between two devices, both ways, carry this part of what they would: 1 is all of it. Of nothing, they are missing, and
    /// ways are found around them.
    Slow {
        /// The devices.
        link: (DeviceId, DeviceId),
        /// From 0 to 1.
        part: f64,
    },
    /// The links between two devices, both ways, carry nothing at the start of each period.
    Flapping {
        /// The devices.
        link: (DeviceId, DeviceId),
        /// From one fall to the next, the first at the start of time.
        period: Picoseconds,
        /// How long they are down each time.
        down: Picoseconds,
    },
    /// What a GPU's lanes move gets a part of what the links would carry for it alone, and its copies are as much slower.
    Throttled {
        /// Its number in the fabric.
        gpu: u32,
        /// Above 0, up to 1.
        part: f64,
    },
    /// A step begins later than it could.
    Delayed {
        /// The job, by its place in the list.
        job: usize,
        /// The rank in that job.
        rank: u32,
        /// The lane of that rank.
        lane: u32,
        /// Which of the lane's steps, counted from 0 over all tiles.
        step: u64,
        /// By so much.
        by: Picoseconds,
    },
}

/// The smallest part that is not nothing.
const PART_MIN: f64 = 1e-6;
/// The shortest period of a link that flaps: a microsecond. Each change is a moment of its own, so periods bound what a run costs.
const PERIOD_MIN: Picoseconds = Picoseconds(1_000_000);

impl Conditions {
    /// Nothing but this.
    pub fn only(disturbance: Disturbance) -> Self {
        Self { disturbances: vec![disturbance] }
    }

    /// Whether everything is as it should be.
    pub fn are_none(&self) -> bool {
        self.disturbances.is_empty()
    }

    /// The links that are not there.
    pub fn missing(&self) -> Vec<(DeviceId, DeviceId)> {
        let missing = |disturbance: &Disturbance| match *disturbance {
            Disturbance::Slow { link, part: 0.0 } => Some(link),
            _ => None,
        };
        self.disturbances.iter().filter_map(missing).collect()
    }

    /// Checks that what is disturbed is there, and that numbers mean something.
    pub(super) fn check(&self, fabric: &Fabric) -> Result<(), SimError> {
        let is_part = |part: f64| (PART_MIN..=1.0).contains(&part);
        let linked = |(a, b): (DeviceId, DeviceId)| {
            let known = a.index() < fabric.devices().len() && b.index() < fabric.devices().len();
            let joined = known && fabric.links_from(a).iter().any(|link| link.target == b);
            let name = |id: DeviceId| match known {
                true => fabric.device_name(id),
                false => format!("device {}", id.0),
            };
            joined.then_some(()).ok_or_else(|| {
                format!("no link joins {} to {}: name two devices that are joined", name(a), name(b))
            })
        };
        let gpus = fabric.gpus().len();
        let check = |disturbance: &Disturbance| match *disturbance {
            Disturbance::Slow { link, part } if is_part(part) || part == 0.0 => linked(link),
            Disturbance::Slow { part, .. } => Err(not_a_part("link", part)),
            Disturbance::Flapping { link, period, down } => match () {
                () if period < PERIOD_MIN => Err(format!(
                    "a link that flaps every {period} is not simulated: its period is at least {PERIOD_MIN}"
                )),
                () if down >= period => {
                    Err(format!("a link that is down for {down} of every {period} is missing: say so"))
                }
                () => linked(link),
            },
            Disturbance::Throttled { gpu, .. } if gpu as usize >= gpus => {
                Err(format!("there is no GPU {gpu} to throttle: the fabric has {gpus}, counted from 0"))
            }
            Disturbance::Throttled { part, .. } if !is_part(part) => Err(not_a_part("GPU", part)),
            Disturbance::Throttled { .. } | Disturbance::Delayed { .. } => Ok(()),
        };
        self.disturbances.iter().try_for_each(check).map_err(SimError::Conditions)?;
        self.flap_once(fabric)
    }

    /// Checks that no link comes and goes in two ways at once.
    fn flap_once(&self, fabric: &Fabric) -> Result<(), SimError> {
        let mut seen = FxHashSet::default();
        for disturbance in &self.disturbances {
            if let Disturbance::Flapping { link: (a, b), .. } = *disturbance
                && !seen.insert((a.min(b), a.max(b)))
            {
                let [a, b] = [a, b].map(|id| fabric.device_name(id));
                return Err(SimError::Conditions(format!(
                    "the link of {a} to {b} flaps in two ways: say one"
                )));
            }
        }
        Ok(())
    }
}

fn not_a_part(what: &str, part: f64) -> String {
    format!("a {what} at {part} of its rate is not simulated: say a part from {PART_MIN} to 1")
}

/// The conditions as a run looks them up.
#[derive(Default)]
pub(super) struct Disturbed {
    /// What links carry of what they would, both ways.
    parts: FxHashMap<(DeviceId, DeviceId), f64>,
    /// Links that flap, both ways: the flap's number.
    pub(super) flapping: FxHashMap<(DeviceId, DeviceId), usize>,
    pub(super) flaps: Vec<Flap>,
    /// What GPUs get of what they would.
    pub(super) throttled: FxHashMap<u32, f64>,
}

/// A link that comes and goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flap {
    period: u64,
    down: u64,
    pub(super) is_down: bool,
}

impl Flap {
    /// Whether it is down at a time.
    pub(super) fn is_down_at(&self, time: u64) -> bool {
        time % self.period < self.down
    }

    /// When it next changes after a time.
    pub(super) fn changes_after(&self, time: u64) -> u64 {
        let phase = time % self.period;
        let next = if phase < self.down { self.down } else { self.period };
        (time - phase).saturating_add(next)
    }
}

impl Disturbed {
    /// What a link carries of what it would.
    pub(super) fn part(&self, link: &Link) -> f64 {
        self.parts.get(&(link.source, link.target)).copied().unwrap_or(1.0)
    }

    pub(super) fn by(conditions: &Conditions) -> Self {
        let mut disturbed = Self::default();
        for disturbance in &conditions.disturbances {
            match *disturbance {
                Disturbance::Slow { link: (a, b), part } => {
                    for pair in [(a, b), (b, a)] {
                        *disturbed.parts.entry(pair).or_insert(1.0) *= part;
                    }
                }
                Disturbance::Flapping { link: (a, b), period, down } if down.0 > 0 => {
                    let number = disturbed.flaps.len();
                    disturbed.flaps.push(Flap { period: period.0, down: down.0, is_down: false });
                    disturbed.flapping.insert((a, b), number);
                    disturbed.flapping.insert((b, a), number);
                }
                Disturbance::Throttled { gpu, part } => {
                    *disturbed.throttled.entry(gpu).or_insert(1.0) *= part;
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
