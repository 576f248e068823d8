//! Ranks on GPUs of one host: loads plans, shares their memory, and launches calls on streams.

// Launches kernels with addresses.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Aliasing, Collective, DataType, Reduction, Shape, Verified};

use crate::Error;
use crate::driver::{
    Allocation, Context, Device, DeviceAddress, DeviceBuffer, DeviceMemory, HandleKind, Launch, Mapping,
    Parameters, PinnedMemory, Stream,
};
use crate::kernels::{Kernel, Kernels, THREADS_MAX};
use crate::program::{Arenas, Compiler, Program, Spread};
use crate::records::{self, CALL_BYTES};
use crate::source::Specialisation;

/// The most blocks of one lane.
const SLICES_MAX: u32 = 132;
/// What the ranks of a GPU read and write between two synchronisations: more, and they drift apart in address space.
const TILE_BYTES: usize = 128 << 20;
const REPORTS_MAX: usize = 1024;

/// A communicator of ranks on GPUs.
#[derive(Debug)]
pub struct Communicator {
    group: Bootstrap,
    context: Context,
    stream: Stream,
    ranks_on_gpu: usize,
    /// Blocks that every rank may have on its GPU.
    share: usize,
    is_one_gpu: bool,
    in_process: Vec<bool>,
    kernels: Kernels,
    plans: Vec<Loaded>,
    host: HostMemory,
    timeout: Duration,
}

/// A loaded plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanId(usize);

#[derive(Debug)]
struct Loaded {
    compiler: Compiler,
    arenas: Arenas,
    programs: HashMap<Key, Prepared>,
    _memory: Vec<Mapping>,
}

/// The arguments of a call, except its buffers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    count: usize,
    data_type: DataType,
    reduction: Reduction,
    aliasing: Aliasing,
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

/// Host memory of this rank that its kernels read and write: the abort word and the reports.
#[derive(Debug)]
struct HostMemory {
    memory: PinnedMemory,
}

impl HostMemory {
    fn new(context: &Context) -> Result<HostMemory, Error> {
        let memory = PinnedMemory::new(context, 64 + REPORTS_MAX * size_of::<records::Report>())?;
        // SAFETY: the memory has this many bytes and no kernel uses it yet.
        unsafe { memory.host().write_bytes(0, memory.bytes()) };
        Ok(HostMemory { memory })
    }

    fn abort_word(&self) -> &AtomicU32 {
        // SAFETY: the memory begins with the word, is aligned to a page, and lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.memory.host().cast()) }
    }

    /// A report, if there is one.
    fn report(&self, at: usize) -> Option<records::Report> {
        let first: *mut records::Report = self.memory.host().wrapping_add(64).cast();
        // SAFETY: the reports follow the abort word. Kernels write the kind last, and the rest before it.
        unsafe {
            let report = first.add(at);
            let kind = AtomicU32::from_ptr((&raw mut (*report).kind).cast()).load(Ordering::Acquire);
            (kind != 0).then(|| records::Report { kind, ..report.read_volatile() })
        }
    }
}

