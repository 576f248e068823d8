//! Drives the machines of a process as the real driver does.

use std::time::{Duration, Instant};

use weftlink_membership::durations::INQUIRY;
use weftlink_membership::rendezvous::{
    AdmitAction, AdmitError, AdmitInput, Ended, Hello, JoinAction, JoinError, JoinInput, Message, Undialed,
    Unlinked,
};

use crate::settle::Tree;
use crate::world::{
    Contact, DELAYS_US, Happens, Input, Life, Machine, Packet, Reason, RootMessage, Why, World,
};

impl World {
    /// Gives a machine an input, unless an action blocks and this is not its result.
    pub(crate) fn input(&mut self, process: usize, input: Input) -> Result<(), String> {
        if self.processes[process].life != Life::Runs {
            return Ok(());
        }
        let is_result = matches!(
            &input,
            Input::Root(AdmitInput::Inquired { .. } | AdmitInput::Settled(_))
                | Input::Rank(JoinInput::Dialed(_) | JoinInput::Linked(_) | JoinInput::Settled(_))
        );
        if self.processes[process].is_busy && !is_result {
            self.processes[process].waiting.push_back(input);
            return Ok(());
        }
        if is_result {
            self.processes[process].is_busy = false;
        }
        self.handle(process, input)?;
        while !self.processes[process].is_busy
            && self.processes[process].life == Life::Runs
            && let Some(input) = self.processes[process].waiting.pop_front()
        {
            self.handle(process, input)?;
        }
        self.take_children(process)?;
        self.schedule_wake(process);
        Ok(())
    }

    fn handle(&mut self, process: usize, input: Input) -> Result<(), String> {
        let now = self.queue.now();
        let node = &mut self.processes[process];
        match (&mut node.machine, input) {
            (Some(Machine::Root(machine)), Input::Root(input)) => {
                let is_admitting = self.listening == Some(process);
                let ended = match &input {
                    AdmitInput::Closed(id) if is_admitting => Some(*id),
                    _ => None,
                };
                let actions = machine.handle(input, now);
                // A rank whose end was heard may come again.
                self.admitted.retain(|_, (id, _)| Some(*id) != ended);
                actions.into_iter().try_for_each(|action| self.root_action(process, action))
            }
            (Some(Machine::Rank(machine)), Input::Rank(input)) if node.result.is_none() => {
                let actions = machine.handle(input, now);
                actions.into_iter().try_for_each(|action| self.rank_action(process, action))
            }
            _ => Ok(()),
        }
    }

    fn root_action(&mut self, process: usize, action: AdmitAction<Contact, Why>) -> Result<(), String> {
        match action {
            AdmitAction::Send(id, message) => {
                self.check_answer(id, &message)?;
                let message: RootMessage = match message {
                    Message::Accepted => Message::Accepted,
                    Message::Refused(refusal) => Message::Refused(Reason::Root(refusal)),
                    Message::Waiting(ranks) => Message::Waiting(ranks),
                    Message::Slot(slot) => Message::Slot(slot),
                    Message::Failed(error) => Message::Failed(Why::Root(Box::new(error))),
                    Message::Other(what) => Message::Other(what),
                };
                self.send(id, process, Packet::Root(message));
            }
            AdmitAction::Close(id) => self.close(id, process),
            AdmitAction::Warn(_) => {}
            AdmitAction::StopListening => self.listening = None,
            AdmitAction::Inquire(rank, contact) => {
                self.processes[process].is_busy = true;
                let delay = self.random.delay(&DELAYS_US).min(INQUIRY);
                self.queue.at(self.queue.now() + delay, Happens::Inquire(process, rank, contact));
            }
            AdmitAction::Settle => {
                self.processes[process].is_busy = true;
                self.settle(process)?;
            }
            AdmitAction::Done(result) => self.root_done(process, result)?,
        }
        Ok(())
    }

    fn root_done(&mut self, process: usize, result: Result<(), AdmitError<Why>>) -> Result<(), String> {
        match result {
            Ok(()) => self.joined(process),
            Err(error) => {
                self.check_root_error(process, &error)?;
                self.processes[process].root_error = Some(error.clone());
                self.failed(process, JoinError::Failed(Why::Root(Box::new(error))))
            }
        }
    }

