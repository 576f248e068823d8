//! The buffers of a call: slices or windows, with their types erased.

use std::marker::PhantomData;

use weftlink_plan::{Aliasing, DataType};
use weftlink_recorder::header::Location;

use crate::data::{Data, Elements};
use crate::error::Error;

/// The buffers of a collective:
///
/// - in place, one buffer that is read and written: `&mut [T]`, `&mut Window<T>` or a [`PartMut`](crate::PartMut). A rank that only
///   receives passes its output like this. Where one side is larger (gather and scatter of any kind), the buffer is the larger side,
///   and the rank's own block in it is the smaller one;
/// - out of place, two buffers: a pair of slices, of windows or of parts, input first;
/// - one buffer that is only read, for a rank that only sends: `&[T]` or a [`Part`](crate::Part).
#[derive(Debug)]
pub struct Buffers<'a> {
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
    /// The number of elements.
    pub(crate) input_length: usize,
    pub(crate) output_length: usize,
    pub(crate) elements: Elements,
    pub(crate) aliasing: Aliasing,
    pub(crate) input_location: Location,
    pub(crate) output_location: Location,
    /// The communicator that owns the windows; [`ORDINARY`] if the buffers are no windows, [`MIXED`] if they belong to two communicators.
    pub(crate) owner: u64,
    _borrow: PhantomData<&'a mut u8>,
}

/// The owner of ordinary memory, and of windows of two communicators. No communicator has these identities.
pub(crate) const ORDINARY: u64 = 0;
pub(crate) const MIXED: u64 = u64::MAX;

/// One side of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) address: *mut u8,
    pub(crate) length: usize,
    pub(crate) location: Location,
    pub(crate) owner: u64,
}

impl Side {
    pub(crate) const NONE: Side =
        Side { address: std::ptr::null_mut(), length: 0, location: Location::NONE, owner: ORDINARY };

    fn of<T>(address: *mut T, length: usize) -> Self {
        let location =
            if length == 0 { Location::NONE } else { Location::Private { address: address as u64 } };
        Side { address: address.cast(), length, location, owner: ORDINARY }
    }
}

impl<'a> Buffers<'a> {
    /// No buffers, for a barrier or a rank that neither sends nor receives.
    pub fn none() -> Self {
        Self::new::<u8>(Side::NONE, Side::NONE, Aliasing::OutOfPlace)
    }

    /// The same memory as elements of a type that is chosen at run time.
    ///
    /// It is an error if the memory is not a whole number of such elements.
    pub fn of_type(mut self, data_type: DataType) -> Result<Self, Error> {
        let elements = Elements::of_type(data_type);
        for length in [&mut self.input_length, &mut self.output_length] {
            let bytes = *length * self.elements.bytes;
            if !bytes.is_multiple_of(elements.bytes) {
                return Err(Error::Misuse(format!(
                    "{bytes} bytes are not a whole number of {} elements",
                    data_type.name()
                )));
            }
            *length = bytes / elements.bytes;
        }
        self.elements = elements;
        Ok(self)
    }

    /// The same buffers, borrowed for a shorter time.
    #[inline]
    pub(crate) fn reborrow(&mut self) -> Buffers<'_> {
        Buffers { _borrow: PhantomData, ..*self }
    }

    /// Whether peers can access the buffers.
    #[inline]
    pub(crate) fn is_symmetric(&self) -> bool {
        self.input_location.is_symmetric() && self.output_location.is_symmetric()
    }

    /// Marks the sides that lie in windows of a communicator.
    pub(crate) fn located(self, owner: u64, locate: impl Fn(*const u8, usize) -> Option<Location>) -> Self {
        let at = |address: *const u8, length: usize| match length {
            0 => None,
            _ => locate(address, length * self.elements.bytes),
        };
        let (input, output) =
            (at(self.input, self.input_length), at(self.output.cast_const(), self.output_length));
        Self {
            owner: if input.or(output).is_some() { owner } else { self.owner },
            input_location: input.unwrap_or(self.input_location),
            output_location: output.unwrap_or(self.output_location),
            ..self
        }
    }

    #[inline]
    pub(crate) fn new<T: Data>(input: Side, output: Side, aliasing: Aliasing) -> Self {
        let owner = match (input.length, output.length) {
            (0, _) => output.owner,
            (_, 0) => input.owner,
            _ if input.owner == output.owner => input.owner,
            _ if input.owner == ORDINARY || output.owner == ORDINARY => input.owner.max(output.owner),
            _ => MIXED,
        };
        Self {
            input: input.address,
            output: output.address,
            input_length: input.length,
            output_length: output.length,
            elements: Elements::of::<T>(),
            aliasing,
            input_location: input.location,
            output_location: output.location,
            owner,
            _borrow: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn in_place<T: Data>(side: Side) -> Self {
        Self::new::<T>(side, side, Aliasing::InPlace)
    }
}

impl<'a, T: Data> From<&'a mut [T]> for Buffers<'a> {
    #[inline]
    fn from(buffer: &'a mut [T]) -> Self {
        Self::in_place::<T>(Side::of(buffer.as_mut_ptr(), buffer.len()))
    }
}

impl<'a, T: Data> From<&'a mut Vec<T>> for Buffers<'a> {
    #[inline]
    fn from(buffer: &'a mut Vec<T>) -> Self {
        buffer.as_mut_slice().into()
    }
}

impl<'a, T: Data, const N: usize> From<&'a mut [T; N]> for Buffers<'a> {
    #[inline]
    fn from(buffer: &'a mut [T; N]) -> Self {
        buffer.as_mut_slice().into()
    }
}

impl<'a, T: Data> From<(&'a [T], &'a mut [T])> for Buffers<'a> {
    #[inline]
    fn from((input, output): (&'a [T], &'a mut [T])) -> Self {
        let input = Side::of(input.as_ptr().cast_mut(), input.len());
        Self::new::<T>(input, Side::of(output.as_mut_ptr(), output.len()), Aliasing::OutOfPlace)
    }
}

impl<'a, T: Data> From<(&'a Vec<T>, &'a mut Vec<T>)> for Buffers<'a> {
    #[inline]
    fn from((input, output): (&'a Vec<T>, &'a mut Vec<T>)) -> Self {
        (input.as_slice(), output.as_mut_slice()).into()
    }
}

impl<'a, T: Data, const N: usize, const M: usize> From<(&'a [T; N], &'a mut [T; M])> for Buffers<'a> {
    #[inline]
    fn from((input, output): (&'a [T; N], &'a mut [T; M])) -> Self {
        (input.as_slice(), output.as_mut_slice()).into()
    }
}

impl<'a, T: Data> From<&'a [T]> for Buffers<'a> {
    #[inline]
    fn from(input: &'a [T]) -> Self {
        let input = Side::of(input.as_ptr().cast_mut(), input.len());
        Self::new::<T>(input, Side::NONE, Aliasing::OutOfPlace)
    }
}

impl<'a, T: Data> From<&'a Vec<T>> for Buffers<'a> {
    #[inline]
    fn from(input: &'a Vec<T>) -> Self {
        input.as_slice().into()
    }
}

impl<'a, T: Data, const N: usize> From<&'a [T; N]> for Buffers<'a> {
    #[inline]
    fn from(input: &'a [T; N]) -> Self {
        input.as_slice().into()
    }
}
