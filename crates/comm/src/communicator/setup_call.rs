//! Calls of all ranks that run no plan: they allocate shared memory or exchange a few bytes through the bootstrap.

use std::time::Duration;

use weftlink_bootstrap::{BlameKind, Bootstrap, BootstrapError, Failure, Reason, is_on_purpose};
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
    /// Allocates memory with all ranks. Ranks that make another call instead get an error that shows both calls.
    pub(super) fn share(&mut self, header: Header, bytes: usize) -> Result<SharedMemory, Error> {
        self.setup_call(header, bytes, |bootstrap, purpose, deadline, ended| {
            bootstrap.share_unless_ended(purpose, bytes, deadline, ended)
        })
    }

    /// Exchanges bytes with all ranks.
    pub(super) fn exchange_all(&mut self, header: Header, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.setup_call(header, 0, |bootstrap, purpose, deadline, ended| {
            bootstrap.exchange_unless_ended(purpose, mine, deadline, ended)
        })
    }

    /// Runs `work` with all ranks, as a call of its own.
    fn setup_call<T>(
        &mut self,
        header: Header,
        bytes: usize,
        work: impl FnOnce(&mut Bootstrap, &str, Duration, Option<Waiter<'static>>) -> Result<T, BootstrapError>,
    ) -> Result<T, Error> {
        self.calls = self.calls.wrapping_add(1);
        let number = self.calls;
        let call = Call::without_buffers(&header, number, &Collective::Barrier);
        // The next call must not take the last one for its own.
        self.current.forget();
        self.shared.recorder.describe(number, &header, bytes as u64, None);
        self.shared.recorder.begin(number);
        if let Err((stop, rank)) = self.shared.look_back(number) {
            let stopped = Stopped { stop, step: None, waiting: Waiting::Entered { rank } };
            return Err(self.fail(&call, &stopped, [None; 2]));
        }
        self.shared.announce(self.rank, number, call.signature, &header.pack());
        // All ranks must pass the same purpose, so it leaves out what may differ within a call.
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
                _ if is_on_purpose(&self.shared.waiter) => self.cancelled(number),
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

    /// Turns a bootstrap's mismatch into that of a call. Ranks compare their purposes in pairs, so the rank to show is the one of the
    /// two whose purpose is not this rank's.
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
        let other = self.bootstrap.blame(other.rank as u32, BlameKind::Differs);
        Error::Mismatch { call, rank: self.rank as u32, mine, other, theirs }
    }
}
