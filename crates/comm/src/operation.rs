//! How a call combines elements.

#![allow(unsafe_code)] // Applies the caller's function to elements behind addresses.

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use weftlink_kernels::{Access, Kernel};
use weftlink_plan::element::{Complex, F8E4m3, F8E5m2, bf16, f16};
use weftlink_plan::{DataType, Reduction};

use crate::data::Data;

/// How a reducing call combines elements: a [`Reduction`] by its name, or an operation that needs more than a name.
///
/// ```
/// use weftlink_comm::{Operation, on_threads};
///
/// let longest = Operation::user_defined(true, |a: [u32; 2], b: [u32; 2]| if a[0] >= b[0] { a } else { b });
/// let results = on_threads(2, |mut comm| {
///     let mut pair = [[comm.rank() as u32 + 3, 7]];
///     comm.all_reduce(&mut pair, &longest)?;
///     Ok(pair)
/// })?;
/// assert_eq!(results, [[[4, 7]]; 2]);
/// # Ok::<(), weftlink_comm::Error>(())
/// ```
#[derive(Clone)]
pub struct Operation<'a>(Kind<'a>);

#[derive(Clone)]
enum Kind<'a> {
    Named(Reduction),
    PremultipliedSum(Factor),
    UserDefined { commutes: bool, function: Arc<dyn Combine + 'a> },
}

/// An [`Operation`], borrowed for a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationRef<'a> {
    pub(crate) reduction: Reduction,
    pub(crate) detail: Detail<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Detail<'a> {
    None,
    Factor(Factor),
    /// A pre-multiplied sum whose inputs have been multiplied.
    Multiplied,
    User(UserDefined<'a>),
}

/// The factor of a pre-multiplied sum, as bytes of its type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor {
    pub(crate) bytes: [u8; FACTOR_BYTES],
    pub(crate) data_type: Option<DataType>,
}

/// The bytes of the largest number type.
const FACTOR_BYTES: usize = 16;

/// The caller's function, with its type erased.
#[derive(Clone, Copy)]
pub(crate) struct UserDefined<'a>(&'a dyn Combine);

/// A function that combines elements behind addresses.
trait Combine: Send + Sync {
    /// The type of its elements.
    fn id(&self) -> TypeId;

    /// Combines `len` elements of all sources, in their order, into all targets.
    ///
    /// # Safety
    /// As for [`Kernel::combine`], for elements of the type with this `id`.
    unsafe fn combine(&self, targets: &[*mut u8], sources: &[*const u8], len: usize);
}

/// A function of two elements of a type.
struct Function<T, F> {
    function: F,
    _elements: PhantomData<fn(T, T) -> T>,
}

/// How the reducing steps of a call combine elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arithmetic<'a> {
    /// The call has no reducing steps.
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
                Arithmetic::User(user) => user.0.combine(targets, sources, len),
                Arithmetic::None => unreachable!("only plans of reducing collectives have reducing steps"),
            }
        }
    }
}

impl<'a> Operation<'a> {
    /// The sum of all ranks' inputs, this rank's multiplied by a factor first. Elements have the factor's type. In place, the
    /// call multiplies the whole buffer, and then writes the result to its place.
    pub fn premultiplied_sum<T: Data>(factor: T) -> Self {
        let mut bytes = [0; FACTOR_BYTES];
        let length = size_of::<T>().min(FACTOR_BYTES);
        bytes[..length].copy_from_slice(&bytemuck::bytes_of(&factor)[..length]);
        Self(Kind::PremultipliedSum(Factor { bytes, data_type: DataType::of::<T>() }))
    }

