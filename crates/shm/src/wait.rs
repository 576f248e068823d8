//! The one place where a rank waits, and the bounds of every wait: a deadline and an abort.
//!
//! A wait has three phases. It *spins*, polling again and again: no clock, no shared memory but what it polls, and no system
//! call except an occasional yield; while the peer is running, most waits end here. Then it *yields* its core between
//! polls. Then it *sleeps* on the futex in the low half of the line's flag, in slices that grow from 50 us to 1 ms. From the
//! second phase on every round reads the abort word and the clock, and the deadline counts from the end of the spinning.
//!
//! A wait for sockets alone spins and yields little: each poll is a system call, the message has a network to
//! cross, and the kernel ends the sleep as soon as something arrives. A wait that a line may end too, of which no socket
//! knows, polls as long as others do, and again after every slice.
//!
//! Shared lines:
//! - `abort`: word 0 is 0, or an [`AbortCode`]. The first rank to abort sets it, by compare and exchange; it never changes
//!   again, so all ranks report the same culprit. It is stored with release and loaded with acquire (`Edge::Abort`):
//!   what the aborting rank wrote before is there to be read. A fence follows the store: a rank returns from a failed call only
//!   after it, so a peer that read the caller's memory and then finds the word clear has read what the call was given.
//! - `sleepers`: word 0 is how many ranks are inside a futex, or about to be. A publisher reads it, and makes the system call
//!   that wakes only when it is not 0. It is read often and written only around sleep, so the line stays in every cache.
//!
//! **A wake can be lost, by design.** The publisher stores its flag and then loads `sleepers`; the sleeper adds
//! to `sleepers` and then the kernel compares the flag. To exclude that each misses the other, both would need a full
//! fence between the two; on the publisher's side that is some 20 ns in every message, to speed up waits that have already
//! taken a thousand times as long. Instead a sleep is bounded: a lost wake costs one slice, 1 ms at most. An abort wakes
//! no sleeper: they see it when their slice is over.
//!
//! A rank that is killed while it sleeps stays counted. From then on each wake costs a system call, and nothing else changes; the ranks
//! abandon memory of a dead rank soon after.
//!
//! A wait that stops consumes nothing, so after [`Stop::Deadline`] the same wait may be started again: a warning
//! on the way to an error is two waits.
//!
//! Deliberately absent: who died and when (the monitor thread that learns it calls [`Waiter::abort`]), and what a rank waits for.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::durations::{BRISK, SLICE_MAX, SLICE_MIN};
use crate::line::{Line, Poll};
use crate::poll_hook;
use crate::sync::{self, Edge, Ordering};

/// Polls without a pause between them. A pause takes about as long as a line takes from core to core on current x86, which is the
/// length of most waits.
const BUSY_POLLS: u32 = 32;
/// A spinning wait yields once in this many polls, some 40 us: the peer may be on the same core, until the system moves one of
/// the two.
const POLLS_PER_YIELD: u32 = 512;
/// The most polls and yields where each poll is a system call: about as long as it takes to be woken.
const SOCKET_POLLS: u32 = 200;
const SOCKET_YIELDS: u32 = 10;

/// How a rank waits, and the lines it shares with the ranks it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Waiter<'a> {
    abort: &'a Line,
    sleepers: &'a Line,
    policy: WaitPolicy,
}

/// What a wait sleeps on.
#[derive(Clone, Copy, Debug)]
pub enum Park<'a> {
    /// The line whose change ends it.
    Line(&'a Line),
    /// A descriptor that becomes readable when the wait may be over.
    Socket(std::os::fd::BorrowedFd<'a>),
    /// The same, but a line that changes may end the wait too, which the descriptor does not show.
    SocketOrLine(std::os::fd::BorrowedFd<'a>),
    /// Only time.
    Time,
}

impl Park<'_> {
    /// Whether the event itself ends the sleep.
    fn wakes(self) -> bool {
        matches!(self, Park::Line(_) | Park::Socket(_))
    }
}

/// How long each phase of a wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// Polls before the first yield, besides the very first.
    pub spins: u32,
    /// Yields before the first sleep.
    pub yields: u32,
    /// From the end of the spinning to [`Stop::Deadline`].
    pub timeout: Duration,
}

