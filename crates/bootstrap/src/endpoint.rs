//! Where a rank can be found as long as it is in some group, and the thread that keeps watch: the *steward*.
//!
//! The steward waits for whatever happens first. Somebody comes and, once it has [said enough](super::lobby), a helper thread hears what it
//! wants; there are few helpers, and each has little time. A neighbour says something: its group takes it
//! in. A neighbour's process or connection ends: its group is told. The process is watched where the kernel lets us (a pidfd),
//! because a child that it forked may keep the connection open.
//!
//! Who came and proved to be of this job waits in a list until the rank asks for it. Others leave a note, for messages about
//! ranks that are missing, and nothing else.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};
use weftlink_membership::durations::{
    ACCEPT_POLL as TICK, HELLO as HELLO_LIMIT, HELLO_WITHOUT_THREAD as NO_THREAD_LIMIT, SEND,
};
use weftlink_membership::{Input, regroup};
use weftlink_shm::limits::{self, STACK_BYTES};
use weftlink_shm::poll_hook;

use super::address::{Listener, call_abstract, call_tcp, listen_abstract, own_addresses};
use super::broken::{ANOTHER, Broken, Fate, does_not_check};
use super::channel::{Channel, NAME_BYTES};
use super::deadline::Deadline;
use super::error::BootstrapError;
use super::fork::Noted;
use super::group::{Group, Link};
use super::host::Host;
use super::lobby::{Guest, Lobby, Room};
use super::message::{Contact, Introduction, Message};
use super::peer::Peer;
use super::secret::{Token, random_number};

/// How long nobody is let in after there was no descriptor for one, and for how long at most if there still is none.
const REST_MIN: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_secs(1);
/// How many are let in before something else is looked at.
const ACCEPTED_MAX: usize = 64;
/// How many may wait to be asked for.
const ARRIVALS_MAX: usize = 8192;
/// Groups that are remembered after this rank has left, abandoned or replaced them.
const REMEMBERED_MAX: usize = 256;
/// A retrying stranger must not fill the memory.
const NOTES_MAX: usize = 8;
/// Where one rank is found.
#[derive(Debug)]
pub(super) struct Endpoint {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
    /// Of the process that made it. A process that was forked off has no steward, and must not touch anything.
    pid: u32,
}

#[derive(Debug)]
pub(super) struct Inner {
    token: Token,
    host: Host,
    /// The name of the socket for those on the same host. Whoever comes to an address finds by it whether this is who was meant.
    name: [u8; NAME_BYTES],
    /// Written to when something is to be watched that was not, or something waits to be written.
    wake: Arc<OwnedFd>,
    quit: AtomicBool,
    room: Room,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// A child that was forked off must not seem to listen when this process has died.
    listeners: Vec<(Noted, Arc<Listener>)>,
    pub(super) links: Vec<(Arc<Link>, Weak<Group>)>,
    /// Groups that are watched, for those who come because somebody has left.
    groups: Vec<Weak<Group>>,
    arrivals: VecDeque<(Introduction, Channel)>,
    /// Groups that this rank has left, the last ones, and after how many calls.
    left: VecDeque<(u64, u32)>,
    /// Groups whose trees this rank has abandoned while it regrouped.
    abandoned: VecDeque<u64>,
    /// The ranks that are left of each first group, by its number, once this rank has regrouped.
    regrouped: VecDeque<(u64, Vec<u32>)>,
    /// Eventfds of ranks that wait for connections.
    wakes: Vec<Weak<OwnedFd>>,
    helpers: usize,
    notes: Vec<String>,
}