    /// The same for elements of a type that is chosen at run time. The factor becomes the nearest one of that type. `None` for booleans, which
    /// cannot be multiplied.
    pub fn premultiplied_sum_of(data_type: DataType, factor: f64) -> Option<Self> {
        let narrow = factor as f32;
        Some(match data_type {
            DataType::I8 => Self::premultiplied_sum(factor as i8),
            DataType::U8 => Self::premultiplied_sum(factor as u8),
            DataType::I16 => Self::premultiplied_sum(factor as i16),
            DataType::U16 => Self::premultiplied_sum(factor as u16),
            DataType::I32 => Self::premultiplied_sum(factor as i32),
            DataType::U32 => Self::premultiplied_sum(factor as u32),
            DataType::I64 => Self::premultiplied_sum(factor as i64),
            DataType::U64 => Self::premultiplied_sum(factor as u64),
            DataType::F16 => Self::premultiplied_sum(f16::from_f64(factor)),
            DataType::Bf16 => Self::premultiplied_sum(bf16::from_f64(factor)),
            DataType::F32 => Self::premultiplied_sum(narrow),
            DataType::F64 => Self::premultiplied_sum(factor),
            DataType::F8E4m3 => Self::premultiplied_sum(F8E4m3::from_f32(narrow)),
            DataType::F8E5m2 => Self::premultiplied_sum(F8E5m2::from_f32(narrow)),
            DataType::Complex64 => Self::premultiplied_sum(Complex::new(narrow, 0.0)),
            DataType::Complex128 => Self::premultiplied_sum(Complex::new(factor, 0.0)),
            DataType::Bool => return None,
        })
    }

    /// A function of two elements, the one of the lower ranks first. It must be associative, because plans choose where the
    /// brackets go. If it does not commute, ranks are combined in their order.
    ///
    /// If it panics in a call in the background, the communicator fails on all ranks, and the call's error has the panic's
    /// message.
    pub fn user_defined<T: Data>(commutes: bool, function: impl Fn(T, T) -> T + Send + Sync + 'a) -> Self {
        let function = Arc::new(Function { function, _elements: PhantomData });
        Self(Kind::UserDefined { commutes, function })
    }

    /// Its reduction, for a backend of its own.
    pub fn reduction(&self) -> Reduction {
        self.borrow().reduction
    }

    /// The bytes of the factor of a pre-multiplied sum, for a backend of its own.
    pub fn factor(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::PremultipliedSum(Factor { bytes, data_type }) => {
                data_type.map(|data_type| &bytes[..data_type.bytes()])
            }
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn borrow(&self) -> OperationRef<'_> {
        match &self.0 {
            Kind::Named(reduction) => OperationRef { reduction: *reduction, detail: Detail::None },
            Kind::PremultipliedSum(factor) => {
                OperationRef { reduction: Reduction::PremultipliedSum, detail: Detail::Factor(*factor) }
            }
            Kind::UserDefined { commutes, function } => OperationRef {
                reduction: Reduction::UserDefined { commutes: *commutes },
                detail: Detail::User(UserDefined(&**function)),
            },
        }
    }
}

impl From<Reduction> for Operation<'_> {
    #[inline]
    fn from(reduction: Reduction) -> Self {
        Self(Kind::Named(reduction))
    }
}

impl<'a> From<&Operation<'a>> for Operation<'a> {
    fn from(operation: &Operation<'a>) -> Self {
        operation.clone()
    }
}

impl From<Reduction> for OperationRef<'_> {
    #[inline]
    fn from(reduction: Reduction) -> Self {
        Self { reduction, detail: Detail::None }
    }
}

impl UserDefined<'_> {
    /// The type of the function's elements.
    pub(crate) fn id(&self) -> TypeId {
        self.0.id()
    }
}

impl<T: Data, F: Fn(T, T) -> T + Send + Sync> Combine for Function<T, F> {
    fn id(&self) -> TypeId {
        TypeId::of::<T>()
    }

    unsafe fn combine(&self, targets: &[*mut u8], sources: &[*const u8], len: usize) {
        let Some((first, others)) = sources.split_first() else { return };
        for at in 0..len {
            // SAFETY: the caller's promise.
            let value = |source: &*const u8| unsafe { source.cast::<T>().add(at).read_unaligned() };
            let result = others.iter().map(value).fold(value(first), &self.function);
            for target in targets {
                // SAFETY: the caller's promise.
                unsafe { target.cast::<T>().add(at).write_unaligned(result) };
            }
        }
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.borrow().fmt(f)
    }
}

impl fmt::Debug for UserDefined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserDefined")
    }
}
