//! Groups: what a thread calls between `ncclGroupStart` and `ncclGroupEnd` begins when the outermost group ends. A call outside of groups is a group of
//! its own.
//!
//! The calls of several communicators in one group run at the same time, so that one thread can make the calls of several ranks.

// Exports functions, and reads and writes the program's memory.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use crate::abi::{self, ResultCode, SIM_MAGIC, SimInfo};
use crate::comm::{Comm, Unfinished};
use crate::failure::Failure;
use crate::open::Open;
use crate::work::{Call, Work};
use crate::{device, host, one_sided, predict, registry};

/// Ranks meet, and get a communicator or none.
pub(crate) type Meet = Box<dyn FnOnce() -> Result<Option<Open>, Failure> + Send>;

/// A communicator to be made.
pub(crate) struct Start {
    pub(crate) comm: Arc<Comm>,
    /// The one that it is made from. What is made from one communicator is made in the order of the calls.
    pub(crate) parent: Option<Arc<Comm>>,
    /// Taken out when it is called.
    pub(crate) meet: Option<Meet>,
    /// The program's place for the pointer, while it is known to be there; 0 after that.
    pub(crate) place: usize,
}

impl Start {
    fn run(mut self) -> Result<(), Failure> {
        let panicked = |_| Err(Failure::system("a defect of Weft: it panicked while ranks met"));
        let met = self
            .meet
            .take()
            .map_or(Ok(None), |meet| catch_unwind(AssertUnwindSafe(meet)).unwrap_or_else(panicked));
        let ended = self.comm.started(met);
        if ended.is_err() && self.comm.config.blocking {
            self.forget();
        }
        ended
    }

    fn without_place(mut self) -> Start {
        self.place = 0;
        self
    }

    fn refuse(mut self, failure: &Failure) {
        self.meet = None;
        let _ = self.comm.started(Err(failure.clone()));
        self.forget();
    }

    /// A blocking function that failed leaves no communicator behind.
    fn forget(&self) {
        let place = self.place as *mut abi::Comm;
        if place.is_null() {
            return;
        }
        // SAFETY: the program's place, which it keeps until the function returns, or the group ends.
        let _ = registry::remove(unsafe { place.read_unaligned() });
        // SAFETY: as above.
        unsafe { place.write_unaligned(std::ptr::null_mut()) };
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        if self.meet.is_some() {
            let _ = self.comm.started(Err(Failure::system("the thread of a start could not be started")));
        }
    }
}

/// What a thread has called in its group.
#[derive(Default)]
struct Group {
    depth: usize,
    starts: Vec<Start>,
    calls: Vec<(Arc<Comm>, Call)>,
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
    let started = if starts.is_empty() { Ok(()) } else { start_all(starts) };
    match started {
        Err(failure) if failure.code != ResultCode::InProgress => Err(failure),
        // Calls beside a start that does not block are made.
        started => call_all(calls).and(started),
    }
}

/// Starts a communicator, now or when the group ends.
pub(crate) fn start(start: Start) -> Result<(), Failure> {
    begin();
    start.comm.queued();
    GROUP.with_borrow_mut(|group| group.starts.push(start));
    end()
}

/// Whether a call is in a group of this thread that has not ended.
pub(crate) fn has(is_meant: impl Fn(&Call) -> bool) -> bool {
    GROUP.with_borrow(|group| group.calls.iter().any(|(_, call)| is_meant(call)))
}

/// Makes a call, now or when the group ends.
pub(crate) fn call(comm: Arc<Comm>, call: Call) -> Result<(), Failure> {
    begin();
    GROUP.with_borrow_mut(|group| group.calls.push((comm, call)));
    end()
}

fn start_all(starts: Vec<Start>) -> Result<(), Failure> {
    let is_blocking = starts.iter().all(|start| start.comm.config.blocking);
    let mut chains: Vec<Vec<Start>> = Vec::new();
    for start in starts {
        let is_sibling = |chain: &&mut Vec<Start>| match (&chain[0].parent, &start.parent) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        match chains.iter_mut().find(is_sibling) {
            Some(chain) => chain.push(start),
            None => chains.push(vec![start]),
        }
    }
    // They must not overtake calls before.
    chains.iter().filter_map(|chain| chain[0].parent.as_ref()).for_each(|parent| parent.settle());
    if is_blocking {
        return at_once(chains, in_turn);
    }
    for chain in chains {
        let parents: Vec<_> = chain[0].parent.iter().cloned().collect();
        let unfinished = Unfinished::new(parents);
        // The program may have no place for the pointer any more when they end.
        let chain: Vec<Start> = chain.into_iter().map(Start::without_place).collect();
        spawn(move || {
            // The communicators themselves have the errors.
            let _ = in_turn(chain);
            unfinished.end(&Ok(()));
        })?;
    }
    Err(Failure::in_progress())
}