/// Why a wait failed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Stop {
    /// A rank aborted. Leave the communicator; it cannot be used again.
    #[error(
        "rank {} aborted the communicator (reason {}); leave it and make a new one", .code.rank, .code.reason
    )]
    Aborted {
        /// Who and why.
        code: AbortCode,
        /// The length of the wait, without the spinning.
        waited: Duration,
    },
    /// The deadline passed. Wait again, or abort.
    #[error("timed out after {waited:?}; the peer is stopped, stuck or slow")]
    Deadline {
        /// The length of the wait, without the spinning.
        waited: Duration,
    },
    /// The awaited rank has left the communicator. It returned or failed on its own: look there.
    #[error("rank {rank} has left the communicator")]
    Left {
        /// That rank.
        rank: u32,
    },
    /// The kernel cannot read the memory of a rank's process: it has ended, or access was withdrawn.
    #[error("the memory of rank {rank} cannot be read (error {error})")]
    Unreadable {
        /// That rank.
        rank: u32,
        /// The number of the error, as the system numbers them.
        error: i32,
    },
    /// The connection to a rank failed.
    #[error("the connection failed")]
    Broken,
    /// The peer is in another call. The ranks disagree about the order or the arguments of their calls: fix the program.
    #[error("the peer is in a call with the signature {found:#010x}, which is not this call's")]
    Mismatch {
        /// The peer's signature.
        found: u32,
    },
}

/// Who aborted, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortCode {
    /// The rank that set it.
    pub rank: u32,
    /// Its reason, as the layer above numbers them.
    pub reason: NonZeroU32,
}

