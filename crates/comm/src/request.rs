//! A collective call and everything that belongs to it.

use std::borrow::Cow;
use std::time::Duration;

use weftlink_plan::Collective;

use crate::buffers::Buffers;
use crate::operation::{Operation, OperationRef};

/// A collective call, generic over what holds its buffers:
///
/// | `B` | who runs it |
/// |---|---|
/// | anything that becomes [`Buffers`]: slices, windows, pairs of them | [`Communicator::run`](crate::Communicator::run), [`Scope::start`](crate::Scope::start) |
/// | [`OwnedBuffers`](crate::OwnedBuffers) | [`Background::start`](crate::Background::start), which gives them back with the result |
/// | [`RawBuffers`](crate::RawBuffers) | [`Background::start_raw`](crate::Background::start_raw) and [`run_raw`](crate::Background::run_raw) |
///
/// The methods named after collectives build one themselves. A request is for callers that choose the collective at run time,
/// or need a deadline or a plan of their own.
///
/// ```
/// use weftlink_comm::{Reduction, Request, on_threads};
/// use weftlink_plan::Collective;
/// use std::time::Duration;
///
/// let sums = on_threads(2, |mut comm| {
///     let mut values = [1.0_f32, 2.0];
///     let request = Request::new(Collective::AllReduce, &mut values).operation(Reduction::Sum);
///     comm.run(request.deadline(Duration::from_secs(10)))?;
///     Ok(values)
/// })?;
/// assert_eq!(sums, [[2.0, 4.0]; 2]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a, B = Buffers<'a>> {
    /// The collective.
    pub collective: Cow<'a, Collective>,
    /// What it reads and writes.
    pub buffers: B,
    /// How it combines elements: for collectives that reduce, and only for those.
    pub operation: Option<Operation<'a>>,
    /// The lengths of this rank's blocks, if blocks differ in length.
    pub counts: Option<Counts<'a>>,
    /// The elements of a block, for a rank that has no block of its own.
    pub count: Option<usize>,
    /// A loaded plan to run, instead of the one that the communicator would choose.
    pub plan: Option<PlanId>,
    /// How long the call waits for other ranks before it fails; [`Options::deadline`](crate::Options::deadline) unless set. The
    /// time that a call spends in a queue does not count.
    pub deadline: Option<Duration>,
    /// Yield the core while the call waits, even where the rank has enough cores to spin: for callers that compute meanwhile.
    /// A caller that takes a queued call over ([`RawHandle::help`](crate::RawHandle::help)) waits as usual.
    pub yields_core: bool,
}

/// A plan that a communicator has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanId {
    pub(crate) index: usize,
    /// The communicator's identity.
    pub(crate) owner: u64,
}

/// The lengths of a rank's blocks, in elements.
#[derive(Clone, Debug)]
pub struct Counts<'a> {
    /// The blocks that it sends.
    pub input: Cow<'a, [usize]>,
    /// The blocks that it receives.
    pub output: Cow<'a, [usize]>,
}

impl<'a> Counts<'a> {
    /// The lengths of input blocks and output blocks.
    pub fn new(input: impl Into<Cow<'a, [usize]>>, output: impl Into<Cow<'a, [usize]>>) -> Self {
        Self { input: input.into(), output: output.into() }
    }

    /// The lengths of input blocks and output blocks.
    #[inline(always)]
    pub(crate) fn borrow(&self) -> (&[usize], &[usize]) {
        (&self.input, &self.output)
    }
}

impl<'a, B> Request<'a, B> {
    /// A call that combines nothing, with blocks of one length.
    #[inline(always)]
    pub fn new(collective: impl Into<Cow<'a, Collective>>, buffers: B) -> Self {
        Self {
            collective: collective.into(),
            buffers,
            operation: None,
            counts: None,
            count: None,
            plan: None,
            deadline: None,
            yields_core: false,
        }
    }

    /// Sets the operation that combines elements.
    #[inline(always)]
    pub fn operation(self, operation: impl Into<Operation<'a>>) -> Self {
        Self { operation: Some(operation.into()), ..self }
    }

    /// Sets the lengths of this rank's input blocks and output blocks, in elements.
    #[inline(always)]
    pub fn counts(self, input: impl Into<Cow<'a, [usize]>>, output: impl Into<Cow<'a, [usize]>>) -> Self {
        Self { counts: Some(Counts::new(input, output)), ..self }
    }

    /// Sets the elements of a block, for a rank that has no block of its own.
    #[inline(always)]
    pub fn count(self, count: usize) -> Self {
        Self { count: Some(count), ..self }
    }

    /// Sets the plan to run.
    #[inline(always)]
    pub fn plan(self, plan: PlanId) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Sets how long the call waits for other ranks before it fails.
    #[inline(always)]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// The buffers, and the other arguments of the call.
    #[inline(always)]
    pub(crate) fn split(&mut self) -> (&mut B, CallArgs<'_>) {
        let Self { collective, buffers, operation, counts, count, plan, deadline: _, yields_core: _ } = self;
        let args = CallArgs {
            operation: operation.as_ref().map(Operation::borrow),
            counts: counts.as_ref().map(Counts::borrow),
            count: *count,
            plan: *plan,
            ..CallArgs::new(collective, Buffers::none())
        };
        (buffers, args)
    }
}

impl<'a, B: Into<Buffers<'a>>> Request<'a, B> {
    /// The same call with its buffers' types erased.
    #[inline(always)]
    pub(crate) fn erased(self) -> Request<'a> {
        let Self { collective, buffers, operation, counts, count, plan, deadline, yields_core } = self;
        let buffers = buffers.into();
        Request { collective, buffers, operation, counts, count, plan, deadline, yields_core }
    }
}

impl Request<'_> {
    /// The arguments of the call, borrowed.
    #[inline(always)]
    pub(crate) fn args(&mut self) -> CallArgs<'_> {
        let Self { collective, buffers, operation, counts, count, plan, deadline: _, yields_core: _ } = self;
        CallArgs {
            collective,
            buffers: buffers.reborrow(),
            operation: operation.as_ref().map(Operation::borrow),
            counts: counts.as_ref().map(Counts::borrow),
            count: *count,
            plan: *plan,
            tag: 0,
        }
    }
}

/// The arguments of a call, borrowed: what the stages of a call pass on. Small enough to be built for every call.
#[derive(Debug)]
pub(crate) struct CallArgs<'a> {
    pub(crate) collective: &'a Collective,
    pub(crate) buffers: Buffers<'a>,
    pub(crate) operation: Option<OperationRef<'a>>,
    pub(crate) counts: Option<(&'a [usize], &'a [usize])>,
    pub(crate) count: Option<usize>,
    pub(crate) plan: Option<PlanId>,
    /// Distinguishes calls that the library makes for different purposes. 0 for the caller's own.
    pub(crate) tag: u32,
}

impl<'a> CallArgs<'a> {
    /// A call that combines nothing, with blocks of one length.
    #[inline(always)]
    pub(crate) fn new(collective: &'a Collective, buffers: impl Into<Buffers<'a>>) -> Self {
        Self {
            collective,
            buffers: buffers.into(),
            operation: None,
            counts: None,
            count: None,
            plan: None,
            tag: 0,
        }
    }

    /// The same, combining elements.
    #[inline(always)]
    pub(crate) fn with(mut self, operation: OperationRef<'a>) -> Self {
        self.operation = Some(operation);
        self
    }
}