/// Starts communicators one after the other, and returns the first error.
fn in_turn(starts: Vec<Start>) -> Result<(), Failure> {
    let ended: Vec<_> = starts.into_iter().map(Start::run).collect();
    ended.into_iter().collect()
}

fn call_all(calls: Vec<(Arc<Comm>, Call)>) -> Result<(), Failure> {
    let mut by_comm: Vec<(Arc<Comm>, Vec<Call>)> = Vec::new();
    for (comm, work) in calls {
        match by_comm.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &comm)) {
            Some((_, works)) => works.push(work),
            None => by_comm.push((comm, vec![work])),
        }
    }
    // They must not overtake those before.
    by_comm.iter().for_each(|(comm, _)| comm.settle());
    if by_comm.iter().all(|(comm, _)| comm.config.blocking) {
        return run_all(by_comm);
    }
    for (comm, _) in &by_comm {
        comm.open()?;
    }
    let unfinished = Unfinished::new(by_comm.iter().map(|(comm, _)| Arc::clone(comm)).collect());
    spawn(move || {
        // Each communicator has its own error.
        let _ = run_all(by_comm);
        unfinished.end(&Ok(()));
    })?;
    Err(Failure::in_progress())
}

fn run_all(mut by_comm: Vec<(Arc<Comm>, Vec<Call>)>) -> Result<(), Failure> {
    match by_comm.len() {
        0 => Ok(()),
        1 => by_comm.pop().map_or(Ok(()), |(comm, works)| run(&comm, works)),
        _ if device::are_ready(&by_comm) => {
            // All of them, because ranks of the first wait for those of the last.
            let ended: Vec<_> = by_comm.into_iter().map(|(comm, works)| run(&comm, works)).collect();
            ended.into_iter().collect()
        }
        _ => at_once(by_comm, |(comm, works)| run(&comm, works)),
    }
}

/// Runs the calls of a communicator: those on memory of a GPU are enqueued, those on host memory are done then.
fn run(comm: &Comm, works: Vec<Call>) -> Result<(), Failure> {
    let ended = run_open(comm, works);
    comm.ran(&ended);
    ended
}

fn run_open(comm: &Comm, calls: Vec<Call>) -> Result<(), Failure> {
    let open = comm.open()?;
    if let Some(failure) = open.known_failure() {
        return Err(failure);
    }
    let (mut works, mut others) = (Vec::new(), Vec::new());
    for call in calls {
        match call {
            Call::Work(work) => works.push(work),
            Call::OneSided(call) => others.push(call),
        }
    }
    let (on_gpu, on_host): (Vec<_>, Vec<_>) = works.into_iter().partition(Work::is_on_gpu);
    let ran = one_sided::register(comm, &open, &others)
        .and_then(|()| device::run(comm, &open, &on_gpu))
        .and_then(|()| host::run(&open, &on_host))
        .and_then(|()| one_sided::run(comm, &open, &others));
    ran.inspect_err(|failure| {
        if open.record(failure) {
            // The others would wait for this rank.
            open.abort(&failure.text);
        }
    })
}

/// Runs a function for each of these, on a thread each, and returns the first error.
fn at_once<T: Send>(all: Vec<T>, run: impl Fn(T) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    if all.len() == 1 {
        return all.into_iter().try_for_each(run);
    }
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
    /// Drops the calls of the group and predicts how long they would take. An inner group ends as with `ncclGroupEnd`: its calls are those of the
    /// outermost one.
    fn ncclGroupSimulateEnd(info: *mut SimInfo) {
        let is_inner = GROUP.with_borrow(|group| group.depth > 1);
        let calls = GROUP.with_borrow_mut(|group| if is_inner { Vec::new() } else { std::mem::take(&mut group.calls) });
        end()?;
        if is_inner {
            return Err(Failure::usage("only the outermost group is predicted: its end makes the calls of this one"));
        }
        // SAFETY: null, or a structure of the program.
        if info.is_null() || unsafe { (*info).magic } != SIM_MAGIC {
            return Err(Failure::argument("the place for the prediction was not set to NCCL_SIM_INFO_INITIALIZER"));
        }
        let predicted = predict::microseconds(&calls)?;
        // SAFETY: as above.
        unsafe { (*info).estimated_time = predicted as f32 };
        Ok(())
    }
}
