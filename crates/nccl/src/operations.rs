//! Types and reductions: those of NCCL, and sums with a factor that the program makes.

// Reads factors in the program's memory.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Mutex;

use weftlink::cuda::driver::Driver;
use weftlink::plan::element::{F8E4m3, F8E5m2, bf16, f16};
use weftlink::{DataType, Reduction, bytemuck};

use crate::failure::Failure;
use crate::gpu;
use crate::lock::lock;

/// How a call combines elements.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Named(Reduction),
    /// A sum whose inputs are multiplied by a factor.
    Scaled(Factor),
}

/// The factor of a sum.
#[derive(Clone, Debug)]
pub(crate) struct Factor {
    data_type: DataType,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    /// Its bytes.
    Known(Vec<u8>),
    /// It lies there when the call is made.
    At(u64),
}

/// The stream of values that are not on one.
const DEFAULT_STREAM: u64 = 0;
/// NCCL's own operations. Numbers that follow are of factors.
const NAMED: [Reduction; 5] =
    [Reduction::Sum, Reduction::Product, Reduction::Maximum, Reduction::Minimum, Reduction::Average];

/// The factors that a program has made for a communicator.
#[derive(Default)]
pub(crate) struct Factors {
    made: Mutex<Vec<Option<Factor>>>,
}

impl Factors {
    /// Adds a factor, and returns the number of its operation. `address`: where it is, read now or when a call is made.
    pub(crate) fn add(&self, data_type: DataType, address: u64, is_read_now: bool) -> Result<c_int, Failure> {
        let value = match is_read_now {
            true => Value::Known(read(address, data_type.bytes(), DEFAULT_STREAM)?),
            false => Value::At(address),
        };
        let mut made = lock(&self.made);
        let free = made.iter().position(Option::is_none).unwrap_or_else(|| {
            made.push(None);
            made.len() - 1
        });
        made[free] = Some(Factor { data_type, value });
        Ok((NAMED.len() + free) as c_int)
    }

    /// Forgets a factor.
    pub(crate) fn remove(&self, operation: c_int) -> Result<(), Failure> {
        let number = usize::try_from(operation).ok().and_then(|number| number.checked_sub(NAMED.len()));
        let mut made = lock(&self.made);
        let found = number.and_then(|number| made.get_mut(number)).filter(|factor| factor.is_some());
        let unknown = || Failure::argument(format!("ncclRedOpCreatePreMulSum made no reduction {operation}"));
        *found.ok_or_else(unknown)? = None;
        Ok(())
    }

    /// The operation of a number.
    pub(crate) fn operation(&self, number: c_int, data_type: DataType) -> Result<Operation, Failure> {
        let unknown = || Failure::argument(format!("there is no reduction {number}"));
        let number = usize::try_from(number).map_err(|_| unknown())?;
        if let Some(reduction) = NAMED.get(number) {
            return Ok(Operation::Named(*reduction));
        }
        let factor = lock(&self.made).get(number - NAMED.len()).cloned().flatten().ok_or_else(unknown)?;
        if factor.data_type != data_type {
            let (own, other) = (factor.data_type, data_type);
            return Err(Failure::argument(format!(
                "the reduction was made for {own}, and the call is on {other}"
            )));
        }
        Ok(Operation::Scaled(factor))
    }
}

impl Factor {
    /// Its bytes, after what is on the stream.
    pub(crate) fn bytes(&self, stream: u64) -> Result<Vec<u8>, Failure> {
        match &self.value {
            Value::Known(bytes) => Ok(bytes.clone()),
            Value::At(address) => read(*address, self.data_type.bytes(), stream),
        }
    }

    /// The operation of a call on host memory.
    pub(crate) fn on_host(&self, stream: u64) -> Result<weftlink::Operation<'static>, Failure> {
        use weftlink::Operation as Of;
        let bytes = self.bytes(stream)?;
        macro_rules! of {
            ($type:ty) => {
                Of::premultiplied_sum(bytemuck::pod_read_unaligned::<$type>(&bytes))
            };
        }
        Ok(match self.data_type {
            DataType::I8 => of!(i8),
            DataType::U8 => of!(u8),
            DataType::I32 => of!(i32),
            DataType::U32 => of!(u32),
            DataType::I64 => of!(i64),
            DataType::U64 => of!(u64),
            DataType::F16 => of!(f16),
            DataType::Bf16 => of!(bf16),
            DataType::F32 => of!(f32),
            DataType::F64 => of!(f64),
            DataType::F8E4m3 => of!(F8E4m3),
            DataType::F8E5m2 => of!(F8E5m2),
            other => return Err(Failure::argument(format!("no factor can have the type {other}"))),
        })
    }
}

/// Reads bytes of the program, on the host or on a GPU.
fn read(address: u64, length: usize, stream: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; length];
    let on_gpu = match Driver::if_loaded() {
        Some(driver) => driver.pointer(address)?,
        None => None,
    };
    match on_gpu {
        Some(pointer) => gpu::read(pointer.device, stream, address, &mut bytes)?,
        // SAFETY: the program's value, which it keeps until the call is made.
        None => unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), length) },
    }
    Ok(bytes)
}

/// The type of a number of NCCL's.
pub(crate) fn type_of(number: c_int) -> Result<DataType, Failure> {
    const TYPES: [DataType; 12] = [
        DataType::I8,
        DataType::U8,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::F32,
        DataType::F64,
        DataType::Bf16,
        DataType::F8E4m3,
        DataType::F8E5m2,
    ];
    let known = usize::try_from(number).ok().and_then(|number| TYPES.get(number));
    known.copied().ok_or_else(|| Failure::argument(format!("there is no data type {number}")))
}
