//! From the arguments of a C function to a call of the library.

use std::ffi::c_void;

use weftlink::plan::Collective;
use weftlink::{Counts, DataType, PlanId, RawBuffers, Request};

use crate::any::{Op, Type};
use crate::comm::{lock, weft_comm};
use crate::error::Failure;
use crate::pointer::{check_not_null, reference};
use crate::request::weft_request;
use crate::types::{data_type, weft_op};

/// The arguments of a call.
pub(crate) struct Call {
    collective: Collective,
    input: *const u8,
    output: *mut u8,
    lengths: Lengths,
    data_type: Type,
    op: Op,
    plan: Option<PlanId>,
}

/// The lengths of blocks, in elements.
enum Lengths {
    Even(usize),
    Uneven { input: Vec<usize>, output: Vec<usize> },
}

impl Call {
    /// A call that moves elements, with blocks of `count`.
    pub(crate) fn new(
        collective: Collective,
        input: *const c_void,
        output: *mut c_void,
        count: usize,
        data_type: Type,
    ) -> Self {
        let (input, output, lengths) = (input.cast(), output.cast(), Lengths::Even(count));
        Self { collective, input, output, lengths, data_type, op: weft_op::WEFT_NO_OP as Op, plan: None }
    }

    /// A call without buffers.
    pub(crate) fn barrier() -> Self {
        let nothing = std::ptr::null_mut();
        Self::new(Collective::Barrier, nothing, nothing, 0, DataType::U8 as Type)
    }

    /// The same, combining elements.
    pub(crate) fn op(self, op: Op) -> Self {
        Self { op, ..self }
    }

    /// The same with a plan to run.
    pub(crate) fn plan(self, plan: PlanId) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// The same with the length of each block.
    pub(crate) fn uneven(self, input: &[usize], output: &[usize]) -> Self {
        let lengths = Lengths::Uneven { input: input.to_vec(), output: output.to_vec() };
        Self { lengths, ..self }
    }

    /// Runs the call, and waits for it.
    ///
    /// # Safety
    /// `comm` is null or a communicator. The buffers are as long as the call needs, and nothing else uses them until it is done.
    pub(crate) unsafe fn run(self, comm: *const weft_comm) -> Result<(), Failure> {
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        // First, because it refuses forked processes, before a lock is taken.
        let background = comm.background()?;
        let request = self.request(comm)?;
        // SAFETY: as above.
        let request = match unsafe { background.run_raw(request) } {
            Ok(ran) => return ran.map_err(|error| comm.failure(error)),
            Err(request) => *request,
        };
        // SAFETY: as above.
        let started = unsafe { weft_request::start(&background, request, comm.identities()) };
        drop(background);
        started.wait()
    }

    /// Starts the call.
    ///
    /// # Safety
    /// As for `run`, until the call is done. `started` is null or valid.
    pub(crate) unsafe fn start(
        self,
        comm: *const weft_comm,
        started: *mut *mut weft_request,
    ) -> Result<(), Failure> {
        check_not_null(started, "request")?;
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        // First, because it refuses forked processes, before a lock is taken.
        let background = comm.background()?;
        let request = self.request(comm)?;
        // SAFETY: as above.
        let request = unsafe { weft_request::start(&background, request, comm.identities()) };
        // SAFETY: as above.
        unsafe { started.write(Box::into_raw(Box::new(request))) };
        Ok(())
    }

    /// Enqueues the call on a stream of a GPU.
    ///
    /// # Safety
    /// As for `run`, until the call has ended on its stream, which is one of the GPU that has the buffers.
    pub(crate) unsafe fn enqueue(self, comm: *const weft_comm, stream: *mut c_void) -> Result<(), Failure> {
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        // Before any lock: in a forked process, its owner may not exist.
        comm.background()?.check_not_in_call()?;
        let request = self.request(comm)?;
        let group = || comm.with(|comm| Ok((comm.duplicate_group()?, comm.options().deadline)));
        // SAFETY: as above.
        unsafe { comm.gpus.enqueue(request, stream as u64, group) }
    }

