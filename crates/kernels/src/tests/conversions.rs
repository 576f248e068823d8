//! Conversions of narrow floats against the reference.

use weftlink_plan::Reduction;
use weftlink_plan::element::{Element, F8E4m3, F8E5m2, bf16, f16};

use super::call::{Call, bytes_of};
use super::samples::{Random, Sample};
use crate::convert::Widen;
use crate::{Access, Kernels};

/// Checks all values of a narrow float, and rounding of values, of midpoints between neighbours, and of their neighbours in f32.
fn converts<T>(all: impl Iterator<Item = T>)
where
    T: Sample + Widen<Wide = f32> + Element<Wide = f32>,
{
    let all: Vec<T> = all.collect();
    let mut values: Vec<f32> = all.iter().map(|&value| Element::widen(value)).collect();
    for (&narrow, &wide) in all.iter().zip(&values) {
        let found = Widen::widen(narrow);
        let same = found.to_bits() == wide.to_bits() || found.is_nan() && wide.is_nan();
        assert!(same, "{narrow:?} widens to {wide:e}, got {found:e}");
    }
    values.retain(|value| value.is_finite());
    values.sort_by(f32::total_cmp);
    let middles = values.windows(2).map(|pair| ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32);
    let beyond = [values[0], *values.last().unwrap()]
        .map(|most| [1.01_f32, 1.02, 1.04, 1.08, 1.2, 2.0].map(|by| most * by));
    let mut random = Random(3);
    let any = (0..100_000).map(|_| f32::from_bits(random.next() as u32));
    let special = [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0x7f80_0001),
        f32::MAX,
        f32::MIN,
    ];
    for middle in
        middles.chain(beyond.into_iter().flatten()).chain(values.iter().copied()).chain(any).chain(special)
    {
        for value in [middle.next_down(), middle, middle.next_up()] {
            let (expected, found) = (<T as Element>::narrow(value).canonical(), <T as Widen>::narrow(value));
            let same = bytes_of(&[expected]) == bytes_of(&[found]);
            assert!(same, "{value:e} narrows to {expected:?}, got {found:?}");
        }
    }
}

#[test]
fn conversions_match_the_reference() {
    converts((0..=u16::MAX).map(f16::from_bits));
    converts((0..=u16::MAX).map(bf16::from_bits));
    converts((0..=u8::MAX).map(F8E4m3::from_bits));
    converts((0..=u8::MAX).map(F8E5m2::from_bits));
}

#[test]
fn adding_zero_keeps_every_narrow_float() {
    fn keeps<T: Sample>(all: Vec<T>, zero: T) {
        let zeros = vec![zero; all.len()];
        let expected: Vec<T> = all.iter().map(|value| value.canonical()).collect();
        let mut random = Random(9);
        for kernels in Kernels::all_supported() {
            let call = Call {
                kernel: kernels.reduction(T::TYPE, Reduction::Sum).unwrap(),
                name: format!("{} zero added to {}", kernels.name(), T::TYPE),
                sources: &[all.clone(), zeros.clone()],
                expected: &expected,
            };
            call.check(&mut random, 1, all.len(), None, Access::default());
        }
    }
    // -0 is the neutral element: +0 + -0 is +0.
    keeps((0..=u16::MAX).map(f16::from_bits).collect(), f16::NEG_ZERO);
    keeps((0..=u16::MAX).map(bf16::from_bits).collect(), bf16::NEG_ZERO);
    keeps((0..=u8::MAX).map(F8E4m3::from_bits).collect(), F8E4m3::from_bits(0x80));
    keeps((0..=u8::MAX).map(F8E5m2::from_bits).collect(), F8E5m2::from_bits(0x80));
}