impl Endpoint {
    pub(super) fn new(token: &Token, host: Host) -> Result<Endpoint, BootstrapError> {
        let failed = |what: &'static str| move |error: io::Error| failed(what, &error);
        let text = format!("weft-{:016x}{:016x}", random_number()?, random_number()?);
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(text.as_bytes());
        let listener = Listener::Unix(listen_abstract(&name).map_err(failed("listen for the others"))?);
        let listener = Arc::new(listener.with_room());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|error| failed("make an eventfd")(error.into()))?;
        let inner = Arc::new(Inner {
            token: token.clone(),
            host,
            name,
            wake: Arc::new(wake),
            quit: AtomicBool::new(false),
            room: Room::of_this_process(),
            state: Mutex::new(State { listeners: vec![noted(&listener)], ..State::default() }),
            changed: Condvar::new(),
        });
        let steward = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("weft-steward".to_owned()).stack_size(STACK_BYTES);
        let thread = thread
            .spawn(move || steward.keep_watch())
            .map_err(|error| BootstrapError::System { what: limits::no_thread(&error) })?;
        Ok(Endpoint { inner, thread: Some(thread), pid: std::process::id() })
    }

    /// Whether this process made it, and has not got it from one that forked it off.
    pub(super) fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }

    /// How others find this process.
    pub(super) fn contact(&self, addresses: Vec<std::net::SocketAddr>) -> Contact {
        let (host, name) = (self.inner.host.clone(), self.inner.name.to_vec());
        Contact { pid: self.pid, host, name, addresses }
    }

    /// Hears whoever comes there, too.
    pub(super) fn listen(&self, listener: Listener) -> Arc<Listener> {
        let listener = Arc::new(listener.with_room());
        self.inner.state().listeners.push(noted(&listener));
        self.inner.wake();
        listener
    }

    /// The same for TCP sockets at one port, which is returned.
    pub(super) fn listen_tcp(&self, listeners: Vec<TcpListener>) -> Result<u16, BootstrapError> {
        let mut port = 0;
        for listener in listeners {
            port = listener.local_addr().map_err(|error| failed("listen for the others", &error))?.port();
            self.listen(Listener::Tcp(listener));
        }
        Ok(port)
    }

    pub(super) fn stop_listening(&self, listener: &Arc<Listener>) {
        self.inner.state().listeners.retain(|(_, other)| !Arc::ptr_eq(listener, other));
        self.inner.wake();
    }

    /// Watches over all links of a group.
    pub(super) fn watch(&self, group: &Arc<Group>) {
        self.inner.state().groups.push(Arc::downgrade(group));
        group.links().iter().for_each(|link| self.inner.watch(link, group));
        self.inner.wake();
    }

    /// Stops watching a group that this rank leaves after `calls` calls, and remembers it, for ranks that ask later.
    pub(super) fn leave(&self, group: &Arc<Group>, calls: u32) {
        remember(&mut self.inner.state().left, (group.id, calls));
        self.unwatch(group);
    }

    /// Has the monitor thread carry out what groups want done.
    pub(super) fn wake(&self) {
        self.inner.wake();
    }

    /// No longer.
    pub(super) fn unwatch(&self, group: &Arc<Group>) {
        let gone = Arc::downgrade(group);
        let mut state = self.inner.state();
        state.links.retain(|(_, group)| !Weak::ptr_eq(group, &gone));
        state.groups.retain(|group| !Weak::ptr_eq(group, &gone));
        drop(state);
        self.inner.wake();
    }

    /// Waits for somebody who comes for something. `over` tells why nobody will.
    pub(super) fn expect<T>(
        &self,
        deadline: Deadline,
        mut wanted: impl FnMut(&Introduction) -> Option<T>,
        mut over: impl FnMut() -> Result<(), BootstrapError>,
    ) -> Result<Option<(T, Channel)>, BootstrapError> {
        let mut state = self.inner.state();
        loop {
            let mut found = None;
            let position = state.arrivals.iter().position(|(introduction, _)| {
                found = wanted(introduction);
                found.is_some()
            });
            if let (Some(position), Some(found)) = (position, found) {
                let arrived = state.arrivals.remove(position);
                return Ok(arrived.map(|(_, channel)| (found, channel)));
            }
            let Some(left) = deadline.left() else { return Ok(None) };
            drop(state);
            poll_hook::poll();
            over()?;
            state = self.inner.state();
            let waited = self.inner.changed.wait_timeout(state, left.min(TICK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes over the accepted connections whose introductions match, in the order in which they came.
    pub(super) fn arrivals(&self, matches: impl Fn(&Introduction) -> bool) -> Vec<(Introduction, Channel)> {
        let mut state = self.inner.state();
        let (taken, kept) = std::mem::take(&mut state.arrivals)
            .into_iter()
            .partition(|(introduction, _)| matches(introduction));
        state.arrivals = kept;
        taken.into()
    }

    /// Writes to an eventfd whenever a connection has been accepted, for as long as the eventfd is there.
    pub(super) fn wake_on_arrival(&self, wake: &Arc<OwnedFd>) {
        let mut state = self.inner.state();
        state.wakes.retain(|wake| wake.strong_count() > 0);
        state.wakes.push(Arc::downgrade(wake));
    }

    /// Closes connections of children in the tree of a group that this rank has abandoned.
    pub(super) fn refuse_children(&self, group: u64) {
        let mut state = self.inner.state();
        remember(&mut state.abandoned, group);
        state.arrivals.retain(|(introduction, _)| {
            !matches!(introduction, Introduction::Link { group: theirs, .. } if *theirs == group)
        });
    }

    /// Remembers which ranks of a lineage are left, and answers all others that come to regroup that they are excluded.
    pub(super) fn regrouped(&self, lineage: u64, ranks: &[u32]) {
        let mut state = self.inner.state();
        state.regrouped.retain(|(other, _)| *other != lineage);
        remember(&mut state.regrouped, (lineage, ranks.to_vec()));
        drop(state);
        let late = self.arrivals(|introduction| {
            let Introduction::Regroup { lineage: theirs, hello } = introduction else { return false };
            *theirs == lineage && !ranks.contains(&hello.from)
        });
        for (_, channel) in late {
            exclude(&channel);
        }
    }

    /// Goes to a rank and says what for.
    pub(super) fn dial(
        &self,
        contact: &Contact,
        introduction: &Introduction,
        deadline: Deadline,
    ) -> Result<Channel, Broken> {
        self.inner.dial(contact, introduction, deadline)
    }

    /// What strangers wanted.
    pub(super) fn notes(&self) -> Vec<String> {
        self.inner.state().notes.clone()
    }

    /// A connection to a neighbour, with its process if that can be watched.
    pub(super) fn link(&self, rank: u32, channel: Channel) -> Arc<Link> {
        link(rank, channel)
    }

    /// What became of a rank whose connection has ended: its process has, too, or the two cannot reach each other any more.
    pub(super) fn inquire(&self, contact: &Contact) -> Fate {
        self.inner.inquire(contact)
    }
}

impl Inner {
    /// Goes to a rank and says what for.
    pub(super) fn dial(
        &self,
        contact: &Contact,
        introduction: &Introduction,
        deadline: Deadline,
    ) -> Result<Channel, Broken> {
        let introduce = |socket: OwnedFd, deadline: Deadline| {
            let channel = Channel::dial(socket, &self.token, Some(&contact.name), deadline)?;
            channel.send(&Message::Introduction(introduction.clone()), None, deadline)?;
            Ok(channel)
        };
        if contact.host.is_same(&self.host) {
            return introduce(call_abstract(&contact.name, deadline)?, deadline);
        }
        // An address that this host has too (docker0) leads to this host, whatever it is on the other.
        let own = match contact.host.shares_network_with(&self.host) || contact.addresses.len() == 1 {
            true => Vec::new(),
            false => own_addresses(),
        };
        let addresses: Vec<_> =
            contact.addresses.iter().filter(|address| !own.contains(&address.ip())).collect();
        let mut failed = Vec::new();
        for (number, address) in addresses.iter().enumerate() {
            let left = deadline.left().ok_or(Broken::Late)?;
            // The first is the likeliest. None takes the time of those that follow.
            let rest = addresses.len() - number;
            let share = Deadline::new(left / if number == 0 { rest.min(2) } else { rest } as u32);
            let tried = match call_tcp(**address, share) {
                Ok(stream) => {
                    introduce(stream.into(), share.or_within(HELLO_LIMIT)).map_err(Tried::Connected)
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Tried::Refused),
                Err(error) => Err(Tried::Silent(format!("{address}: {error}"))),
            };
            match tried {
                Ok(channel) => return Ok(channel),
                Err(tried) => failed.push(tried),
            }
        }
        Err(verdict(failed))
    }
}

/// What came of one address of a rank.
#[derive(Debug, PartialEq, Eq)]
enum Tried {
    /// Somebody answered, and this is what went wrong then.
    Connected(Broken),
    /// The host is there and nobody listens.
    Refused,
    /// Nothing answered, and why.
    Silent(String),
}

/// What all addresses of a rank together tell of it. If there is somebody who has not answered yet, it may be the rank, stopped.
/// If there is nobody wherever a host answers, the rank is gone. An address that does not answer says nothing, nor does one
/// that leads to somebody else.
fn verdict(failed: Vec<Tried>) -> Broken {
    let weight = |tried: &Tried| match tried {
        Tried::Connected(Broken::Late) => 5,
        Tried::Connected(Broken::Stranger(_)) => 2,
        Tried::Connected(Broken::Another) => 1,
        Tried::Connected(_) => 4,
        Tried::Refused => 3,
        Tried::Silent(_) => 0,
    };
    match failed.into_iter().max_by_key(weight) {
        None => Broken::Unreachable("it told no address".to_owned()),
        Some(Tried::Connected(broken)) => broken,
        Some(Tried::Refused) => Broken::Refused,
        Some(Tried::Silent(why)) => Broken::Unreachable(why),
    }
}

/// A connection to a neighbour, with its process if that can be watched.
pub(super) fn link(rank: u32, channel: Channel) -> Arc<Link> {
    // The kernel says who is at the other end, in our own numbers.
    let peer = Peer::of(&channel);
    let is_local = peer.is_some();
    let pid = peer.and_then(|peer| peer.pid);
    let other = pid.filter(|pid| pid.as_raw_nonzero().get() as u32 != std::process::id());
    let process = other.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    Arc::new(Link { rank, channel, process, is_local, has_ended: AtomicBool::new(false) })
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.is_ours() {
            // The thread did not come along.
            std::mem::forget(thread);
            return;
        }
        self.inner.quit.store(true, Ordering::Release);
        self.inner.wake();
        let _ = thread.join();
    }
}

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    fn keep_watch(self: &Arc<Self>) {
        let mut lobby = Lobby::new(self.room);
        let mut rest = Rest::default();
        while !self.quit.load(Ordering::Acquire) {
            let (listeners, links, has_helpers) = {
                let state = self.state();
                let listeners: Vec<Arc<Listener>> =
                    state.listeners.iter().map(|(_, listener)| Arc::clone(listener)).collect();
                (listeners, state.links.clone(), self.has_helpers(&state))
            };
            // While there is no descriptor, a listener would be ready all the time.
            let door = if rest.left().is_none() { PollFlags::IN } else { PollFlags::empty() };
            let mut watched = vec![PollFd::new(&*self.wake, PollFlags::IN)];
            watched.extend(listeners.iter().map(|listener| PollFd::new(&**listener, door)));
            for (link, _) in &links {
                // One whose connection has ended is there for its process alone.
                if let Some(process) =
                    link.process.as_ref().filter(|_| link.has_ended.load(Ordering::Relaxed))
                {
                    watched
                        .extend([PollFd::new(process, PollFlags::IN), PollFd::new(process, PollFlags::IN)]);
                    continue;
                }
                let room = if link.channel.wants_to_write() { PollFlags::OUT } else { PollFlags::empty() };
                watched.push(PollFd::new(&link.channel, PollFlags::IN | room));
                // Every link has two places; one whose process cannot be watched has its connection twice.
                let process = link.process.as_ref().map_or(link.channel.as_fd(), AsFd::as_fd);
                watched.push(PollFd::from_borrowed_fd(process, PollFlags::IN));
            }
            // A helper that is done wakes us; until then nobody else can be heard.
            let silent = lobby.silent().filter(|_| has_helpers);
            watched.extend(silent.map(|guest| PollFd::from_borrowed_fd(guest, PollFlags::IN)));
            // No group is held while this thread sleeps: one that was dropped must be gone for others too.
            let time = {
                let groups: Vec<Arc<Group>> = self.state().groups.iter().filter_map(Weak::upgrade).collect();
                groups.iter().filter_map(|group| group.state().core.next_timeout()).min()
            };
            let time = time.map(|when| when.saturating_duration_since(Instant::now()));
            let tick = if has_helpers { lobby.tick(HELLO_LIMIT) } else { None };
            let time = time.into_iter().chain(tick).chain(rest.left()).min();
            let time = time.and_then(|time| Timespec::try_from(time).ok());
            if let Err(error) = poll(&mut watched, time.as_ref()) {
                if error != Errno::INTR {
                    std::thread::sleep(REST_MIN);
                }
                continue;
            }
            let happened: Vec<bool> = watched.iter().map(|place| !place.revents().is_empty()).collect();
            drop(watched);
            if happened[0] {
                let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
            }
            for (listener, _) in listeners.iter().zip(&happened[1..]).filter(|(_, happened)| **happened) {
                self.let_in(listener, &mut lobby, &mut rest);
            }
            while self.has_helpers(&self.state())
                && let Some(guest) = lobby.next(HELLO_LIMIT)
            {
                self.help(guest);
            }
            for (places, (link, group)) in happened[1 + listeners.len()..].chunks_exact(2).zip(&links) {
                if places.contains(&true) {
                    let process_ended = places[1] && link.process.is_some();
                    self.attend(link, group, process_ended);
                }
            }
            self.see_to_groups();
        }
    }

    /// Tells groups what time it is, does what they want done, and forgets processes that need not be watched any more.
    fn see_to_groups(self: &Arc<Self>) {
        let groups: Vec<Arc<Group>> = self.state().groups.iter().filter_map(Weak::upgrade).collect();
        for group in groups {
            let timeout = group.state().core.next_timeout();
            if timeout.is_some_and(|when| when <= Instant::now()) {
                group.drive(Input::Timeout);
            }
            self.do_chores(&group);
        }
        let is_needed = |link: &Link, group: &Weak<Group>| {
            let group = group.upgrade().filter(|_| link.process.is_some());
            group.is_some_and(|group| group.state().core.is_watching(link.rank))
        };
        let ended = |link: &Link| link.has_ended.load(Ordering::Relaxed);
        self.state().links.retain(|(link, group)| !ended(link) || is_needed(link, group));
    }

    /// Lets those in who have come to a listener.
    fn let_in(&self, listener: &Listener, lobby: &mut Lobby, rest: &mut Rest) {
        for _ in 0..ACCEPTED_MAX {
            match listener.accept(self.token.is_guessable()) {
                Ok(socket) => {
                    rest.last = Duration::ZERO;
                    lobby.enter(socket);
                }
                Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::INTR | Errno::CONNABORTED) => {}
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        // Somebody who has not said enough makes room for the next.
                        if !lobby.evict() {
                            return rest.begin(&error);
                        }
                    }
                    _ => return,
                },
            }
        }
    }

    /// Whether one more who has come can be heard.
    fn has_helpers(&self, state: &State) -> bool {
        state.helpers < self.room.helpers && state.arrivals.len() < ARRIVALS_MAX
    }

    /// Watches over a link of a group.
    pub(super) fn watch(self: &Arc<Self>, link: &Arc<Link>, group: &Arc<Group>) {
        link.channel.set_wake(&self.wake);
        // What came with the last message that was read before is here already, and no poll would tell.
        self.attend(link, &Arc::downgrade(group), false);
        let is_watching = || group.state().core.is_watching(link.rank);
        if !link.has_ended.load(Ordering::Relaxed) || is_watching() {
            self.state().links.push((Arc::clone(link), Arc::downgrade(group)));
        }
    }

    /// Takes in what a neighbour said, and that it is gone.
    fn attend(self: &Arc<Self>, link: &Arc<Link>, group: &Weak<Group>, process_ended: bool) {
        let Some(group) = group.upgrade() else {
            link.has_ended.store(true, Ordering::Relaxed);
            return;
        };
        if !link.has_ended.load(Ordering::Relaxed) {
            // One that cannot be written to any more has ended, which is what reading finds.
            let _ = link.channel.flush();
            let (heard, broken) = match link.channel.receive_ready() {
                Ok(heard) => (heard, None),
                Err((heard, broken)) => (heard, Some(broken)),
            };
            heard.into_iter().for_each(|message| group.hear(link, message));
            let rank = link.rank;
            if broken.is_some() || process_ended {
                link.has_ended.store(true, Ordering::Relaxed);
            }
            match broken {
                _ if process_ended => {}
                Some(Broken::Forged(what)) => {
                    group.drive(Input::Corrupt { rank, what: does_not_check(&what) })
                }
                // Whether it is dead takes a moment to find out, and others may have something to say meanwhile.
                Some(_) => group.drive(Input::Disconnected { rank, is_watched: link.process.is_some() }),
                None => {}
            }
        }
        if process_ended {
            group.drive(Input::Exited(link.rank));
        }
        self.do_chores(&group);
    }

    /// Has a helper hear somebody who has come.
    fn help(self: &Arc<Self>, guest: Guest) {
        self.state().helpers += 1;
        let inner = Arc::clone(self);
        let helper = std::thread::Builder::new().name("weft-helper".to_owned()).stack_size(STACK_BYTES);
        let shared = Arc::new(Mutex::new(Some(guest)));
        let take =
            |shared: &Mutex<Option<Guest>>| shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        let taken = Arc::clone(&shared);
        let started = helper
            .spawn(move || take(&taken).into_iter().for_each(|guest| inner.hear_out(guest, HELLO_LIMIT)));
        // Where there is no thread for it, this one does it. It has said enough to be answered, so that takes a moment.
        if let Err(error) = started
            && let Some(guest) = take(&shared)
        {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| tracing::warn!(target: "weft::meet", "{}", limits::no_thread(&error)));
            self.hear_out(guest, NO_THREAD_LIMIT);
        }
    }

    /// Hears what somebody wants who has come.
    fn hear_out(self: &Arc<Self>, guest: Guest, limit: Duration) {
        let deadline = Deadline::new(limit);
        let heard = Channel::answer(guest.socket, &guest.challenge, &self.token, &self.name, deadline)
            .and_then(|channel| Ok((channel.receive(deadline)?.0, channel)));
        let mut state = self.state();
        state.helpers -= 1;
        match heard {
            Ok((Message::Introduction(Introduction::Probe), _)) => {}
            Ok((Message::Introduction(Introduction::Orphan { group: id, from }), channel)) => {
                let group = state.groups.iter().filter_map(Weak::upgrade).find(|one| one.id == id);
                let left = state.left.iter().find(|(left, _)| *left == id).map(|(_, calls)| *calls);
                drop(state);
                match group {
                    Some(group) => self.take_in(&group, from, channel),
                    None => {
                        let _ = channel.send(&Message::NotInGroup { calls: left }, None, deadline);
                    }
                }
                return self.heard_out();
            }
            Ok((Message::Introduction(introduction), channel)) if state.excludes(&introduction) => {
                drop(state);
                exclude(&channel);
                return self.heard_out();
            }
            Ok((Message::Introduction(Introduction::Link { group, .. }), _))
                if state.abandoned.contains(&group) => {}
            Ok((Message::Introduction(introduction), channel)) => {
                state.arrivals.push_back((introduction, channel));
                for wake in state.wakes.iter().filter_map(Weak::upgrade) {
                    let _ = rustix::io::write(&wake, &1_u64.to_ne_bytes());
                }
            }
            Ok(_) | Err(Broken::Ended | Broken::Late | Broken::Refused) => {}
            Err(Broken::Stranger(refusal)) => {
                state.note(refusal.to_string());
            }
            Err(Broken::Unreachable(what) | Broken::Strange(what) | Broken::Forged(what)) => state.note(what),
            Err(Broken::Another) => state.note(ANOTHER.to_owned()),
        }
        drop(state);
        self.heard_out();
    }

    /// A helper is done, for which others may have waited.
    fn heard_out(&self) {
        self.changed.notify_all();
        self.wake();
    }
}

