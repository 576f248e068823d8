//! Runs a call on its engine.

// Hands the caller's buffers to the engine, which takes addresses.
#![allow(unsafe_code)]

use std::time::Duration;

use weftlink_recorder::waiting::Waiting;
use weftlink_shm::wait::Stop;

use super::Communicator;
use super::announce::Announced;
use super::choose::Chosen;
use super::finish::finish_result;
use crate::buffers::ORDINARY;
use crate::engine::{Stopped, Tracer};
use crate::failure::{Unfinished, code_of, reached, windows_of};
use crate::operation::Arithmetic;
use crate::request::CallArgs;
use crate::shared::Shared;
use crate::symmetric::{TakenBack, Using};

impl Communicator {
    /// Runs a call on the chosen engine.
    #[inline(always)]
    pub(super) fn run_engine(
        &mut self,
        request: &CallArgs<'_>,
        announced: Announced,
        arithmetic: &Arithmetic<'_>,
        chosen: Chosen,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        if !chosen.is_again {
            return self.run_guarded(request, announced, arithmetic, chosen.engine, tracer);
        }
        let call = self.current.call(request.collective, announced, arithmetic);
        let engine = &mut self.engines[chosen.engine];
        // Peers do not access the buffers, and no code of the caller's runs.
        // SAFETY: as below; the call repeats one that was checked.
        unsafe { engine.run(&mut self.ports, &self.shared, &call, tracer) }?;
        finish_result(&self.current, request.collective, (self.rank, self.size));
        Ok(())
    }

    /// The same for a call that may panic, or whose buffers peers may access: a panic aborts it on all ranks.
    #[inline(always)]
    fn run_guarded(
        &mut self,
        request: &CallArgs<'_>,
        announced: Announced,
        arithmetic: &Arithmetic<'_>,
        engine: usize,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        let call = self.current.call(request.collective, announced, arithmetic);
        let engine = &mut self.engines[engine];
        let unfinished = Unfinished {
            rank: self.rank,
            identity: self.identity,
            shared: &self.shared,
            windows: &self.windows,
            reached: reached(engine, call.header),
            bootstrap: &mut self.bootstrap,
            failed: &mut self.failed,
        };
        let mut run = || {
            // SAFETY: the buffers are borrowed for the call and hold this rank's blocks, as `fit` checked; a pair of borrows
            // cannot overlap, and the plan claims their aliasing, as checked. If the call does not end well, peers may still
            // use them when the borrow is over; those that peers can reach are taken back before, by `abort` or by `unfinished`. Those that
            // they read through the kernel need not be: the abort word is set before, and readers look at it after they have read.
            unsafe { engine.run(&mut self.ports, &self.shared, &call, tracer) }?;
            finish_result(&self.current, request.collective, (self.rank, self.size));
            Ok(())
        };
        let ran = match request.buffers.owner != ORDINARY {
            false => run(),
            true => Using::windows(&self.windows, windows_of(call.header), &self.shared.waiter, run)
                .unwrap_or_else(|TakenBack| Err(taken_back(&self.shared, self.rank))),
        };
        std::mem::forget(unfinished);
        ran
    }
}

/// Why a call stopped whose window was taken back by a call of another communicator, which has aborted this one.
#[cold]
fn taken_back(shared: &Shared, rank: usize) -> Box<Stopped> {
    let stop = Stop::Aborted { code: code_of(shared, rank), waited: Duration::ZERO };
    Box::new(Stopped { stop, step: None, waiting: Waiting::Anything })
}
