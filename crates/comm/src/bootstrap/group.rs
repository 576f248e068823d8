//! One rank's place in a group of processes: its neighbours in a tree, what they said, and what everybody knows.
//!
//! Two threads meet here. The rank's own asks and waits ([`Group::sweep`]). The steward's (`endpoint.rs`) brings in what
//! neighbours say and notices when they are gone. *News* goes to all: whoever hears it for the first time tells its other
//! neighbours. A rank that dies cuts the tree, but each part that is left has a neighbour of it, so all hear.
//!
//! A *sweep* goes up the tree with what each rank wants and says, and down with what all said. So it is a barrier, and
//! whoever wants something else than its children is found out on the way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::channel::{Broken, Channel, Received};
use super::deadline::Deadline;
use super::error::{Ask, BootstrapError};
use super::message::{Member, Message, News};
use super::tree;

/// How long news may take to leave: to a neighbour that does not read, it does not.
const TELL_LIMIT: Duration = Duration::from_secs(1);
/// How often a rank that waits looks whether it has something to say about that, and after how long first.
const TICK: Duration = Duration::from_millis(100);
/// What ranks further from the root wait longer for its verdict, per generation: it knows better who is missing.
const VERDICT_LIMIT: Duration = Duration::from_millis(500);

/// How many calls of a rank are remembered as told: more than are told at once.
const CALLS_MAX: usize = 128;

/// A connection to a neighbour.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: u32,
    pub(super) channel: Channel,
    /// Where the neighbour's process can be watched.
    pub(super) process: Option<OwnedFd>,
    pub(super) is_local: bool,
    pub(super) has_ended: AtomicBool,
}

/// What ranks say, in any order.
type Said = Vec<(u32, Vec<u8>)>;

/// What is done with news as soon as it comes, on the steward's thread, and what this rank has to say to it.
pub(crate) type Alarm = Box<dyn Fn(&News) -> Option<News> + Send>;

/// One rank's place in a group.
pub(super) struct Group {
    pub(super) id: u64,
    pub(super) rank: u32,
    pub(super) members: OnceLock<Vec<Member>>,
    pub(super) parent: Option<Arc<Link>>,
    pub(super) children: Vec<Arc<Link>>,
    state: Mutex<State>,
    changed: Condvar,
    alarm: Mutex<Option<Alarm>>,
    /// Held while something is taken in and told on: what a rank says last must not overtake what it heard before.
    telling: Mutex<()>,
}

#[derive(Default)]
struct State {
    inbox: BTreeMap<u32, VecDeque<Received>>,
    /// Whom a child waits for, and in which sweep.
    waiting: BTreeMap<u32, (u32, Vec<u32>)>,
    /// What has been told on, by kind and rank, and the number of the last of its kind.
    told: BTreeMap<(u8, u32), u32>,
    left: BTreeSet<u32>,
    dead: BTreeSet<u32>,
    /// Calls of each rank that have been told on, the last ones.
    calls: BTreeMap<u32, VecDeque<u32>>,
    /// Who has said that it waits, and who its neighbours are.
    waits: BTreeMap<u32, Vec<u32>>,
    /// What an alarm should know that is set later.
    grave: Vec<News>,
    verdict: Option<BootstrapError>,
}

impl Group {
    pub(super) fn new(id: u64, rank: u32, parent: Option<Arc<Link>>, children: Vec<Arc<Link>>) -> Arc<Group> {
        Arc::new(Group {
            id,
            rank,
            members: OnceLock::new(),
            parent,
            children,
            state: Mutex::default(),
            changed: Condvar::new(),
            alarm: Mutex::new(None),
            telling: Mutex::new(()),
        })
    }

    /// A group of one rank.
    pub(super) fn alone(id: u64, contacts: Vec<super::message::Contact>) -> Arc<Group> {
        let group = Group::new(id, 0, None, Vec::new());
        let members = contacts.into_iter().map(|contact| Member { contact, host: 0 });
        let _ = group.members.set(members.collect());
        group
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.parent.iter().chain(&self.children)
    }

    /// What to do with news from now on. Of that of before it is told what still matters.
    pub(super) fn set_alarm(&self, alarm: Option<Alarm>) {
        let mut place = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(alarm) = &alarm {
            let grave = self.state().grave.clone();
            grave.iter().for_each(|news| drop(alarm(news)));
        }
        *place = alarm;
    }

    /// Who is known to be dead.
    pub(super) fn dead(&self) -> Vec<u32> {
        self.state().dead.iter().copied().collect()
    }

    /// What went wrong first, if anything has.
    pub(super) fn verdict(&self) -> Option<BootstrapError> {
        self.state().verdict.clone()
    }

