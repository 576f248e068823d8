//! Benchmarks the kernels: every instruction set and the shapes that plans use, from small messages to cold memory; then the
//! sums of all types, two arrays into one, beside a copy of as many bytes.
//!
//! Prints the shortest time of many repetitions, in nanoseconds, and the bytes read and written per second. Each array has the given
//! size, in page-aligned shared memory as in a run. Arrays of up to 1 MiB are in the caches, those of 64 MiB are not. `plain` is a
//! hand-written loop for the shape, with the machine's widest registers, aligned, one register at a time. Arguments after `--` select
//! rows by prefix: `2->2`, `bf16`, `8`.
#![allow(unsafe_code)] // Kernels take raw pointers.

use std::time::{Duration, Instant};

use weftlink_kernels::{Access, Kernels};
use weftlink_plan::element::{Complex, F8E4m3, F8E5m2, bf16, f16};
use weftlink_plan::{DataType, Reduction};
use weftlink_shm::memory::SharedMemory;

/// Sizes for the sums of all types: in the L2 cache, and larger than all caches.
const TYPE_SIZES: [usize; 2] = [128 << 10, 64 << 20];

const SIZES: [usize; 5] = [2 << 10, 16 << 10, 128 << 10, 1 << 20, 64 << 20];
const SHAPES: [(usize, usize); 9] = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 4), (5, 1), (8, 1)];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let arrays: Vec<SharedMemory> = (0..12)
        .map(|_| SharedMemory::create("bench", 64 << 20).expect("768 MiB of memory").0)
        .inspect(fill)
        .collect();
    let pointers: Vec<*mut u8> = arrays.iter().map(|memory| memory.as_ptr()).collect();
    let is_wanted = |row: &str| wanted.is_empty() || wanted.iter().any(|start| row.starts_with(start));
    println!("{:<44} {:>12} {:>9}", "shape or type, bytes, store, set", "ns", "GB/s");
    for bytes in [8, 16, 64] {
        let row = format!("2->1 {bytes} Cached");
        if is_wanted(&row) {
            measure(&row, DataType::F32, &pointers[2..3], &sources_of(&pointers[..2]), bytes, Store::Cached);
        }
    }
    for (k, m) in SHAPES {
        for bytes in SIZES {
            for &store in stores(bytes) {
                for in_place in [false, true] {
                    let row =
                        format!("{k}->{m}{} {bytes} {store:?}", if in_place { " in place" } else { "" });
                    if (in_place && k == 1) || !is_wanted(&row) {
                        continue;
                    }
                    let targets = if in_place { &pointers[k - 1..k - 1 + m] } else { &pointers[k..k + m] };
                    measure(&row, DataType::F32, targets, &sources_of(&pointers[..k]), bytes, store);
                }
            }
        }
    }
    for data_type in DataType::ALL {
        if !Reduction::Sum.is_for(data_type.kind()) {
            continue;
        }
        let mut is_filled = false;
        for bytes in TYPE_SIZES {
            for &store in stores(bytes) {
                let row = format!("{data_type} {bytes} {store:?}");
                if !is_wanted(&row) {
                    continue;
                }
                if !is_filled {
                    arrays[..2].iter().for_each(|memory| fill_with(memory, data_type));
                    is_filled = true;
                }
                measure(&row, data_type, &pointers[2..3], &sources_of(&pointers[..2]), bytes, store);
            }
        }
    }
}

fn sources_of(pointers: &[*mut u8]) -> Vec<*const u8> {
    pointers.iter().map(|pointer| pointer.cast_const()).collect()
}

fn stores(bytes: usize) -> &'static [Store] {
    if bytes > 1 << 20 { &[Store::Cached, Store::Streaming] } else { &[Store::Cached] }
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Cached,
    Streaming,
}

type Work = Box<dyn FnMut()>;

