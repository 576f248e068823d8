//! Buffers that a call owns until it is over.

use std::sync::Arc;

use crate::buffers::Buffers;
use crate::data::Data;
use crate::error::Error;
use crate::window::Window;

/// Buffers that a call can own: the worker's thread lends them to the call.
///
/// In place: a `Vec`, a boxed slice or a [`Window`]. Out of place: a pair, input first. For a rank that only sends: one in a
/// [`ReadOnly`]. None: `()`.
pub trait OwnedBuffers: Send + 'static {
    /// Borrows the buffers for the call.
    fn lend(&mut self) -> Result<Buffers<'_>, Error>;
}

/// A buffer that the call only reads.
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
