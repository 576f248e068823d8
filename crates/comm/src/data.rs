//! What buffers are made of.

#![allow(unsafe_code)] // That a type may be moved as bytes is a promise of whoever says so.

use std::any::TypeId;

use weftlink_plan::DataType;
use weftlink_plan::element::{Complex, F8E4m3, F8E5m2, bf16, f16};

/// Plain data: what ranks may hand to each other as bytes.
///
/// # Safety
/// All bytes of a value are initialised (no padding), and any bytes are a value: no pointers, no references, no `bool`, `char` or
/// enum. A receiver gets the bytes that the sender has, whatever type they had there, and after a call that failed a buffer may
/// hold bytes of anything.
///
/// A `bool` is not `Data`, because 2 is no value of it:
///
/// ```compile_fail,E0277
/// weftlink_comm::on_threads(2, |mut comm| {
///     let mut truth = [false];
///     comm.group(|group| match group.rank() {
///         0 => group.send(1, &[2_u8]),
///         _ => group.receive(0, &mut truth),
///     })
/// })?;
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
///
/// Truths are passed as bytes, and calls that combine them are told what the bytes are:
///
/// ```
/// use weftlink_comm::{Buffers, DataType, Reduction};
///
/// let all = weftlink_comm::on_threads(2, |mut comm| {
///     let mut truth = [u8::from(comm.rank() == 0)];
///     let buffers = Buffers::from(&mut truth).of_type(DataType::Bool)?;
///     comm.all_reduce(buffers, Reduction::LogicalAnd)?;
///     Ok(truth)
/// })?;
/// assert_eq!(all, [[0], [0]]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
///
/// ```
/// #[derive(Clone, Copy)]
/// #[repr(C)]
/// struct Particle { position: [f64; 3], charge: f64 }
/// // SAFETY: Four f64, no padding, nothing that points anywhere.
/// unsafe impl weftlink_comm::Data for Particle {}
/// ```
pub unsafe trait Data: Copy + Send + Sync + 'static {
    /// Its name among the types that reductions know, if it is one of them.
    const TYPE: Option<DataType> = None;
}

macro_rules! data {
    ($($type:ty => $name:ident),* $(,)?) => {$(
        // SAFETY: Numbers have no padding, and any bits are one.
        unsafe impl Data for $type {
            const TYPE: Option<DataType> = Some(DataType::$name);
        }
    )*};
}

data!(
    i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64, F8E4m3 => F8E4m3, F8E5m2 => F8E5m2,
    Complex<f32> => Complex64, Complex<f64> => Complex128,
);

#[cfg(target_pointer_width = "64")]
data!(isize => I64, usize => U64);

// SAFETY: An array has no padding of its own, and any bytes are values of its elements.
unsafe impl<T: Data, const N: usize> Data for [T; N] {}

/// Elements as the bytes that others get of them.
pub(crate) fn bytes_of<T: Data>(elements: &[T]) -> &[u8] {
    // SAFETY: as many bytes as the elements have, all of them initialised, as `Data` promises; a byte needs no alignment.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// Elements as the bytes that others write.
pub(crate) fn bytes_of_mut<T: Data>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and the borrow is unique. Whatever is written there, it is a value of such elements, as `Data` promises.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

/// A type of elements, once types are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    pub(crate) bytes: usize,
    pub(crate) data_type: Option<DataType>,
    /// Which type exactly, where functions of the caller's are applied to it.
    pub(crate) id: Option<TypeId>,
}

impl Elements {
    /// What everything is that is only moved.
    pub(crate) const BYTES: Elements = Elements { bytes: 1, data_type: None, id: None };

    pub(crate) fn of<T: Data>() -> Self {
        Self { bytes: size_of::<T>(), data_type: T::TYPE, id: Some(TypeId::of::<T>()) }
    }

    pub(crate) fn of_type(data_type: DataType) -> Self {
        Self { bytes: data_type.bytes(), data_type: Some(data_type), id: None }
    }

    /// The bytes of an element as a header has them.
    pub(crate) fn code(&self) -> u16 {
        self.bytes.min(u16::MAX as usize) as u16
    }

    /// The type and the bytes of an element, as calls announce them.
    pub(crate) fn announced(&self) -> (Option<DataType>, usize) {
        (self.data_type, self.bytes)
    }
}
