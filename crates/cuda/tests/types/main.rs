//! The device code's types and operations against the oracle, bit by bit.
//!
//! The tests compile the device code for the host, with g++: `program.cpp`, once for each type.

mod samples;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weftlink_plan::element::{Complex, Element, F8E4m3, F8E5m2, bf16, f16};
use weftlink_plan::{DataType, Reducer, Reduction};

use self::samples::{Random, Sample};

/// Elements in an array of random ones.
const LEN: usize = 2048;

/// The device code for one type.
struct Program<T> {
    path: PathBuf,
    input: PathBuf,
    _type: std::marker::PhantomData<T>,
}

impl<T: Sample> Program<T> {
    /// Compiles the program; tests that run at the same time need different names.
    fn compile(test: &str) -> Self {
        let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let name = format!("{test}-{}", T::TYPE);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let output = Command::new("g++")
            .args(["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-DWEFT_HOST"])
            .arg(format!("-DWEFT_TYPE={:?}", T::TYPE))
            .arg("-I")
            .arg(crate_folder.join("device"))
            .arg(crate_folder.join("tests/types/program.cpp"))
            .arg("-o")
            .arg(&path)
            .output()
            .expect("g++ runs: `make tools` installs it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let input = path.with_extension("input");
        Self { path, input, _type: std::marker::PhantomData }
    }

    /// What the program makes of some bytes.
    fn run(&self, reduction: Reduction, task: &str, number: usize, bytes: &[u8]) -> Vec<u8> {
        fs::write(&self.input, bytes).expect("the folder for temporary files is writable");
        let output = Command::new(&self.path)
            .args([&format!("{reduction:?}"), task, &number.to_string()])
            .stdin(Stdio::from(File::open(&self.input).expect("just written")))
            .output()
            .expect("the program runs");
        let case = || format!("{reduction} of {}, {task} {number}", T::TYPE);
        assert!(output.status.success(), "{}: {}", case(), String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn expect(&self, reduction: Reduction, task: &str, number: usize, bytes: &[u8], expected: &[T]) {
        let found = self.run(reduction, task, number, bytes);
        assert_eq!(found.len(), size_of_val(expected), "{reduction} of {}, {task} {number}", T::TYPE);
        for (index, (found, &expected)) in found.chunks_exact(size_of::<T>()).zip(expected).enumerate() {
            let mut bits = Vec::new();
            expected.push(&mut bits);
            assert!(
                found == bits,
                "{reduction} of {}, {task} {number}, element {index}: expected {expected:?} {bits:02x?}, got {:?} {found:02x?}",
                T::TYPE,
                T::read(found)
            );
        }
    }

    /// Combines the arrays in their order and in the opposite one, as a step with all of them.
    fn combines(&self, reduction: Reduction, arrays: &[Vec<T>]) {
        let reducer = reference::<T>(reduction);
        let forwards: Vec<&Vec<T>> = arrays.iter().collect();
        let backwards: Vec<&Vec<T>> = arrays.iter().rev().collect();
        for arrays in [forwards, backwards] {
            let expected: Vec<T> = (0..arrays[0].len())
                .map(|at| reducer.combine(arrays[0][at], arrays[1..].iter().map(|array| array[at])))
                .collect();
            let mut bytes = Vec::new();
            arrays.iter().flat_map(|array| array.iter()).for_each(|value| value.push(&mut bytes));
            self.expect(reduction, "packs", arrays.len(), &bytes, &expected);
            if arrays.len() > 1 {
                self.expect(reduction, "elements", arrays.len(), &bytes, &expected);
            }
        }
    }
}

/// The reference for steps: without scaling inputs.
fn reference<T: Element>(reduction: Reduction) -> Reducer<'static, T> {
    let combining = if reduction == Reduction::PremultipliedSum { Reduction::Sum } else { reduction };
    Reducer::named(combining).expect("only what is defined is tested")
}

fn bytes_of<T: Sample>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    values.iter().for_each(|value| value.push(&mut bytes));
    bytes
}

fn has_the_bits_of_the_oracle<T: Sample>() {
    let program = Program::<T>::compile("types");
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ T::TYPE as u64);
    let mut array = |len: usize| -> Vec<T> { (0..len).map(|_| T::sample(&mut random)).collect() };
    let all = T::all();
    for reduction in Reduction::NAMED.into_iter().filter(|reduction| reduction.is_for(T::TYPE.kind())) {
        match size_of::<T>() {
            1 => {
                let pairs = all.iter().flat_map(|&left| all.iter().map(move |&right| (left, right)));
                let (left, right) = pairs.unzip();
                program.combines(reduction, &[left, right]);
            }
            2 => {
                for _ in 0..4 {
                    program.combines(reduction, &[all.clone(), array(all.len())]);
                }
            }
            _ => program.combines(reduction, &[array(1 << 16), array(1 << 16)]),
        }
        for inputs in 1..=8 {
            let arrays: Vec<Vec<T>> = (0..inputs).map(|_| array(LEN)).collect();
            program.combines(reduction, &arrays);
        }
        let values = if all.is_empty() { array(LEN) } else { all.clone() };
        let named = reference::<T>(reduction);
        for ranks in [1, 2, 3, 7, 300, u32::MAX] {
            let is_logical = reduction.changes_inputs() && reduction != Reduction::PremultipliedSum;
            let before = |value| if is_logical { named.before(0, value) } else { value };
            let expected: Vec<T> = values.iter().map(|&value| named.after(before(value), ranks)).collect();
            program.expect(reduction, "finish", ranks as usize, &bytes_of(&values), &expected);
        }
        if reduction == Reduction::PremultipliedSum {
            for factor in [0, 1, 3, 100, values.len() / 2, values.len() - 2] {
                let reducer = Reducer::premultiplied_sum(vec![values[factor]]).expect("it is defined");
                let expected: Vec<T> = values.iter().map(|&value| reducer.before(0, value)).collect();
                program.expect(reduction, "scale", factor, &bytes_of(&values), &expected);
            }
        }
    }
}

