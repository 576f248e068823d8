//! Groups whose ranks are threads of one process.
//!
//! A call of `share` has two steps, and nobody takes the next before all have taken the last: asking, after which the
//! rank that asked last compares and creates the memory; and mapping. `turn` counts the steps that are complete, and
//! `there` says who has taken the present one. The first failure stays, and every later call returns it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weftlink_membership::durations::WARN_AFTER;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::poll_hook;

use super::deadline::Deadline;
use super::error::{BootstrapError, Request, list};

#[derive(Debug)]
pub(super) struct InProcessGroup {
    /// The group's number.
    pub(super) id: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    turn: u64,
    there: Vec<bool>,
    left: Vec<bool>,
    first: Option<Request>,
    mismatch: Option<Request>,
    created: Option<Arc<OwnedFd>>,
    said: Vec<Vec<u8>>,
    /// Descriptors that ranks give each other, by rank.
    descriptors: Vec<Option<Arc<OwnedFd>>>,
    /// Groups of parts of the ranks, by turn and part, until all their ranks have taken them.
    parts: BTreeMap<(u64, u64), (Arc<InProcessGroup>, usize)>,
    /// The ranks that regroup.
    survives: Vec<bool>,
    /// The group that they formed.
    shrunk: Option<(Arc<InProcessGroup>, Vec<u32>)>,
    failure: Option<BootstrapError>,
    /// The time after which a wait is logged.
    warn_after: Duration,
    /// The ranks that each rank waits for.
    waits: Vec<Vec<u32>>,
}

