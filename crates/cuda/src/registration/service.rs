//! A thread for each rank that maps memory of ranks in other processes at their request, and receives the answers to its own rank's
//! requests. It needs no other thread of the process: the calling thread may be in a call, or in a capture.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use weftlink_bootstrap::{LinkEnded, RankLink};
use weftlink_shm::poll_hook;

use super::message::{Message, Part};

/// How long a wait may take until it looks for a poll hook.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the thread does with requests.
pub(crate) trait Handler {
    /// Maps a part of a rank's memory and returns its address here.
    fn map(&mut self, owner: usize, part: &Part, descriptor: Option<BorrowedFd<'_>>) -> Result<u64, String>;
    /// Releases parts of a rank's memory.
    fn release(&mut self, owner: usize, ids: &[u64]);
}

/// Why peers did not map a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapError {
    /// A peer cannot.
    Refused(String),
    /// A peer does not answer.
    Lost(String),
}

/// The links of a rank to ranks in other processes, and the thread that reads them.
#[derive(Debug)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    links: Vec<RankLink>,
    /// An eventfd that wakes the thread.
    wake: Arc<OwnedFd>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many requests were made.
    requests: u64,
    /// Requests without an answer, and answers that no thread has taken.
    answers: HashMap<u64, Option<Result<u64, String>>>,
    /// Whether each link has ended.
    has_ended: Vec<bool>,
    is_stopped: bool,
}

impl Service {
    /// Starts the thread, which makes the handler itself.
    pub(crate) fn start<H: Handler>(
        links: Vec<RankLink>,
        handler: impl FnOnce() -> H + Send + 'static,
    ) -> Result<Service, String> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|why| format!("cannot create an eventfd: {why}"))?;
        let wake = Arc::new(wake);
        links.iter().for_each(|link| link.set_wake(&wake));
        let state = State { has_ended: vec![false; links.len()], ..State::default() };
        let shared = Arc::new(Shared { links, wake, state: Mutex::new(state), changed: Condvar::new() });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("weft-gpu-maps".to_owned())
            .spawn(move || {
                let _ended = Ended(&served);
                served.serve(&mut handler());
            })
            .map_err(|why| format!("cannot start a thread: {why}"))?;
        Ok(Service { shared, thread: Some(thread) })
    }

    /// The ranks at the other ends.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> {
        self.shared.links.iter().map(RankLink::rank)
    }

    /// Has all peers map parts. Returns their addresses: for each part, one for each peer.
    pub(crate) fn map(
        &self,
        parts: &[(Part, Option<OwnedFd>)],
        timeout: Duration,
    ) -> Result<Vec<Vec<u64>>, MapError> {
        let mut pending = Pending { shared: &self.shared, numbers: Vec::new() };
        for (part, descriptor) in parts {
            for (peer, link) in self.shared.links.iter().enumerate() {
                let number = pending.add(peer);
                let message =
                    encoded(&Message::Map { number, part: part.clone() }).map_err(MapError::Lost)?;
                let posted = link.post(message, descriptor.as_ref().map(AsFd::as_fd));
                posted.map_err(|LinkEnded| self.shared.lost(peer))?;
            }
        }
        let answers = pending.wait(timeout)?;
        Ok(answers.chunks(self.shared.links.len().max(1)).map(<[u64]>::to_vec).collect())
    }

    /// Lets all peers unmap parts.
    pub(crate) fn release(&self, ids: &[u64]) -> Result<(), String> {
        let message = encoded(&Message::Release { ids: ids.to_vec() })?;
        // A peer that has left needs no release.
        for link in &self.shared.links {
            let _ = link.post(message.clone(), None);
        }
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.state().is_stopped = true;
        let _ = rustix::io::write(&*self.shared.wake, &1_u64.to_ne_bytes());
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::warn!(target: "weft::fault", "the thread that maps memory of other processes panicked");
        }
    }
}

/// When it is dropped, by a panic too, no answer comes any more.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        (0..self.0.links.len()).for_each(|peer| self.0.end(peer));
    }
}

/// Requests that wait for answers, forgotten when it is dropped.
struct Pending<'a> {
    shared: &'a Shared,
    /// With the peer of each.
    numbers: Vec<(u64, usize)>,
}

