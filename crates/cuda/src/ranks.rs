//! All ranks of a group in this process on one GPU, in lockstep: benchmarks and tests.
//!
//! Each rank has a stream, an input and an output buffer. The kernels of a call wait for those of all other ranks, so nothing waits for a
//! stream between the launches of two ranks, and everything is loaded and compiled before the first launch. Ranks have threads only to load
//! kernels and to launch calls one by one. Safe, because the buffers are
//! the value's own and live until its kernels have ended.

// Passes addresses of its own memory.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Aliasing, Collective, DataType, Reduction, Verified};

use crate::call::in_one_buffer;
use crate::collectives::{Collectives, LoadedPlan};
use crate::driver::{
    Context, Device, DeviceAddress, DeviceBuffer, DeviceMemory, Event, Graph, PinnedMemory, Stream,
};
use crate::reports::ELSEWHERE;
use crate::{Error, Operation};

/// What a rank's results are copied to, part by part.
const STAGING_BYTES: usize = 8 << 20;
const COPIES: u32 = 20;

/// The ranks.
#[derive(Debug)]
pub struct Ranks {
    identity: Arc<()>,
    context: Context,
    /// Around what is timed, on the stream of rank 0.
    timed: [Event; 2],
    ranks: Vec<Rank>,
}

#[derive(Debug)]
struct Rank {
    /// Dropped first: it waits for all kernels.
    collectives: Collectives,
    /// Those that were asked for, in the same order on all ranks.
    plans: Vec<LoadedPlan>,
    stream: Stream,
    /// Joins its stream with that of rank 0.
    joined: Event,
    staging: PinnedMemory,
    /// Input and output.
    buffers: [DeviceMemory; 2],
}

/// A call of all ranks.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its plan, which these ranks have loaded.
    pub plan: LoadedPlan,
    /// Elements of a block.
    pub count: usize,
    /// Their type.
    pub data_type: DataType,
    /// How they are combined; without effect where nothing is.
    pub reduction: Reduction,
    /// The bytes of each rank's factor in a pre-multiplied sum; empty for other operations.
    pub factors: Vec<Vec<u8>>,
    /// In place, both buffers are the output buffer.
    pub aliasing: Aliasing,
}

/// Calls of all ranks in a graph.
#[derive(Debug)]
pub struct Captured {
    graph: Graph,
    /// The ranks that it was captured from.
    of: Arc<()>,
}

/// A buffer of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first argument of a call.
    Input,
    /// The second.
    Output,
}

impl Ranks {
    /// Ranks on a GPU, with buffers of these lengths. A call that waits longer than the timeout for other ranks fails.
    pub fn new(
        device: &Device,
        ranks: usize,
        buffer_bytes: [usize; 2],
        timeout: Duration,
    ) -> Result<Ranks, Error> {
        let context = Context::primary(device)?;
        let groups = Bootstrap::threads(ranks);
        let joined = in_parallel(groups, |group| {
            let mut collectives = Collectives::new(group, device, timeout)?;
            collectives.set_call_timeout(timeout);
            Ok(Rank {
                stream: Stream::new(&context)?,
                joined: Event::new(&context)?,
                staging: PinnedMemory::new(&context, STAGING_BYTES)?,
                // The driver refuses an allocation of nothing.
                buffers: [
                    DeviceMemory::new(&context, buffer_bytes[0].max(1))?,
                    DeviceMemory::new(&context, buffer_bytes[1].max(1))?,
                ],
                collectives,
                plans: Vec::new(),
            })
        })?;
        let timed = [Event::with_timing(&context)?, Event::with_timing(&context)?];
        Ok(Ranks { identity: Arc::default(), timed, ranks: joined, context })
    }

    /// The context of the GPU.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Loads the plan that is chosen for calls of this size, if it is not loaded.
    pub fn plan_of(
        &mut self,
        collective: &Collective,
        count: usize,
        data_type: DataType,
    ) -> Result<LoadedPlan, Error> {
        self.loaded_by_all(|collectives| collectives.plan_of(collective, count, data_type))
    }

