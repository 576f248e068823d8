//! Ranks on GPUs of one host: loads plans, shares their memory, and launches calls on streams.

// Drops what kernels used.
#![allow(unsafe_code)]

mod access;
mod buffers;
mod failure;
mod join;
mod messages;
mod prepare;
mod programs;
mod run;
mod shrink;
mod switch;
mod window;

pub use messages::Messages;
pub(crate) use shrink::shrunk;
#[cfg(test)]
pub(crate) use {
    join::HOST_BLOCKS_MAX,
    prepare::{shape_of, spread},
};

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashSet;
use weftlink_bootstrap::{Bootstrap, Failure};
use weftlink_plan::{DataType, Reduction, Verified};

use crate::Error;
use crate::call::Key;
use crate::calls::Calls;
use crate::driver::{Capture, Context, Device, DeviceMemory, Event, RelaxedCapture, Stream};
use crate::kernels::{Kernel, Kernels};
use crate::loading::Loading;
use crate::lost::ContextWatch;
use crate::multicast::MulticastRanges;
use crate::presence::{Aborter, Presence};
use crate::program::{Compiler, Program, Spread};
use crate::records::CALL_BYTES;
use crate::registration::BufferRegistry;
use crate::reports::{Reports, describe};
use crate::residency::Resident;
use crate::sharing::{Memory, Shared, Sharing, exchange};
use crate::staging::Staging;
use failure::failure_of;
use programs::{Programs, Retired};

/// The most blocks of one lane.
pub(crate) const SLICES_MAX: u32 = 132;

/// A communicator of ranks on GPUs.
#[derive(Debug)]
pub struct Communicator {
    /// A number of its own in this process.
    number: usize,
    /// Its flight recorder.
    calls: Calls,
    /// This rank, also after the group was taken out.
    rank: usize,
    group: Bootstrap,
    context: Context,
    stream: Stream,
    ranks_on_gpu: usize,
    ranks_on_gpu_max: usize,
    /// Blocks that every rank may have on its GPU.
    share: usize,
    _resident: Resident,
    shares_context: bool,
    /// Whether kernels synchronise with kernels of this GPU only, of any process: they meet in its L2 cache.
    is_one_gpu: bool,
    in_process: Vec<bool>,
    /// With the other ranks of this process, if there are any.
    loading: Option<Loading>,
    /// Other GPUs of ranks in this process.
    peers: Vec<Device>,
    memory: Memory,
    timeout: Duration,
    call_timeout: Duration,
    /// The stream of the last call that was not captured, and an event for calls on other streams to wait for.
    last: Option<Last>,
    /// The last captured call of each graph, of the latest graphs.
    captured: Vec<Captured>,
    /// For each stream with signals or waits of windows that were not captured, an event after the last one.
    actions: Vec<(Stream, Event)>,
    /// Whether calls are in graphs, which the program may launch at any time.
    has_captured: bool,
    /// A buffer for the parameters of a kernel, which each launch rewrites.
    parameters: Box<[u8; CALL_BYTES]>,
    /// Of device memory for long programs, which is freed with the communicator.
    program_bytes: usize,
    /// How many windows were made.
    windows: u32,
    /// Those that a switch accesses.
    multicast: Arc<MulticastRanges>,
    event: Event,
    watch: ContextWatch,
    /// Kept if the driver cannot say that no kernel uses it.
    resources: ManuallyDrop<Resources>,
}

/// What kernels use.
#[derive(Debug)]
struct Resources {
    kernels: Kernels,
    plans: Vec<Loaded>,
    /// Memory of programs that no later call uses.
    retired: Retired<Event, DeviceMemory>,
    reports: Reports,
    presence: Presence,
    /// Of buffers that ranks in other processes access; nothing if there are none.
    registry: Option<BufferRegistry>,
    /// In place of buffers that those cannot map.
    staging: Staging,
}

/// A loaded plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanId {
    communicator: usize,
    number: usize,
}