impl InProcessGroup {
    pub(super) fn new(size: usize) -> InProcessGroup {
        let state = State {
            turn: 0,
            there: vec![false; size],
            left: vec![false; size],
            first: None,
            mismatch: None,
            created: None,
            said: vec![Vec::new(); size],
            descriptors: vec![None; size],
            parts: BTreeMap::new(),
            survives: vec![false; size],
            shrunk: None,
            failure: None,
            warn_after: WARN_AFTER,
            waits: vec![Vec::new(); size],
        };
        let id = RandomState::new().hash_one(std::process::id());
        InProcessGroup { id, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn share(&self, ask: &Request, deadline: Deadline) -> Result<SharedMemory, BootstrapError> {
        let mut state = self.enter();
        state.compare(ask);
        let state = self.step(state, ask, deadline, State::create)?;
        let fd = state.created.clone();
        drop(state);
        let fd =
            fd.ok_or_else(|| BootstrapError::Protocol { rank: ask.rank, what: "no memory".to_owned() })?;
        let memory = SharedMemory::from_fd(&*fd, ask.bytes)
            .map_err(|error| BootstrapError::Memory { rank: ask.rank, reason: error.to_string() })?;
        drop(fd);
        drop(self.step(self.enter(), ask, deadline, State::forget)?);
        Ok(memory)
    }

    /// What all say, by rank.
    pub(super) fn exchange(
        &self,
        ask: &Request,
        mine: Vec<u8>,
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let mut state = self.enter();
        state.compare(ask);
        state.said[ask.rank] = mine;
        let said = self.step(state, ask, deadline, State::agree)?.said.clone();
        // Nobody says the next thing before all have heard this.
        drop(self.step(self.enter(), ask, deadline, State::forget)?);
        Ok(said)
    }

    /// Offers a descriptor to the others, or takes it back.
    pub(super) fn put_descriptor(&self, rank: usize, descriptor: Option<OwnedFd>) {
        self.enter().descriptors[rank] = descriptor.map(Arc::new);
    }

    /// Duplicates of all descriptors, by rank.
    pub(super) fn descriptors(&self, rank: usize) -> Result<Vec<Option<OwnedFd>>, BootstrapError> {
        let descriptors = self.enter().descriptors.clone();
        descriptors.into_iter().map(|one| one.map(|one| duplicate(&*one, rank)).transpose()).collect()
    }

    /// The group of a part of the ranks, which all ask for it in the same turn.
    pub(super) fn part(&self, turn: u64, part: u64, size: usize) -> Arc<InProcessGroup> {
        let mut state = self.enter();
        let (room, waiting) =
            state.parts.entry((turn, part)).or_insert_with(|| (Arc::new(InProcessGroup::new(size)), size));
        *waiting -= 1;
        let (room, is_last) = (Arc::clone(room), *waiting == 0);
        if is_last {
            state.parts.remove(&(turn, part));
        }
        room
    }

    /// Waits until all ranks that have not left regroup, or the deadline passes. Returns their group, and its ranks.
    pub(super) fn shrink(&self, rank: usize, deadline: Deadline) -> (Arc<InProcessGroup>, Vec<u32>) {
        let mut state = self.enter();
        state.survives[rank] = true;
        self.changed.notify_all();
        loop {
            if let Some((room, ranks)) = &state.shrunk {
                return (Arc::clone(room), ranks.clone());
            }
            let is_complete = (0..state.left.len()).all(|rank| state.left[rank] || state.survives[rank]);
            match deadline.left().filter(|_| !is_complete) {
                Some(left) => {
                    state = self.wait(state, left);
                }
                None => {
                    let survivors = (0..).zip(&state.survives).filter(|(_, survives)| **survives);
                    let ranks: Vec<u32> = survivors.map(|(rank, _)| rank).collect();
                    state.shrunk = Some((Arc::new(InProcessGroup::new(ranks.len())), ranks));
                    self.changed.notify_all();
                }
            }
        }
    }

    pub(super) fn warn_after(&self, warn_after: Duration) {
        self.enter().warn_after = warn_after;
    }

    /// Records the ranks that a rank waits for; none if it no longer waits.
    pub(super) fn waits_for(&self, rank: u32, awaited: &[u32]) {
        let place = &mut self.enter().waits[rank as usize];
        place.clear();
        place.extend(awaited);
    }

    /// The ranks at the end of a rank's chain of waits, or of another's if it waits for none: they do something else.
    pub(super) fn roots(&self, rank: u32, other: Option<u32>) -> Vec<u32> {
        let state = self.enter();
        let own = &state.waits[rank as usize];
        let mut next: Vec<u32> = if own.is_empty() { other.into_iter().collect() } else { own.clone() };
        let (mut seen, mut roots) = (BTreeSet::from([rank]), BTreeSet::new());
        while let Some(rank) = next.pop() {
            if seen.insert(rank) {
                match &state.waits[rank as usize][..] {
                    [] => drop(roots.insert(rank)),
                    awaited => next.extend(awaited),
                }
            }
        }
        roots.into_iter().collect()
    }

    /// Aborts the group for all ranks, unless it has failed.
    pub(super) fn fail(&self, error: &BootstrapError) {
        self.enter().failure.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
    }

    /// What ended it, as soon as that is known.
    pub(super) fn await_failure(&self, deadline: Deadline) -> Option<BootstrapError> {
        let mut state = self.enter();
        while state.failure.is_none() {
            let left = deadline.left()?;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.failure.clone()
    }

    pub(super) fn leave(&self, rank: usize) {
        self.enter().left[rank] = true;
        self.changed.notify_all();
    }

    /// Takes the present step and waits until all have; who is last does what `complete` does.
    fn step<'group>(
        &'group self,
        mut state: MutexGuard<'group, State>,
        ask: &Request,
        deadline: Deadline,
        complete: fn(&mut State) -> Result<(), BootstrapError>,
    ) -> Result<MutexGuard<'group, State>, BootstrapError> {
        let warn_after = state.warn_after;
        let turn = state.turn;
        state.there[ask.rank] = true;
        if !state.there.contains(&false) && state.failure.is_none() {
            match complete(&mut state) {
                Ok(()) => state.turn += 1,
                Err(error) => state.failure = Some(error),
            }
            state.there.fill(false);
            self.changed.notify_all();
        }
        let rank = ask.rank;
        let mut told_at = warn_after;
        loop {
            // A step that is complete stays so, even if a rank has failed or left since.
            if state.turn > turn {
                state.waits[rank].clear();
                return Ok(state);
            }
            state.waits[rank] = state.absent().map(|rank| rank as u32).collect();
            if let Some(failure) = state.failure.clone() {
                return Err(failure);
            }
            if let Some(rank) = state.absent().find(|&rank| state.left[rank]) {
                let (pid, purpose) = (std::process::id(), ask.purpose.clone());
                return Err(BootstrapError::Left { rank, pid, purpose });
            }
            let Some(left) = deadline.left() else {
                let (ranks, purpose) = (state.absent().collect(), ask.purpose.clone());
                return Err(BootstrapError::Missing { ranks, purpose, limit: deadline.limit() });
            };
            if deadline.waited() >= told_at {
                told_at = deadline.waited() + warn_after;
                drop(state);
                let roots: Vec<usize> =
                    self.roots(rank as u32, None).into_iter().map(|rank| rank as usize).collect();
                let (what, roots) = (ask.purpose.trim_start_matches("weft: "), list(&roots));
                let seconds = deadline.waited().as_secs_f64();
                tracing::warn!(target: "weft::fault", rank, "{what} has waited {seconds:.1} s for {roots}");
                state = self.enter();
                continue;
            }
            let left = left.min(told_at.saturating_sub(deadline.waited()));
            state = self.wait(state, left);
        }
    }

    /// Waits for a change, but not longer than this. The state is not locked all the time: what a caller does while it waits may need
    /// it.
    fn wait<'group>(
        &'group self,
        state: MutexGuard<'group, State>,
        time: Duration,
    ) -> MutexGuard<'group, State> {
        let time = poll_hook::at_most(time);
        drop(self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner));
        poll_hook::poll();
        self.enter()
    }

    /// A thread that panicked in here has left no half-made state behind: every change is a single assignment.
    fn enter(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The ranks that the others wait for.
    fn absent(&self) -> impl Iterator<Item = usize> {
        self.there.iter().enumerate().filter(|(_, there)| !**there).map(|(rank, _)| rank)
    }

    fn compare(&mut self, ask: &Request) {
        let first = self.first.get_or_insert_with(|| ask.clone());
        if (&first.purpose, first.bytes) != (&ask.purpose, ask.bytes) {
            self.mismatch.get_or_insert_with(|| ask.clone());
        }
    }

    fn agree(&mut self) -> Result<(), BootstrapError> {
        match (&self.first, &self.mismatch) {
            (Some(one), Some(other)) => {
                Err(BootstrapError::Mismatch { one: one.clone(), other: other.clone() })
            }
            _ => Ok(()),
        }
    }

    fn create(&mut self) -> Result<(), BootstrapError> {
        self.agree()?;
        if let Some(first) = &self.first {
            // The rank that asked last has allocated; every rank maps for itself.
            let (_, fd) = SharedMemory::create(&first.purpose, first.bytes)
                .map_err(|error| BootstrapError::Memory { rank: first.rank, reason: error.to_string() })?;
            self.created = Some(Arc::new(fd));
        }
        Ok(())
    }

    fn forget(&mut self) -> Result<(), BootstrapError> {
        (self.created, self.first) = (None, None);
        Ok(())
    }
}

/// A descriptor of the same.
pub(super) fn duplicate(own: impl AsFd, rank: usize) -> Result<OwnedFd, BootstrapError> {
    let duplicated = own.as_fd().try_clone_to_owned();
    duplicated.map_err(|error| BootstrapError::System {
        what: format!("rank {rank} cannot duplicate a descriptor: {error}"),
    })
}
