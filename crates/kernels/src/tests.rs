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
                    array.assert_holds(&expected, &|| format!("{} by {ranks}", name(reduction.name())));
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
            target.assert_holds(&expected, &|| name("scale"));
            array.assert_holds(&expected, &|| name("scale in place"));
        }
    }
}

/// Whether every kernel makes of a NaN, wherever it is, the canonical one, whose bits are given (of one part of a complex number).
fn has_one_nan<T: Sample>(nans: &[T], number: T, canonical: &[u8]) {
    let mut random = Random(17 + T::TYPE as u64);
    // Lengths for each loop: a few elements, a masked remainder, single registers, blocks, streamed lines.
    let per = |bytes: usize| bytes / size_of::<T>();
    for len in [per(16), per(48) + 1, per(64), per(1024) + 3, per(4 * 4096) + 5] {
        for reduction in [Reduction::Sum, Reduction::Product] {
            for &nan in nans {
                for source in 0..3 {
                    let mut sources = vec![vec![number; len]; 3];
                    let at = random.below(len);
                    sources[source][at] = nan;
                    let mut expected = vec![reference::<T>(reduction).combine(number, [number; 2]); len];
                    expected[at] = reference::<T>(reduction)
                        .combine(sources[0][at], sources[1..].iter().map(|other| other[at]));
                    assert!(
                        bytes_of(&[expected[at]]).chunks_exact(canonical.len()).any(|part| part == canonical)
                    );
                    for kernels in Kernels::all_supported() {
                        let call = Call {
                            kernel: kernels.reduction(T::TYPE, reduction).unwrap(),
                            name: format!("{} {reduction} of {} with a NaN", kernels.name(), T::TYPE),
                            sources: &sources,
                            expected: &expected,
                        };
                        for access in [ACCESSES[0], ACCESSES[3], ACCESSES[7]] {
                            call.check(&mut random, 1, len, None, access);
                            call.check(&mut random, 2, len, Some(2), access);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_nan_result_is_the_canonical_one() {
    let f32s = [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xffff_ffff].map(f32::from_bits);
    let f64s = [0x7ff8_u64 << 48, 0xfff8 << 48, (0x7ff0 << 48) + 1, u64::MAX].map(f64::from_bits);
    has_one_nan(&[0x7e00, 0xfe00, 0x7c01, 0xffff].map(f16::from_bits), f16::ONE, &0x7e00_u16.to_le_bytes());
    has_one_nan(&[0x7fc0, 0xffc0, 0x7f81, 0xffff].map(bf16::from_bits), bf16::ONE, &0x7fc0_u16.to_le_bytes());
    has_one_nan(&f32s, 1.0, &0x7fc0_0000_u32.to_le_bytes());
    has_one_nan(&f64s, 1.0, &(0x7ff8_u64 << 48).to_le_bytes());
    has_one_nan(&[0x7f, 0xff].map(F8E4m3::from_bits), F8E4m3::from_f32(1.0), &[0x7f]);
    has_one_nan(&[0x7d, 0x7e, 0xff].map(F8E5m2::from_bits), F8E5m2::from_f32(1.0), &[0x7e]);
    let one = Complex::new(1.0, 0.0);
    has_one_nan(&f32s.map(|nan| Complex::new(1.0, nan)), one, &0x7fc0_0000_u32.to_le_bytes());
    has_one_nan(
        &f64s.map(|nan| Complex::new(nan, 1.0)),
        Complex::new(1.0, 0.0),
        &(0x7ff8_u64 << 48).to_le_bytes(),
    );
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