    /// The request of the call.
    pub(crate) fn request(self, comm: &weft_comm) -> Result<Request<'static, RawBuffers>, Failure> {
        let data_type = data_type(self.data_type)?;
        let buffers = self.buffers(comm, data_type)?;
        let operation = lock(&comm.factors).operation(self.op, data_type)?;
        let Self { collective, lengths, plan, .. } = self;
        let (counts, count) = match lengths {
            Lengths::Even(count) => (None, Some(count)),
            Lengths::Uneven { input, output } => (Some(Counts::new(input, output)), None),
        };
        Ok(Request { operation, counts, count, plan, ..Request::new(collective, buffers) })
    }

    /// The memory of this rank's blocks.
    fn buffers(&self, comm: &weft_comm, data_type: DataType) -> Result<RawBuffers, Failure> {
        let Self { collective, input, output, .. } = self;
        let (gives, gets) =
            (collective.gives(comm.rank, comm.size) as usize, collective.gets(comm.rank, comm.size) as usize);
        let total = |counts: &[usize]| counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
        let (given, got) = match &self.lengths {
            Lengths::Even(count) => (count.checked_mul(gives), count.checked_mul(gets)),
            Lengths::Uneven { input, output } => (total(input), total(output)),
        };
        let bytes = |length: usize| length.checked_mul(data_type.bytes());
        let (Some((given, given_bytes)), Some((got, got_bytes))) = (
            given.and_then(|given| Some((given, bytes(given)?))),
            got.and_then(|got| Some((got, bytes(got)?))),
        ) else {
            return Err(Failure::misuse("the buffers of this call are larger than the address space"));
        };
        if let Some(buffer) = self.in_place(comm, data_type) {
            let length = given.max(got);
            let (input, output) = (buffer.cast_const(), buffer);
            return Ok(RawBuffers { data_type, input, input_length: length, output, output_length: length });
        }
        let (from, to) = (*input as usize, *output as usize);
        let apart = from.saturating_add(given_bytes) <= to || to.saturating_add(got_bytes) <= from;
        if given > 0 && got > 0 && !apart {
            return Err(Failure::misuse(
                "input and output overlap: pass the same address for a call in place, or buffers that do not overlap",
            ));
        }
        // A side that the rank does not use is not looked at.
        let (input, output) = (
            if given == 0 { std::ptr::null() } else { *input },
            if got == 0 { std::ptr::null_mut() } else { *output },
        );
        Ok(RawBuffers { data_type, input, input_length: given, output, output_length: got })
    }

    /// The buffer of a call in place: the larger side. The smaller one is passed as the same address, or as the rank's own block in the
    /// larger one, as in NCCL.
    fn in_place(&self, comm: &weft_comm, data_type: DataType) -> Option<*mut u8> {
        let Self { collective, input, output, lengths, .. } = self;
        let (gives, gets) =
            (collective.gives(comm.rank, comm.size) > 0, collective.gets(comm.rank, comm.size) > 0);
        // Ranks of a collective with a root may pass their buffers differently, others must not: the first rank of an exclusive scan too.
        if output.is_null()
            || input.is_null()
            || matches!(collective, Collective::SendReceive { .. })
            || (collective.root().is_some() && !(gives && gets))
        {
            return None;
        }
        if *input == output.cast_const() {
            return Some(*output);
        }
        let before = |blocks: &[usize]| blocks.iter().take(comm.rank as usize).sum::<usize>();
        let (in_input, in_output) = match lengths {
            Lengths::Even(count) => [count.wrapping_mul(comm.rank as usize); 2].into(),
            Lengths::Uneven { input, output } => (before(input), before(output)),
        };
        match collective {
            Collective::AllGather | Collective::Gather { .. } => {
                let own = output.wrapping_add(in_output.wrapping_mul(data_type.bytes()));
                (own.cast_const() == *input).then_some(*output)
            }
            Collective::ReduceScatter | Collective::Scatter { .. } => {
                let own = input.wrapping_add(in_input.wrapping_mul(data_type.bytes()));
                (own == output.cast_const()).then_some(input.cast_mut())
            }
            _ => None,
        }
    }
}
