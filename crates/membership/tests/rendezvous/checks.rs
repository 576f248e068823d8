//! What must hold at every step, and at the end.

use std::time::Duration;

use weftlink_membership::durations::{INQUIRY, OTHER_USER, PLACE, ROOT_ERROR};
use weftlink_membership::rendezvous::{AdmitError, JoinError, Message, Refusal};

use crate::world::{Contact, Failure, Life, Machine, Process, Reason, Spec, Why, World};

/// How long a message takes at most, several times over.
const SLACK: Duration = Duration::from_millis(700);
/// How long before its deadline a process must have started, and all others too, for all ranks to join.
const AMPLE: Duration = Duration::from_secs(5);

impl World {
    /// Whether a process is a rank of this job.
    fn is_right(&self, spec: &Spec) -> bool {
        spec.has_secret && spec.terms == "same" && spec.size == self.size && spec.rank < self.size
    }

    /// Rank 0 admits only processes that are ranks of this job, and none of which another is there; it refuses with the first reason.
    pub(crate) fn check_answer(
        &mut self,
        id: u64,
        message: &Message<Contact, Refusal, AdmitError<Why>>,
    ) -> Result<(), String> {
        let Some(wire) = self.wires.get(&id) else { return Ok(()) };
        let [process, root] = wire.ends;
        let spec = self.processes[process].spec;
        match message {
            Message::Accepted => {
                if !self.is_right(&spec) {
                    return Err(format!("process {process} was admitted: {spec:?}"));
                }
                if let Some((_, other)) = self.admitted.insert((root, spec.rank), (id, process))
                    && other != process
                {
                    return Err(format!("rank {} was admitted twice: {other} and {process}", spec.rank));
                }
                Ok(())
            }
            Message::Refused(refusal) => {
                let text = |text: &str| text.to_owned();
                let expected = match spec {
                    Spec { terms: "another", .. } => {
                        Refusal::Terms(text("terms"), text("another"), text("same"))
                    }
                    Spec { size, .. } if size != self.size => Refusal::Size(size),
                    Spec { rank, .. } if rank >= self.size => Refusal::Rank(rank),
                    Spec { rank, .. } => match self.admitted.get(&(root, rank)) {
                        Some((_, other)) => Refusal::Duplicate(*other as u32),
                        None => {
                            return Err(format!("process {process} was refused for nothing: {refusal:?}"));
                        }
                    },
                };
                self.outcome.refused += 1;
                match expected == *refusal {
                    true => Ok(()),
                    false => {
                        Err(format!("process {process} was refused with {refusal:?} instead of {expected:?}"))
                    }
                }
            }
            _ => Ok(()),
        }
    }

    /// Rank 0 names exactly the ranks that are missing, and only at its deadline; a rank that it calls dead has ended.
    pub(crate) fn check_root_error(&mut self, root: usize, error: &AdmitError<Why>) -> Result<(), String> {
        match error {
            AdmitError::Missing(ranks) if self.listening == Some(root) => {
                let missing: Vec<u32> =
                    (1..self.size).filter(|rank| !self.admitted.contains_key(&(root, *rank))).collect();
                self.outcome.missing += 1;
                if *ranks != missing || missing.is_empty() {
                    return Err(format!("{ranks:?} were named as missing, and {missing:?} are"));
                }
                if self.queue.now() < self.processes[root].deadline {
                    return Err("ranks were missing before the deadline".to_owned());
                }
                let joined = self.admitted.iter().filter(|((other, _), _)| *other == root);
                let joined = joined.map(|(_, (_, process))| *process);
                // One whose own deadline passes meanwhile has an error of its own.
                let waits = |process: &usize| {
                    let process = &self.processes[*process];
                    process.result.is_none() && process.deadline > self.queue.now() + SLACK
                };
                let informed: Vec<_> = joined.filter(waits).map(|process| (process, error.clone())).collect();
                self.informed.extend(informed);
                Ok(())
            }
            AdmitError::Died(rank) => {
                self.outcome.died += 1;
                let (_, process) = self
                    .admitted
                    .get(&(root, *rank))
                    .copied()
                    .or_else(|| self.any_of(*rank))
                    .ok_or("nobody died")?;
                match self.processes[process].life {
                    Life::Dead | Life::Gone => Ok(()),
                    life => Err(format!("rank {rank} was reported dead, and is {life:?}")),
                }
            }
            AdmitError::Missing(_) | AdmitError::Lost(_) | AdmitError::Settle(_) => Ok(()),
        }
    }

    /// A process of a rank that has ended, if any has.
    fn any_of(&self, rank: u32) -> Option<(u64, usize)> {
        let is_it =
            |process: &Process| process.spec.rank == rank && matches!(process.life, Life::Dead | Life::Gone);
        self.processes.iter().position(is_it).map(|process| (0, process))
    }

