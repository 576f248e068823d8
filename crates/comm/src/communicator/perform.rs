//! The path of a request, from the caller's buffers to the result. [`Communicator::perform`] is all of it; each stage is a file:
//!
//! | stage | file | what it does |
//! |---|---|---|
//! | check | `check.rs` | refuses invalid calls, lays out buffers, finds engines; nothing has been announced |
//! | announce | `announce.rs` | numbers the call and publishes its header |
//! | choose | `choose.rs` | waits for the other ranks if the plan depends on their buffers, compiles the program |
//! | run | `run.rs` | hands the buffers to the engine |
//! | finish | `finish.rs` | records the call, and keeps it for the next one |
//! | fail | `fail.rs`, `diagnose.rs`, `abort.rs` | collects evidence, decides what happened, aborts on all ranks |
//!
//! A call that repeats the one before it (`current.rs`) passes check and choose in a few comparisons.

use weftlink_plan::{Collective, Reduction};
use weftlink_recorder::header::BARRIER;

use super::Communicator;
use crate::engine::{Silent, Tracer};
use crate::error::Error;
use crate::operation::{Detail, OperationRef};
use crate::request::CallArgs;

impl Communicator {
    /// Makes a call.
    #[inline]
    pub(super) fn perform(&mut self, request: CallArgs<'_>, tracer: &mut impl Tracer) -> Result<(), Error> {
        self.usable()?;
        if let Some(OperationRef { detail: Detail::Factor(_), .. }) = request.operation {
            return self.perform_multiplied(request, tracer);
        }
        if self.spans_hosts && *request.collective == Collective::Barrier {
            return self.barrier_across(request.tag);
        }
        let longest = match request.counts {
            Some(_) => Some(self.compare_counts(&request)?),
            None => None,
        };
        let arithmetic = self.check(&request)?;
        let announced = self.announce(&request)?;
        let chosen = self.choose(&request, announced, &arithmetic, longest)?;
        match self.run_engine(&request, announced, &arithmetic, chosen, tracer) {
            Ok(()) => {
                self.finish(chosen);
                Ok(())
            }
            Err(stopped) => {
                let reached = self.reached_by(chosen.engine);
                Err(self.fail_current(&request, &stopped, reached))
            }
        }
    }

    /// A barrier between hosts, whose ranks do not see each other's counters: an all-reduce, which ends when all ranks have entered it.
    #[cold]
    fn barrier_across(&mut self, tag: u32) -> Result<(), Error> {
        let mut nothing = [0_u8];
        let call = CallArgs::new(&Collective::AllReduce, &mut nothing[..]).with(Reduction::Maximum.into());
        self.perform(CallArgs { tag: BARRIER | tag, ..call }, &mut Silent)
    }
}
