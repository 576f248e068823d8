//! Groups: what a thread calls between `ncclGroupStart` and `ncclGroupEnd` begins when the outermost group ends. A call outside of groups is a group of
//! its own.
//!
//! The calls of several communicators in one group run at the same time, so that one thread can make the calls of several ranks.

// Exports functions, and reads a structure of the program.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;

use crate::abi::{self, SIM_MAGIC, SimInfo};
use crate::comm::{Comm, Open};
use crate::failure::Failure;
use crate::work::Work;
use crate::{device, host, registry};

/// A communicator to be made.
pub(crate) struct Start {
    pub(crate) comm: Arc<Comm>,
    /// The ranks meet; this one may get no communicator.
    pub(crate) meet: Box<dyn FnOnce() -> Result<Option<Open>, Failure> + Send>,
    /// As the program has it; 0 if it has none.
    pub(crate) pointer: usize,
}

impl Start {
    fn run(self) -> Result<(), Failure> {
        let ended = self.comm.started((self.meet)());
        if ended.is_err() && self.comm.config.blocking {
            forget(self.pointer);
        }
        ended
    }

    fn refuse(self, failure: &Failure) {
        let _ = self.comm.started(Err(failure.clone()));
        forget(self.pointer);
    }
}

/// A blocking function that failed leaves no communicator behind.
fn forget(pointer: usize) {
    let _ = registry::remove(pointer as abi::Comm);
}

/// What a thread has called in its group.
#[derive(Default)]
struct Group {
    depth: usize,
    starts: Vec<Start>,
    calls: Vec<(Arc<Comm>, Work)>,
    /// The first error of a call.
    failed: Option<Failure>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Begins a group.
pub(crate) fn begin() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// An error in a group: its end returns it, and nothing in it begins.
pub(crate) fn note(failure: &Failure) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.failed.get_or_insert_with(|| failure.clone());
        }
    });
}

/// Ends a group. The outermost one runs what is in it.
pub(crate) fn end() -> Result<(), Failure> {
    let ended = GROUP.with_borrow_mut(|group| {
        let outer = group.depth.checked_sub(1);
        let outer = outer.ok_or_else(|| Failure::usage("ncclGroupEnd without ncclGroupStart"))?;
        group.depth = outer;
        Ok::<_, Failure>((outer == 0).then(|| std::mem::take(group)))
    })?;
    let Some(Group { starts, calls, failed, .. }) = ended else { return Ok(()) };
    if let Some(failure) = failed {
        starts.into_iter().for_each(|start| start.refuse(&failure));
        return Err(failure);
    }
    start_all(starts).and_then(|()| call_all(calls))
}

/// Starts a communicator, now or when the group ends.
pub(crate) fn start(start: Start) -> Result<(), Failure> {
    begin();
    GROUP.with_borrow_mut(|group| group.starts.push(start));
    end()
}

/// Makes a call, now or when the group ends.
pub(crate) fn call(comm: Arc<Comm>, work: Work) -> Result<(), Failure> {
    begin();
    GROUP.with_borrow_mut(|group| group.calls.push((comm, work)));
    end()
}

fn start_all(mut starts: Vec<Start>) -> Result<(), Failure> {
    if starts.is_empty() {
        return Ok(());
    }
    if starts.iter().any(|start| !start.comm.config.blocking) {
        for start in starts {
            spawn(move || drop(start.run()))?;
        }
        return Err(Failure::in_progress());
    }
    match starts.len() {
        1 => starts.pop().map_or(Ok(()), Start::run),
        _ => at_once(starts, Start::run),
    }
}

fn call_all(calls: Vec<(Arc<Comm>, Work)>) -> Result<(), Failure> {
    let mut by_comm: Vec<(Arc<Comm>, Vec<Work>)> = Vec::new();
    for (comm, work) in calls {
        match by_comm.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &comm)) {
            Some((_, works)) => works.push(work),
            None => by_comm.push((comm, vec![work])),
        }
    }
    if by_comm.iter().all(|(comm, _)| comm.config.blocking) {
        return run_all(by_comm);
    }
    for (comm, _) in &by_comm {
        // They must not overtake those before.
        comm.settle();
        comm.open()?;
    }
    by_comm.iter().for_each(|(comm, _)| comm.begin());
    spawn(move || {
        let comms: Vec<_> = by_comm.iter().map(|(comm, _)| Arc::clone(comm)).collect();
        let ended = run_all(by_comm);
        comms.iter().for_each(|comm| comm.end(ended.clone()));
    })?;
    Err(Failure::in_progress())
}

fn run_all(mut by_comm: Vec<(Arc<Comm>, Vec<Work>)>) -> Result<(), Failure> {
    match by_comm.len() {
        0 => Ok(()),
        1 => by_comm.pop().map_or(Ok(()), |(comm, works)| run(&comm, works)),
        _ if device::are_ready(&by_comm) => {
            by_comm.into_iter().try_for_each(|(comm, works)| run(&comm, works))
        }
        _ => at_once(by_comm, |(comm, works)| run(&comm, works)),
    }
}

/// Runs the calls of a communicator: those on memory of a GPU are enqueued, those on host memory are done then.
fn run(comm: &Comm, works: Vec<Work>) -> Result<(), Failure> {
    let open = comm.open()?;
    if let Some(failure) = open.known_failure() {
        return Err(failure);
    }
    let (on_gpu, on_host): (Vec<_>, Vec<_>) = works.into_iter().partition(Work::is_on_gpu);
    let ran = device::run(comm, &open, &on_gpu).and_then(|()| host::run(&open, &on_host));
    ran.inspect_err(|failure| open.record(failure))
}

/// Runs a function for each of these, on a thread each, and returns the first error.
fn at_once<T: Send>(all: Vec<T>, run: impl Fn(T) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    let panicked = || Failure::system("a thread of the group panicked");
    let ended: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(|| run(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    ended.into_iter().collect()
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = thread::Builder::new().name("weft group".to_owned()).spawn(work);
    started.map(drop).map_err(|error| Failure::system(format!("cannot start a thread: {error}")))
}

nccl! {
    fn ncclGroupStart() {
        begin();
        Ok(())
    }
}

nccl! {
    fn ncclGroupEnd() {
        end()
    }
}

nccl! {
    /// Drops the calls of the group. Their time depends on the wiring, which only `weft sim` is told.
    fn ncclGroupSimulateEnd(info: *mut SimInfo) {
        GROUP.with_borrow_mut(|group| {
            group.calls.clear();
            group.failed = None;
        });
        end()?;
        // SAFETY: null, or a structure of the program.
        if info.is_null() || unsafe { (*info).magic } != SIM_MAGIC {
            return Err(Failure::argument("the place for the prediction was not set to NCCL_SIM_INFO_INITIALIZER"));
        }
        Err(Failure::usage("no prediction is made here: `weft sim` predicts calls on a fabric that it is told"))
    }
}