impl Communicator {
    /// Joins the ranks of a group on a GPU. All ranks call it.
    pub fn new(mut group: Bootstrap, device: &Device, timeout: Duration) -> Result<Communicator, Error> {
        let context = Context::primary(device)?;
        let stream = Stream::new(&context)?;
        let mut identity = process_token().to_le_bytes().to_vec();
        identity.extend(device.uuid);
        identity.extend((device.multiprocessors as u32).to_le_bytes());
        let all = exchange(&mut group, "GPUs", identity.clone(), timeout)?;
        let in_process: Vec<bool> = all.iter().map(|other| other[..8] == identity[..8]).collect();
        let ranks_on = |rank: &[u8]| all.iter().filter(|other| other[8..24] == rank[8..24]).count();
        let ranks_on_gpu = ranks_on(&identity);
        // All ranks cut their elements into the same slices, so the smallest share counts.
        let share = |rank: &Vec<u8>| {
            // Two ranks have too few loads in flight with a block on every multiprocessor.
            let blocks = multiprocessors_of(rank) * if ranks_on(rank) <= 2 { 2 } else { 1 };
            blocks / ranks_on(rank)
        };
        let share = all.iter().map(share).min().unwrap_or(0).max(1);
        let host = HostMemory::new(&context)?;
        Ok(Communicator {
            is_one_gpu: ranks_on_gpu == all.len(),
            group,
            kernels: Kernels::new(&context),
            context,
            stream,
            ranks_on_gpu,
            share,
            in_process,
            plans: Vec::new(),
            host,
            timeout,
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

    /// Loads a plan: its memory is allocated and shared. All ranks call it with the same plan.
    ///
    /// Plans that read or write buffers of other ranks need all ranks in one process.
    pub fn load(&mut self, plan: Verified) -> Result<PlanId, Error> {
        if plan.needs_windows() && self.in_process.contains(&false) {
            let why = "it accesses buffers of ranks in other processes; choose a plan that sends messages";
            return Err(Error::Misuse {
                attempt: format!("load the plan {}", plan.name),
                why: why.to_owned(),
            });
        }
        let compiler = Compiler::new(plan, self.rank() as u32, SLICES_MAX);
        let device = self.context.device().clone();
        let granularity = device.granularity(HandleKind::PosixDescriptor)?.recommended;
        let bytes = (compiler.arena.bytes as usize).next_multiple_of(granularity);
        let own = Allocation::create(&device, bytes, HandleKind::PosixDescriptor)?;
        let mapping = Mapping::new(&self.context, &[&own], &[&device])?;
        mapping.fill(&self.stream, 0, bytes, 0)?;
        self.stream.synchronize()?;
        let addresses =
            exchange(&mut self.group, "arenas", mapping.address().to_le_bytes().to_vec(), self.timeout)?;
        let descriptor = own.export_descriptor()?;
        let passed = self
            .group
            .pass_descriptors("arenas", std::os::fd::AsFd::as_fd(&descriptor), self.timeout)
            .map_err(|why| Error::Group { why: why.to_string() })?;
        let mut memory = vec![];
        let mut arenas = Vec::new();
        for (rank, (address, passed)) in std::iter::zip(&addresses, passed).enumerate() {
            if rank == self.rank() {
                arenas.push(mapping.address());
            } else if self.in_process[rank] {
                arenas.push(u64::from_le_bytes(address[..8].try_into().unwrap_or_default()));
            } else {
                let descriptor =
                    passed.ok_or_else(|| Error::Group { why: format!("rank {rank} passed no memory") })?;
                let peer = Allocation::import_descriptor(
                    self.context.driver(),
                    std::os::fd::AsFd::as_fd(&descriptor),
                    bytes,
                )?;
                let mapped = Mapping::new(&self.context, &[&peer], &[&device])?;
                arenas.push(mapped.address());
                memory.push(mapped);
            }
        }
        memory.push(mapping);
        exchange(&mut self.group, "arenas are mapped", Vec::new(), self.timeout)?;
        self.plans.push(Loaded {
            compiler,
            arenas: Arenas(arenas),
            programs: HashMap::new(),
            _memory: memory,
        });
        Ok(PlanId(self.plans.len() - 1))
    }

    /// Enqueues a call of a loaded plan on a stream.
    ///
    /// # Safety
    /// The buffers are device memory of this rank's blocks, valid until the call has ended on the stream, for the other ranks too, whose
    /// kernels access them.
    pub unsafe fn run(
        &mut self,
        plan: PlanId,
        stream: &Stream,
        [input, output]: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let key = self.prepare_call(plan, [input, output], count, data_type, reduction)?;
        if let Some(why) = self.failure() {
            return Err(Error::Failed { why });
        }
        let loaded = &self.plans[plan.0];
        let prepared = &loaded.programs[&key];
        let reports = self.host.memory.device() + 64;
        let header = records::CallHeader {
            signature: signature(&key, prepared.program.header.tiles, prepared.spread),
            input,
            output,
            program: prepared.in_memory.as_ref().map_or(0, DeviceBuffer::address),
            abort: self.host.memory.device(),
            reports,
            timeout_ns: self.timeout.as_nanos() as u64,
            ..prepared.program.header
        };
        let mut call = [0_u8; CALL_BYTES];
        let mut at = 0;
        let mut push = |bytes: &[u8]| {
            call[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        push(bytemuck::bytes_of(&header));
        let view = records::View { input, output };
        (0..header.ranks).for_each(|_| push(bytemuck::bytes_of(&view)));
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
        unsafe { prepared.kernel.function.launch(stream, launch, Parameters::Buffer(&call)) }
    }

    /// Compiles what a call needs, so that the call itself only launches.
    pub fn prepare_call(
        &mut self,
        plan: PlanId,
        [input, output]: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<Key, Error> {
        let aliasing = if input == output { Aliasing::InPlace } else { Aliasing::OutOfPlace };
        let key = Key { count, data_type, reduction, aliasing };
        let of = |loaded: &Loaded| loaded.compiler.plan().name.clone();
        let name = self.plans.get(plan.0).map(of).unwrap_or_default();
        if let Some(why) = self.misuse(plan, [input, output], &key) {
            return Err(Error::Misuse { attempt: format!("run the plan {name:?}"), why });
        }
        if !self.plans[plan.0].programs.contains_key(&key) {
            let prepared = self.prepare(plan, &key)?;
            self.plans[plan.0].programs.insert(key.clone(), prepared);
        }
        Ok(key)
    }

    /// Why a call is refused, if it is.
    fn misuse(&self, plan: PlanId, buffers: [DeviceAddress; 2], key: &Key) -> Option<String> {
        let Some(loaded) = self.plans.get(plan.0) else {
            return Some("it was loaded into another communicator".to_owned());
        };
        let Key { count, data_type, reduction, aliasing } = key;
        let (plan, size) = (loaded.compiler.plan(), data_type.bytes());
        if !plan.aliasing.contains(aliasing) {
            return Some(format!("it is not proved for calls {}", aliasing_name(*aliasing)));
        }
        if count.checked_mul(size).is_none() {
            return Some(format!("{count} elements of {size} bytes are more than there is memory"));
        }
        if let Some(address) = buffers.iter().find(|address| !address.is_multiple_of(size as u64)) {
            return Some(format!("the buffer at {address:#x} is not aligned to elements of {size} bytes"));
        }
        let is_scan = matches!(plan.collective, Collective::Scan | Collective::ExclusiveScan);
        let finishes = matches!(
            reduction,
            Reduction::Average | Reduction::LogicalAnd | Reduction::LogicalOr | Reduction::LogicalXor
        );
        if plan.collective.reduces() {
            if matches!(reduction, Reduction::PremultipliedSum | Reduction::UserDefined { .. })
                || is_scan && finishes
            {
                return Some(format!("{reduction:?} is not supported on GPUs yet"));
            }
            if !reduction.is_for(data_type.kind()) {
                return Some(format!("{reduction:?} is not defined for {}", data_type.name()));
            }
        }
        None
    }

    fn prepare(&mut self, plan: PlanId, key: &Key) -> Result<Prepared, Error> {
        let loaded = &self.plans[plan.0];
        let compiler = &loaded.compiler;
        let spread = self.spread(compiler, key);
        let shape = Shape {
            aliasing: key.aliasing,
            element_bytes: key.data_type.bytes(),
            count: key.count,
            uneven: None,
        };
        let program = compiler.compile(&shape, spread, &loaded.arenas).map_err(|why| Error::Misuse {
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
        let kernel = self.kernels.get(&specialisation)?.clone();
        let blocks = (program.header.lanes * program.header.slices) as usize;
        let per_multiprocessor = kernel.function.blocks_per_multiprocessor(spread.threads, 0)?;
        let most = per_multiprocessor * self.context.device().multiprocessors / self.ranks_on_gpu;
        if blocks > most.min(REPORTS_MAX - 1) {
            let why = format!(
                "it needs {blocks} blocks on each rank, and the GPU runs {most} at once for each of its {} ranks. Use a plan with fewer lanes",
                self.ranks_on_gpu
            );
            return Err(Error::Misuse { attempt: format!("run {}", compiler.plan().name), why });
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

    /// Why a call of this rank failed, if one has.
    pub fn failure(&self) -> Option<String> {
        if self.host.abort_word().load(Ordering::Acquire) != 0 {
            return Some(format!("rank {} aborted its calls", self.rank()));
        }
        self.host.report(0).map(|report| self.describe(&report))
    }

    /// What the blocks of this rank that have waited for long wait for.
    pub fn waits(&self) -> Vec<String> {
        (1..REPORTS_MAX).filter_map(|at| self.host.report(at)).map(|report| self.describe(&report)).collect()
    }

    fn describe(&self, report: &records::Report) -> String {
        let records::Report { kind, lane, slice, step, rank, poll, tile, .. } = *report;
        let what = match poll as u8 {
            records::ENTERED => "to enter the call",
            records::REACHED => "to signal",
            records::ARRIVED => "to send a message",
            _ => "to release a message",
        };
        let own = self.rank();
        let place = format!("step {step} of lane {lane}, slice {slice}, tile {tile}");
        match kind {
            records::WAITING => format!("rank {own} waits for rank {rank} {what}, in {place}"),
            records::TIMED_OUT => format!(
                "timed out after {:?}: rank {own} waited for rank {rank} {what}, in {place}",
                self.timeout
            ),
            records::PEER_FAILED => format!("a call of rank {rank} failed, which says why"),
            records::MISMATCH => format!(
                "rank {rank} is in another call than rank {own}: counts, types or operations differ, in {place}"
            ),
            records::ABORTED => {
                format!("rank {own} was aborted while it waited for rank {rank} {what}, in {place}")
            }
            kind => format!("rank {own} reports a failure of unknown kind {kind}, in {place}"),
        }
    }

    /// Ends the calls of this rank that wait, and with them those of the others; later ones are refused. Other ranks whose calls wait for
    /// one that this rank has not made end it when their timeout passes.
    pub fn abort(&self) {
        self.host.abort_word().store(1, Ordering::Release);
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Kernels of this rank, and of the others in this process, may still use its memory. If that fails, the context is lost.
        if let Err(why) = self.context.synchronize() {
            tracing::warn!(target: "weft::plan", rank = self.group.rank(), "cannot wait for the end of calls: {why}");
        }
    }
}

fn exchange(
    group: &mut Bootstrap,
    what: &'static str,
    bytes: Vec<u8>,
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, Error> {
    group.exchange(what, bytes, timeout).map_err(|why| Error::Group { why: why.to_string() })
}

/// A number that no other process has.
fn process_token() -> u64 {
    static TOKEN: OnceLock<u64> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        hasher.finish()
    })
}

/// The multiprocessors of a rank's GPU.
fn multiprocessors_of(identity: &[u8]) -> usize {
    identity[24..28].try_into().map(u32::from_le_bytes).unwrap_or_default() as usize
}

fn aliasing_name(aliasing: Aliasing) -> &'static str {
    match aliasing {
        Aliasing::InPlace => "in place",
        Aliasing::OutOfPlace => "out of place",
    }
}

/// A number of 32 bits that differs, most likely, from that of another call.
fn signature(key: &Key, tiles: u64, spread: Spread) -> u32 {
    use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
    let build = BuildHasherDefault::<std::hash::DefaultHasher>::default();
    let mut hasher = build.build_hasher();
    hasher.write_usize(key.count);
    hasher.write_u64(tiles);
    hasher.write_u32(spread.slices);
    hasher.write_u32(spread.threads);
    hasher.write_u8(key.data_type as u8);
    hasher.write(format!("{:?}", key.reduction).as_bytes());
    hasher.finish() as u32
}
