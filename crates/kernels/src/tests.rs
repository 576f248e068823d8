//! Every kernel of every instruction set against the reference, bit by bit.

mod call;
mod conversions;
mod samples;

use weftlink_plan::element::{Complex, Element, F8E4m3, F8E5m2, bf16, f16};
use weftlink_plan::reduction::Kind;
use weftlink_plan::{DataType, Reducer, Reduction};

use self::call::{ACCESSES, Array, Call, bytes_of};
use self::samples::{Random, Sample};
use super::*;

/// The reference for the kernel of a reduction: without scaling inputs and without the final pass.
fn reference<T: Element>(reduction: Reduction) -> Reducer<'static, T> {
    let combining = match reduction {
        Reduction::Average | Reduction::PremultipliedSum => Reduction::Sum,
        other => other,
    };
    Reducer::named(combining).unwrap()
}

fn combines<T: Sample>() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ T::TYPE as u64);
    let per = |bytes: usize| bytes / size_of::<T>();
    let (line, block, page) = (per(64), per(1024), per(4096));
    let lens = [0, 1, 2, 3, 4, 5, line - 1, line, line + 1, 3 * line + 2, block - 1, block + line + 1];
    let large = 4 * page + block + line + 3;
    for reduction in Reduction::NAMED {
        if !reduction.is_for(T::TYPE.kind()) {
            continue;
        }
        let reference = reference::<T>(reduction);
        let is_exact = matches!(reduction, Reduction::Minimum | Reduction::Maximum);
        for k in [1, 2, 3, 7] {
            let sources: Vec<Vec<T>> =
                (0..k).map(|_| (0..large).map(|_| T::sample(&mut random)).collect()).collect();
            let at =
                |at: usize| reference.combine(sources[0][at], sources[1..].iter().map(|other| other[at]));
            let expected: Vec<T> = (0..large).map(at).collect();
            for kernels in Kernels::all_supported() {
                let call = Call {
                    kernel: kernels.reduction(T::TYPE, reduction).unwrap(),
                    name: format!("{} {reduction} of {}", kernels.name(), T::TYPE),
                    sources: &sources,
                    expected: &expected,
                    is_exact: is_exact || k == 1,
                };
                assert_eq!(call.kernel.element_bytes(), T::TYPE.bytes());
                for access in ACCESSES {
                    for m in [1, 2, 3] {
                        for len in lens {
                            call.check(&mut random, m, len, None, access);
                            let source = random.below(k);
                            call.check(&mut random, m, len, Some(source), access);
                        }
                    }
                    call.check(&mut random, 1, large, None, access);
                    call.check(&mut random, 2, large, Some(k - 1), access);
                }
            }
        }
    }
}

