//! What a call reads and writes: slices or windows, once their types are gone.

use std::marker::PhantomData;

use weftlink_plan::{Aliasing, DataType};
use weftlink_recorder::header::Location;

use crate::data::{Data, Elements};
use crate::error::Error;

/// What a collective reads and writes:
///
/// - one that is read and written, in place: `&mut [T]`, `&mut Window<T>` or a [`PartMut`](crate::PartMut). Where a rank only gets something,
///   this is where it goes. Where one side is larger (gather and scatter of any kind), the buffer is the larger one, and the
///   rank's own block in it is the smaller;
/// - two, out of place: a pair of slices, of windows or of parts;
/// - one that is only read: `&[T]` or a [`Part`](crate::Part), where a rank only gives.
#[derive(Debug)]
pub struct Buffers<'a> {
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
    /// In elements.
    pub(crate) input_length: usize,
    pub(crate) output_length: usize,
    pub(crate) elements: Elements,
    pub(crate) aliasing: Aliasing,
    pub(crate) input_location: Location,
    pub(crate) output_location: Location,
    /// The communicator whose windows these are; [`ORDINARY`] if they are none, [`MIXED`] if they are of two.
    pub(crate) owner: u64,
    _borrow: PhantomData<&'a mut u8>,
}

/// The owner of memory that is no window, and of windows that do not belong together. No communicator has these numbers.
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
    /// No buffers: what a barrier has, and a rank that neither gives nor gets anything.
    pub fn none() -> Self {
        Self::new::<u8>(Side::NONE, Side::NONE, Aliasing::OutOfPlace)
    }

    /// The same memory as elements of another type, known only when the program runs.
    ///
    /// Refused if the bytes are no whole number of them.
    pub fn of_type(mut self, data_type: DataType) -> Result<Self, Error> {
        let elements = Elements::of_type(data_type);
        for length in [&mut self.input_length, &mut self.output_length] {
            let bytes = *length * self.elements.bytes;
            if !bytes.is_multiple_of(elements.bytes) {
                return Err(Error::Misuse(format!(
                    "{bytes} bytes are no whole number of {}",
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

    /// Whether peers can reach them.
    #[inline]
    pub(crate) fn is_symmetric(&self) -> bool {
        self.input_location.is_symmetric() && self.output_location.is_symmetric()
    }

    /// The same where the sides lie in windows of a communicator, if they do.
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
