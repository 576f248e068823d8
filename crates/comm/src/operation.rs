//! How a call combines elements.

#![allow(unsafe_code)] // A function of the caller's is applied to elements behind addresses.

use std::any::TypeId;
use std::marker::PhantomData;

use weftlink_kernels::{Access, Kernel};
use weftlink_plan::{DataType, Reduction};

use crate::data::{Data, data_type_of};

/// What a reducing call combines elements with: a [`Reduction`] by its name, or one that needs more than a name.
///
/// ```
/// use weftlink_comm::{Operation, on_threads};
///
/// let longest = Operation::user_defined(true, &|a: [u32; 2], b: [u32; 2]| if a[0] >= b[0] { a } else { b });
/// let found = on_threads(2, |mut comm| {
///     let mut found = [[comm.rank() as u32 + 3, 7]];
///     comm.all_reduce(&mut found, longest)?;
///     Ok(found)
/// })?;
/// assert_eq!(found, [[[4, 7]]; 2]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    pub(crate) reduction: Reduction,
    pub(crate) detail: Detail<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Detail<'a> {
    None,
    /// The factor of a pre-multiplied sum, as bytes of its type.
    Factor {
        bytes: [u8; FACTOR_BYTES],
        data_type: Option<DataType>,
    },
    /// A pre-multiplied sum whose inputs have been multiplied.
    Multiplied,
    User(UserDefined<'a>),
}

/// The largest element that is a number.
pub(crate) const FACTOR_BYTES: usize = 16;

/// A function of the caller's, once its type is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserDefined<'a> {
    function: *const (),
    combine: unsafe fn(*const (), &[*mut u8], &[*const u8], usize),
    pub(crate) id: TypeId,
    _borrow: PhantomData<&'a ()>,
}

// SAFETY: the function behind the address is `Sync`, as `user_defined` demands.
unsafe impl Send for UserDefined<'_> {}
// SAFETY: as above.
unsafe impl Sync for UserDefined<'_> {}

/// How the reducing steps of a call combine elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arithmetic<'a> {
    /// There are none.
    None,
    Kernel(Kernel),
    User(UserDefined<'a>),
}

impl Arithmetic<'_> {
    /// Combines `len` elements of all sources, in their order, into all targets.
    ///
    /// # Safety
    /// As for [`Kernel::combine`], for elements of the call's type.
    #[inline]
    pub(crate) unsafe fn combine(
        &self,
        targets: &[*mut u8],
        sources: &[*const u8],
        len: usize,
        access: Access,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Arithmetic::Kernel(kernel) => kernel.combine(targets, sources, len, access),
                Arithmetic::User(user) => user.combine(targets, sources, len),
                Arithmetic::None => unreachable!("only collectives that reduce have steps that do"),
            }
        }
    }
}

impl From<Reduction> for Operation<'_> {
    #[inline]
    fn from(reduction: Reduction) -> Self {
        Operation { reduction, detail: Detail::None }
    }
}

impl<'a> Operation<'a> {
    /// The sum of all ranks' inputs, this rank's multiplied by a factor first. Elements have the factor's type. In place, all of
    /// the buffer that is passed is multiplied, and then the result is written to where it belongs.
    pub fn premultiplied_sum<T: Data>(factor: T) -> Self {
        let mut bytes = [0; FACTOR_BYTES];
        let length = size_of::<T>().min(FACTOR_BYTES);
        bytes[..length].copy_from_slice(&bytemuck::bytes_of(&factor)[..length]);
        let detail = Detail::Factor { bytes, data_type: data_type_of::<T>() };
        Operation { reduction: Reduction::PremultipliedSum, detail }
    }

    /// A function of two elements, the one of the lower ranks first. It must be associative: plans put brackets where they
    /// like. If it does not commute, ranks are combined in their order.
    pub fn user_defined<T: Data, F: Fn(T, T) -> T + Sync>(commutes: bool, function: &'a F) -> Self {
        let user = UserDefined {
            function: std::ptr::from_ref(function).cast(),
            combine: combine::<T, F>,
            id: TypeId::of::<T>(),
            _borrow: PhantomData,
        };
        Operation { reduction: Reduction::UserDefined { commutes }, detail: Detail::User(user) }
    }
}

impl UserDefined<'_> {
    /// Combines `len` elements of all sources, in their order, into all targets.
    ///
    /// # Safety
    /// As for [`Kernel::combine`](weftlink_kernels::Kernel::combine), for elements of the type with this `id`.
    pub(crate) unsafe fn combine(&self, targets: &[*mut u8], sources: &[*const u8], len: usize) {
        // SAFETY: the function lives as long as the borrow, and was made for this type.
        unsafe { (self.combine)(self.function, targets, sources, len) }
    }
}

/// # Safety
/// `function` is an `F`; the rest as for [`UserDefined::combine`].
unsafe fn combine<T: Data, F: Fn(T, T) -> T>(
    function: *const (),
    targets: &[*mut u8],
    sources: &[*const u8],
    len: usize,
) {
    // SAFETY: the caller's promise.
    let function = unsafe { &*function.cast::<F>() };
    let Some((first, others)) = sources.split_first() else { return };
    for at in 0..len {
        // SAFETY: the caller's promise.
        let value = |source: &*const u8| unsafe { source.cast::<T>().add(at).read_unaligned() };
        let result = others.iter().map(value).fold(value(first), function);
        for target in targets {
            // SAFETY: the caller's promise.
            unsafe { target.cast::<T>().add(at).write_unaligned(result) };
        }
    }
}