fn finishes_and_scales<T: Sample>() {
    let mut random = Random(42 + T::TYPE as u64);
    let len = 1024 / size_of::<T>() * 2 + 5;
    let values: Vec<T> = (0..len).map(|_| T::sample(&mut random)).collect();
    for kernels in Kernels::all_supported() {
        let name = |what: &str| format!("{} {what} of {}", kernels.name(), T::TYPE);
        for reduction in Reduction::NAMED {
            let Some(finish) = kernels.finish(T::TYPE, reduction) else {
                let is_logical = reduction.changes_inputs() && reduction != Reduction::PremultipliedSum;
                let needs_pass =
                    (is_logical || reduction == Reduction::Average) && reduction.is_for(T::TYPE.kind());
                assert!(!needs_pass, "{}", name(reduction.name()));
                continue;
            };
            let reducer = Reducer::<T>::named(reduction).unwrap();
            for ranks in [1, 2, 3, 7, 300, u32::MAX] {
                for len in [0, 1, 5, len] {
                    let mut array = Array::new(bytes_of(&values[..len]), random.below(64));
                    // SAFETY: The array has `len` elements, and nothing else accesses it.
                    unsafe { finish(array.pointer(), len, ranks) };
                    let expected: Vec<T> = values[..len]
                        .iter()
                        .map(|&value| reducer.after(reducer.before(0, value), ranks))
                        .collect();
                    array
                        .assert_holds(&expected, false, &|| format!("{} by {ranks}", name(reduction.name())));
                }
            }
        }
        let Some(scale) = kernels.scale(T::TYPE) else {
            assert!(!Reduction::PremultipliedSum.is_for(T::TYPE.kind()));
            continue;
        };
        for _ in 0..4 {
            let factor = T::sample(&mut random);
            let reducer = Reducer::premultiplied_sum(vec![factor]).unwrap();
            let expected: Vec<T> = values.iter().map(|&value| reducer.before(0, value)).collect();
            let mut array = Array::new(bytes_of(&values), random.below(64));
            let mut target = Array::new(bytes_of(&values), random.below(64));
            let (from, factor) = (array.pointer(), Array::new(bytes_of(&[factor]), 1));
            // SAFETY: The arrays have `len` elements, the factor is one element, and nothing else accesses them.
            unsafe {
                scale(target.pointer(), from.cast_const(), len, factor.contents().as_ptr());
                scale(from, from.cast_const(), len, factor.contents().as_ptr());
            }
            target.assert_holds(&expected, false, &|| name("scale"));
            array.assert_holds(&expected, false, &|| name("scale in place"));
        }
    }
}

fn canonicalizes_nans<T: Sample>(nan: &[u8]) {
    let mut random = Random(17 + T::TYPE as u64);
    let len = 1024 / size_of::<T>() * 3 + 5;
    let part = nan.len();
    for kernels in Kernels::all_supported() {
        let canonicalize_nans = kernels.canonicalize_nans(T::TYPE, Reduction::Sum).unwrap();
        for round in 0..20 {
            let mut values: Vec<T> = (0..len).map(|_| T::sample(&mut random)).collect();
            if round % 2 == 0 {
                // Whole blocks without a NaN, which the pass does not write.
                let one = values.iter().copied().find(|value| value.is_same(*value)).unwrap();
                values[..2 * len / 3].fill(one);
            }
            let mut expected = bytes_of(&values).to_vec();
            for bytes in expected.chunks_exact_mut(part) {
                if is_nan(bytes, T::TYPE) {
                    bytes.copy_from_slice(nan);
                }
            }
            let mut array = Array::new(bytes_of(&values), random.below(64));
            // SAFETY: The array has `len` elements, and nothing else accesses it.
            unsafe { canonicalize_nans(array.pointer(), len, 3) };
            assert!(array.contents() == expected, "{} {}", kernels.name(), T::TYPE);
        }
    }
}

/// Whether the bits of a float, or of a part of a complex number, are a NaN.
fn is_nan(bytes: &[u8], data_type: DataType) -> bool {
    let bits = bytes.iter().rev().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    let magnitude = bits & !(1 << (8 * bytes.len() - 1));
    magnitude
        > match data_type {
            DataType::F16 | DataType::F8E5m2 => 0x7c << (8 * (bytes.len() - 1)),
            DataType::F8E4m3 => 0x7e,
            DataType::Bf16 => 0x7f80,
            DataType::F32 | DataType::Complex64 => 0x7f80_0000,
            _ => 0x7ff0_0000_0000_0000,
        }
}

#[test]
fn nans_become_the_canonical_one() {
    canonicalizes_nans::<f16>(&0x7e00_u16.to_le_bytes());
    canonicalizes_nans::<bf16>(&0x7fc0_u16.to_le_bytes());
    canonicalizes_nans::<f32>(&0x7fc0_0000_u32.to_le_bytes());
    canonicalizes_nans::<f64>(&0x7ff8_0000_0000_0000_u64.to_le_bytes());
    canonicalizes_nans::<F8E4m3>(&[0x7f]);
    canonicalizes_nans::<F8E5m2>(&[0x7e]);
    canonicalizes_nans::<Complex<f32>>(&0x7fc0_0000_u32.to_le_bytes());
    canonicalizes_nans::<Complex<f64>>(&0x7ff8_0000_0000_0000_u64.to_le_bytes());
    for kernels in Kernels::all_supported() {
        assert!(kernels.canonicalize_nans(DataType::I32, Reduction::Sum).is_none());
        assert!(kernels.canonicalize_nans(DataType::F32, Reduction::Maximum).is_none());
    }
}

