//! The buffers of calls: memory of a rank, divided into slots that calls use in turn.
//!
//! *Cached*: as many slots as fit into a level-one cache, but at least two, so that a call never reads what the previous one has
//! read. *Rotating*: slots that together, over all ranks, are twice as large as the last-level cache, so that every call reads from
//! memory.
//!
//! Slots are aligned to pages, small ones to pairs of cache lines, and have the same offsets on all ranks.

use weftlink_comm::bootstrap::BootstrapError;
use weftlink_comm::{Buffers, Communicator, Error, Window};
use weftlink_plan::Aliasing;

use super::data::Unit;
use super::job::{Case, Job};

/// The layout of slots in a rank's memory, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// The largest input and output of a rank.
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) input_stride: usize,
    pub(super) output_stride: usize,
    /// The number of slots.
    pub(super) count: usize,
}

const PAGE: usize = 4096;
/// Processors fetch cache lines in pairs.
const LINES: usize = 128;
/// The part of a level-one cache that slots may use.
const SMALL_BYTES: usize = 24 << 10;
const SMALL_SLOTS_MAX: usize = 64;
const ROTATING_SLOTS_MAX: usize = 4096;

impl Slots {
    /// The slots of a row.
    pub(super) fn of(job: &Job, case: &Case, count: usize, aliasing: Aliasing, unit_bytes: usize) -> Self {
        let (gives, gets) = case.collective.blocks(job.ranks as u32);
        let block = count * case.data_type.bytes() / unit_bytes;
        let (mut input, mut output) = (gives as usize * block, gets as usize * block);
        if aliasing == Aliasing::InPlace {
            (input, output) = (0, input.max(output));
        }
        let whole = |units: usize| {
            let bytes = units * unit_bytes;
            bytes.next_multiple_of(if bytes < PAGE { LINES } else { PAGE })
        };
        let (mut input_bytes, mut output_bytes) = (whole(input), whole(output));
        let slots = if case.rotating {
            // Small slots are spread out, so that few of them exceed the caches.
            let wanted = (2 * job.cache_bytes).div_ceil(job.ranks);
            let apart = wanted.div_ceil(ROTATING_SLOTS_MAX).next_multiple_of(PAGE);
            if input_bytes + output_bytes < apart {
                (input_bytes, output_bytes) = (input_bytes.next_multiple_of(PAGE), apart);
            }
            wanted.div_ceil(input_bytes + output_bytes)
        } else {
            (SMALL_BYTES / (input_bytes + output_bytes).max(1)).min(SMALL_SLOTS_MAX)
        };
        let (input_stride, output_stride) = (input_bytes / unit_bytes, output_bytes / unit_bytes);
        Self { input, output, input_stride, output_stride, count: slots.max(2) }
    }

    /// Units of both memories.
    pub(super) fn units(&self) -> [usize; 2] {
        [self.input_stride * self.count, self.output_stride * self.count]
    }
}

/// The memory of a rank, as large as the largest row of its kind needs; allocated for the first such row.
pub(super) struct Room<T> {
    /// Inputs and outputs.
    ordinary: Option<[Vec<T>; 2]>,
    symmetric: Option<[Window<T>; 2]>,
}

impl<T: Unit> Room<T> {
    pub(super) fn new() -> Self {
        Self { ordinary: None, symmetric: None }
    }

    /// The memory of one kind.
    pub(super) fn memory(
        &mut self,
        comm: &mut Communicator,
        job: &Job,
        symmetric: bool,
    ) -> Result<Memory<'_, T>, Error> {
        let is_mine =
            |case: &Case| case.symmetric == symmetric && is_float(case) == (size_of::<T>() == FLOAT_BYTES);
        let units = units(job, size_of::<T>(), is_mine);
        if symmetric {
            if self.symmetric.is_none() {
                self.symmetric = Some([comm.window(units[0])?, comm.window(units[1])?]);
            }
        } else if self.ordinary.is_none() {
            let [input, output] = units.map(|units| poisoned(comm.rank(), units + PAGE / size_of::<T>()));
            self.ordinary = Some([input?, output?]);
        }
        Ok(match (&mut self.symmetric, &mut self.ordinary) {
            (Some([input, output]), _) if symmetric => Memory::Symmetric { input, output },
            (_, Some([input, output])) => Memory::Ordinary { input: at_page(input), output: at_page(output) },
            _ => unreachable!("taken above"),
        })
    }
}

