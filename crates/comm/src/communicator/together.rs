//! What all ranks do together outside of plans, as a call of its own: allocate memory, exchange a few bytes.

use std::time::Duration;

use weftlink_bootstrap::{Bootstrap, BootstrapError, Failure, Reason, is_on_purpose};
use weftlink_plan::Collective;
use weftlink_recorder::header::Header;
use weftlink_recorder::waiting::Waiting;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::Waiter;

use super::Communicator;
use crate::engine::Stopped;
use crate::error::Error;
use crate::shared::Call;

impl Communicator {
    /// Allocates memory with all ranks, as a call of its own. Ranks that make another call are told of each other, wherever
    /// they wait.
    pub(super) fn share(&mut self, header: Header, bytes: usize) -> Result<SharedMemory, Error> {
        self.together(header, bytes, |bootstrap, purpose, deadline, ended| {
            bootstrap.share_unless_ended(purpose, bytes, deadline, ended)
        })
    }

    /// All ranks say something and hear what all say, in the same way.
    pub(super) fn hear_all(&mut self, header: Header, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.together(header, 0, |bootstrap, purpose, deadline, ended| {
            bootstrap.exchange_unless_ended(purpose, mine, deadline, ended)
        })
    }

    /// Does something with all ranks, as a call of its own.
    fn together<T>(
        &mut self,
        header: Header,
        bytes: usize,
        work: impl FnOnce(&mut Bootstrap, &str, Duration, Option<Waiter<'static>>) -> Result<T, BootstrapError>,
    ) -> Result<T, Error> {
        self.calls = self.calls.wrapping_add(1);
        let number = self.calls;
        let call = Call::without_buffers(&header, number, &Collective::Barrier);
        // What was described last is no longer what the next call is.
        self.current.forget();
        self.shared.recorder.describe(number, &header, bytes as u64, None);
        self.shared.recorder.begin(number);
        if let Err((stop, rank)) = self.shared.look_back(number) {
            let stopped = Stopped { stop, step: None, waiting: Waiting::Entered { rank } };
            return Err(self.fail(&call, &stopped, [None; 2]));
        }
        self.shared.announce(self.rank, number, call.signature, &header.pack());
        // All ranks say the same, so what differs between ranks of one call is left out.
        let count = if header.uneven { 0 } else { header.count };
        let purpose = format!("weft: call #{number}, {}", Header { count, ..header });
        let ended = Some(self.shared.waiter);
        let began_ns = self.shared.recorder.wait_for_memory_begins(number);
        let shared = work(&mut self.bootstrap, &purpose, self.options.deadline, ended);
        self.shared.recorder.wait_ends(began_ns, 1, shared.is_ok());
        let shared = shared.map_err(|error| {
            let first = self.shared.waiter.abort(Reason::of(&error, self.rank as u32));
            if Reason::is(first, Reason::Mismatch) {
                self.compare(&call);
            }
            let error = match (self.mismatch(&call), Reason::is(first, Reason::Died)) {
                _ if is_on_purpose(&self.shared.waiter) => self.ended(number),
                (Some(mismatch), _) => mismatch,
                (None, true) => self.died(&call, first.rank, Duration::ZERO),
                (None, false) => self.differing(number, &purpose, error),
            };
            self.note_failure(Failure::from(&error));
            error
        })?;
        self.shared.recorder.end_timed();
        Ok(shared)
    }

    /// An error of ranks that did something together, as a call that differs if it is that. Ranks compare what they do in pairs, so the
    /// rank to show is the one of the two that does not do what this one does.
    fn differing(&self, call: u32, purpose: &str, error: BootstrapError) -> Error {
        let BootstrapError::Mismatch { one, other } = &error else { return error.into() };
        let other = match (one.purpose == purpose, other.purpose == purpose) {
            (true, false) => other,
            (false, true) => one,
            _ => return error.into(),
        };
        let described = |purpose: &str| {
            let of_call = purpose.strip_prefix(&format!("weft: call #{call}, "));
            of_call.unwrap_or(purpose.trim_start_matches("weft: ")).to_owned()
        };
        let (mine, theirs) = (described(purpose), described(&other.purpose));
        Error::Mismatch { call, rank: self.rank as u32, mine, other: other.rank as u32, theirs }
    }
}