impl State {
    /// Whether somebody comes to regroup whom the others have excluded.
    fn excludes(&self, introduction: &Introduction) -> bool {
        let Introduction::Regroup { lineage, hello } = introduction else { return false };
        let excludes = |(id, ranks): &(u64, Vec<u32>)| id == lineage && !ranks.contains(&hello.from);
        self.regrouped.iter().any(excludes)
    }

    fn note(&mut self, what: String) {
        tracing::trace!(target: "weft::meet", "somebody was turned away: {what}");
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&what) {
            self.notes.push(what);
        }
    }
}

fn remember<T>(list: &mut VecDeque<T>, one: T) {
    list.push_back(one);
    if list.len() > REMEMBERED_MAX {
        list.pop_front();
    }
}

/// Answers a rank that comes to regroup after the others have.
fn exclude(channel: &Channel) {
    let abort = regroup::Message::Abort { group: None, why: regroup::Abort::Excluded };
    let _ = channel.send(&Message::Regroup(abort), None, Deadline::new(SEND));
}

/// How long nobody is let in, because there is no descriptor for one.
#[derive(Debug, Default)]
struct Rest {
    until: Option<Instant>,
    last: Duration,
    is_told: bool,
}

impl Rest {
    /// How long it is still, if it is.
    fn left(&self) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// There is no descriptor. Each rest in a row is twice as long.
    fn begin(&mut self, error: &io::Error) {
        self.last = (2 * self.last).clamp(REST_MIN, REST_MAX);
        self.until = Some(Instant::now() + self.last);
        if !self.is_told {
            self.is_told = true;
            tracing::warn!(target: "weft::meet", "connections cannot be accepted: {error}. Raise the limit (ulimit -n)");
        }
    }
}