    /// A wait ends by its deadline, or soon after the process was resumed.
    fn check_time(&self, process: usize) -> Result<(), String> {
        let node = &self.processes[process];
        let limit = node.deadline.max(node.resumed) + PLACE + ROOT_ERROR + INQUIRY + SLACK;
        match self.queue.now() <= limit {
            true => Ok(()),
            false => Err(format!("process {process} waited {:?} too long", self.queue.now() - limit)),
        }
    }

    pub(crate) fn check_failed(&mut self, process: usize, error: &Failure) -> Result<(), String> {
        self.check_time(process)?;
        let node = &self.processes[process];
        if node.result.is_some() {
            return Err(format!("process {process} ended twice"));
        }
        match error {
            JoinError::Refused(Reason::Secret) if node.spec.has_secret => {
                Err(format!("process {process} was refused for its secret"))
            }
            JoinError::Refused(Reason::User)
                if self.queue.now()
                    < (self.queue.start() + node.spec.start + OTHER_USER).min(node.deadline) =>
            {
                Err(format!("process {process} did not wait for another user to go"))
            }
            JoinError::NobodyListens(_) if self.queue.now() + Duration::from_millis(100) < node.deadline => {
                Err(format!("process {process} gave up before its deadline"))
            }
            JoinError::NoAnswer if self.queue.now() < node.deadline + PLACE => {
                Err(format!("process {process} gave up before rank 0 could answer"))
            }
            JoinError::Protocol(what) => Err(format!("process {process} heard {what}")),
            _ => Ok(()),
        }
    }

    /// All ranks that are in a group agree on its members, and each is one of them.
    pub(crate) fn check_joined(&mut self, process: usize) -> Result<(), String> {
        self.check_time(process)?;
        let node = &self.processes[process];
        if node.result.is_some() {
            return Err(format!("process {process} ended twice"));
        }
        let members = node.settling.as_ref().and_then(|settling| settling.members.clone());
        let members = members.ok_or_else(|| format!("process {process} joined without members"))?;
        let rank = node.spec.rank as usize;
        let own = Contact { process, host: node.spec.host };
        if members.len() != self.size as usize || members.get(rank) != Some(&own) {
            return Err(format!("process {process} is not rank {rank} of {members:?}"));
        }
        let group = match &node.machine {
            Some(Machine::Rank(machine)) => machine.slot().map(|slot| slot.group),
            _ => None,
        };
        for (number, other) in self.processes.iter().enumerate() {
            if let Some(Ok((theirs, others))) = &other.result
                && (others[0] == members[0]) != (*others == members)
            {
                return Err(format!(
                    "{process} and {number} disagree ({group:?}, {theirs}): {members:?}, {others:?}"
                ));
            }
        }
        self.outcome.joined += 1;
        self.processes[process].result = Some(Ok((group.unwrap_or_default(), members)));
        Ok(())
    }

    /// Whether nothing prevents any rank from joining.
    fn is_calm(&self) -> bool {
        let right = || self.processes.iter().filter(|process| self.is_right(&process.spec));
        let last = right().map(|process| process.spec.start).max().unwrap_or_default();
        let are_there = (0..self.size).all(|rank| right().any(|process| process.spec.rank == rank));
        let waits = |process: &Process| process.spec.start + process.spec.regroup_timeout >= last + AMPLE;
        // A rank that is refused by another user for long gives up.
        let other_user =
            self.other_user_until.is_none_or(|until| until <= self.queue.start() + AMPLE - SLACK);
        !self.has_faults && are_there && right().all(waits) && other_user
    }

    pub(crate) fn check_end(&mut self) -> Result<(), String> {
        for (number, process) in self.processes.iter().enumerate() {
            if process.life == Life::Runs && process.result.is_none() {
                return Err(format!("process {number} waits for ever"));
            }
        }
        for (number, error) in self.informed.iter().filter(|_| !self.has_faults) {
            let told = Err(JoinError::Failed(Why::Root(Box::new(error.clone()))));
            match &self.processes[*number].result {
                Some(result) if *result == told || *result == Err(JoinError::NoAnswer) => {}
                other => {
                    return Err(format!("process {number} had to hear {error:?}, and ended with {other:?}"));
                }
            }
        }
        if self.is_calm() {
            self.outcome.calm += 1;
            for rank in 0..self.size {
                let of_rank = self.processes.iter().filter(|process| process.spec.rank == rank);
                let joined = of_rank.filter(|process| matches!(process.result, Some(Ok(_)))).count();
                if joined != 1 {
                    let results: Vec<_> = self
                        .processes
                        .iter()
                        .map(|process| (process.spec.rank, process.life, &process.result))
                        .collect();
                    return Err(format!("{joined} processes are rank {rank}: {results:?}"));
                }
            }
        }
        Ok(())
    }
}
