//! Element types: the types that ranks exchange as bytes.

use std::any::TypeId;

use bytemuck::Pod;
use weftlink_plan::DataType;

/// Plain data that ranks exchange as bytes: every [`bytemuck::Pod`] type that threads can share. Implemented for all of them.
///
/// A receiver gets the sender's bytes whatever type they had there, and a buffer may hold any bytes after a failed call. So
/// a `Data` type has no padding and no invalid bit patterns, which bytemuck's derive checks:
///
/// ```
/// use weftlink_comm::bytemuck::{Pod, Zeroable};
///
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[bytemuck(crate = "weftlink_comm::bytemuck")] // Not needed where bytemuck is a dependency of its own.
/// #[repr(C)]
/// struct Particle {
///     position: [f64; 3],
///     charge: f64,
/// }
///
/// let particles = weftlink_comm::on_threads(2, |mut comm| {
///     let mut particle = [Particle { position: [0.0; 3], charge: comm.rank() as f64 }];
///     comm.broadcast(&mut particle, 1)?;
///     Ok(particle[0].charge)
/// })?;
/// assert_eq!(particles, [1.0, 1.0]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
///
/// `bool` is not `Data`, because the byte 2 is not a valid `bool`:
///
/// ```compile_fail,E0277
/// weftlink_comm::on_threads(2, |mut comm| {
///     let mut flag = [false];
///     comm.broadcast(&mut flag, 0)
/// })?;
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
///
/// Pass flags as bytes, and name their type where a call combines them:
///
/// ```
/// use weftlink_comm::{Buffers, DataType, Reduction};
///
/// let all = weftlink_comm::on_threads(2, |mut comm| {
///     let mut flag = [u8::from(comm.rank() == 0)];
///     let buffers = Buffers::from(&mut flag).of_type(DataType::Bool)?;
///     comm.all_reduce(buffers, Reduction::LogicalAnd)?;
///     Ok(flag)
/// })?;
/// assert_eq!(all, [[0], [0]]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
pub trait Data: Pod + Send + Sync {}

impl<T: Pod + Send + Sync> Data for T {}

/// An element type, with the Rust type erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    pub(crate) bytes: usize,
    pub(crate) data_type: Option<DataType>,
    /// The Rust type, if it is known: a user-defined operation applies to one type only.
    pub(crate) id: Option<TypeId>,
}

impl Elements {
    /// The element type of calls that only move data.
    pub(crate) const BYTES: Elements = Elements { bytes: 1, data_type: None, id: None };

    #[inline]
    pub(crate) fn of<T: Data>() -> Self {
        Self { bytes: size_of::<T>(), data_type: DataType::of::<T>(), id: Some(TypeId::of::<T>()) }
    }

    pub(crate) fn of_type(data_type: DataType) -> Self {
        Self { bytes: data_type.bytes(), data_type: Some(data_type), id: None }
    }

    /// The bytes of an element as encoded in a header.
    pub(crate) fn code(&self) -> u16 {
        self.bytes.min(u16::MAX as usize) as u16
    }

    /// The type and the bytes of an element, as calls announce them.
    pub(crate) fn announced(&self) -> (Option<DataType>, usize) {
        (self.data_type, self.bytes)
    }
}
