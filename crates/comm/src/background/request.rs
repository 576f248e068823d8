//! A call with everything that belongs to it, owned.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use weftlink_plan::{Collective, Reduction};

use crate::buffers::Buffers;
use crate::communicator::{Communicator, PlanId, Request};
use crate::data::Data;
use crate::error::Error;
use crate::operation::Operation;
use crate::window::Window;

/// A [`Request`] that owns what it needs, so that another thread can make it.
#[derive(Clone, Debug)]
pub struct OwnedRequest<B> {
    /// What is to be done.
    pub collective: Collective,
    /// On which buffers. They are given back.
    pub buffers: B,
    /// With what elements are combined: for those that reduce, and only for those.
    pub operation: Option<OwnedOperation>,
    /// The lengths of this rank's blocks, in and out, in elements, if they differ.
    pub counts: Option<(Vec<usize>, Vec<usize>)>,
    /// The elements of a block, for ranks that have none of their own.
    pub count: Option<usize>,
    /// A plan of the caller's choice.
    pub plan: Option<PlanId>,
    /// How long the call waits for other ranks, without getting on, before it fails; as the communicator's options say unless
    /// set. The time before it is its turn does not count.
    pub deadline: Option<Duration>,
}

impl<B: OwnedBuffers> OwnedRequest<B> {
    /// A call that combines nothing, with blocks of one length.
    pub fn new(collective: Collective, buffers: B) -> Self {
        Self { collective, buffers, operation: None, counts: None, count: None, plan: None, deadline: None }
    }

    /// The same, combining elements.
    pub fn with(self, operation: impl Into<OwnedOperation>) -> Self {
        Self { operation: Some(operation.into()), ..self }
    }

    /// The same by a plan that was loaded.
    pub fn by(self, plan: PlanId) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// The same with a deadline of its own.
    pub fn within(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    pub(super) fn run(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let Self { collective, buffers, operation, counts, count, plan, deadline } = self;
        let request = Request {
            operation: operation.as_ref().map(OwnedOperation::lend),
            counts: counts.as_ref().map(|(input, output)| (&input[..], &output[..])),
            count: *count,
            plan: *plan,
            ..Request::new(collective, buffers.lend()?)
        };
        match *deadline {
            None => comm.run(request),
            Some(deadline) => comm.run_within(request, deadline),
        }
    }
}

/// What a call can own: anything that can be sent to the worker's thread and lent to a call there.
///
/// In place: a `Vec`, a boxed slice or a [`Window`]. Out of place: a pair, input first. Only read, where a rank only gives: one
/// in a [`ReadOnly`]. None: `()`.
pub trait OwnedBuffers: Send + 'static {
    /// The buffers, for the time of the call.
    fn lend(&mut self) -> Result<Buffers<'_>, Error>;
}

/// A buffer of a rank that only gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOnly<B>(pub B);

impl OwnedBuffers for () {
    fn lend(&mut self) -> Result<Buffers<'_>, Error> {
        Ok(Buffers::none())
    }
}

macro_rules! lends {
    ($($type:ty, |$one:ident| $lent:expr;)*) => {$(
        impl<T: Data> OwnedBuffers for $type {
            fn lend(&mut self) -> Result<Buffers<'_>, Error> {
                let $one = self;
                Ok($lent.into())
            }
        }
    )*};
}

lends! {
    Vec<T>, |buffer| &mut buffer[..];
    Box<[T]>, |buffer| &mut buffer[..];
    Window<T>, |buffer| buffer;
    (Vec<T>, Vec<T>), |pair| (&pair.0[..], &mut pair.1[..]);
    (Arc<[T]>, Vec<T>), |pair| (&pair.0[..], &mut pair.1[..]);
    (Window<T>, Window<T>), |pair| (&pair.0, &mut pair.1);
    ReadOnly<Vec<T>>, |buffer| &buffer.0[..];
    ReadOnly<Arc<[T]>>, |buffer| &buffer.0[..];
    ReadOnly<Window<T>>, |buffer| &buffer.0;
}

/// An [`Operation`] that owns what it needs.
#[derive(Clone)]
pub struct OwnedOperation(Kind);

#[derive(Clone)]
enum Kind {
    Plain(Operation<'static>),
    User(Arc<dyn Lend>),
}

trait Lend: Send + Sync {
    fn lend(&self) -> Operation<'_>;
}

struct User<T, F> {
    commutes: bool,
    function: F,
    _elements: PhantomData<fn(T, T) -> T>,
}

impl<T: Data, F: Fn(T, T) -> T + Send + Sync> Lend for User<T, F> {
    fn lend(&self) -> Operation<'_> {
        Operation::user_defined(self.commutes, &self.function)
    }
}

impl OwnedOperation {
    /// A function of two elements, as for [`Operation::user_defined`]. If it panics, the communicator fails on all ranks, and the
    /// call's error says what the panic said.
    pub fn user_defined<T: Data>(
        commutes: bool,
        function: impl Fn(T, T) -> T + Send + Sync + 'static,
    ) -> Self {
        Self(Kind::User(Arc::new(User { commutes, function, _elements: PhantomData })))
    }

    pub(super) fn lend(&self) -> Operation<'_> {
        match &self.0 {
            Kind::Plain(operation) => *operation,
            Kind::User(user) => user.lend(),
        }
    }
}

impl From<Reduction> for OwnedOperation {
    fn from(reduction: Reduction) -> Self {
        Self(Kind::Plain(reduction.into()))
    }
}

impl From<Operation<'static>> for OwnedOperation {
    fn from(operation: Operation<'static>) -> Self {
        Self(Kind::Plain(operation))
    }
}

impl fmt::Debug for OwnedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.lend())
    }
}