/// Measures all instruction sets in turn, repeatedly, so that noise affects them alike.
fn measure(
    row: &str,
    data_type: DataType,
    targets: &[*mut u8],
    sources: &[*const u8],
    bytes: usize,
    store: Store,
) {
    let moved = (targets.len() + sources.len()) * bytes;
    let mut variants: Vec<(&str, Work)> = Vec::new();
    for kernels in Kernels::all_supported() {
        let (targets, sources) = (targets.to_vec(), sources.to_vec());
        let sum = kernels.reduction(data_type, Reduction::Sum).expect("only what has sums is measured");
        let streamed = if store == Store::Streaming { targets.len() } else { 0 };
        let access = Access { streamed, ..Access::default() };
        // SAFETY: The arrays have at least `bytes` bytes, nothing else accesses them, and they are equal or disjoint.
        let work = move || unsafe { sum.combine(&targets, &sources, bytes / sum.element_bytes(), access) };
        variants.push((kernels.name(), Box::new(work)));
    }
    if let (&[one, other], &[target]) = (sources, targets) {
        // As many bytes as the sum reads and writes; a copy of n bytes moves 2n.
        let half = moved / 4;
        // SAFETY: As above: each copy is shorter than the arrays.
        let work = move || unsafe {
            std::ptr::copy_nonoverlapping(one, target, half);
            std::ptr::copy_nonoverlapping(other, target, half);
        };
        variants.push(("memcpy", Box::new(work)));
    }
    #[cfg(target_arch = "x86_64")]
    if let (&[a, b], &[one, ..], DataType::F32) = (sources, targets, data_type)
        && is_x86_feature_detected!("avx512f")
        && bytes.is_multiple_of(64)
    {
        let (other, streaming) = (targets.get(1).map(|other| other.cast()), store == Store::Streaming);
        let (a, b, one, len) = (a.cast(), b.cast(), one.cast(), bytes / 4);
        // SAFETY: As above; page-aligned, and a multiple of a register long.
        variants.push(("plain", Box::new(move || unsafe { plain(a, b, one, other, len, streaming) })));
    }
    // Small calls are too short for the clock.
    let calls = (256_usize << 10).div_ceil(moved);
    let mut best = vec![Duration::MAX; variants.len()];
    let end = Instant::now() + Duration::from_millis(if moved > 8 << 20 { 2000 } else { 200 });
    while Instant::now() < end {
        for ((_, work), best) in variants.iter_mut().zip(&mut best) {
            work(); // Warms the caches.
            let start = Instant::now();
            for _ in 0..calls {
                work();
            }
            *best = start.elapsed().min(*best);
        }
    }
    for ((set, _), best) in variants.iter().zip(best) {
        let ns = best.as_nanos() as f64 / calls as f64;
        println!("{:<44} {ns:>12.1} {:>9.1}", format!("{row} {set}"), moved as f64 / ns);
    }
}

/// A hand-written sum of two sources into one or two targets.
///
/// # Safety
/// All arrays are aligned to 64 bytes and `len` elements long, a multiple of 16; the machine has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn plain(
    a: *const f32,
    b: *const f32,
    one: *mut f32,
    other: Option<*mut f32>,
    len: usize,
    streaming: bool,
) {
    use std::arch::x86_64::*;
    // SAFETY: The caller's promise.
    unsafe {
        let sum = |at: usize| _mm512_add_ps(_mm512_load_ps(a.add(at)), _mm512_load_ps(b.add(at)));
        for at in (0..len).step_by(16) {
            match (other, streaming) {
                (None, false) => _mm512_store_ps(one.add(at), sum(at)),
                (None, true) => _mm512_stream_ps(one.add(at), sum(at)),
                (Some(other), false) => {
                    let sum = sum(at);
                    _mm512_store_ps(one.add(at), sum);
                    _mm512_store_ps(other.add(at), sum);
                }
                (Some(other), true) => {
                    let sum = sum(at);
                    _mm512_stream_ps(one.add(at), sum);
                    _mm512_stream_ps(other.add(at), sum);
                }
            }
        }
    }
    _mm_sfence();
}

fn fill(memory: &SharedMemory) {
    fill_each(memory, |at| (at % 1000) as f32);
}

/// Fills with small integers of a type: no overflow, and no subnormals, which are slow.
fn fill_with(memory: &SharedMemory, data_type: DataType) {
    let small = |at: usize| (at % 7) as u8;
    match data_type {
        DataType::I8 | DataType::U8 | DataType::Bool => fill_each(memory, small),
        DataType::I16 | DataType::U16 => fill_each(memory, |at| u16::from(small(at))),
        DataType::I32 | DataType::U32 => fill_each(memory, |at| u32::from(small(at))),
        DataType::I64 | DataType::U64 => fill_each(memory, |at| u64::from(small(at))),
        DataType::F16 => fill_each(memory, |at| f16::from_f32(small(at).into())),
        DataType::Bf16 => fill_each(memory, |at| bf16::from_f32(small(at).into())),
        DataType::F32 => fill_each(memory, |at| f32::from(small(at))),
        DataType::F64 => fill_each(memory, |at| f64::from(small(at))),
        DataType::F8E4m3 => fill_each(memory, |at| F8E4m3::from_f32(small(at).into())),
        DataType::F8E5m2 => fill_each(memory, |at| F8E5m2::from_f32(small(at).into())),
        DataType::Complex64 => fill_each(memory, |at| Complex::new(f32::from(small(at)), 1.0)),
        DataType::Complex128 => fill_each(memory, |at| Complex::new(f64::from(small(at)), 1.0)),
    }
}

fn fill_each<T>(memory: &SharedMemory, value: impl Fn(usize) -> T) {
    for at in 0..memory.len() / size_of::<T>() {
        // SAFETY: In bounds, and nothing else accesses the memory.
        unsafe { memory.as_ptr().cast::<T>().add(at).write(value(at)) };
    }
}
