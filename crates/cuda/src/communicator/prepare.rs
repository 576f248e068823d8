//! What a call needs before it can be launched: its program for this rank, and its kernel.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use weftlink_plan::{Collective, DataType, Reduction, Shape};

use super::{CallKind, Communicator, Loaded, PlanId, Prepared, Resources};
use crate::Error;
use crate::call::Key;
use crate::driver::{DeviceAddress, DeviceBuffer, DeviceMemory, Event, RelaxedCapture};
use crate::kernels::THREADS_MAX;
use crate::program::{Compiler, Program, Spread};
use crate::reports::REPORTS_MAX;
use crate::source::Specialisation;

/// What the ranks of a GPU read and write between two synchronisations: more, and they drift apart in address space.
const TILE_BYTES: usize = 256 << 20;
/// Kinds of calls of a plan that the ranks of a process remember to have prepared together.
const MET_MAX: usize = 4096;

impl Communicator {
    /// Compiles and loads what a call needs, so that the call itself only launches.
    ///
    /// Loading a kernel waits for all kernels of the GPU, so the ranks of a process load together: the first time, this waits until the others
    /// prepare or make the same call. They prepare the same calls in the same order, between the same calls. An error, except misuse, ends the
    /// calls of all ranks.
    pub fn prepare_call(
        &mut self,
        plan: PlanId,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<Key, Error> {
        let key = self.key_of(plan, buffers, count, data_type, reduction)?;
        let Loaded { programs, met, .. } = &self.resources.plans[plan.number];
        let meets = self.loading.is_some() && !met.contains(&kind_of(&key));
        if meets || !programs.contains(&key) {
            self.prepare(plan, &key, meets).map_err(|error| self.failed(error))?;
        }
        Ok(key)
    }

    /// Compiles the kernel of a call, without loading it. Waits for no other rank.
    pub fn compile_call(
        &mut self,
        plan: PlanId,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let key = self.key_of(plan, buffers, count, data_type, reduction)?;
        self.draft(plan, &key).map(|_| ())
    }

    fn key_of(
        &self,
        plan: PlanId,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<Key, Error> {
        let loaded = match self.resources.plans.get(plan.number) {
            Some(loaded) if plan.communicator == self.number => loaded,
            _ => {
                let why = "it was loaded into another communicator".to_owned();
                return Err(Error::Misuse { attempt: "run a plan".to_owned(), why });
            }
        };
        let (checked, rank) = (loaded.compiler.plan(), self.rank() as u32);
        Key::new(checked, rank, buffers, count, data_type, reduction)
            .and_then(|key| self.switched(plan, buffers, &key).map(|_| key))
            .and_then(|key| match loaded.compiler.switch.is_some() && key.is_copied(checked, rank, buffers) {
                // A switch does not access copies.
                true => Err("it is not proved for calls in place".to_owned()),
                false => Ok(key),
            })
            .map_err(|why| Error::Misuse { attempt: format!("run the plan {:?}", checked.name), why })
    }

    /// Prepares a call. `meets`: with the other ranks of this process.
    fn prepare(&mut self, plan: PlanId, key: &Key, meets: bool) -> Result<(), Error> {
        // Memory may be allocated while another thread captures a graph.
        let _relaxed = RelaxedCapture::begin(self.context.driver())?;
        let is_new = !self.resources.plans[plan.number].programs.contains(key);
        let drafted = if is_new { Some(self.draft(plan, key)?) } else { None };
        let digest = BuildHasherDefault::<DefaultHasher>::default().hash_one((plan.number, kind_of(key)));
        let begun = match self.loading.as_ref().filter(|_| meets) {
            Some(loading) => Some(loading.begin(digest, self.call_timeout, || self.check_recorded())?),
            None => None,
        };
        let mut prepared = drafted.map(|drafted| self.load_kernel(drafted)).transpose();
        if let (Some(loading), Some(begun)) = (&self.loading, begun) {
            prepared = loading.end(&begun, prepared, self.call_timeout, || self.check_recorded());
        }
        let Resources { plans, retired, .. } = &mut *self.resources;
        let Loaded { programs, met, .. } = &mut plans[plan.number];
        if meets {
            // On all ranks in the same call.
            if met.len() >= MET_MAX {
                met.clear();
            }
            met.insert(kind_of(key));
        }
        if let Some(prepared) = prepared? {
            let freed = programs.insert(key.clone(), prepared);
            retired.add(freed.into_iter().filter_map(|program| program.in_memory));
        }
        Ok(())
    }

    /// The program of a call, whose kernel is compiled.
    fn draft(&mut self, plan: PlanId, key: &Key) -> Result<Drafted, Error> {
        let loaded = &self.resources.plans[plan.number];
        let compiler = &loaded.compiler;
        let spread = spread(compiler, key, self.share);
        let shape = shape_of(key);
        let checked = compiler.check(key.data_type, key.reduction);
        let compiled = checked.and_then(|()| compiler.compile(&shape, spread, &loaded.shared.arenas));
        let name = compiler.plan().name.clone();
        let program = compiled.map_err(|why| match why.is_of_this_rank() {
            true => self.unable(&name, &why.to_string()),
            false => Error::Misuse { attempt: format!("run {name}"), why: why.to_string() },
        })?;
        let specialisation = Specialisation {
            data_type: key.data_type,
            reduction: key.reduction,
            sequences: program.sequences.clone(),
            is_in_shared: program.is_in_shared,
            is_one_gpu: self.is_one_gpu,
        };
        self.resources.kernels.compile(&specialisation)?;
        let signature = key.signature(program.header.tiles, spread, &Default::default());
        Ok(Drafted { name, program, spread, signature, specialisation })
    }

    fn load_kernel(&mut self, drafted: Drafted) -> Result<Prepared, Error> {
        let Drafted { name, program, spread, signature, specialisation } = drafted;
        if !self.resources.kernels.is_loaded(&specialisation) {
            // Loading waits for this rank's kernels inside of the driver, where it may keep the thread from mapping buffers that the peers of
            // these kernels wait for. An error shows in the next call, too.
            let _ = self.wait_for_launched();
        }
        let kernel = self.resources.kernels.get(&specialisation)?.clone();
        let blocks = (program.header.lanes * program.header.slices) as usize;
        let per_multiprocessor = kernel.function.blocks_per_multiprocessor(spread.threads, 0)?;
        let most = per_multiprocessor * self.context.device().multiprocessors / self.ranks_on_gpu;
        if blocks > most.min(REPORTS_MAX - 1) {
            let why = format!(
                "it needs {blocks} blocks on each rank, and the GPU runs {most} at once for each of its {} ranks. Use a plan with fewer lanes",
                self.ranks_on_gpu
            );
            return Err(self.unable(&name, &why));
        }
        let in_memory = if !program.is_in_parameters {
            let (retired, bytes) = (&mut self.resources.retired, program.bytes.len());
            let memory = match retired.take(bytes, DeviceBuffer::bytes, Event::is_done)? {
                Some(memory) => memory,
                None => {
                    self.program_bytes += bytes;
                    DeviceMemory::new(&self.context, bytes)?
                }
            };
            memory.write(&self.stream, 0, &program.bytes)?;
            Some(memory)
        } else {
            None
        };
        Ok(Prepared { program, kernel, spread, signature, in_memory })
    }

    /// The error of a rank that cannot run its part of a plan. Others may be able to run theirs, so it is no misuse of this rank's.
    fn unable(&self, plan: &str, why: &str) -> Error {
        Error::Failed { why: format!("rank {} cannot run {plan}: {why}", self.rank()) }
    }

    /// How a prepared call cuts a block.
    #[cfg(test)]
    pub(crate) fn cut(&self, plan: PlanId, key: &Key, length: usize) -> weftlink_plan::Cut {
        let loaded = &self.resources.plans[plan.number];
        let Prepared { program, spread, .. } = loaded.programs.of(key);
        let shape = shape_of(key);
        let blocks = loaded.compiler.blocks(&shape, *spread, program.header.unit_elements as usize);
        blocks.map_or_else(|why| panic!("{why}"), |blocks| blocks.cut(length))
    }
}

/// The program of a call, and what its kernel is specialised for.
struct Drafted {
    name: String,
    program: Program,
    spread: Spread,
    signature: u32,
    specialisation: Specialisation,
}

/// How many blocks a call uses, of those that a rank may have, and how large its tiles are.
pub(crate) fn spread(compiler: &Compiler, key: &Key, blocks: usize) -> Spread {
    let ranks = compiler.plan().ranks as usize;
    let lanes = compiler.plan().programs.iter().map(|program| program.lanes.len()).max().unwrap_or(1);
    let most = (blocks / lanes.max(1)).clamp(1, compiler.arena.slices_max as usize);
    let bytes = key.count * key.data_type.bytes();
    let chunk = bytes.div_ceil(compiler.plan().chunks_per_block() as usize);
    let thread_bytes = if compiler.has_packets() { 8 } else { 16 };
    let threads = chunk.div_ceil(thread_bytes).next_multiple_of(32).clamp(32, THREADS_MAX as usize);
    // Slices of scratch are not guarded from each other, so all calls have the same.
    let has_scratch = compiler.plan().chunks.scratch > 0;
    let threads = if has_scratch { THREADS_MAX as usize } else { threads };
    let slices = if has_scratch { most } else { chunk.div_ceil(thread_bytes * threads).clamp(1, most) };
    // Ranks that reduce into one output drift apart least.
    let tile_bytes = match &compiler.plan().collective {
        Collective::Reduce { .. } | Collective::ReduceScatter => 2 * TILE_BYTES,
        _ => TILE_BYTES,
    };
    let chunk_bytes = (tile_bytes / (2 * ranks) / compiler.plan().chunks_per_block() as usize).max(1 << 16);
    Spread { slices: slices as u32, threads: threads as u32, chunk_bytes }
}

/// What the kernels of a call depend on, on all ranks alike.
fn kind_of(key: &Key) -> CallKind {
    (key.count, key.data_type, key.reduction)
}

/// The buffers of a call, as its program depends on them.
pub(crate) fn shape_of(key: &Key) -> Shape {
    Shape { aliasing: key.aliasing, element_bytes: key.data_type.bytes(), count: key.count, uneven: None }
}
