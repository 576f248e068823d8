//! What goes wrong: ranks are killed and stopped, leave and abort; connections fail.

use std::time::Duration;

use weftlink_p2p::durations::DEATH_VERDICT;

use super::{DELAYS_US, Happens, Life, World};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    Kill(usize),
    Leave(usize),
    Abort(usize),
    Stop(usize, Duration),
    /// The connection between two ranks fails, by wrong bytes or without.
    Cut(usize, usize, bool),
}

/// Why the communicator ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Died(usize),
    Aborted(usize),
    TimedOut(usize),
}

impl World {
    /// A rank sets the abort word of its host; the others hear of it later.
    pub(super) fn abort(&mut self, rank: usize, cause: Cause) {
        let here = self.host(rank);
        self.ends[here].get_or_insert(cause);
        self.wake_host(here);
        let cause = self.ends[here].unwrap_or(cause);
        for host in (0..self.shape.hosts).filter(|host| *host != here).collect::<Vec<_>>() {
            self.after_delay(Happens::Ended(host, cause));
        }
    }

    pub(super) fn begin_fault(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Kill(rank) if matches!(self.nodes[rank].life, Life::Runs | Life::Stopped) => {
                self.nodes[rank].life = Life::Dead;
                // Its neighbours notice, well before anybody reports a symptom.
                let notice = DEATH_VERDICT.as_micros() as u64 / 2;
                for host in 0..self.shape.hosts {
                    let delay = Duration::from_micros(1 + self.random.below(notice));
                    self.queue.at(self.queue.now() + delay, Happens::Ended(host, Cause::Died(rank)));
                }
                for peer in 0..self.shape.size {
                    self.disconnect(rank, peer, self.random.0.is_multiple_of(2));
                }
            }
            Fault::Leave(rank) if self.nodes[rank].life == Life::Runs => {
                // Messages that the sender believes sent are handed over first.
                self.turn(rank)?;
                self.nodes[rank].life = Life::Left;
                self.nodes[rank].protocol.end();
                self.finish(rank)?;
                let here = self.host(rank);
                self.departed[here].insert(rank);
                self.wake_host(here);
                for host in (0..self.shape.hosts).filter(|host| *host != here) {
                    self.after_delay(Happens::Departed(host, rank));
                }
                for peer in 0..self.shape.size {
                    self.disconnect(rank, peer, false);
                }
            }
            Fault::Abort(rank) if self.nodes[rank].life == Life::Runs => {
                self.abort(rank, Cause::Aborted(rank));
            }
            Fault::Stop(rank, time) if self.nodes[rank].life == Life::Runs => {
                self.nodes[rank].life = Life::Stopped;
                self.queue.at(self.queue.now() + time, Happens::Resume(rank));
            }
            Fault::Cut(one, other, is_corrupt) if self.host(one) != self.host(other) => {
                for (from, to) in [(one, other), (other, one)] {
                    let now = self.queue.now();
                    let link = self.link(from, to);
                    link.is_cut = true;
                    link.frames.retain(|(.., at)| *at <= now);
                    self.after_delay(Happens::Failed(to, from, is_corrupt));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The connection of a rank whose process ends is closed after its frames, or loses what is in flight.
    fn disconnect(&mut self, rank: usize, peer: usize, loses: bool) {
        if self.host(rank) == self.host(peer) {
            return;
        }
        let now = self.queue.now();
        let link = self.link(rank, peer);
        link.is_cut = true;
        if loses {
            link.frames.retain(|(.., at)| *at <= now);
        }
        let last = link.frames.back().map_or(now, |(.., at)| *at).max(now);
        let delay = self.random.delay(&DELAYS_US);
        self.link(peer, rank).is_cut = true;
        self.queue.at(last + delay, Happens::Failed(peer, rank, false));
    }
}
