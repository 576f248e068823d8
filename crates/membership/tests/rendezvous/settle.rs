//! The last step: members go down the links that the machines made, and a barrier goes up and down. As in the real group, the
//! end of a link or a failure of a rank fails it for all.

use std::collections::BTreeSet;

use weftlink_membership::durations::PLACE;
use weftlink_membership::rendezvous::{AdmitInput, JoinInput};

use crate::world::{Contact, Happens, Input, Machine, Packet, Why, World};

/// What ranks send each other over links.
#[derive(Debug, Clone)]
pub(crate) enum Tree {
    Members(Vec<Contact>),
    Up(u32),
    Down,
    Fail,
}

/// A rank that waits for the barrier.
#[derive(Default)]
pub(crate) struct Settling {
    pub(crate) members: Option<Vec<Contact>>,
    ups: BTreeSet<u32>,
    is_up: bool,
    is_over: bool,
}

impl World {
    pub(crate) fn settle(&mut self, process: usize) -> Result<(), String> {
        let node = &mut self.processes[process];
        let mut settling = Settling::default();
        if let Some(Machine::Root(machine)) = &node.machine {
            let placed = machine.placed().ok_or("rank 0 settles without a tree")?;
            settling.members = Some(placed.members.iter().map(|(contact, _)| *contact).collect());
            node.children.extend(placed.here.iter().map(|(rank, id)| (*rank, *id)));
        }
        node.settling = Some(settling);
        let until = node.deadline + PLACE;
        self.queue.at(until, Happens::SettleTimeout(process));
        self.pass_members(process);
        for (id, message) in std::mem::take(&mut self.processes[process].inbox) {
            self.hear(process, id, message)?;
        }
        self.proceed(process)
    }

    fn pass_members(&mut self, process: usize) {
        let node = &self.processes[process];
        if let Some(members) = node.settling.as_ref().and_then(|settling| settling.members.clone()) {
            self.send_to_children(process, &Tree::Members(members));
        }
    }

    fn send_to_children(&mut self, process: usize, message: &Tree) {
        let children: Vec<u64> = self.processes[process].children.values().copied().collect();
        children.into_iter().for_each(|id| self.send(id, process, Packet::Tree(message.clone())));
    }

    /// Takes in what came over a link.
    pub(crate) fn hear(&mut self, process: usize, id: u64, message: Tree) -> Result<(), String> {
        let node = &mut self.processes[process];
        let Some(settling) = &mut node.settling else {
            node.inbox.push((id, message));
            return Ok(());
        };
        match message {
            Tree::Members(members) => {
                settling.members = Some(members);
                self.pass_members(process);
            }
            Tree::Up(rank) => drop(settling.ups.insert(rank)),
            Tree::Down => {
                self.send_to_children(process, &Tree::Down);
                return self.settled(process, Ok(()));
            }
            Tree::Fail => return self.settled(process, Err(Why::Barrier)),
        }
        self.proceed(process)
    }

    fn proceed(&mut self, process: usize) -> Result<(), String> {
        let node = &mut self.processes[process];
        let Some(settling) = &mut node.settling else { return Ok(()) };
        let all = node.children.keys().all(|child| settling.ups.contains(child));
        if !all || settling.members.is_none() || settling.is_up {
            return Ok(());
        }
        settling.is_up = true;
        match node.parent {
            Some(parent) => {
                let rank = node.spec.rank;
                self.send(parent, process, Packet::Tree(Tree::Up(rank)));
                Ok(())
            }
            None => {
                self.send_to_children(process, &Tree::Down);
                self.settled(process, Ok(()))
            }
        }
    }

    /// The barrier is over for a process.
    pub(crate) fn settled(&mut self, process: usize, result: Result<(), Why>) -> Result<(), String> {
        let node = &mut self.processes[process];
        match &mut node.settling {
            Some(settling) if !settling.is_over => settling.is_over = true,
            _ => return Ok(()),
        }
        if result.is_err() {
            self.fail_links(process);
        }
        let input = match self.processes[process].machine {
            Some(Machine::Root(_)) => Input::Root(AdmitInput::Settled(result)),
            _ => Input::Rank(JoinInput::Settled(result)),
        };
        self.input(process, input)
    }

    /// Tells neighbours that this process has failed.
    pub(crate) fn fail_links(&mut self, process: usize) {
        self.send_to_children(process, &Tree::Fail);
        if let Some(parent) = self.processes[process].parent {
            self.send(parent, process, Packet::Tree(Tree::Fail));
        }
    }
}
