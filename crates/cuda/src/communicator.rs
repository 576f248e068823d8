//! Ranks on GPUs of one host: loads plans, shares their memory, and launches calls on streams.

// Launches kernels with addresses.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Aliasing, DataType, Reduction, Shape, Verified};

use crate::Error;
use crate::call::{Key, Operation};
use crate::driver::{
    Capture, Context, Device, DeviceAddress, DeviceBuffer, DeviceMemory, Event, Launch, Parameters,
    RelaxedCapture, Stream,
};
use crate::kernels::{Kernel, Kernels, THREADS_MAX};
use crate::presence::{Aborter, Presence};
use crate::program::{Compiler, Program, Spread};
use crate::queues;
use crate::records::{self, CALL_BYTES};
use crate::registration::{BufferRegistry, Obstacle};
use crate::reports::{REPORTS_MAX, Reports, describe};
use crate::sharing::{Memory, Shared, Sharing, exchange, process_token};
use crate::source::Specialisation;
use crate::staging::{Staged, Staging};

/// The handles of default streams: null, legacy, per thread.
const DEFAULT_STREAMS_MAX: usize = 2;
/// The most blocks of one lane.
const SLICES_MAX: u32 = 132;
/// What the ranks of a GPU read and write between two synchronisations: more, and they drift apart in address space.
const TILE_BYTES: usize = 128 << 20;
/// How long a call waits for another rank, unless the program says otherwise: as long as calls on CPUs.
const CALL_TIMEOUT: Duration = Duration::from_mins(5);
/// The most blocks of a rank where data moves through host memory.
const HOST_BLOCKS_MAX: usize = 32;
/// Programs of a plan that are kept for later calls.
const PROGRAMS_MAX: usize = 1024;

/// A communicator of ranks on GPUs.
#[derive(Debug)]
pub struct Communicator {
    /// A number of its own in this process.
    number: usize,
    group: Bootstrap,
    context: Context,
    stream: Stream,
    ranks_on_gpu: usize,
    ranks_on_gpu_max: usize,
    /// Blocks that every rank may have on its GPU.
    share: usize,
    shares_context: bool,
    /// Whether kernels synchronise with kernels of this process and GPU only.
    is_one_gpu: bool,
    in_process: Vec<bool>,
    /// Other GPUs of ranks in this process.
    peers: Vec<Device>,
    memory: Memory,
    timeout: Duration,
    call_timeout: Duration,
    /// The stream of the last call that was not captured, and an event for calls on other streams to wait for.
    last: Option<Last>,
    /// Whether calls are in graphs, which the program may launch at any time.
    has_captured: bool,
    event: Event,
    /// Kept if the driver cannot say that no kernel uses it.
    resources: ManuallyDrop<Resources>,
}

/// What kernels use.
#[derive(Debug)]
struct Resources {
    kernels: Kernels,
    plans: Vec<Loaded>,
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
    programs: HashMap<Key, Prepared>,
}

/// The stream of the last call that was not captured.
#[derive(Debug)]
enum Last {
    Own(Stream),
    /// The program's, which may destroy it: the event follows the call.
    Borrowed(usize),
}

/// Where the buffers of a call are.
struct Placed {
    /// As each rank addresses them.
    views: Vec<[DeviceAddress; 2]>,
    /// What stands in for them.
    staged: Option<Staged>,
    /// Whether ranks in other processes use them in a call that is not captured.
    is_registered: bool,
}

/// A program that is ready to be launched.
#[derive(Debug)]
struct Prepared {
    program: Program,
    kernel: Kernel,
    spread: Spread,
    /// The program, if it is too long for the parameters.
    in_memory: Option<DeviceMemory>,
}

impl Communicator {
    /// Joins the ranks of a group on a GPU. All ranks call it. The timeout is for joining and loading.
    ///
    /// Data moves through host memory where a GPU cannot access the memory of another.
    pub fn new(group: Bootstrap, device: &Device, timeout: Duration) -> Result<Communicator, Error> {
        Communicator::with_memory(group, device, Memory::Device, timeout)
    }