    /// Loads a plan.
    pub fn load(&mut self, plan: &Verified) -> Result<LoadedPlan, Error> {
        self.loaded_by_all(|collectives| collectives.load(plan.clone()))
    }

    /// Compiles and loads what calls need. Ranks compile different ones first, so that they compile different kernels at the same time and
    /// find the others' in the cache.
    pub fn prepare(&mut self, calls: &[Call]) -> Result<(), Error> {
        let ranks = self.ranks.len();
        let plans = calls.iter().map(|call| self.number_of(&call.plan)).collect::<Result<Vec<_>, _>>()?;
        let calls: Vec<_> = std::iter::zip(calls, plans).collect();
        in_parallel(self.ranks.iter_mut().enumerate().collect(), |(number, rank): (usize, &mut Rank)| {
            let first = number * calls.len() / ranks;
            let mut rotated = calls[first..].iter().chain(&calls[..first]);
            rotated.try_for_each(|&(call, plan)| rank.compile(call, plan))?;
            calls.iter().try_for_each(|&(call, plan)| rank.prepare(call, plan))
        })?;
        Ok(())
    }

    /// Makes a call on every rank several times, each rank on a thread that launches its calls one by one, and waits for the end. Returns the
    /// time on the GPU.
    pub fn run(&mut self, call: &Call, times: u32) -> Result<Duration, Error> {
        self.prepare(std::slice::from_ref(call))?;
        let plan = self.number_of(&call.plan)?;
        self.timed[0].record(&self.ranks[0].stream)?;
        self.fork()?;
        in_parallel(self.ranks.iter_mut().collect(), |rank: &mut Rank| {
            (0..times).try_for_each(|_| rank.run(call, plan))
        })?;
        self.join()?;
        self.timed[1].record(&self.ranks[0].stream)?;
        self.elapsed()
    }

    /// Captures several calls of every rank into a graph.
    pub fn capture(&mut self, call: &Call, times: u32) -> Result<Captured, Error> {
        self.prepare(std::slice::from_ref(call))?;
        let plan = self.number_of(&call.plan)?;
        self.ranks[0].stream.begin_capture()?;
        // By this thread, which captures.
        let enqueued = self.fork().and_then(|()| {
            for _ in 0..times {
                self.ranks.iter_mut().try_for_each(|rank| rank.run(call, plan))?;
            }
            self.join()
        });
        // The capture must end, also after an error.
        let graph = self.ranks[0].stream.end_capture();
        enqueued.and(graph).map(|graph| Captured { graph, of: Arc::clone(&self.identity) })
    }

    /// Launches a graph of [`Ranks::capture`] and waits for its end. Returns the time on the GPU.
    pub fn launch(&mut self, captured: &Captured) -> Result<Duration, Error> {
        if !Arc::ptr_eq(&captured.of, &self.identity) {
            let (attempt, why) = ("launch a graph".to_owned(), "other ranks have captured it".to_owned());
            return Err(Error::Misuse { attempt, why });
        }
        self.timed[0].record(&self.ranks[0].stream)?;
        // SAFETY: it uses these ranks and their buffers, and this waits for its end.
        unsafe { captured.graph.launch(&self.ranks[0].stream) }?;
        self.timed[1].record(&self.ranks[0].stream)?;
        self.elapsed()
    }

