//! The monitor thread: it polls listeners, links, processes and timers, and never blocks on a socket.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use weftlink_membership::Input;
use weftlink_membership::durations::{HELLO, HELLO_WITHOUT_THREAD};
use weftlink_shm::limits::{self, STACK_BYTES};

use super::{Inner, State, abort};
use crate::address::Listener;
use crate::broken::{ANOTHER, Broken, does_not_check};
use crate::channel::Channel;
use crate::deadline::Deadline;
use crate::group::{Group, Link};
use crate::message::{Introduction, Message};
use crate::pending::{PendingConnection, PendingConnections};

/// The first pause after a connection could not be accepted for lack of a descriptor, and the longest.
const REST_MIN: Duration = Duration::from_millis(20);
const REST_MAX: Duration = Duration::from_secs(1);
/// Connections accepted in a row before other work is done.
const ACCEPTED_MAX: usize = 64;
/// The most accepted connections that may wait for the rank.
const ARRIVALS_MAX: usize = 8192;

impl Inner {
    pub(super) fn run(self: &Arc<Self>) {
        let mut pending = PendingConnections::new(self.limits);
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
                let writable =
                    if link.channel.wants_to_write() { PollFlags::OUT } else { PollFlags::empty() };
                watched.push(PollFd::new(&link.channel, PollFlags::IN | writable));
                // Every link has two places; one whose process cannot be watched has its connection twice.
                let process = link.process.as_ref().map_or(link.channel.as_fd(), AsFd::as_fd);
                watched.push(PollFd::from_borrowed_fd(process, PollFlags::IN));
            }
            // A helper that is done wakes us; until then nobody else can be heard.
            let silent = pending.silent().filter(|_| has_helpers);
            watched.extend(silent.map(|connection| PollFd::from_borrowed_fd(connection, PollFlags::IN)));
            // No group is held while this thread sleeps: one that was dropped must be gone for others too.
            let time = {
                let groups: Vec<Arc<Group>> = self.state().groups.iter().filter_map(Weak::upgrade).collect();
                groups.iter().filter_map(|group| group.state().core.next_timeout()).min()
            };
            let time = time.map(|when| when.saturating_duration_since(Instant::now()));
            let tick = if has_helpers { pending.tick(HELLO) } else { None };
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
                self.accept_from(listener, &mut pending, &mut rest);
            }
            while self.has_helpers(&self.state())
                && let Some(connection) = pending.next(HELLO)
            {
                self.help(connection);
            }
            for (places, (link, group)) in happened[1 + listeners.len()..].chunks_exact(2).zip(&links) {
                if places.contains(&true) {
                    let process_ended = places[1] && link.process.is_some();
                    self.read_link(link, group, process_ended);
                }
            }
            self.update_groups();
        }
    }

    /// Handles timeouts of groups, carries out their actions, and forgets processes that need not be watched any more.
    fn update_groups(self: &Arc<Self>) {
        let groups: Vec<Arc<Group>> = self.state().groups.iter().filter_map(Weak::upgrade).collect();
        for group in groups {
            let timeout = group.state().core.next_timeout();
            if timeout.is_some_and(|when| when <= Instant::now()) {
                group.drive(Input::Timeout);
            }
            self.carry_out(&group);
        }
        let is_needed = |link: &Link, group: &Weak<Group>| {
            let group = group.upgrade().filter(|_| link.process.is_some());
            group.is_some_and(|group| group.state().core.is_watching(link.rank))
        };
        let ended = |link: &Link| link.has_ended.load(Ordering::Relaxed);
        self.state().links.retain(|(link, group)| !ended(link) || is_needed(link, group));
    }

    /// Accepts the connections that wait at a listener.
    fn accept_from(&self, listener: &Listener, pending: &mut PendingConnections, rest: &mut Rest) {
        for _ in 0..ACCEPTED_MAX {
            match listener.accept(self.token.is_guessable()) {
                Ok(socket) => {
                    rest.last = Duration::ZERO;
                    pending.enter(socket);
                }
                Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::INTR | Errno::CONNABORTED) => {}
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        // A connection that has not sent enough makes room for the next.
                        if !pending.evict() {
                            return rest.begin(&error);
                        }
                    }
                    _ => return,
                },
            }
        }
    }

    /// Whether a helper is free for one more connection.
    fn has_helpers(&self, state: &State) -> bool {
        state.helpers < self.limits.helpers && state.arrivals.len() < ARRIVALS_MAX
    }

    /// Watches a link of a group.
    pub(crate) fn watch(self: &Arc<Self>, link: &Arc<Link>, group: &Arc<Group>) {
        link.channel.set_wake(&self.wake);
        // Bytes that were read ahead with an earlier message are here already, and poll does not report them.
        self.read_link(link, &Arc::downgrade(group), false);
        let is_watching = || group.state().core.is_watching(link.rank);
        if !link.has_ended.load(Ordering::Relaxed) || is_watching() {
            self.state().links.push((Arc::clone(link), Arc::downgrade(group)));
        }
    }

    /// Reads the messages of a neighbour, and notices that it is gone.
    fn read_link(self: &Arc<Self>, link: &Arc<Link>, group: &Weak<Group>, process_ended: bool) {
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
        self.carry_out(&group);
    }

    /// Has a helper thread serve a connection.
    fn help(self: &Arc<Self>, connection: PendingConnection) {
        self.state().helpers += 1;
        let inner = Arc::clone(self);
        let helper = std::thread::Builder::new().name("weft-helper".to_owned()).stack_size(STACK_BYTES);
        let shared = Arc::new(Mutex::new(Some(connection)));
        let take = |shared: &Mutex<Option<PendingConnection>>| {
            shared.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let taken = Arc::clone(&shared);
        let started = helper
            .spawn(move || take(&taken).into_iter().for_each(|connection| inner.serve(connection, HELLO)));
        // Where there is no thread for it, this one does it. It has said enough to be answered, so that takes a moment.
        if let Err(error) = started
            && let Some(connection) = take(&shared)
        {
            static LOGGED: Once = Once::new();
            LOGGED.call_once(|| tracing::warn!(target: "weft::meet", "{}", limits::no_thread(&error)));
            self.serve(connection, HELLO_WITHOUT_THREAD);
        }
    }

    /// Does the handshake of a new connection and takes its introduction.
    pub(super) fn serve(self: &Arc<Self>, connection: PendingConnection, limit: Duration) {
        let deadline = Deadline::new(limit);
        let heard =
            Channel::answer(connection.socket, &connection.challenge, &self.token, &self.name, deadline)
                .and_then(|channel| Ok((channel.receive(deadline)?.0, channel)));
        let mut state = self.state();
        state.helpers -= 1;
        match heard {
            Ok((Message::Introduction(Introduction::Probe), _)) => {}
            Ok((Message::Introduction(Introduction::Orphan { group: id, from }), channel)) => {
                let group = state.groups.iter().filter_map(Weak::upgrade).find(|one| one.id == id);
                let gone = state.left.iter().find(|(left, _)| *left == id).map(|(_, gone)| *gone);
                // Counts as a helper until the orphan has confirmed.
                state.helpers += 1;
                drop(state);
                match group {
                    // Without a thread of its own this must not wait for another process; the orphan retries.
                    Some(group) if limit >= HELLO => self.take_in(&group, from, channel, deadline),
                    _ => {
                        let _ = channel.send(&Message::NotInGroup { gone }, None, deadline);
                    }
                }
                self.state().helpers -= 1;
                return self.helper_done();
            }
            Ok((Message::Introduction(Introduction::Join(_)), _)) if !state.is_admitting => {}
            Ok((Message::Introduction(Introduction::Link { group, .. }), _))
                if state.abandoned.contains(&group) => {}
            Ok((Message::Introduction(introduction), channel)) => {
                if let Some(answer) = state.answer_to(&introduction) {
                    drop(state);
                    abort(&channel, answer);
                    return self.helper_done();
                }
                state.arrive(introduction, channel);
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
        self.helper_done();
    }

    /// A helper is done; connections may have waited for it.
    fn helper_done(&self) {
        self.changed.notify_all();
        self.wake();
    }
}

/// How long nobody is let in, because there is no descriptor for one.
#[derive(Debug, Default)]
struct Rest {
    until: Option<Instant>,
    last: Duration,
    has_warned: bool,
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
        if !self.has_warned {
            self.has_warned = true;
            tracing::warn!(target: "weft::meet", "connections cannot be accepted: {error}. Raise the limit (ulimit -n)");
        }
    }
}