macro_rules! each_type {
    ($($name:ident: $type:ty;)*) => {
        /// A test for each type, so that they run in parallel.
        mod of {
            use super::*;

            $(#[test]
            fn $name() {
                combines::<$type>();
                finishes_and_scales::<$type>();
            })*
        }

        #[test]
        fn every_type_is_tested() {
            assert_eq!([$(<$type as Element>::TYPE),*], DataType::ALL);
        }
    };
}

each_type! {
    i8: i8; u8: u8; i16: i16; u16: u16; i32: i32; u32: u32; i64: i64; u64: u64;
    f16: f16; bf16: bf16; f32: f32; f64: f64; f8e4m3: F8E4m3; f8e5m2: F8E5m2;
    bool: bool; complex64: Complex<f32>; complex128: Complex<f64>;
}

#[test]
fn meaningless_reductions_have_no_kernel() {
    for kernels in Kernels::all_supported() {
        for data_type in DataType::ALL {
            for reduction in Reduction::NAMED {
                let found = kernels.reduction(data_type, reduction).is_some();
                assert_eq!(found, reduction.is_for(data_type.kind()), "{reduction} of {data_type}");
                if !found {
                    assert!(kernels.finish(data_type, reduction).is_none());
                }
            }
            assert!(kernels.reduction(data_type, Reduction::UserDefined { commutes: true }).is_none());
            assert_eq!(kernels.scale(data_type).is_some(), data_type.kind() != Kind::Bool);
        }
    }
}

#[test]
fn copies_are_exact() {
    let mut random = Random(7);
    let bytes: Vec<u8> = (0..40_000).map(|_| random.next() as u8).collect();
    for kernels in Kernels::all_supported() {
        let call = Call {
            kernel: kernels.copy(),
            name: format!("{} copy", kernels.name()),
            sources: std::slice::from_ref(&bytes),
            expected: &bytes,
            is_exact: true,
        };
        assert_eq!(call.kernel.element_bytes(), 1);
        for len in (0..200).chain([1023, 4096, 8192, 8193, 16_384, 16_500, 40_000]) {
            for m in [1, 2, 3] {
                for access in ACCESSES {
                    call.check(&mut random, m, len, None, access);
                    call.check(&mut random, m, len, Some(0), access);
                }
            }
        }
    }
}

#[test]
fn sources_are_combined_in_order() {
    let mut arrays = [[1e30_f32; 100], [-1e30; 100], [1.0; 100]];
    for kernels in Kernels::all_supported() {
        let sum = kernels.reduction(DataType::F32, Reduction::Sum).unwrap();
        let mut target = [0.0_f32; 100];
        for (order, expected) in [([0, 1, 2], 1.0), ([0, 2, 1], 0.0)] {
            let sources = order.map(|index: usize| arrays[index].as_mut_ptr().cast_const().cast());
            // SAFETY: All arrays have 100 elements, and nothing else accesses them.
            unsafe { sum.combine(&[target.as_mut_ptr().cast()], &sources, 100, Access::default()) };
            assert_eq!(target, [expected; 100], "{}", kernels.name());
        }
    }
}

#[test]
fn detect_returns_the_fastest() {
    assert_eq!(Kernels::detect().name(), Kernels::all_supported()[0].name());
    assert_eq!(Kernels::all_supported().last().map(Kernels::name), Some("portable"));
}
