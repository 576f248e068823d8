//! The element types by name, as in calls, files and flags.

use std::any::TypeId;
use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use num_complex::Complex;
use weftlink_fabric::nearest::{did_you_mean, fold};

use super::fp8::{F8E4m3, F8E5m2};
use crate::reduction::Kind;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DataType {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
    F64,
    /// Four bits of exponent, three of mantissa, no infinities: [`F8E4m3`](crate::element::F8E4m3).
    F8E4m3,
    /// Five bits of exponent, two of mantissa: [`F8E5m2`](crate::element::F8E5m2).
    F8E5m2,
    /// A byte each, 0 or 1.
    Bool,
    /// Two f32: real and imaginary part.
    Complex64,
    /// Two f64: real and imaginary part.
    Complex128,
}

/// Names in nccl-tests, PyTorch, NumPy and C++.
const OTHER_NAMES: [(&str, DataType); 33] = [
    ("int8", DataType::I8),
    ("uint8", DataType::U8),
    ("int16", DataType::I16),
    ("uint16", DataType::U16),
    ("int32", DataType::I32),
    ("int", DataType::I32),
    ("uint32", DataType::U32),
    ("int64", DataType::I64),
    ("uint64", DataType::U64),
    ("half", DataType::F16),
    ("float16", DataType::F16),
    ("bfloat16", DataType::Bf16),
    ("float", DataType::F32),
    ("float32", DataType::F32),
    ("double", DataType::F64),
    ("float64", DataType::F64),
    ("float8_e4m3", DataType::F8E4m3),
    ("float8_e4m3fn", DataType::F8E4m3),
    ("float8_e5m2", DataType::F8E5m2),
    ("bool_", DataType::Bool),
    ("cfloat", DataType::Complex64),
    ("cdouble", DataType::Complex128),
    ("fp16", DataType::F16),
    ("bfloat", DataType::Bf16),
    ("fp32", DataType::F32),
    ("single", DataType::F32),
    ("fp64", DataType::F64),
    ("char", DataType::I8),
    ("byte", DataType::U8),
    ("short", DataType::I16),
    ("long", DataType::I64),
    ("fp8_e4m3", DataType::F8E4m3),
    ("fp8_e5m2", DataType::F8E5m2),
];

impl DataType {
    /// All of them.
    pub const ALL: [DataType; 17] = [
        DataType::I8,
        DataType::U8,
        DataType::I16,
        DataType::U16,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::Bf16,
        DataType::F32,
        DataType::F64,
        DataType::F8E4m3,
        DataType::F8E5m2,
        DataType::Bool,
        DataType::Complex64,
        DataType::Complex128,
    ];

