//! What a call needs before it can be launched: its program for this rank, and its kernel.

use weftlink_plan::{DataType, Reduction, Shape};

use super::{Communicator, PlanId, Prepared, Resources};
use crate::Error;
use crate::call::Key;
use crate::driver::{DeviceAddress, DeviceBuffer, DeviceMemory, Event, RelaxedCapture};
use crate::kernels::THREADS_MAX;
use crate::program::{Compiler, Spread};
use crate::reports::REPORTS_MAX;
use crate::source::Specialisation;

/// What the ranks of a GPU read and write between two synchronisations: more, and they drift apart in address space.
const TILE_BYTES: usize = 256 << 20;

impl Communicator {
    /// Compiles what a call needs, so that the call itself only launches. An error, except misuse, ends the calls of all ranks, which would
    /// wait for this one.
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
        if !loaded.programs.contains(&key) {
            let prepared = self.prepare(plan, &key).map_err(|error| self.failed(error))?;
            let Resources { plans, retired, .. } = &mut *self.resources;
            let freed = plans[plan.number].programs.insert(key.clone(), prepared);
            retired.add(freed.into_iter().filter_map(|program| program.in_memory));
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
        let program = compiled.map_err(|why| match why.is_of_this_rank() {
            true => self.unable(&compiler.plan().name, &why.to_string()),
            false => {
                let attempt = format!("run {}", compiler.plan().name);
                Error::Misuse { attempt, why: why.to_string() }
            }
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
            return Err(self.unable(&name, &why));
        }
        let in_memory = if !program.is_in_parameters {
            let (retired, bytes) = (&mut self.resources.retired, program.bytes.len());
            let memory = match retired.take(bytes, DeviceBuffer::bytes, Event::is_done)? {
                Some(memory) => memory,
                None => DeviceMemory::new(&self.context, bytes)?,
            };
            memory.write(&self.stream, 0, &program.bytes)?;
            Some(memory)
        } else {
            None
        };
        Ok(Prepared { program, kernel, spread, in_memory })
    }

    /// The error of a rank that cannot run its part of a plan. Others may be able to run theirs, so it is no misuse of this rank's.
    fn unable(&self, plan: &str, why: &str) -> Error {
        Error::Failed { why: format!("rank {} cannot run {plan}: {why}", self.rank()) }
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

fn shape_of(key: &Key) -> Shape {
    Shape { aliasing: key.aliasing, element_bytes: key.data_type.bytes(), count: key.count, uneven: None }
}