    /// Repeats a pattern over bytes of a rank's buffer.
    pub fn fill(
        &mut self,
        rank: usize,
        side: Side,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<(), Error> {
        let Rank { stream, buffers, .. } = &self.ranks[rank];
        let (buffer, mut filled) = (&buffers[side as usize], pattern.len().min(bytes));
        let first = buffer.place(offset, bytes, "fill")?;
        if filled == 0 {
            return Ok(());
        }
        buffer.write(stream, offset, &pattern[..filled])?;
        while filled < bytes {
            let length = filled.min(bytes - filled);
            // SAFETY: both lie inside the buffer and do not overlap.
            unsafe { stream.copy(first + filled as u64, first, length)? };
            filled += length;
        }
        stream.synchronize()
    }

    /// Reads bytes of each rank's output buffer in parallel. `read` gets the rank, an offset from the first of these bytes, and the bytes
    /// there; parts begin at multiples of `unit_bytes`. Returns the sum of what it returns.
    pub fn read(
        &mut self,
        ranges: &[std::ops::Range<usize>],
        unit_bytes: usize,
        read: impl Fn(usize, usize, &[u8]) -> u64 + Sync,
    ) -> Result<u64, Error> {
        let part_bytes = (STAGING_BYTES / unit_bytes.max(1)).max(1) * unit_bytes.max(1);
        let ranks = self.ranks.iter_mut().zip(ranges).enumerate().collect();
        let sums =
            in_parallel(ranks, |(number, (rank, range)): (usize, (&mut Rank, &std::ops::Range<usize>))| {
                if part_bytes > rank.staging.bytes() {
                    let why =
                        format!("a part has {part_bytes} bytes, and the staging memory {STAGING_BYTES}");
                    return Err(Error::Misuse { attempt: "read results".to_owned(), why });
                }
                let mut sum = 0;
                for at in range.clone().step_by(part_bytes) {
                    let length = part_bytes.min(range.end - at);
                    let source = rank.buffers[Side::Output as usize].place(at, length, "read")?;
                    // SAFETY: both have these bytes, and nothing else uses the staging memory.
                    let copied =
                        unsafe { rank.stream.copy_to_host(rank.staging.host().cast(), source, length) };
                    rank.stream.synchronize().and(copied)?;
                    // SAFETY: the bytes are initialised by the copy, which is over; the rank is borrowed.
                    let part = unsafe { std::slice::from_raw_parts(rank.staging.host(), length) };
                    sum += read(number, at - range.start, part);
                }
                Ok(sum)
            })?;
        Ok(sums.into_iter().sum())
    }

    /// Why a call failed, if one has: the reason of the rank that did not fail because of another.
    pub fn failure(&self) -> Option<String> {
        let mut reasons: Vec<_> = self.ranks.iter().filter_map(|rank| rank.collectives.failure()).collect();
        reasons.sort_by_key(|reason| reason.ends_with(ELSEWHERE));
        reasons.into_iter().next()
    }

    /// Makes the streams of the others begin after the work of rank 0's so far.
    fn fork(&self) -> Result<(), Error> {
        let first = &self.ranks[0];
        first.joined.record(&first.stream)?;
        self.ranks[1..].iter().try_for_each(|rank| rank.stream.wait_for(&first.joined))
    }

    /// Makes rank 0's stream continue after the work of the others.
    fn join(&self) -> Result<(), Error> {
        self.ranks[1..].iter().try_for_each(|rank| {
            rank.joined.record(&rank.stream)?;
            self.ranks[0].stream.wait_for(&rank.joined)
        })
    }

    /// Waits for the second event. Returns the time since the first.
    fn elapsed(&self) -> Result<Duration, Error> {
        let [start, end] = &self.timed;
        end.synchronize()?;
        match self.failure() {
            Some(why) => Err(Error::Failed { why }),
            None => end.elapsed_since(start),
        }
    }

    /// The number of a plan, which is that of the first rank: all ranks load the same plans in the same order.
    fn number_of(&self, plan: &LoadedPlan) -> Result<usize, Error> {
        self.ranks[0].plans.iter().position(|loaded| loaded == plan).ok_or_else(|| {
            let (attempt, why) = (format!("run {}", plan.name), "other ranks have loaded it".to_owned());
            Error::Misuse { attempt, why }
        })
    }

    fn loaded_by_all(
        &mut self,
        load: impl Fn(&mut Collectives) -> Result<LoadedPlan, Error> + Sync,
    ) -> Result<LoadedPlan, Error> {
        let all = in_parallel(self.ranks.iter_mut().collect(), |rank: &mut Rank| {
            let loaded = load(&mut rank.collectives)?;
            if !rank.plans.contains(&loaded) {
                rank.plans.push(loaded.clone());
            }
            Ok(loaded)
        })?;
        all.into_iter().next().ok_or_else(|| Error::Group { why: "there are no ranks".to_owned() })
    }
}

impl Rank {
    fn compile(&mut self, call: &Call, plan: usize) -> Result<(), Error> {
        let buffers = self.buffers_of(call)?;
        self.collectives.compile_call(&self.plans[plan], buffers, call.count, call.data_type, call.reduction)
    }