#[derive(Debug)]
struct Loaded {
    compiler: Compiler,
    shared: Shared,
    programs: Programs<Key, Prepared>,
    /// Calls whose kernels the ranks of this process have loaded.
    met: FxHashSet<CallKind>,
}

/// The count, type and operation of a call.
type CallKind = (usize, DataType, Reduction);

/// The stream of the last call that was not captured.
#[derive(Debug)]
enum Last {
    Own(Stream),
    /// The program's, which may destroy it: the event follows the call.
    Borrowed,
}

/// A call that was captured.
#[derive(Debug)]
struct Captured {
    graph: u64,
    /// Follows it in the graph.
    event: Event,
}

/// A program that is ready to be launched.
#[derive(Debug)]
struct Prepared {
    program: Program,
    kernel: Kernel,
    spread: Spread,
    /// The signature of calls of plans without a switch; with one, it also depends on the windows.
    signature: u32,
    /// The program, if it is too long for the parameters.
    in_memory: Option<DeviceMemory>,
}

impl Communicator {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The context of its GPU.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The ranks of the GPU that has most.
    pub fn ranks_on_gpu_max(&self) -> usize {
        self.ranks_on_gpu_max
    }

    /// Whether plans may read and write the buffers of other ranks.
    pub fn accesses_buffers(&self) -> bool {
        self.memory == Memory::Device
    }

    /// Sets how long a call waits for another rank before it fails, 5 minutes by default.
    pub fn set_call_timeout(&mut self, timeout: Duration) {
        self.call_timeout = timeout;
    }

    /// Loads a plan: its memory is allocated and shared. All ranks call it with the same plan.
    ///
    /// Plans that read or write buffers of other ranks need GPUs that can access each other.
    pub fn load(&mut self, plan: Verified) -> Result<PlanId, Error> {
        let checked = self.check_recorded();
        self.check_for_all(checked)?;
        self.share_plan(plan).map_err(|error| self.explained(error))
    }

    /// The error of a failed communicator also ends the waits of ranks that load a plan or allocate a window.
    fn check_for_all(&mut self, checked: Result<(), Error>) -> Result<(), Error> {
        if let Err(error) = &checked
            && !matches!(error, Error::Misuse { .. })
        {
            let (why, rank) = (Failure::plain(error.to_string()), self.rank() as u32);
            self.group.give_up(&why, rank, 0);
        }
        checked
    }

    fn share_plan(&mut self, plan: Verified) -> Result<PlanId, Error> {
        if plan.needs_windows() && !self.accesses_buffers() {
            let why = "it accesses buffers of ranks on other GPUs; choose a plan that sends messages";
            return refused(&plan, why.to_owned());
        }
        // Memory may be allocated while another thread captures a graph.
        let _relaxed = RelaxedCapture::begin(self.context.driver())?;
        let began = self.calls.loads(&plan);
        let name = plan.name.clone();
        let loaded = self.load_agreed(plan);
        let index = loaded.as_ref().ok().map(|id| (id.number, &*name));
        self.calls.loaded(began, index);
        loaded
    }

    /// Loads a plan that this rank accepts, if all ranks load the same.
    fn load_agreed(&mut self, plan: Verified) -> Result<PlanId, Error> {
        let digest = exchange(&mut self.group, "a plan", plan.hash().to_le_bytes().to_vec(), self.timeout)?;
        if let Some(other) = digest.iter().position(|other| *other != digest[self.rank()]) {
            let (own, rank) = (self.rank(), other);
            return refused(&plan, format!("rank {rank} loads another plan than rank {own}"));
        }
        let compiler = Compiler::new(plan, self.rank() as u32, SLICES_MAX);
        let bytes = [compiler.arena.bytes, compiler.arena.private_bytes].map(|bytes| bytes as usize);
        let shared = self.share("arenas", bytes)?;
        let plans = &mut self.resources.plans;
        plans.push(Loaded { compiler, shared, programs: Programs::new(), met: FxHashSet::default() });
        Ok(PlanId { communicator: self.number, number: plans.len() - 1 })
    }