    /// The same, with the memory for what ranks send each other. Host memory is used if one rank asks for it.
    pub fn with_memory(
        mut group: Bootstrap,
        device: &Device,
        memory: Memory,
        timeout: Duration,
    ) -> Result<Communicator, Error> {
        static COMMUNICATORS: AtomicUsize = AtomicUsize::new(0);
        let context = Context::primary(device)?;
        let stream = Stream::new(&context)?;
        let mut identity = process_token().to_le_bytes().to_vec();
        identity.extend(device.uuid);
        identity.extend((device.multiprocessors as u32).to_le_bytes());
        identity.push(u8::from(memory == Memory::Host));
        let all = exchange(&mut group, "GPUs", identity.clone(), timeout)?;
        let in_process: Vec<bool> = all.iter().map(|other| other[..8] == identity[..8]).collect();
        let ranks_on = |rank: &[u8]| all.iter().filter(|other| other[8..24] == rank[8..24]).count();
        let ranks_on_gpu = ranks_on(&identity);
        let is_in_context = |rank: &usize| in_process[*rank] && all[*rank][8..24] == device.uuid;
        let in_context: Vec<usize> = (0..all.len()).filter(is_in_context).collect();
        if in_context.first() == Some(&group.rank()) {
            queues::warn_if_few(in_context.len());
        }
        // All ranks cut their elements into the same slices, so the smallest share counts.
        let share = |rank: &Vec<u8>| {
            // Two ranks have too few loads in flight with a block on every multiprocessor.
            let blocks = multiprocessors_of(rank) * if ranks_on(rank) <= 2 { 2 } else { 1 };
            blocks / ranks_on(rank)
        };
        let share = all.iter().map(share).min().unwrap_or(0).max(1);
        let visible = device.driver().devices()?;
        let (mut reaches_all, mut peers) = (true, Vec::new());
        for (rank, in_process) in
            std::iter::zip(&all, &in_process).filter(|(rank, _)| rank[8..24] != device.uuid)
        {
            // A GPU that is hidden from this process cannot be mapped.
            let peer = visible.iter().find(|peer| rank[8..24] == peer.uuid);
            let linked = peer.map(|peer| device.link_to(peer)).transpose()?.flatten().and(peer);
            reaches_all &= linked.is_some();
            // Another process has its own context there.
            if let Some(peer) = linked.filter(|_| *in_process) {
                context.enable_peer_access(&Context::primary(peer)?)?;
                peers.push(peer.clone());
            }
        }
        let reaches = exchange(&mut group, "access to GPUs", vec![u8::from(reaches_all)], timeout)?;
        let is_host =
            all.iter().any(|rank| rank[28] != 0) || reaches.iter().any(|reaches| reaches[..] != [1]);
        let memory = if is_host { Memory::Host } else { Memory::Device };
        // More blocks do not make the link to the host faster, and thousands of polls make it slower.
        let share = if is_host { share.min(HOST_BLOCKS_MAX) } else { share };
        let (kernels, reports, staging) =
            (Kernels::new(&context), Reports::new(&context)?, Staging::default());
        let presence = Presence::new(&context, &mut group, timeout)?;
        let number = COMMUNICATORS.fetch_add(1, Ordering::Relaxed);
        let is_one_process = !in_process.contains(&false);
        let registry = if is_one_process || is_host {
            None
        } else {
            let links = group
                .link_ranks("buffers of GPUs", timeout)
                .map_err(|why| Error::Group { why: why.to_string() })?;
            let others = links.into_iter().filter(|link| !in_process[link.rank()]).collect();
            let processes = all.iter().map(|rank| token_of(rank)).collect();
            Some(BufferRegistry::new(&context, others, processes, number, timeout)?)
        };
        Ok(Communicator {
            number,
            // The scope of a GPU covers the threads of one program.
            shares_context: in_context.len() > 1,
            is_one_gpu: ranks_on_gpu == all.len() && is_one_process && !is_host,
            memory,
            group,
            event: Event::new(&context)?,
            last: None,
            has_captured: false,
            peers,
            context,
            stream,
            ranks_on_gpu,
            ranks_on_gpu_max: all.iter().map(|rank| ranks_on(rank)).max().unwrap_or(1),
            share,
            in_process,
            timeout,
            call_timeout: CALL_TIMEOUT,
            resources: ManuallyDrop::new(Resources {
                kernels,
                plans: Vec::new(),
                reports,
                presence,
                registry,
                staging,
            }),
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.group.rank()
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
        let misuse = |plan: &Verified, why: String| {
            Err(Error::Misuse { attempt: format!("load the plan {}", plan.name), why })
        };
        if plan.needs_windows() && !self.accesses_buffers() {
            let why = "it accesses buffers of ranks on other GPUs; choose a plan that sends messages";
            return misuse(&plan, why.to_owned());
        }
        let digest = exchange(&mut self.group, "a plan", plan.hash().to_le_bytes().to_vec(), self.timeout)?;
        if let Some(other) = digest.iter().position(|other| *other != digest[self.rank()]) {
            let (own, rank) = (self.rank(), other);
            return misuse(&plan, format!("rank {rank} loads another plan than rank {own}"));
        }
        let compiler = Compiler::new(plan, self.rank() as u32, SLICES_MAX);
        let sharing = Sharing {
            context: &self.context,
            stream: &self.stream,
            in_process: &self.in_process,
            timeout: self.timeout,
        };
        let bytes = [compiler.arena.bytes, compiler.arena.private_bytes].map(|bytes| bytes as usize);
        let shared = match self.memory {
            Memory::Device => sharing.device(&mut self.group, bytes)?,
            Memory::Host => sharing.host(&mut self.group, bytes)?,
        };
        let plans = &mut self.resources.plans;
        plans.push(Loaded { compiler, shared, programs: HashMap::new() });
        Ok(PlanId { communicator: self.number, number: plans.len() - 1 })
    }

    /// Enqueues a call of a loaded plan on a stream. All ranks make the same calls in the same order. Calls run one after the other, also
    /// on different streams, except calls that are captured in graphs: those need one stream, or events of the caller.
    ///
    /// If the plan accesses buffers of ranks in other processes, the first call with a buffer waits until these have mapped it. They keep it
    /// mapped, and its memory allocated, until many other buffers were used, and after a captured call as long as the communicator lives.
    /// Buffers of memory that cannot be mapped there (managed, of `cudaMallocAsync`, without a handle) are copied, up to 1 GiB each.
    ///
    /// An error on one rank ends the calls of all, except misuse, after which the rank may call again while the others wait.
    ///
    /// # Safety
    /// The buffers are device memory of this rank's blocks, valid until the call has ended on the stream, for the other ranks too, whose
    /// kernels access them. After a failure, they stay valid until every rank has seen it.
    pub unsafe fn run(
        &mut self,
        plan: PlanId,
        stream: &Stream,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        // SAFETY: the caller's.
        let enqueued = unsafe { self.enqueue(plan, stream, buffers, count, data_type, operation.into()) };
        if let Err(error) = &enqueued
            && !matches!(error, Error::Misuse { .. } | Error::Failed { .. })
        {
            self.abort();
        }
        enqueued
    }

    /// # Safety
    /// As for [`Communicator::run`].
    unsafe fn enqueue(
        &mut self,
        plan: PlanId,
        stream: &Stream,
        [input, output]: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        operation: Operation,
    ) -> Result<(), Error> {
        let key = self.prepare_call(plan, [input, output], count, data_type, operation.reduction)?;
        let factor = operation
            .factor_of(&key)
            .map_err(|why| Error::Misuse { attempt: "run a plan".to_owned(), why })?;
        if let Some(why) = self.failure() {
            return Err(Error::Failed { why });
        }
        let is_captured = stream.capture()? != Capture::None;
        let Placed { views, staged, is_registered } = self.place(plan, [input, output], &key, is_captured)?;
        let [input, output] = staged.as_ref().map_or([input, output], |staged| staged.buffers);
        if is_captured {
            self.has_captured = true;
        } else {
            self.order(stream)?;
        }
        if let Some(staged) = &staged {
            // SAFETY: as the caller promises.
            unsafe { staged.copy_in(stream) }?;
        }
        let prepared = &self.resources.plans[plan.number].programs[&key];
        let header = records::CallHeader {
            signature: key.signature(prepared.program.header.tiles, prepared.spread),
            input,
            output,
            program: prepared.in_memory.as_ref().map_or(0, DeviceBuffer::address),
            presence: self.resources.presence.address(),
            reports: self.resources.reports.address(),
            timeout_ns: u64::try_from(self.call_timeout.as_nanos()).unwrap_or(u64::MAX),
            factor,
            ..prepared.program.header
        };
        let mut call = [0_u8; CALL_BYTES];
        let mut at = 0;
        let mut push = |bytes: &[u8]| {
            call[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        push(bytemuck::bytes_of(&header));
        for [input, output] in views {
            push(bytemuck::bytes_of(&records::View { input, output }));
        }
        if prepared.in_memory.is_none() {
            push(&prepared.program.bytes);
        }
        let launch = Launch {
            blocks: header.lanes * header.slices,
            threads: prepared.spread.threads,
            shared_bytes: 0,
            is_cooperative: false,
        };
        // SAFETY: the parameters are those of the kernel; the addresses are valid as the caller promises, and the communicator's own
        // memory lives until it is dropped.
        unsafe { prepared.kernel.function.launch(stream, launch, Parameters::Buffer(&call)) }?;
        if let Some(staged) = &staged {
            // SAFETY: as the caller promises.
            unsafe { staged.copy_out(stream) }?;
        }
        if !is_captured && stream.is_borrowed() {
            self.event.record(stream)?;
        }
        match &mut self.resources.registry {
            Some(registry) if is_registered => registry.launched(stream),
            _ => Ok(()),
        }
    }

    /// Finds out where the buffers of a call are for each rank. Ranks in other processes map them, or memory that stands in for them.
    fn place(
        &mut self,
        plan: PlanId,
        buffers: [DeviceAddress; 2],
        key: &Key,
        is_captured: bool,
    ) -> Result<Placed, Error> {
        let rank = self.group.rank() as u32;
        let Resources { plans, registry, staging, .. } = &mut *self.resources;
        let plan = plans[plan.number].compiler.plan();
        let Some(registry) = registry.as_mut().filter(|_| plan.needs_windows()) else {
            let views = vec![buffers; plan.ranks as usize];
            return Ok(Placed { views, staged: None, is_registered: false });
        };
        let block_bytes = (key.count * key.data_type.bytes()) as u64;
        let blocks = [plan.collective.gives(rank, plan.ranks), plan.collective.gets(rank, plan.ranks)];
        let [input, output] = blocks.map(|blocks| u64::from(blocks) * block_bytes);
        let buffers = [(buffers[0], input), (buffers[1], output)];
        let (views, staged) = match registry.views(buffers, is_captured) {
            Ok(views) => (views, None),
            Err(Obstacle::Error(why)) => return Err(why),
            Err(Obstacle::Unshareable(why)) => {
                // Memory may be allocated while another thread captures a graph.
                let _relaxed = RelaxedCapture::begin(self.context.driver())?;
                let is_in_place = key.aliasing == Aliasing::InPlace;
                let staged = staging.stage(&self.context, &self.peers, buffers, is_in_place, &why)?;
                let ours = [(staged.buffers[0], input), (staged.buffers[1], output)];
                let views = registry.views(ours, is_captured).map_err(|obstacle| match obstacle {
                    Obstacle::Error(why) => why,
                    Obstacle::Unshareable(why) => {
                        Error::Misuse { attempt: "share a buffer with other processes".to_owned(), why }
                    }
                })?;
                (views, Some(staged))
            }
        };
        Ok(Placed { views, staged, is_registered: !is_captured })
    }

    /// Makes a call wait for the last one, if that is on another stream and neither is captured: an event must not lead into a graph, or
    /// out of one.
    fn order(&mut self, stream: &Stream) -> Result<(), Error> {
        match &self.last {
            Some(Last::Own(last)) if last.raw() == stream.raw() => return Ok(()),
            Some(Last::Own(last)) if last.capture()? == Capture::None => {
                self.event.record(last)?;
                stream.wait_for(&self.event)?;
            }
            // The same handle may be another stream by now, except those of default streams.
            Some(Last::Borrowed(last)) if *last != stream.raw().addr() || *last > DEFAULT_STREAMS_MAX => {
                stream.wait_for(&self.event)?;
            }
            _ => {}
        }
        self.last = Some(match stream.is_borrowed() {
            true => Last::Borrowed(stream.raw().addr()),
            false => Last::Own(stream.clone()),
        });
        Ok(())
    }

    /// Compiles what a call needs, so that the call itself only launches.
    pub fn prepare_call(
        &mut self,
        plan: PlanId,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<Key, Error> {
        let rank = self.rank() as u32;
        let loaded = match self.resources.plans.get(plan.number) {
            Some(loaded) if plan.communicator == self.number => loaded,
            _ => {
                let why = "it was loaded into another communicator".to_owned();
                return Err(Error::Misuse { attempt: "run a plan".to_owned(), why });
            }
        };
        let checked = loaded.compiler.plan();
        let key = Key::new(checked, rank, buffers, count, data_type, reduction)
            .map_err(|why| Error::Misuse { attempt: format!("run the plan {:?}", checked.name), why })?;
        if !loaded.programs.contains_key(&key) {
            let prepared = self.prepare(plan, &key)?;
            let programs = &mut self.resources.plans[plan.number].programs;
            if programs.len() >= PROGRAMS_MAX {
                // Calls in flight and graphs may use programs in device memory.
                programs.retain(|_, prepared| prepared.in_memory.is_some());
            }
            programs.insert(key.clone(), prepared);
        }
        Ok(key)
    }

    fn prepare(&mut self, plan: PlanId, key: &Key) -> Result<Prepared, Error> {
        // Memory may be allocated while another thread captures a graph.
        let _relaxed = RelaxedCapture::begin(self.context.driver())?;
        let loaded = &self.resources.plans[plan.number];
        let compiler = &loaded.compiler;
        let spread = self.spread(compiler, key);
        let shape = shape_of(key);
        let checked = compiler.check(key.reduction);
        let compiled = checked.and_then(|()| compiler.compile(&shape, spread, &loaded.shared.arenas));
        let program = compiled.map_err(|why| Error::Misuse {
            attempt: format!("run {}", compiler.plan().name),
            why: why.to_string(),
        })?;
        let specialisation = Specialisation {
            data_type: key.data_type,
            reduction: key.reduction,
            sequences: program.sequences.clone(),
            is_in_shared: program.is_in_shared,
            is_one_gpu: self.is_one_gpu,
        };
        let name = compiler.plan().name.clone();
        let kernel = self.resources.kernels.get(&specialisation)?.clone();
        let blocks = (program.header.lanes * program.header.slices) as usize;
        let per_multiprocessor = kernel.function.blocks_per_multiprocessor(spread.threads, 0)?;
        let most = per_multiprocessor * self.context.device().multiprocessors / self.ranks_on_gpu;
        if blocks > most.min(REPORTS_MAX - 1) {
            let why = format!(
                "it needs {blocks} blocks on each rank, and the GPU runs {most} at once for each of its {} ranks. Use a plan with fewer lanes",
                self.ranks_on_gpu
            );
            return Err(Error::Misuse { attempt: format!("run {name}"), why });
        }
        let in_memory = if !program.is_in_parameters {
            let memory = DeviceMemory::new(&self.context, program.bytes.len())?;
            memory.write(&self.stream, 0, &program.bytes)?;
            Some(memory)
        } else {
            None
        };
        Ok(Prepared { program, kernel, spread, in_memory })
    }

    /// How many blocks a call uses, and how large its tiles are.
    fn spread(&self, compiler: &Compiler, key: &Key) -> Spread {
        let ranks = compiler.plan().ranks as usize;
        let lanes = compiler.plan().programs.iter().map(|program| program.lanes.len()).max().unwrap_or(1);
        let most = (self.share / lanes.max(1)).clamp(1, compiler.arena.slices_max as usize);
        let bytes = key.count * key.data_type.bytes();
        let chunk = bytes.div_ceil(compiler.plan().chunks_per_block() as usize);
        let thread_bytes = if compiler.has_packets() { 8 } else { 16 };
        let threads = chunk.div_ceil(thread_bytes).next_multiple_of(32).clamp(32, THREADS_MAX as usize);
        // Slices of scratch are not guarded from each other, so all calls have the same.
        let has_scratch = compiler.plan().chunks.scratch > 0;
        let threads = if has_scratch { THREADS_MAX as usize } else { threads };
        let slices = if has_scratch { most } else { chunk.div_ceil(thread_bytes * threads).clamp(1, most) };
        let chunk_bytes =
            (TILE_BYTES / (2 * ranks) / compiler.plan().chunks_per_block() as usize).max(1 << 16);
        Spread { slices: slices as u32, threads: threads as u32, chunk_bytes }
    }

    /// Whether a call has copied buffers because ranks in other processes cannot map them.
    #[cfg(test)]
    pub(crate) fn has_copied(&self) -> bool {
        self.resources.staging.is_used()
    }

    /// How a prepared call cuts a block.
    #[cfg(test)]
    pub(crate) fn cut(&self, plan: PlanId, key: &Key, length: usize) -> weftlink_plan::Cut {
        let loaded = &self.resources.plans[plan.number];
        let Prepared { program, spread, .. } = &loaded.programs[key];
        let shape = shape_of(key);
        let blocks = loaded.compiler.blocks(&shape, *spread, program.header.unit_elements as usize);
        blocks.map_or_else(|why| panic!("{why}"), |blocks| blocks.cut(length))
    }

    /// Lets ranks in other processes unmap this rank's buffers, except those of captured calls: before the memory is to be free for other
    /// uses (`torch.cuda.empty_cache()`). Waits for the work of this rank's GPU. Processes close memory of `cudaMalloc` in their next call
    /// that accesses buffers.
    pub fn release_buffers(&mut self) -> Result<(), Error> {
        if self.resources.registry.is_none() {
            return Ok(());
        }
        self.context.synchronize()?;
        // Kernels of other ranks may still use them.
        if let Some(why) = self.failure() {
            return Err(Error::Failed { why });
        }
        self.resources.registry.as_mut().map_or(Ok(()), BufferRegistry::release_all)
    }

    /// Why a call of this rank failed, if one has.
    pub fn failure(&self) -> Option<String> {
        let Resources { reports, presence, .. } = &*self.resources;
        let own = reports.failure().map(|report| describe(self.rank(), &report));
        own.or_else(|| presence.failure())
    }

    /// What the blocks of this rank that have waited for long wait for.
    pub fn waits(&self) -> Vec<String> {
        self.resources.reports.waits().map(|report| describe(self.rank(), &report)).collect()
    }

    /// Ends the calls of all ranks that wait. Later ones are refused.
    pub fn abort(&self) {
        self.resources.presence.abort();
    }

    /// Aborts from any thread.
    pub fn aborter(&self) -> Aborter {
        self.resources.presence.aborter()
    }

    /// Whether other ranks are in this process and on this GPU.
    pub fn shares_context(&self) -> bool {
        self.shares_context
    }

    /// Waits for this rank's calls, and then says that it leaves: calls of other ranks that still wait for it fail.
    pub(crate) fn leave(&self) -> Result<(), Error> {
        match &self.last {
            _ if self.has_captured => self.context.synchronize()?,
            Some(Last::Own(last)) if last.capture()? == Capture::None => {
                self.event.record(last)?;
                self.event.synchronize()?;
            }
            Some(Last::Borrowed(_)) => self.event.synchronize()?,
            _ => {}
        }
        self.resources.presence.leave();
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Kernels of this rank may still run, and those of others in this process access its memory.
        match self.leave().and_then(|()| self.context.synchronize()) {
            // SAFETY: it is dropped once.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.resources) },
            // The context is lost, or a stream is being captured.
            Err(why) => tracing::warn!(
                target: "weft::plan",
                rank = self.group.rank(),
                "cannot wait for the end of calls, so their memory is not freed: {why}"
            ),
        }
    }
}

fn shape_of(key: &Key) -> Shape {
    Shape { aliasing: key.aliasing, element_bytes: key.data_type.bytes(), count: key.count, uneven: None }
}

/// The token of a rank's process.
fn token_of(identity: &[u8]) -> u64 {
    identity[..8].try_into().map(u64::from_le_bytes).unwrap_or_default()
}

/// The multiprocessors of a rank's GPU.
fn multiprocessors_of(identity: &[u8]) -> usize {
    identity[24..28].try_into().map(u32::from_le_bytes).unwrap_or_default() as usize
}
