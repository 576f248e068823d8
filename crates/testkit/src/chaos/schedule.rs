//! Who runs next. Races show when somebody is very late or very early, which fair coin tosses hardly ever make; so the
//! schedulers have temperaments.

use std::fmt;

use super::random::Random;

/// A schedule: the same one makes the same choices on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// What the scheduler likes to do.
    pub temperament: Temperament,
    /// What decides the rest.
    pub seed: u64,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, seed {}", self.temperament, self.seed)
    }
}

/// What a scheduler likes to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Temperament {
    /// Actors have ranks of importance: the most important one that can run does, as far as it can.
    Rush,
    /// One rank, user and lanes, runs only when nobody else can.
    StarveRank,
    /// One actor, a lane or a user, runs only when nobody else can.
    StarveActor,
    /// As `Rush`, but now and then the one that runs becomes the least important.
    Demote,
    /// Somebody runs for a while, then somebody else.
    Bursts,
    /// Anybody, each time.
    Uniform,
}

impl Temperament {
    /// All of them, those that find the most first.
    pub const ALL: [Temperament; 6] = [
        Temperament::Rush,
        Temperament::StarveRank,
        Temperament::StarveActor,
        Temperament::Demote,
        Temperament::Bursts,
        Temperament::Uniform,
    ];
}

/// How long a burst may be, in smallest things done, and how often `Demote` demotes.
const BURST: usize = 48;
const DEMOTE_ONE_IN: usize = 40;

pub(super) struct Scheduler {
    temperament: Temperament,
    random: Random,
    /// All actors, most important first.
    order: Vec<usize>,
    starved: Vec<bool>,
    current: usize,
    burst: usize,
    candidates: Vec<usize>,
}

impl Scheduler {
    /// `ranks` says which rank each actor belongs to.
    pub(super) fn new(schedule: Schedule, ranks: &[usize]) -> Self {
        let mut random = Random::new(schedule.seed);
        let mut order: Vec<_> = (0..ranks.len()).collect();
        random.shuffle(&mut order);
        let victim = order.first().copied().unwrap_or_default();
        let starved = (0..ranks.len())
            .map(|actor| match schedule.temperament {
                Temperament::StarveRank => ranks[actor] == ranks[victim],
                Temperament::StarveActor => actor == victim,
                _ => false,
            })
            .collect();
        let candidates = Vec::with_capacity(ranks.len());
        Self { temperament: schedule.temperament, random, order, starved, current: 0, burst: 0, candidates }
    }

    /// The actor to run; nothing if none can.
    pub(super) fn pick(&mut self, can_run: impl Fn(usize) -> bool) -> Option<usize> {
        match self.temperament {
            Temperament::Rush => self.order.iter().copied().find(|&actor| can_run(actor)),
            Temperament::Demote => {
                let place = self.order.iter().position(|&actor| can_run(actor))?;
                let actor = self.order[place];
                if self.random.below(DEMOTE_ONE_IN) == 0 {
                    self.order.remove(place);
                    self.order.push(actor);
                }
                Some(actor)
            }
            Temperament::Bursts if self.burst > 0 && can_run(self.current) => {
                self.burst -= 1;
                Some(self.current)
            }
            Temperament::Bursts => {
                self.burst = self.random.below(BURST);
                self.current = self.any(can_run)?;
                Some(self.current)
            }
            Temperament::StarveRank | Temperament::StarveActor | Temperament::Uniform => self.any(can_run),
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