    /// Allocates memory of these lengths, shared and private, on every rank. All ranks call it.
    fn share(&mut self, what: &'static str, bytes: [usize; 2]) -> Result<Shared, Error> {
        let sharing = Sharing {
            what,
            context: &self.context,
            stream: &self.stream,
            in_process: &self.in_process,
            timeout: self.timeout,
        };
        match self.memory {
            Memory::Device => sharing.device(&mut self.group, bytes),
            Memory::Host => sharing.host(&mut self.group, bytes),
        }
    }

    /// The device memory that it has allocated on this rank's GPU, without windows: of its plans, long programs, and copies of buffers.
    pub fn device_bytes(&self) -> usize {
        let plans = self.resources.plans.iter().map(|plan| plan.shared.device_bytes).sum::<usize>();
        plans + self.program_bytes + self.resources.staging.bytes()
    }

    /// Whether a call has copied buffers because ranks in other processes cannot map them.
    #[cfg(test)]
    pub(crate) fn has_copied(&self) -> bool {
        self.resources.staging.is_used()
    }

    /// Lets ranks in other processes unmap this rank's buffers, except those of captured calls: before the memory is to be free for other
    /// uses (`torch.cuda.empty_cache()`). Waits for the work of this rank's GPU. Processes close memory of `cudaMalloc` in a later call
    /// that accesses buffers and finds their earlier ones ended, or here.
    pub fn release_buffers(&mut self) -> Result<(), Error> {
        self.check_process()?;
        if self.resources.registry.is_none() {
            return Ok(());
        }
        self.context.synchronize().map_err(|error| self.explained(error))?;
        // Kernels of other ranks may still use them.
        self.check_recorded()?;
        self.resources.registry.as_mut().map_or(Ok(()), BufferRegistry::release_all)
    }

    /// Why no call can succeed any more, if so; see [`Communicator::check`].
    pub fn failure(&self) -> Option<String> {
        self.check().err().map(|error| error.to_string())
    }

    /// The error of a call of this rank that failed, which ends the calls of all ranks; of a rank that died or aborted; or of the context if it
    /// is lost.
    ///
    /// If a rank died under MPS, it may take this process's context with it: the first check after a death waits for that, half a second at
    /// most. If the error [needs a restart](Error::needs_restart), the process cannot use its GPU any more.
    pub fn check(&self) -> Result<(), Error> {
        self.check_process()?;
        self.probe().map_err(|error| self.explained(error))?;
        self.check_recorded()
    }

    /// The same without a call of the driver, unless there is a failure.
    fn check_recorded(&self) -> Result<(), Error> {
        self.check_process()?;
        if let Some(lost) = self.watch.lost() {
            return Err(lost);
        }
        let Resources { reports, presence, .. } = &*self.resources;
        let own = reports.failure();
        let why = failure_of(self.rank(), own.as_ref(), presence.words());
        let Some(why) = why else { return Ok(()) };
        self.calls.failed(&self.group, &why, own);
        Err(self.explained(Error::Failed { why }))
    }

    /// A forked process is not this rank, and CUDA does not work in it.
    fn check_process(&self) -> Result<(), Error> {
        if !self.resources.presence.words().is_forked() {
            return Ok(());
        }
        let why =
            "this process was forked from the one of the rank. Start ranks with spawn or exec".to_owned();
        Err(Error::Misuse { attempt: "use a communicator on GPUs".to_owned(), why })
    }

    /// The error to return in place of one: that of the lost context, with the ranks that died, if it is lost.
    pub(crate) fn explained(&self, error: Error) -> Error {
        self.watch.explained(error, || self.probe())
    }

    /// Asks the driver whether there is a context.
    fn probe(&self) -> Result<(), Error> {
        // A thread may capture a graph.
        let _relaxed = RelaxedCapture::begin(self.context.driver())?;
        self.stream.is_idle().map(|_| ())
    }

    /// What the blocks of this rank that have waited for long wait for.
    pub fn waits(&self) -> Vec<String> {
        self.resources.reports.waits().map(|report| describe(self.rank(), &report)).collect()
    }