/// Checks that all values of a narrow float widen to the same f32, and that f32 are rounded to the same value: all values, the midpoints
/// between neighbours, the neighbours of both in f32, and random numbers.
fn converts<T: Sample + Element<Wide = f32>>() {
    let program = Program::<T>::compile("conversions");
    let all = T::all();
    let mut values: Vec<f32> = all.iter().map(|&value| value.widen()).collect();
    let found = program.run(Reduction::Sum, "load", 0, &bytes_of(&all));
    assert_eq!(found.len(), values.len() * 4);
    for ((found, expected), narrow) in found.chunks_exact(4).zip(&values).zip(&all) {
        let found = f32::read(found);
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{narrow:?} of {} widens to {expected:e}, got {found:e}", T::TYPE);
    }
    values.retain(|value| value.is_finite());
    values.sort_by(f32::total_cmp);
    let largest = *values.last().expect("there are finite values");
    let middles = values.windows(2).map(|pair| ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32);
    let beyond =
        [1.01_f32, 1.02, 1.04, 1.08, 1.2, 2.0].into_iter().flat_map(|by| [largest * by, -largest * by]);
    let mut random = Random(3);
    let any = (0..1 << 18).map(|_| f32::sample(&mut random));
    let around = |value: f32| [value.next_down(), value, value.next_up()];
    let wide: Vec<f32> =
        middles.chain(beyond).chain(values.iter().copied()).chain(any).flat_map(around).collect();
    let expected: Vec<T> = wide.iter().map(|&value| T::narrow(value).canonical()).collect();
    program.expect(Reduction::Sum, "store", 0, &bytes_of(&wide), &expected);
}

macro_rules! each_type {
    ($($name:ident: $type:ty;)*) => {
        /// A test for each type, so that they run in parallel.
        mod of {
            use super::*;

            $(#[test]
            fn $name() {
                has_the_bits_of_the_oracle::<$type>();
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
fn conversions_match_the_oracle() {
    converts::<f16>();
    converts::<bf16>();
    converts::<F8E4m3>();
    converts::<F8E5m2>();
}