    /// A message from a neighbour. Called by the steward.
    pub(super) fn hear(&self, from: &Link, (message, descriptor): Received) {
        match message {
            Message::News(news) => return self.learn(news, Some(from.rank)),
            Message::Waiting { number, ranks } => {
                self.state().waiting.insert(from.rank, (number, ranks));
            }
            message => self.state().inbox.entry(from.rank).or_default().push_back((message, descriptor)),
        }
        self.changed.notify_all();
    }

    /// A neighbour's connection or process has ended. Called by the steward.
    pub(super) fn lose(&self, link: &Link) {
        link.has_ended.store(true, Ordering::Relaxed);
        if !self.state().left.contains(&link.rank) {
            self.learn(News::Died { rank: link.rank }, Some(link.rank));
        }
    }

    /// Takes in what everybody should know and tells it on, unless that has been done.
    pub(super) fn learn(&self, news: News, from: Option<u32>) {
        let telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        if !state.is_new(&news) {
            return;
        }
        if !matches!(news, News::Calls { .. } | News::Waits { .. }) {
            state.grave.push(news.clone());
        }
        match &news {
            News::Died { rank } => {
                state.dead.insert(*rank);
                let died = self.died(*rank);
                state.verdict.get_or_insert(died);
            }
            News::Left { rank, .. } => {
                state.left.insert(*rank);
            }
            News::Failed { error, .. } => {
                state.verdict.get_or_insert(error.clone());
            }
            News::Waits { rank, neighbours } => {
                state.waits.insert(*rank, neighbours.clone());
            }
            News::Calls { .. } => {}
        }
        drop(state);
        self.changed.notify_all();
        let alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = alarm.as_ref().and_then(|alarm| alarm(&news));
        drop(alarm);
        self.tell(&news, from);
        drop(telling);
        if let Some(answer) = answer {
            self.learn(answer, None);
        }
    }

    fn tell(&self, news: &News, except: Option<u32>) {
        let message = Message::News(news.clone());
        let wants = |link: &&Arc<Link>| Some(link.rank) != except && !link.has_ended.load(Ordering::Relaxed);
        for link in self.links().filter(wants) {
            let _ = link.channel.send(&message, None, Deadline::new(TELL_LIMIT));
        }
    }

    /// Gives the group up, for everybody, unless somebody has.
    pub(super) fn fail(&self, reason: u32, culprit: u32, error: &BootstrapError) {
        if self.verdict().is_none() {
            self.learn(News::Failed { rank: self.rank, reason, culprit, error: error.clone() }, None);
        }
    }

    /// What went wrong first, as soon as that is heard.
    pub(super) fn await_failure(&self, patience: Deadline) -> Option<BootstrapError> {
        let mut state = self.state();
        while state.verdict.is_none() && patience.left().is_some() {
            state = self.wait(state, patience);
        }
        state.verdict.clone()
    }

    /// Says that this rank waits, and listens until all say so or it has been patient enough. Who does not, among the
    /// neighbours of those who do: whoever is behind one of these could not be heard.
    pub(super) fn silent(&self, patience: Deadline) -> Vec<u32> {
        let neighbours = self.links().map(|link| link.rank).collect();
        self.learn(News::Waits { rank: self.rank, neighbours }, None);
        let mut state = self.state();
        loop {
            let silent = state.silent(self.rank);
            if silent.is_empty() || patience.left().is_none() {
                return silent;
            }
            state = self.wait(state, patience);
        }
    }

    /// All ranks say something and hear what all said, by rank. With `hand_out`, all ranks of a host get the descriptor that
    /// the first of them makes.
    pub(super) fn sweep(
        &self,
        number: u32,
        ask: &Ask,
        mine: Vec<u8>,
        deadline: Deadline,
        hand_out: Option<HandOut<'_>>,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let mut said = vec![(self.rank, mine)];
        self.gather(number, ask, &mut said, deadline)?;
        let mut descriptor = None;
        if let Some(parent) = &self.parent {
            let up = Message::Up { number, ask: ask.clone(), said };
            self.say(parent, &up, None, ask, deadline)?;
            (said, descriptor) = self.await_verdict(number, parent, ask, deadline)?;
        }
        let made = match (hand_out, descriptor) {
            (Some(HandOut { make, .. }), None) => Some(make()?),
            (Some(HandOut { take, .. }), Some(descriptor)) => {
                take(&descriptor)?;
                Some(descriptor)
            }
            (None, _) => None,
        };
        let down = Message::Down { number, said };
        for child in &self.children {
            let made = made.as_ref().filter(|_| child.is_local);
            self.say(child, &down, made, ask, deadline)?;
        }
        let Message::Down { mut said, .. } = down else { unreachable!("made above") };
        said.sort_unstable_by_key(|(rank, _)| *rank);
        Ok(said.into_iter().map(|(_, said)| said).collect())
    }