    /// Ends the calls of all ranks that wait. Later ones are refused.
    pub fn abort(&self) {
        self.resources.presence.abort();
    }

    /// The same, with the reason for the other ranks.
    fn abort_because(&self, error: &Error) {
        self.resources.presence.words().abort_because(&error.to_string());
    }

    /// Aborts from any thread.
    pub fn aborter(&self) -> Aborter {
        self.resources.presence.aborter()
    }

    /// Whether other ranks are in this process and on this GPU.
    pub fn shares_context(&self) -> bool {
        self.shares_context
    }

    /// Whether all ranks are in this process.
    pub fn is_in_one_process(&self) -> bool {
        self.in_process.iter().all(|here| *here)
    }

    /// Waits for this rank's calls, signals and waits, and then says that it leaves: calls of other ranks that still wait for it fail. It makes no more calls.
    /// If other ranks are in this process and on this GPU, the program must have waited for its graphs with calls.
    pub fn leave(&self) -> Result<(), Error> {
        self.check_process()?;
        self.wait_for_calls().map_err(|error| self.explained(error))?;
        self.resources.presence.leave();
        self.loading.iter().for_each(Loading::leave);
        Ok(())
    }

    fn wait_for_calls(&self) -> Result<(), Error> {
        // With kernels of other ranks in the context, this would wait for some that wait for this rank.
        if self.has_captured && !self.shares_context {
            return self.context.synchronize();
        }
        self.wait_for_launched()
    }

    /// Waits for calls, signals and waits that were not captured. Other threads can use the driver meanwhile.
    fn wait_for_launched(&self) -> Result<(), Error> {
        // Another thread may capture a graph.
        let _relaxed = RelaxedCapture::begin(self.context.driver())?;
        self.actions.iter().try_for_each(|(_, event)| event.synchronize())?;
        match &self.last {
            Some(Last::Own(last)) if last.capture()? == Capture::None => {
                self.event.record(last)?;
                self.event.synchronize()
            }
            Some(Last::Own(_)) => Err(captured_since()),
            Some(Last::Borrowed) => self.event.synchronize(),
            None => Ok(()),
        }
    }
}

impl Communicator {
    /// Drops what kernels used, once. This rank has left.
    fn release(&mut self) -> Result<(), Error> {
        // A thread may capture a graph.
        let relaxed = RelaxedCapture::begin(self.context.driver());
        // Kernels of other ranks in the context access the memory of this one. Without them, all that used it has ended, and this would end
        // the capture of any stream.
        let ended = match self.shares_context {
            true => relaxed.and_then(|relaxed| self.context.synchronize().map(|()| relaxed)),
            false => relaxed,
        };
        let _relaxed = ended.map_err(|error| self.explained(error))?;
        // SAFETY: only `drop` calls this.
        unsafe { ManuallyDrop::drop(&mut self.resources) };
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // A forked process must not speak for the rank, and has none of its threads.
        if self.check_process().is_err() {
            return;
        }
        let is_known = self.watch.lost().is_some();
        let left = self.leave();
        if left.is_err() {
            // Others must not wait for this rank.
            self.abort();
        }
        if let Some(loading) = &self.loading {
            loading.leave();
            // After a failure, kernels end by themselves.
            let _ = loading.settle(self.call_timeout, || self.check_recorded());
        }
        match left.and_then(|()| self.release()) {
            Ok(()) => {}
            // The context is lost, or a stream is being captured.
            Err(why) if !is_known => tracing::warn!(
                target: "weft::plan",
                rank = self.rank,
                "cannot wait for the end of calls, so their memory is not freed: {why}"
            ),
            Err(_) => {}
        }
    }
}

fn refused(plan: &Verified, why: String) -> Result<PlanId, Error> {
    Err(Error::Misuse { attempt: format!("load the plan {}", plan.name), why })
}

/// The last call cannot be waited for.
fn captured_since() -> Error {
    let why = "a capture of the stream of the last call has begun since; end it first".to_owned();
    Error::Misuse { attempt: "wait for the last call".to_owned(), why }
}
