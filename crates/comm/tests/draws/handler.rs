//! A rank aborts its communicator on a signal while it waits in a call, as a Python program does on SIGTERM. The handler sets a flag; the
//! poll hook of the wait checks the flag and aborts.

// A signal handler is installed.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use weftlink_comm::{Communicator, while_waiting};

use crate::calls::Outcome;
use crate::draw::{Draw, Phase};
use crate::job::RankLog;
use crate::judge::{failure, mentions};
use crate::rank::{Gate, Rank, now};
use crate::raw::sum;
use crate::scenario::{Evidence, Scenario};

/// Why the rank aborts.
const REASON: &str = "asked to end";

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: i32) {
    ASKED.store(true, Ordering::SeqCst);
}

impl Rank {
    pub(crate) fn abort_from_a_handler(&mut self, comm: Communicator) -> Result<(), Outcome> {
        // SAFETY: the handler stores to an atomic and does nothing else.
        unsafe { libc::signal(libc::SIGTERM, note as extern "C" fn(i32) as libc::sighandler_t) };
        let size = comm.size() as f32;
        let background = comm.into_background()?;
        let call = |count: usize| {
            let mut sums = vec![1.0; count];
            sum(&background, &mut sums, None)?;
            match sums.iter().all(|sum| *sum == size) {
                true => Ok(()),
                false => Err(Outcome::Wrong(format!("a sum of {count} is wrong"))),
            }
        };
        if self.draw.phase != Phase::First {
            for count in [1, 100, 3000] {
                let made = call(count);
                self.made(made)?;
            }
        }
        self.hold(Gate::Next);
        let aborted = background.clone();
        let hook = move || {
            if ASKED.swap(false, Ordering::SeqCst) {
                aborted.abort(REASON);
            }
        };
        let made = while_waiting(hook, || call(1000));
        self.made(made)?;
        Err(Outcome::Wrong("the call succeeded without one of the ranks".to_owned()))
    }
}

/// Drives the draw.
pub(crate) fn drive(scenario: &mut Scenario) {
    let (victim, late, size) = (scenario.draw.victim, scenario.draw.partner, scenario.draw.size);
    let is_over = |one: &RankLog| one.failure().is_some() || one.ended.is_some();
    scenario.job.wait(|all| all.iter().all(|one| one.is_holding(Gate::Next) || is_over(one)));
    // The partner does not make the call, so the others wait for it.
    scenario.job.release((0..size).filter(|rank| *rank != late));
    std::thread::sleep(scenario.draw.delay + Duration::from_millis(20));
    scenario.at = now();
    scenario.job.signal(victim, Signal::TERM);
    scenario.job.wait(|all| (0..size).all(|rank| rank == late || is_over(&all[rank])));
    scenario.job.release([late]);
}

/// All errors name the rank that aborted, and its reason.
pub(crate) fn judge(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let Draw { victim, size, .. } = *draw;
    let mut seconds = Vec::new();
    for rank in 0..size {
        let (text, _, began, at) = failure(&evidence.logs[rank], rank)?;
        if !mentions(text, victim) || !text.contains(REASON) {
            return Err(format!("rank {rank} does not report that rank {victim} aborted: {text}"));
        }
        seconds.push(at - evidence.at.max(began));
    }
    Ok(seconds)
}
