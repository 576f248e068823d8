//! The side of a rank: makes calls, and does what the fault says if it hits this rank.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use weftlink_bootstrap::Bootstrap;

use super::draw::{Call, Fault, Kind, Place};
use super::judge::Outcome;
use crate::Error;

/// How long ranks wait for each other to shrink: longer than a rank is stopped.
pub(super) const SHRINK: Duration = Duration::from_secs(20);

/// How long a process takes to stop after it has sent itself the signal.
const STOPPED_WITHIN: Duration = Duration::from_millis(50);

/// How long ranks take to capture a graph. The driver may make one of them wait for a call of another in the same process.
const CAPTURED_WITHIN: Duration = Duration::from_millis(50);

/// What calls are made with: a GPU, or a stand-in.
pub(super) trait Backend: Sized {
    /// Of calls.
    const TIMEOUT: Duration;
    /// What a rank has while it lives, across communicators.
    type Memory;
    fn memory() -> Result<Self::Memory, Error>;
    /// Joins the ranks of a group and prepares their calls.
    fn join(group: Bootstrap, memory: &Self::Memory, place: Place) -> Result<Self, Error>;
    fn rank(&self) -> usize;
    fn ranks(&self) -> usize;
    /// Enqueues a call.
    fn start(&mut self, call: Call) -> Result<(), Error>;
    /// Waits for it, and compares its result.
    fn finish(&mut self, call: Call) -> Result<(), Error>;
    /// Makes a call in a graph, which can be launched again.
    fn capture(&mut self, call: Call) -> Result<(), Error>;
    fn launch(&mut self, call: Call) -> Result<(), Error>;
    /// Aborts from another thread.
    fn aborter(&self) -> impl FnOnce() + Send + 'static;
    fn shrink(self, timeout: Duration) -> Result<Bootstrap, Error>;

    fn call(&mut self, call: Call) -> Result<(), Error> {
        self.start(call)?;
        self.finish(call)
    }
}

/// What a rank says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// It is in a communicator of this many ranks, and a call was right.
    Ready(usize),
    /// It stops its own process, which the test continues.
    Stopping,
    Ended(Duration, Outcome),
    /// It cannot join or shrink.
    Broken(String),
}

/// The test, as a rank sees it.
pub(super) trait Control {
    /// The seed of the next fault; nothing at the end.
    fn next(&mut self) -> Option<u64>;
    fn report(&mut self, report: Report);
}

/// The ranks that a fault hits or delays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Faulty,
    /// Calls last, so that the call of the faulty rank waits.
    Last,
    Other,
}

/// Runs a rank until it leaves, the test ends, or it cannot continue.
pub(super) fn serve<B: Backend>(mut group: Bootstrap, place: Place, control: &mut impl Control) {
    let memory = match B::memory() {
        // Never freed: that waits for the kernels of all ranks of the process, which may wait for each other.
        Ok(memory) => ManuallyDrop::new(memory),
        Err(error) => return control.report(Report::Broken(error.to_string())),
    };
    loop {
        if group.size() == 1 {
            return control.report(Report::Ready(1));
        }
        let mut comm = match B::join(group, &memory, place) {
            Ok(comm) => comm,
            Err(error) => return control.report(Report::Broken(format!("cannot join: {error}"))),
        };
        let failed = loop {
            control.report(Report::Ready(comm.ranks()));
            let Some(seed) = control.next() else { return };
            let fault = Fault::draw(seed, place, comm.ranks(), B::TIMEOUT / 2);
            if fault.kind == Kind::Leaves && comm.rank() == fault.rank {
                let before = (0..fault.calls).try_for_each(|_| comm.call(fault.call));
                std::thread::sleep(fault.after);
                drop(comm);
                return control.report(Report::Ended(Duration::ZERO, outcome(before)));
            }
            let begin = Instant::now();
            let acted = act(&mut comm, &fault, control);
            let failed = acted.is_err();
            let restarts = acted.as_ref().is_err_and(Error::needs_restart);
            control.report(Report::Ended(begin.elapsed(), outcome(acted)));
            if restarts {
                return;
            }
            if failed {
                break comm;
            }
        };
        group = match failed.shrink(SHRINK) {
            Ok(group) => group,
            Err(error) => return control.report(Report::Broken(format!("cannot shrink: {error}"))),
        };
    }
}

fn outcome(result: Result<(), Error>) -> Outcome {
    match result {
        Ok(()) => Outcome::Succeeded,
        Err(error) if error.needs_restart() => Outcome::Lost(error.to_string()),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// This rank's part in a fault.
fn act<B: Backend>(comm: &mut B, fault: &Fault, control: &mut impl Control) -> Result<(), Error> {
    for _ in 0..fault.calls {
        comm.call(fault.call)?;
    }
    let role = match comm.rank() {
        rank if rank == fault.rank => Role::Faulty,
        rank if rank == (fault.rank + 1) % comm.ranks() => Role::Last,
        _ => Role::Other,
    };
    let wait = || std::thread::sleep(fault.after);
    let wait_twice = || std::thread::sleep(fault.after * 2);
    match (fault.kind, role) {
        (Kind::KilledBefore, Role::Faulty) => die(),
        (Kind::KilledBefore, _) => wait(),
        (Kind::KilledIn, Role::Faulty) => {
            comm.start(fault.call)?;
            wait();
            die();
        }
        (Kind::KilledBetween, Role::Faulty) => {
            wait();
            die();
        }
        (Kind::Stopped, Role::Faulty) => {
            control.report(Report::Stopping);
            send(Signal::STOP);
            // The signal reaches the other threads first.
            std::thread::sleep(STOPPED_WITHIN);
        }
        (Kind::Late, Role::Faulty) => wait(),
        (Kind::Aborts, Role::Faulty) => {
            let (abort, after) = (comm.aborter(), fault.after);
            let aborting = std::thread::spawn(move || {
                std::thread::sleep(after);
                abort();
            });
            let called = comm.call(fault.call);
            let _ = aborting.join();
            // The others may have called before it aborted.
            return called.and_then(|()| comm.call(fault.call));
        }
        (Kind::KilledIn | Kind::Aborts, Role::Last) => wait_twice(),
        (Kind::AbortsGraph, _) => {
            comm.capture(fault.call)?;
            std::thread::sleep(CAPTURED_WITHIN);
            comm.launch(fault.call)?;
            // The first launch has ended on all ranks by then.
            wait();
            if role == Role::Faulty {
                comm.aborter()();
            } else {
                wait();
            }
            return comm.launch(fault.call);
        }
        _ => {}
    }
    let call = if role == Role::Faulty { fault.wrong_call() } else { fault.call };
    comm.call(call)?;
    // The fault may come after this call, and meets the next.
    if matches!(fault.kind, Kind::KilledIn | Kind::Aborts) { comm.call(call) } else { Ok(()) }
}

fn die() -> ! {
    loop {
        send(Signal::KILL);
    }
}

fn send(signal: Signal) {
    let _ = kill_process(getpid(), signal);
}