    pub(crate) fn rank_action(
        &mut self,
        process: usize,
        action: JoinAction<Contact, Reason, Why>,
    ) -> Result<(), String> {
        let delay = self.random.delay(&DELAYS_US);
        match action {
            JoinAction::Dial { is_first, limit } => {
                let node = &mut self.processes[process];
                node.is_busy = true;
                node.place = if is_first { 0 } else { node.place + 1 };
                self.queue.at(
                    self.queue.now() + delay.min(limit),
                    Happens::Dial(process, self.queue.now() + limit),
                );
            }
            JoinAction::Link { contact, limit, .. } => {
                self.processes[process].is_busy = true;
                self.queue.at(
                    self.queue.now() + delay.min(limit),
                    Happens::Link(process, contact, self.queue.now() + limit),
                );
            }
            JoinAction::Close(id) => self.close(id, process),
            JoinAction::Warn(_) => {}
            JoinAction::KeepLink(id) => self.processes[process].parent = Some(id),
            JoinAction::Settle => {
                self.processes[process].is_busy = true;
                self.settle(process)?;
            }
            JoinAction::Done(Ok(())) => self.joined(process)?,
            JoinAction::Done(Err(error)) => self.failed(process, error)?,
        }
        Ok(())
    }

    fn failed(&mut self, process: usize, error: JoinError<Reason, Why>) -> Result<(), String> {
        self.check_failed(process, &error)?;
        self.fail_links(process);
        self.processes[process].result = Some(Err(error));
        self.processes[process].life = Life::Gone;
        self.end(process);
        Ok(())
    }

    fn joined(&mut self, process: usize) -> Result<(), String> {
        self.check_joined(process)?;
        let node = &self.processes[process];
        let links: Vec<u64> = node.parent.iter().chain(node.children.values()).copied().collect();
        let others: Vec<u64> = self
            .wires
            .iter()
            .filter(|(id, wire)| wire.ends.contains(&process) && !links.contains(id))
            .map(|(id, _)| *id)
            .collect();
        // Connections of processes that came while rank 0 was busy are answered, then closed.
        let waits = |id: &u64| {
            let is_it =
                |input: &Input| matches!(input, Input::Root(AdmitInput::Arrived(other, _)) if other == id);
            node.waiting.iter().any(is_it)
        };
        let others: Vec<u64> = others.into_iter().filter(|id| !waits(id)).collect();
        others.into_iter().for_each(|id| self.close(id, process));
        Ok(())
    }

    /// An attempt to reach rank 0 has a result.
    pub(crate) fn dial(&mut self, process: usize, until: Instant) -> Result<(), String> {
        let node = &self.processes[process];
        let dialed = |result| Input::Rank(JoinInput::Dialed(result));
        let real = usize::from(self.has_several_places);
        if node.place < real {
            let stranger = Undialed::Refused { reason: Reason::Secret, is_other_user: false };
            return self.input(process, dialed(Err(stranger)));
        }
        if node.place > real {
            return self.input(process, dialed(Err(Undialed::Exhausted)));
        }
        let silent = dialed(Err(Undialed::Failed("it did not answer".to_owned())));
        match self.listening {
            None if self.other_user_until.is_some_and(|until| self.queue.now() < until) => {
                let user = Undialed::Refused { reason: Reason::User, is_other_user: true };
                self.input(process, dialed(Err(user)))
            }
            None => self.input(process, dialed(Err(Undialed::Failed("nobody listens".to_owned())))),
            Some(root) if self.is_cut(process, root) || self.processes[root].life == Life::Stopped => {
                self.queue.at(until, Happens::Input(process, silent));
                Ok(())
            }
            Some(_) if !node.spec.has_secret => {
                let secret = Undialed::Refused { reason: Reason::Secret, is_other_user: false };
                self.input(process, dialed(Err(secret)))
            }
            Some(root) => {
                let spec = node.spec;
                let id = self.connect(process, root);
                let contact = Contact { process, host: spec.host };
                let terms = vec![("terms".to_owned(), spec.terms.to_owned())];
                let hello = Hello { rank: spec.rank, size: spec.size, contact, terms };
                self.send(id, process, Packet::Hello(hello));
                self.input(process, dialed(Ok(id)))
            }
        }
    }