    /// Takes what all children say.
    fn gather(
        &self,
        number: u32,
        ask: &Ask,
        said: &mut Said,
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let mut reported = Vec::new();
        let mut state = self.state();
        loop {
            let silent: Vec<u32> =
                self.children.iter().map(|child| child.rank).filter(|rank| !state.has(*rank)).collect();
            if silent.is_empty() {
                break;
            }
            state.check(self, &silent, ask)?;
            let missing = state.missing(number, &silent);
            if deadline.left().is_none() {
                drop(state);
                return Err(self.missing(&missing, ask, deadline));
            }
            if deadline.waited() >= TICK && missing != reported {
                reported = missing;
                if let Some(parent) = &self.parent {
                    let waiting = Message::Waiting { number, ranks: reported.clone() };
                    drop(state);
                    let _ = parent.channel.send(&waiting, None, Deadline::new(TELL_LIMIT));
                    state = self.state();
                    continue;
                }
            }
            state = self.wait(state, deadline);
        }
        let heard: Vec<Received> =
            self.children.iter().filter_map(|child| state.inbox.get_mut(&child.rank)?.pop_front()).collect();
        drop(state);
        for (child, (message, _)) in self.children.iter().zip(heard) {
            match message {
                Message::Up { number: theirs, ask: other, said: more } if theirs == number => {
                    let differs = other.purpose != ask.purpose || child.is_local && other.bytes != ask.bytes;
                    if differs {
                        return Err(BootstrapError::Mismatch { one: ask.clone(), other });
                    }
                    said.extend(more);
                }
                other => return Err(other.unexpected(child.rank as usize)),
            }
        }
        Ok(())
    }

    fn await_verdict(
        &self,
        number: u32,
        parent: &Link,
        ask: &Ask,
        deadline: Deadline,
    ) -> Result<(Said, Option<OwnedFd>), BootstrapError> {
        let late = deadline.later(VERDICT_LIMIT * (1 + self.generation()));
        let mut state = self.state();
        loop {
            if let Some((message, descriptor)) =
                state.inbox.get_mut(&parent.rank).and_then(VecDeque::pop_front)
            {
                return match message {
                    Message::Down { number: theirs, said } if theirs == number => Ok((said, descriptor)),
                    other => Err(other.unexpected(parent.rank as usize)),
                };
            }
            state.check(self, &[parent.rank], ask)?;
            if late.left().is_none() {
                let (rank, limit) = (parent.rank as usize, deadline.limit());
                let (pid, purpose) = (self.pid(parent.rank), ask.purpose.clone());
                return Err(BootstrapError::NoAnswer { rank, pid, purpose, limit });
            }
            state = self.wait(state, late);
        }
    }

    /// Takes the first message of a parent, which tells who is who.
    pub(super) fn await_members(&self, ask: &Ask, deadline: Deadline) -> Result<Vec<Member>, BootstrapError> {
        let Some(parent) = &self.parent else { return Ok(Vec::new()) };
        let mut state = self.state();
        loop {
            if let Some((message, _)) = state.inbox.get_mut(&parent.rank).and_then(VecDeque::pop_front) {
                return match message {
                    Message::Members(members) => Ok(members),
                    other => Err(other.unexpected(parent.rank as usize)),
                };
            }
            state.check(self, &[parent.rank], ask)?;
            if deadline.left().is_none() {
                drop(state);
                return Err(self.missing(&[parent.rank], ask, deadline));
            }
            state = self.wait(state, deadline);
        }
    }

    /// Tells children who is who.
    pub(super) fn tell_members(
        &self,
        members: &[Member],
        ask: &Ask,
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let message = Message::Members(members.to_vec());
        self.children.iter().try_for_each(|child| self.say(child, &message, None, ask, deadline))
    }

    fn say(
        &self,
        link: &Link,
        message: &Message,
        descriptor: Option<&OwnedFd>,
        ask: &Ask,
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let descriptor = descriptor.map(AsFd::as_fd);
        let late = deadline.later(VERDICT_LIMIT);
        link.channel.send(message, descriptor, late).map_err(|broken| {
            // Why it is gone may be known already. One that is gone without a word is dead.
            let has_left = self.state().left.contains(&link.rank);
            self.verdict().unwrap_or_else(|| match broken {
                Broken::Ended if !has_left => self.died(link.rank),
                broken => broken.of(link.rank as usize, self.pid(link.rank), &ask.purpose, deadline),
            })
        })
    }