fn noted(listener: &Arc<Listener>) -> (Noted, Arc<Listener>) {
    (Noted::new(&**listener), Arc::clone(listener))
}

fn failed(what: &str, error: &io::Error) -> BootstrapError {
    BootstrapError::System { what: format!("cannot {what}: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_stopped_is_not_gone_whatever_its_other_addresses_say() {
        let (late, silent) = (|| Tried::Connected(Broken::Late), || Tried::Silent("timed out".to_owned()));
        assert_eq!(verdict(vec![late(), Tried::Refused]), Broken::Late);
        assert_eq!(verdict(vec![Tried::Refused, silent(), late()]), Broken::Late);
        assert_eq!(verdict(vec![late(), silent()]), Broken::Late);
        assert_eq!(verdict(vec![Tried::Refused, Tried::Refused]), Broken::Refused);
        assert_eq!(
            verdict(vec![Tried::Refused, silent()]),
            Broken::Refused,
            "where a host answers, nobody listens"
        );
        assert_eq!(verdict(vec![silent(), silent()]), Broken::Unreachable("timed out".to_owned()));
        assert_eq!(verdict(vec![Tried::Refused, Tried::Connected(Broken::Another)]), Broken::Refused);
        assert_eq!(verdict(vec![Tried::Connected(Broken::Ended), Tried::Refused]), Broken::Ended);
    }
}