/// Allocates units of memory.
fn poisoned<T: Unit>(rank: usize, units: usize) -> Result<Vec<T>, Error> {
    let bytes = units.saturating_mul(size_of::<T>());
    let short = || {
        let reason = format!(
            "no memory for a buffer of {bytes} bytes. Measure smaller sizes (-e), or raise the limit of memory (ulimit -v, ulimit \
             -d, or the container's)"
        );
        Error::Bootstrap(BootstrapError::Memory { rank, reason })
    };
    if weftlink_shm::limits::address_space_bytes().is_some_and(|left| bytes as u64 > left) {
        return Err(short());
    }
    let mut memory = Vec::new();
    memory.try_reserve_exact(units).map_err(|_| short())?;
    memory.resize(units, T::POISON);
    Ok(memory)
}

const FLOAT_BYTES: usize = size_of::<f32>();

/// Whether the memory is f32, which saves the conversion from bytes.
pub(super) fn is_float(case: &Case) -> bool {
    case.data_type.0 == weftlink_comm::DataType::F32
}

/// The most units that rows of some cases need, of inputs and of outputs.
fn units(job: &Job, unit_bytes: usize, of: impl Fn(&Case) -> bool) -> [usize; 2] {
    let mut most = [0; 2];
    for &(case, count) in &job.rows {
        let case = &job.cases[case];
        for aliasing in Aliasing::BOTH.into_iter().filter(|_| of(case)) {
            let units = Slots::of(job, case, count, aliasing, unit_bytes).units();
            most = [most[0].max(units[0]), most[1].max(units[1])];
        }
    }
    most
}

/// The bytes that a job needs on all ranks.
pub(super) fn bytes_needed(job: &Job) -> u64 {
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    let needed = kinds.map(|(symmetric, float)| {
        let unit = if float { FLOAT_BYTES } else { 1 };
        let units = units(job, unit, |case| case.symmetric == symmetric && is_float(case) == float);
        units.iter().map(|units| (units * unit) as u64).fold(0, u64::saturating_add)
    });
    needed.into_iter().fold(0, u64::saturating_add).saturating_mul(job.ranks as u64)
}

fn at_page<T>(memory: &mut [T]) -> &mut [T] {
    let first = memory.as_ptr().align_offset(PAGE);
    &mut memory[first..]
}

/// Memory that calls use.
pub(super) enum Memory<'a, T> {
    Ordinary { input: &'a mut [T], output: &'a mut [T] },
    Symmetric { input: &'a mut Window<T>, output: &'a mut Window<T> },
}

impl<T: Unit> Memory<'_, T> {
    pub(super) fn input(&mut self, at: usize, length: usize) -> &mut [T] {
        match self {
            Memory::Ordinary { input, .. } => &mut input[at..at + length],
            Memory::Symmetric { input, .. } => &mut input[at..at + length],
        }
    }

    pub(super) fn output(&mut self, at: usize, length: usize) -> &mut [T] {
        match self {
            Memory::Ordinary { output, .. } => &mut output[at..at + length],
            Memory::Symmetric { output, .. } => &mut output[at..at + length],
        }
    }

    /// The buffers of a call: ranges of the input and the output.
    #[inline]
    pub(super) fn buffers(
        &mut self,
        input_at: usize,
        gives: usize,
        output_at: usize,
        gets: usize,
    ) -> Buffers<'_> {
        match self {
            Memory::Ordinary { input, output } => {
                (&input[input_at..input_at + gives], &mut output[output_at..output_at + gets]).into()
            }
            Memory::Symmetric { input, output } => {
                (input.part(input_at..input_at + gives), output.part_mut(output_at..output_at + gets)).into()
            }
        }
    }

    /// The same where input and output are one buffer.
    #[inline]
    pub(super) fn in_place(&mut self, at: usize, length: usize) -> Buffers<'_> {
        match self {
            Memory::Ordinary { output, .. } => (&mut output[at..at + length]).into(),
            Memory::Symmetric { output, .. } => output.part_mut(at..at + length).into(),
        }
    }
}

/// The size of the last-level cache from sysfs, or 32 MiB.
pub(super) fn cache_bytes() -> usize {
    let size = |index: usize| {
        let text =
            std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        let text = text.trim();
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = match unit {
            "" => 1,
            "K" => 1 << 10,
            "M" => 1 << 20,
            _ => return None,
        };
        Some(number.parse::<usize>().ok()? * unit)
    };
    (0..8).filter_map(size).max().unwrap_or(32 << 20)
}