    fn missing(&self, ranks: &[u32], ask: &Ask, deadline: Deadline) -> BootstrapError {
        let ranks = ranks.iter().map(|&rank| rank as usize).collect();
        BootstrapError::Missing { ranks, purpose: ask.purpose.clone(), limit: deadline.limit() }
    }

    fn died(&self, rank: u32) -> BootstrapError {
        let host = self.members.get().and_then(|members| members.get(rank as usize));
        let host = host.map_or(String::new(), |member| member.contact.host.to_string());
        BootstrapError::Died { rank: rank as usize, host, pid: self.pid(rank) }
    }

    /// The number of a rank's process, as it calls itself; 0 if that is not known yet.
    pub(super) fn pid(&self, rank: u32) -> u32 {
        self.members
            .get()
            .and_then(|members| members.get(rank as usize))
            .map_or(0, |member| member.contact.pid)
    }

    /// How many ranks are between this one and the root, at most.
    fn generation(&self) -> u32 {
        let Some(members) = self.members.get() else { return u32::BITS - self.rank.leading_zeros() };
        let hosts: Vec<u32> = members.iter().map(|member| member.host).collect();
        let parents = tree::parents(&hosts);
        let above = |rank: &u32| parents.get(*rank as usize).copied().flatten();
        std::iter::successors(Some(self.rank), above).count() as u32 - 1
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, deadline: Deadline) -> MutexGuard<'a, State> {
        let time = deadline.left().unwrap_or_default().min(TICK);
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// How ranks of a host come to have the same descriptor.
pub(super) struct HandOut<'a> {
    /// For the first of them.
    pub(super) make: &'a mut dyn FnMut() -> Result<OwnedFd, BootstrapError>,
    /// For the others.
    pub(super) take: &'a mut dyn FnMut(&OwnedFd) -> Result<(), BootstrapError>,
}

impl State {
    fn is_new(&mut self, news: &News) -> bool {
        let (kind, rank, number) = match *news {
            News::Died { rank } => (0, rank, 0),
            News::Left { rank, .. } => (1, rank, 0),
            News::Failed { rank, .. } => (2, rank, 0),
            News::Calls { rank, number, .. } => return self.is_new_call(rank, number),
            News::Waits { rank, .. } => (3, rank, 0),
        };
        self.told.insert((kind, rank), number) != Some(number)
    }

    fn is_new_call(&mut self, rank: u32, number: u32) -> bool {
        let told = self.calls.entry(rank).or_default();
        let is_new = !told.contains(&number);
        if is_new {
            told.push_back(number);
        }
        if told.len() > CALLS_MAX {
            told.pop_front();
        }
        is_new
    }

    /// Who has said nothing, of those who are next to a rank that was heard.
    fn silent(&self, rank: u32) -> Vec<u32> {
        let (mut heard, mut silent) = (BTreeSet::from([rank]), BTreeSet::new());
        let mut next = vec![rank];
        while let Some(rank) = next.pop() {
            for &neighbour in self.waits.get(&rank).into_iter().flatten() {
                let is_gone = self.left.contains(&neighbour) || self.dead.contains(&neighbour);
                match self.waits.contains_key(&neighbour) {
                    true if heard.insert(neighbour) => next.push(neighbour),
                    false if !is_gone => drop(silent.insert(neighbour)),
                    _ => {}
                }
            }
        }
        silent.into_iter().collect()
    }

    fn has(&self, rank: u32) -> bool {
        self.inbox.get(&rank).is_some_and(|inbox| !inbox.is_empty())
    }

    /// Whom a rank waits for that waits for these: them, or whom they said that they wait for.
    fn missing(&self, number: u32, silent: &[u32]) -> Vec<u32> {
        let of = |rank: &u32| match self.waiting.get(rank) {
            Some((theirs, ranks)) if *theirs == number && !ranks.is_empty() => ranks.clone(),
            _ => vec![*rank],
        };
        let mut missing: Vec<u32> = silent.iter().flat_map(of).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Whether there is any point in waiting for these.
    fn check(&self, group: &Group, awaited: &[u32], ask: &Ask) -> Result<(), BootstrapError> {
        if let Some(verdict) = &self.verdict {
            return Err(verdict.clone());
        }
        match awaited.iter().find(|rank| self.left.contains(rank)) {
            Some(&rank) => {
                let (pid, purpose) = (group.pid(rank), ask.purpose.clone());
                Err(BootstrapError::Left { rank: rank as usize, pid, purpose })
            }
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group(rank {}, {} neighbours)", self.rank, self.links().count())
    }
}