    fn prepare(&mut self, call: &Call, plan: usize) -> Result<(), Error> {
        let buffers = self.buffers_of(call)?;
        self.collectives.prepare_call(&self.plans[plan], buffers, call.count, call.data_type, call.reduction)
    }

    fn run(&mut self, call: &Call, plan: usize) -> Result<(), Error> {
        let buffers = self.buffers_of(call)?;
        let Call { count, data_type, reduction, .. } = call;
        let factor = call.factors.get(self.collectives.rank());
        let operation = factor.and_then(|factor| Operation::premultiplied_sum(factor));
        let operation = operation.unwrap_or((*reduction).into());
        // SAFETY: the buffers have all blocks of the call, as `buffers_of` checks for each rank before any of them runs, and live as long
        // as the ranks.
        unsafe {
            self.collectives.run(&self.plans[plan], &self.stream, buffers, *count, *data_type, operation)
        }
    }

    /// The addresses of a call's input and output.
    fn buffers_of(&self, call: &Call) -> Result<[DeviceAddress; 2], Error> {
        let collective = call.plan.collective();
        let (rank, ranks) = (self.collectives.rank() as u32, self.collectives.ranks());
        let block = call.count.saturating_mul(call.data_type.bytes());
        let bytes = |blocks: u32| (blocks as usize).saturating_mul(block);
        let (gives, gets) = (collective.gives(rank, ranks), collective.gets(rank, ranks));
        let [input, output] = &self.buffers;
        if call.aliasing == Aliasing::OutOfPlace {
            return Ok([input.place(0, bytes(gives), "use")?, output.place(0, bytes(gets), "use")?]);
        }
        if !call.plan.aliasing.contains(&Aliasing::InPlace) {
            let (attempt, why) = (format!("run {} in place", call.plan.name), "it needs separate buffers");
            return Err(Error::Misuse { attempt, why: why.to_owned() });
        }
        let [input_at, output_at] =
            if gives > 0 && gets > 0 { in_one_buffer(collective, rank) } else { [0, 0] };
        let place = |at: u32, blocks: u32| output.place(bytes(at), bytes(blocks), "use");
        Ok([place(input_at, gives)?, place(output_at, gets)?])
    }
}

/// The rate at which a GPU copies its own memory, counting bytes read and bytes written; nothing if it has not enough free memory.
pub fn copy_bytes_per_s(context: &Context, bytes: usize) -> Result<Option<f64>, Error> {
    if context.memory_info()?.0 / 4 < bytes {
        return Ok(None);
    }
    let [source, target] = [DeviceMemory::new(context, bytes)?, DeviceMemory::new(context, bytes)?];
    let stream = Stream::new(context)?;
    let [start, end] = [Event::with_timing(context)?, Event::with_timing(context)?];
    source.fill(&stream, 0, bytes, 1)?;
    for copy in 0..=COPIES {
        if copy == 1 {
            start.record(&stream)?;
        }
        // SAFETY: both have these bytes and live until the stream is done.
        unsafe { stream.copy(target.address(), source.address(), bytes)? };
    }
    end.record(&stream)?;
    // Also waits for the copies before the memory is freed.
    end.synchronize()?;
    let seconds = end.elapsed_since(&start)?.as_secs_f64();
    Ok((seconds > 0.0).then(|| 2.0 * bytes as f64 * f64::from(COPIES) / seconds))
}

/// Does something for each item on a thread of its own. Returns the first error, or all results.
fn in_parallel<I: Send, T: Send>(
    items: Vec<I>,
    work: impl Fn(I) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn work_in_parallel_keeps_its_order_and_its_first_error() {
        assert_eq!(in_parallel(vec![3, 1, 2], |item| Ok(item * 2)).unwrap(), [6, 2, 4]);
        let failed = in_parallel(vec![0, 1, 2], |item| match item {
            0 => Ok(()),
            item => Err(Error::Failed { why: format!("item {item}") }),
        });
        assert_eq!(failed.unwrap_err().to_string(), "item 1");
    }
}
