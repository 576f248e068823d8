//! Picks the actor that runs next. Races show when an actor is very late or very early, which uniform choices rarely produce; hence the
//! policies.

use std::fmt;

use super::random::Random;

/// A schedule, reproducible on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// The policy of the scheduler.
    pub policy: Policy,
    /// The seed of its choices.
    pub seed: u64,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, seed {}", self.policy, self.seed)
    }
}

/// The policy of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Actors have fixed priorities: the runnable actor of the highest priority runs.
    Rush,
    /// One rank, user and lanes, runs only when no other can.
    StarveRank,
    /// One actor, a lane or a user, runs only when no other can.
    StarveActor,
    /// As `Rush`, but at random moments the running actor drops to the lowest priority.
    Demote,
    /// One actor runs for several actions, then another.
    Bursts,
    /// A random actor for each action.
    Uniform,
}

impl Policy {
    /// All policies; those that find the most failures first.
    pub const ALL: [Policy; 6] = [
        Policy::Rush,
        Policy::StarveRank,
        Policy::StarveActor,
        Policy::Demote,
        Policy::Bursts,
        Policy::Uniform,
    ];
}

/// The longest burst in actions, and how often `Demote` demotes.
const BURST: usize = 48;
const DEMOTE_ONE_IN: usize = 40;

pub(super) struct Scheduler {
    policy: Policy,
    random: Random,
    /// All actors, highest priority first.
    order: Vec<usize>,
    starved: Vec<bool>,
    current: usize,
    burst: usize,
    candidates: Vec<usize>,
}

impl Scheduler {
    /// `ranks` has the rank of each actor.
    pub(super) fn new(schedule: Schedule, ranks: &[usize]) -> Self {
        let mut random = Random::new(schedule.seed);
        let mut order: Vec<_> = (0..ranks.len()).collect();
        random.shuffle(&mut order);
        let victim = order.first().copied().unwrap_or_default();
        let starved = (0..ranks.len())
            .map(|actor| match schedule.policy {
                Policy::StarveRank => ranks[actor] == ranks[victim],
                Policy::StarveActor => actor == victim,
                _ => false,
            })
            .collect();
        let candidates = Vec::with_capacity(ranks.len());
        Self { policy: schedule.policy, random, order, starved, current: 0, burst: 0, candidates }
    }

    /// The actor to run; none if no actor can.
    pub(super) fn pick(&mut self, can_run: impl Fn(usize) -> bool) -> Option<usize> {
        match self.policy {
            Policy::Rush => self.order.iter().copied().find(|&actor| can_run(actor)),
            Policy::Demote => {
                let place = self.order.iter().position(|&actor| can_run(actor))?;
                let actor = self.order[place];
                if self.random.below(DEMOTE_ONE_IN) == 0 {
                    self.order.remove(place);
                    self.order.push(actor);
                }
                Some(actor)
            }
            Policy::Bursts if self.burst > 0 && can_run(self.current) => {
                self.burst -= 1;
                Some(self.current)
            }
            Policy::Bursts => {
                self.burst = self.random.below(BURST);
                self.current = self.any(can_run)?;
                Some(self.current)
            }
            Policy::StarveRank | Policy::StarveActor | Policy::Uniform => self.any(can_run),
        }
    }

    /// Any actor that can run, a starved one only if there is no other.
    fn any(&mut self, can_run: impl Fn(usize) -> bool) -> Option<usize> {
        for starved in [false, true] {
            self.candidates.clear();
            let able =
                (0..self.starved.len()).filter(|&actor| self.starved[actor] == starved && can_run(actor));
            self.candidates.extend(able);
            if !self.candidates.is_empty() {
                return Some(self.candidates[self.random.below(self.candidates.len())]);
            }
        }
        None
    }
}