    /// An attempt to reach the parent has a result.
    pub(crate) fn link(&mut self, process: usize, contact: Contact, until: Instant) -> Result<(), String> {
        let linked = |result| Input::Rank(JoinInput::Linked(result));
        let parent = contact.process;
        match self.processes[parent].life {
            _ if self.is_cut(process, parent) => {
                self.queue.at(until, Happens::Input(process, linked(Err(Unlinked::Failed(Why::Unreached)))));
                Ok(())
            }
            Life::Stopped => {
                self.queue.at(until, Happens::Input(process, linked(Err(Unlinked::Late(Why::Unreached)))));
                Ok(())
            }
            Life::NotStarted | Life::Dead | Life::Gone => {
                self.input(process, linked(Err(Unlinked::Failed(Why::Unreached))))
            }
            Life::Runs => {
                let id = self.connect(process, parent);
                let group = match &self.processes[process].machine {
                    Some(Machine::Rank(machine)) => machine.slot().map_or(0, |slot| slot.group),
                    _ => 0,
                };
                let rank = self.processes[process].spec.rank;
                self.processes[process].parent = Some(id);
                self.send(id, process, Packet::Link(group, rank));
                self.input(process, linked(Ok(())))
            }
        }
    }

    /// Gives the machine children that have connected, if it awaits them.
    pub(crate) fn take_children(&mut self, process: usize) -> Result<(), String> {
        let node = &mut self.processes[process];
        if node.is_busy || node.life != Life::Runs || node.result.is_some() {
            return Ok(());
        }
        let awaits = |group: u64, rank: u32| match &node.machine {
            Some(Machine::Root(machine)) => machine.awaits(rank),
            Some(Machine::Rank(machine)) => {
                machine.slot().is_some_and(|slot| slot.group == group) && machine.awaits(rank)
            }
            None => false,
        };
        let taken = node.arrivals.iter().position(|(group, rank, _)| awaits(*group, *rank));
        let Some(taken) = taken else { return Ok(()) };
        let (_, rank, id) = node.arrivals.remove(taken);
        node.children.insert(rank, id);
        let input = match &node.machine {
            Some(Machine::Root(_)) => Input::Root(AdmitInput::Child(rank)),
            _ => Input::Rank(JoinInput::Child(rank)),
        };
        self.input(process, input)
    }

    /// The other end of a connection has closed.
    pub(crate) fn ended(&mut self, process: usize, id: u64) -> Result<(), String> {
        let node = &self.processes[process];
        let is_link = node.parent == Some(id)
            || node.children.values().any(|other| *other == id)
            || node.arrivals.iter().any(|(_, _, other)| *other == id);
        if is_link {
            return self.hear(process, id, Tree::Fail);
        }
        let input = match &node.machine {
            Some(Machine::Root(_)) => Input::Root(AdmitInput::Closed(id)),
            _ => {
                let ended = Ended { why: "closed".to_owned(), error: Why::Closed };
                Input::Rank(JoinInput::Closed(id, ended))
            }
        };
        self.input(process, input)
    }

    /// Gives a machine the time, if it has come.
    pub(crate) fn wake(&mut self, process: usize) -> Result<(), String> {
        self.processes[process].wakes_at = None;
        let node = &self.processes[process];
        if !node.is_busy
            && node.result.is_none()
            && self.next_timeout(process).is_some_and(|when| when <= self.queue.now())
        {
            let input = match &node.machine {
                Some(Machine::Root(_)) => Input::Root(AdmitInput::Timeout),
                _ => Input::Rank(JoinInput::Timeout),
            };
            self.input(process, input)?;
        }
        self.schedule_wake(process);
        Ok(())
    }

    fn next_timeout(&self, process: usize) -> Option<Instant> {
        match self.processes[process].machine.as_ref()? {
            Machine::Root(machine) => machine.next_timeout(),
            Machine::Rank(machine) => machine.next_timeout(),
        }
    }

    pub(crate) fn schedule_wake(&mut self, process: usize) {
        let node = &self.processes[process];
        if node.is_busy || node.result.is_some() || node.life != Life::Runs {
            return;
        }
        if let Some(next) = self.next_timeout(process)
            && node.wakes_at.is_none_or(|at| next < at)
        {
            self.processes[process].wakes_at = Some(next);
            self.queue.at(next.max(self.queue.now() + Duration::from_nanos(1)), Happens::Wake(process));
        }
    }
}