impl<'a> Waiter<'a> {
    /// A waiter over the lines that all ranks of a communicator share.
    pub fn new(abort: &'a Line, sleepers: &'a Line, policy: WaitPolicy) -> Waiter<'a> {
        Waiter { abort, sleepers, policy }
    }

    /// The same waiter with another timeout.
    pub fn within(self, timeout: Duration) -> Waiter<'a> {
        self.with(WaitPolicy {
            timeout: if mutant!("timeout-of-a-call-ignored") { self.policy.timeout } else { timeout },
            ..self.policy
        })
    }

    /// The same waiter with another policy.
    pub fn with(self, policy: WaitPolicy) -> Waiter<'a> {
        Waiter { policy, ..self }
    }

    /// Its policy.
    pub fn policy(&self) -> WaitPolicy {
        self.policy
    }

    /// The same waiter, counted among its sleepers by another line.
    pub fn counted_by(self, sleepers: &'a Line) -> Waiter<'a> {
        Waiter { sleepers, ..self }
    }

    /// Waits until `poll` is ready. `on` is the line whose change makes it so.
    #[inline]
    pub fn wait(&self, on: &Line, poll: impl FnMut() -> Poll) -> Result<(), Stop> {
        self.wait_any(Some(on), poll)
    }

    /// Waits until `attempt`, which may try several things, returns [`Poll::Ready`] because one of them succeeded. It
    /// sleeps on the line `on`, or without one by time only, so that a change elsewhere is noticed within a slice.
    #[inline]
    pub fn wait_any(&self, on: Option<&Line>, attempt: impl FnMut() -> Poll) -> Result<(), Stop> {
        self.wait_with_check(on.map_or(Park::Time, Park::Line), attempt, |_| None)
    }

    /// Waits as [`Waiter::wait_any`] does. After the spin phase it also calls `check` in every round, with the time waited so
    /// far; a [`Stop`] that it returns ends the wait.
    #[inline]
    pub fn wait_with_check(
        &self,
        on: Park<'_>,
        mut attempt: impl FnMut() -> Poll,
        mut check: impl FnMut(Duration) -> Option<Stop>,
    ) -> Result<(), Stop> {
        let WaitPolicy { spins, .. } = self.policy.on(on);
        for polls in 0..=spins {
            match attempt() {
                Poll::Ready => return Ok(()),
                Poll::Pending if polls < BUSY_POLLS => {}
                Poll::Pending if polls % POLLS_PER_YIELD == POLLS_PER_YIELD - 1 => sync::yield_now(),
                Poll::Pending => sync::spin_loop(),
                Poll::Mismatch { found } => return Err(Stop::Mismatch { found }),
                Poll::Broken => return Err(Stop::Broken),
            }
        }
        self.wait_on(on, &mut attempt, &mut check)
    }

    /// Wakes ranks that sleep on `line`, which has just changed. Nearly free when none does.
    #[inline]
    pub fn wake(&self, line: &Line) {
        if self.sleepers.flag().load(Ordering::Relaxed) != 0 {
            wake_all(line);
        }
    }

    /// Aborts for all ranks, unless one already has. Returns the code that stands. What the caller writes afterwards is
    /// ordered after the abort: a rank that reads it, makes a fence and then loads the abort word finds it set.
    pub fn abort(&self, code: AbortCode) -> AbortCode {
        let exchange =
            self.abort.flag().compare_exchange(0, code.pack(), Edge::Abort.release(), Edge::Abort.acquire());
        sync::before_writing();
        match exchange {
            Ok(_) => code,
            Err(earlier) => {
                AbortCode::unpack(earlier).filter(|_| !mutant!("abort-earlier-ignored")).unwrap_or(code)
            }
        }
    }

    /// The abort code, if a rank has aborted.
    #[inline]
    pub fn aborted(&self) -> Option<AbortCode> {
        AbortCode::unpack(self.abort.flag().load(Edge::Abort.acquire()))
    }

    /// The phases after the spinning: out of line, so that the fast path stays small, and one copy for all kinds of waits.
    #[cold]
    #[inline(never)]
    fn wait_on(
        &self,
        on: Park<'_>,
        attempt: &mut dyn FnMut() -> Poll,
        check: &mut dyn FnMut(Duration) -> Option<Stop>,
    ) -> Result<(), Stop> {
        let began = Instant::now();
        let yields_max = self.policy.on(on).yields;
        let mut yields = 0;
        let mut slice = SLICE_MIN;
        loop {
            // Read before the attempt: if the line changes in between, the futex does not go to sleep.
            let seen = if let Park::Line(line) = on { line.flag().load(Ordering::Relaxed) as u32 } else { 0 };
            match attempt() {
                Poll::Ready => return Ok(()),
                Poll::Pending => {}
                Poll::Mismatch { .. } if mutant!("mismatch-ignored-in-slow-wait") => {}
                Poll::Mismatch { found } => return Err(Stop::Mismatch { found }),
                Poll::Broken => return Err(Stop::Broken),
            }
            poll_hook::poll();
            // A message that a rank published before it left or aborted counts, so poll once more.
            let waited = began.elapsed();
            let aborted = || {
                self.aborted()
                    .filter(|_| !mutant!("abort-not-seen"))
                    .map(|code| Stop::Aborted { code, waited })
            };
            if let Some(stop) = check(waited).or_else(aborted) {
                return if attempt() == Poll::Ready { Ok(()) } else { Err(stop) };
            }
            let left = self.policy.timeout.saturating_sub(waited);
            if left.is_zero() {
                // A rank that was stopped itself sees the deadline before it sees what arrived meanwhile.
                return if !mutant!("no-look-at-deadline") && attempt() == Poll::Ready {
                    Ok(())
                } else {
                    Err(Stop::Deadline { waited })
                };
            }
            if yields < yields_max {
                yields += 1;
                sync::yield_now();
            } else {
                self.sleep(on, seen, slice.min(left));
                if on.wakes() || waited >= BRISK {
                    slice = (2 * slice).min(SLICE_MAX);
                }
            }
        }
    }

    fn sleep(&self, on: Park<'_>, seen: u32, time: Duration) {
        // Relaxed: a count that is seen late is a lost wake, which the slice bounds.
        match on {
            Park::Time => sync::sleep(time),
            Park::Socket(socket) | Park::SocketOrLine(socket) => sync::sleep_on(socket, time),
            Park::Line(line) => {
                self.sleepers.flag().fetch_add(1, Ordering::Relaxed);
                sync::sleep_while(line.flag(), seen, time);
                self.sleepers.flag().fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl WaitPolicy {
    /// For ranks with a core each: spins for some hundreds of microseconds, then yields for milliseconds before it sleeps.
    /// With a fifth of the polls and a twentieth of the yields, 16 ranks on 16 cores sometimes took a hundred times their usual
    /// time for a whole measurement, each asleep when the next needed it
    /// (`bench/runs/2026-11-15-peers-early-sleep-16-core-vm`).
    pub fn dedicated(timeout: Duration) -> WaitPolicy {
        WaitPolicy { spins: 5000, yields: 2000, timeout }
    }

    /// For more ranks than cores: a waiting rank yields at once, because the rank that it waits for may need its core.
    pub fn crowded(timeout: Duration) -> WaitPolicy {
        WaitPolicy { spins: 0, yields: 20, timeout }
    }
}

impl WaitPolicy {
    /// The policy for what the wait sleeps on.
    #[inline]
    fn on(self, on: Park<'_>) -> WaitPolicy {
        let WaitPolicy { spins, yields, timeout } = self;
        match on {
            Park::Socket(_) => {
                WaitPolicy { spins: spins.min(SOCKET_POLLS), yields: yields.min(SOCKET_YIELDS), timeout }
            }
            Park::Line(_) | Park::SocketOrLine(_) | Park::Time => self,
        }
    }
}

impl AbortCode {
    fn pack(self) -> u64 {
        u64::from(if mutant!("abort-forgets-rank") { 0 } else { self.rank }) << 32
            | u64::from(self.reason.get())
    }

    fn unpack(bits: u64) -> Option<AbortCode> {
        NonZeroU32::new(bits as u32).map(|reason| AbortCode { rank: (bits >> 32) as u32, reason })
    }
}

#[cold]
#[inline(never)]
fn wake_all(line: &Line) {
    sync::wake_all(line.flag());
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::counter::Counter;

    const LONG: Duration = Duration::from_secs(100);

    fn code(rank: u32, reason: u32) -> AbortCode {
        AbortCode { rank, reason: NonZeroU32::new(reason).unwrap() }
    }

    fn aborted_by(waited: Result<(), Stop>) -> AbortCode {
        match waited {
            Err(Stop::Aborted { code, .. }) => code,
            other => panic!("{other:?}"),
        }
    }

    /// Policies from the longest phases to the shortest: all waits must end alike.
    fn policies(timeout: Duration) -> [WaitPolicy; 3] {
        [
            WaitPolicy::dedicated(timeout),
            WaitPolicy::crowded(timeout),
            WaitPolicy { spins: 0, yields: 0, timeout },
        ]
    }

    #[test]
    fn satisfied_waits_return_at_once() {
        let (abort, sleepers) = (Line::new(), Line::new());
        let waiter =
            Waiter::new(&abort, &sleepers, WaitPolicy { spins: 0, yields: 0, timeout: Duration::ZERO });
        let mut looks = 0;
        let ready = waiter.wait(&Line::new(), || {
            looks += 1;
            Poll::Ready
        });
        assert_eq!((ready, looks), (Ok(()), 1));
        let mismatch = waiter.wait_any(None, || Poll::Mismatch { found: 7 });
        assert_eq!(mismatch, Err(Stop::Mismatch { found: 7 }));
    }

    #[test]
    fn deadlines_end_every_phase() {
        let (abort, sleepers, line) = (Line::new(), Line::new(), Line::new());
        let timeout = Duration::from_millis(5);
        for patience in policies(timeout) {
            let waiter = Waiter::new(&abort, &sleepers, patience);
            for on in [Some(&line), None] {
                match waiter.wait_any(on, || Poll::Pending) {
                    Err(Stop::Deadline { waited }) => assert!(waited >= timeout),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(sleepers.flag().load(Ordering::Relaxed), 0);
    }

    #[test]
    fn messages_that_arrived_while_the_rank_was_stopped_count() {
        let (abort, sleepers, line) = (Line::new(), Line::new(), Line::new());
        let timeout = Duration::from_millis(5);
        let waiter = Waiter::new(&abort, &sleepers, WaitPolicy { spins: 0, yields: 0, timeout });
        let mut looks = 0;
        let waited = waiter.wait(&line, || {
            looks += 1;
            // The second poll is the first with a deadline.
            match looks {
                1 => Poll::Pending,
                2 => {
                    std::thread::sleep(2 * timeout);
                    Poll::Pending
                }
                _ => Poll::Ready,
            }
        });
        assert_eq!((waited, looks), (Ok(()), 3));
    }

    #[test]
    fn mismatches_end_every_phase() {
        let (abort, sleepers, line) = (Line::new(), Line::new(), Line::new());
        for patience in policies(LONG) {
            let WaitPolicy { spins, yields, .. } = patience;
            for looks in [0, spins, spins + 1, spins + yields, spins + yields + 3] {
                let mut left = looks;
                let waited = Waiter::new(&abort, &sleepers, patience).wait(&line, || {
                    if left == 0 {
                        return Poll::Mismatch { found: 3 };
                    }
                    left -= 1;
                    Poll::Pending
                });
                assert_eq!(waited, Err(Stop::Mismatch { found: 3 }));
            }
        }
    }

    #[test]
    fn the_first_abort_stands() {
        let (abort, sleepers, line) = (Line::new(), Line::new(), Line::new());
        let waiter = Waiter::new(&abort, &sleepers, WaitPolicy::crowded(LONG));
        assert_eq!(waiter.aborted(), None);
        assert_eq!(waiter.abort(code(0, 5)), code(0, 5));
        assert_eq!(waiter.abort(code(2, 6)), code(0, 5));
        assert_eq!(waiter.aborted(), Some(code(0, 5)));
        assert_eq!(aborted_by(waiter.wait(&line, || Poll::Pending)), code(0, 5));
        assert_eq!(waiter.wait(&line, || Poll::Ready), Ok(()), "what is there is there");
    }

    #[test]
    fn an_abort_reaches_sleepers() {
        let (abort, sleepers, line) = (Line::new(), Line::new(), Line::new());
        std::thread::scope(|scope| {
            for patience in policies(LONG) {
                let waiter = Waiter::new(&abort, &sleepers, patience);
                let line = &line;
                scope.spawn(move || {
                    assert_eq!(aborted_by(waiter.wait(line, || Poll::Pending)), code(1, 9));
                });
            }
            while sleepers.flag().load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            Waiter::new(&abort, &sleepers, WaitPolicy::crowded(LONG)).abort(code(1, 9));
        });
    }

    #[test]
    fn sleepers_wake_when_the_line_changes() {
        let (abort, sleepers, line) = (Line::new(), Line::new(), Line::new());
        let waiter = Waiter::new(&abort, &sleepers, WaitPolicy { spins: 0, yields: 0, timeout: LONG });
        let counter = Counter::new(&line);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(waiter.wait(&line, || counter.poll(1, 1, 1)), Ok(())));
            }
            while sleepers.flag().load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            waiter.wake(counter.publish(1, 1));
        });
        assert_eq!(sleepers.flag().load(Ordering::Relaxed), 0);
    }

    #[test]
    fn errors_name_the_rank_and_the_next_step() {
        let aborted = Stop::Aborted { code: code(2, 4), waited: Duration::ZERO };
        assert_eq!(
            aborted.to_string(),
            "rank 2 aborted the communicator (reason 4); leave it and make a new one"
        );
        let mismatch = Stop::Mismatch { found: 0xab };
        assert!(mismatch.to_string().contains("0x000000ab"));
    }
}