    /// The name of a Rust type of numbers, if it is one. The comparisons are resolved at compile time.
    #[inline(always)]
    pub fn of<T: 'static>() -> Option<DataType> {
        let id = TypeId::of::<T>();
        macro_rules! known {
            ($($type:ty => $name:ident),* $(,)?) => {$(
                if id == TypeId::of::<$type>() {
                    return Some(DataType::$name);
                }
            )*};
        }
        known!(
            i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
            f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64, F8E4m3 => F8E4m3, F8E5m2 => F8E5m2,
            Complex<f32> => Complex64, Complex<f64> => Complex128,
        );
        #[cfg(target_pointer_width = "64")]
        known!(isize => I64, usize => U64);
        None
    }

    /// The name in tables, flags and files.
    pub fn name(self) -> &'static str {
        match self {
            DataType::I8 => "i8",
            DataType::U8 => "u8",
            DataType::I16 => "i16",
            DataType::U16 => "u16",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
            DataType::I64 => "i64",
            DataType::U64 => "u64",
            DataType::F16 => "f16",
            DataType::Bf16 => "bf16",
            DataType::F32 => "f32",
            DataType::F64 => "f64",
            DataType::F8E4m3 => "f8e4m3",
            DataType::F8E5m2 => "f8e5m2",
            DataType::Bool => "bool",
            DataType::Complex64 => "complex64",
            DataType::Complex128 => "complex128",
        }
    }

    /// The size of one element.
    pub fn bytes(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::F8E4m3 | DataType::F8E5m2 | DataType::Bool => 1,
            DataType::I16 | DataType::U16 | DataType::F16 | DataType::Bf16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 | DataType::Complex64 => 8,
            DataType::Complex128 => 16,
        }
    }

    /// Whether steps combine it in f32 and round the result.
    pub fn is_widened(self) -> bool {
        matches!(self, DataType::F16 | DataType::Bf16 | DataType::F8E4m3 | DataType::F8E5m2)
    }

    /// The kind of element, which decides about its reductions.
    pub fn kind(self) -> Kind {
        match self {
            DataType::I8
            | DataType::U8
            | DataType::I16
            | DataType::U16
            | DataType::I32
            | DataType::U32
            | DataType::I64
            | DataType::U64 => Kind::Integer,
            DataType::F16
            | DataType::Bf16
            | DataType::F32
            | DataType::F64
            | DataType::F8E4m3
            | DataType::F8E5m2 => Kind::Float,
            DataType::Bool => Kind::Bool,
            DataType::Complex64 | DataType::Complex128 => Kind::Complex,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl DataType {
    /// The type of that name, in the spelling of Weft, nccl-tests, NCCL (`ncclFloat32`), PyTorch (`torch.float32`), NumPy, MPI or
    /// C++, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        let typed = fold(name);
        let prefixes = ["nccl", "torch", "np", "numpy", "mpi"];
        let bare = prefixes.iter().find_map(|prefix| typed.strip_prefix(prefix)).unwrap_or(&typed);
        let own = Self::ALL.into_iter().find(|data_type| fold(data_type.name()) == bare);
        own.or_else(|| {
            OTHER_NAMES.iter().find(|(other, _)| fold(other) == bare).map(|&(_, data_type)| data_type)
        })
    }
}

impl FromStr for DataType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::from_name(name).ok_or_else(|| {
            let own = Self::ALL.into_iter().map(DataType::name);
            let hint = did_you_mean(name, own.chain(OTHER_NAMES.iter().map(|(other, _)| *other)));
            let names = Self::ALL.map(DataType::name).join(", ");
            format!("unknown type `{name}`.{hint} Known types: {names}.")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_round_trip() {
        for data_type in DataType::ALL {
            assert_eq!(data_type.to_string().parse(), Ok(data_type));
        }
        for (name, data_type) in OTHER_NAMES {
            assert_eq!(name.parse(), Ok(data_type));
            assert!(DataType::ALL.iter().all(|data_type| data_type.name() != name), "{name} is ours");
        }
        let message = "quad".parse::<DataType>().unwrap_err();
        assert!(message.contains("unknown type `quad`") && message.contains("bf16"), "{message}");
    }

    #[test]
    fn every_number_type_is_known() {
        let known = [
            DataType::of::<i8>(),
            DataType::of::<u8>(),
            DataType::of::<i16>(),
            DataType::of::<u16>(),
            DataType::of::<i32>(),
            DataType::of::<u32>(),
            DataType::of::<i64>(),
            DataType::of::<u64>(),
            DataType::of::<f16>(),
            DataType::of::<bf16>(),
            DataType::of::<f32>(),
            DataType::of::<f64>(),
            DataType::of::<F8E4m3>(),
            DataType::of::<F8E5m2>(),
            DataType::of::<Complex<f32>>(),
            DataType::of::<Complex<f64>>(),
        ];
        let expected: Vec<_> = DataType::ALL.into_iter().filter(|one| *one != DataType::Bool).collect();
        assert_eq!(known.len(), expected.len());
        assert!(expected.iter().all(|one| known.contains(&Some(*one))), "{known:?}");
        assert_eq!(DataType::of::<usize>(), Some(DataType::U64));
        assert_eq!(DataType::of::<[f32; 1]>(), None);
        assert_eq!(DataType::of::<u128>(), None);
    }
}