impl Pending<'_> {
    fn add(&mut self, peer: usize) -> u64 {
        let mut state = self.shared.state();
        state.requests += 1;
        let number = state.requests;
        state.answers.insert(number, None);
        self.numbers.push((number, peer));
        number
    }

    /// Waits for all answers.
    fn wait(&self, timeout: Duration) -> Result<Vec<u64>, MapError> {
        let begin = Instant::now();
        let mut state = self.shared.state();
        loop {
            let open =
                self.numbers.iter().filter(|(number, _)| matches!(state.answers.get(number), Some(None)));
            let mut open: Vec<usize> = open.map(|(_, peer)| *peer).collect();
            open.dedup();
            if let Some(&peer) = open.iter().find(|peer| state.has_ended[**peer]) {
                drop(state);
                return Err(self.shared.lost(peer));
            }
            if open.is_empty() {
                break;
            }
            let Some(left) = timeout.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                open.sort_unstable();
                open.dedup();
                let ranks: Vec<usize> = open.iter().map(|peer| self.shared.links[*peer].rank()).collect();
                let ranks = weftlink_bootstrap::list(&ranks);
                return Err(MapError::Lost(format!(
                    "timed out after {:.1} s waiting for {ranks} to map a buffer of this rank",
                    timeout.as_secs_f64()
                )));
            };
            let time = poll_hook::at_most(left.min(LOOK_EVERY));
            drop(self.shared.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner));
            poll_hook::poll();
            state = self.shared.state();
        }
        let mut addresses = Vec::with_capacity(self.numbers.len());
        for (number, peer) in &self.numbers {
            let rank = self.shared.links[*peer].rank();
            match state.answers.remove(number).flatten() {
                Some(Ok(address)) => addresses.push(address),
                Some(Err(why)) => {
                    return Err(MapError::Refused(format!(
                        "rank {rank} cannot map a buffer of this rank: {why}"
                    )));
                }
                None => return Err(MapError::Lost(format!("the request to rank {rank} is lost"))),
            }
        }
        Ok(addresses)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        for (number, _) in &self.numbers {
            state.answers.remove(number);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a peer does not answer.
    fn lost(&self, peer: usize) -> MapError {
        MapError::Lost(self.links[peer].failure().to_string())
    }

    fn serve(&self, handler: &mut impl Handler) {
        let mut open: Vec<usize> = (0..self.links.len()).collect();
        loop {
            let flags = |link: &RankLink| match link.wants_to_write() {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            let links = open.iter().map(|peer| &self.links[*peer]);
            let mut sources: Vec<PollFd<'_>> = vec![PollFd::new(&*self.wake, PollFlags::IN)];
            sources.extend(links.map(|link| PollFd::new(link, flags(link))));
            let polled = poll(&mut sources, None);
            let ready: Vec<bool> =
                sources.iter().skip(1).map(|source| !source.revents().is_empty()).collect();
            drop(sources);
            if let Err(why) =
                polled.map(|_| ()).or_else(|why| if why == Errno::INTR { Ok(()) } else { Err(why) })
            {
                tracing::error!(target: "weft::fault", "cannot wait for requests of other processes: {why}");
                return;
            }
            // Its count is of no interest.
            let _ = rustix::io::read(&*self.wake, &mut [0_u8; 8]);
            if self.state().is_stopped {
                return;
            }
            let mut is_ready = ready.into_iter();
            open.retain(|peer| {
                let goes_on = !is_ready.next().unwrap_or(false) || self.attend(*peer, handler).is_ok();
                if !goes_on {
                    self.end(*peer);
                }
                goes_on
            });
        }
    }

    /// Reads and writes what a link is ready for.
    fn attend(&self, peer: usize, handler: &mut impl Handler) -> Result<(), LinkEnded> {
        let link = &self.links[peer];
        let (parcels, more) = link.receive_ready();
        for (bytes, descriptor) in parcels {
            match postcard::from_bytes(&bytes) {
                Ok(Message::Map { number, part }) => {
                    let address = handler.map(link.rank(), &part, descriptor.as_ref().map(AsFd::as_fd));
                    let Ok(answer) = encoded(&Message::Mapped { number, address }) else { continue };
                    link.post(answer, None)?;
                }
                Ok(Message::Mapped { number, address }) => {
                    // The caller may have given up; then its request is gone.
                    if let Some(answer) = self.state().answers.get_mut(&number) {
                        *answer = Some(address);
                    }
                    self.changed.notify_all();
                }
                Ok(Message::Release { ids }) => handler.release(link.rank(), &ids),
                Err(why) => {
                    tracing::error!(target: "weft::fault", "rank {} sent an unreadable message: {why}", link.rank());
                    return Err(LinkEnded);
                }
            }
        }
        more?;
        if link.wants_to_write() { link.flush() } else { Ok(()) }
    }

    fn end(&self, peer: usize) {
        self.state().has_ended[peer] = true;
        self.changed.notify_all();
    }
}

fn encoded(message: &Message) -> Result<Vec<u8>, String> {
    postcard::to_stdvec(message).map_err(|why| format!("cannot write a message: {why}"))
}
