//! How fast the kernels are: every instruction set, the shapes that plans use, from a small message to cold memory.
//!
//! Prints the shortest time of many repetitions, in nanoseconds, and beside it the bytes read and written per second.
//! Arrays are the given size each, page-aligned shared memory as in a run; up to 1 MiB they have been touched just
//! before, at 64 MiB they are larger than the caches. `plain` is the loop one would write by hand for the shape, with
//! the widest registers of the machine, aligned, one register at a time. Arguments after `--` choose rows by their
//! beginning: `2->2`.
#![allow(unsafe_code)] // It is about raw memory.

use std::time::{Duration, Instant};

use weftlink_comm::kernels::{Kernels, Store};
use weftlink_comm::memory::SharedMemory;

const SIZES: [usize; 5] = [2 << 10, 16 << 10, 128 << 10, 1 << 20, 64 << 20];
const SHAPES: [(usize, usize); 9] = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 4), (5, 1), (8, 1)];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let arrays: Vec<SharedMemory> = (0..12)
        .map(|_| SharedMemory::create("bench", 64 << 20).expect("768 MiB of memory").0)
        .inspect(fill)
        .collect();
    let pointers: Vec<*mut f32> = arrays.iter().map(|memory| memory.as_ptr().cast()).collect();
    println!("{:<44} {:>12} {:>9}", "shape, bytes, store, set", "ns", "GB/s");
    for (k, m) in SHAPES {
        for bytes in SIZES {
            let stores: &[Store] =
                if bytes > 1 << 20 { &[Store::Cached, Store::Streaming] } else { &[Store::Cached] };
            for &store in stores {
                for in_place in [false, true] {
                    let row =
                        format!("{k}->{m}{} {bytes} {store:?}", if in_place { " in place" } else { "" });
                    if (in_place && k == 1)
                        || !(wanted.is_empty() || wanted.iter().any(|start| row.starts_with(start)))
                    {
                        continue;
                    }
                    let sources: Vec<*const f32> =
                        pointers[..k].iter().map(|pointer| pointer.cast_const()).collect();
                    let targets = if in_place { &pointers[k - 1..k - 1 + m] } else { &pointers[k..k + m] };
                    measure(&row, targets, &sources, bytes / 4, store);
                }
            }
        }
    }
}

type Work = Box<dyn FnMut()>;

/// Measures all sets in turn, again and again, so that a disturbance from elsewhere meets them alike.
fn measure(row: &str, targets: &[*mut f32], sources: &[*const f32], len: usize, store: Store) {
    let moved = (targets.len() + sources.len()) * len * 4;
    let mut variants: Vec<(&str, Work)> = Vec::new();
    for kernels in Kernels::all_supported() {
        let (targets, sources) = (targets.to_vec(), sources.to_vec());
        // SAFETY: The arrays are at least `len` long, ours, and do not overlap but for whole ones.
        let work = move || unsafe { kernels.sum_f32(&targets, &sources, len, store) };
        variants.push((kernels.name(), Box::new(work)));
    }
    #[cfg(target_arch = "x86_64")]
    if let (&[a, b], &[one, ..]) = (sources, targets)
        && is_x86_feature_detected!("avx512f")
    {
        let (other, streaming) = (targets.get(1).copied(), store == Store::Streaming);
        // SAFETY: As above; page-aligned, and a multiple of a register long.
        variants.push(("plain", Box::new(move || unsafe { plain(a, b, one, other, len, streaming) })));
    }
    // Small ones are too short for the clock alone.
    let calls = (256_usize << 10).div_ceil(moved);
    let mut best = vec![Duration::MAX; variants.len()];
    let end = Instant::now() + Duration::from_millis(if moved > 8 << 20 { 2000 } else { 200 });
    while Instant::now() < end {
        for ((_, work), best) in variants.iter_mut().zip(&mut best) {
            work(); // Brings into the caches what stays there.
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

/// Two sources and one or two targets, as a C programmer would.
///
/// # Safety
/// All are aligned to 64 bytes, `len` long, a multiple of 16; the machine has AVX-512F.
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
    let floats = memory.as_ptr().cast::<f32>();
    for at in 0..memory.len() / 4 {
        // SAFETY: In bounds, and ours alone.
        unsafe { floats.add(at).write((at % 1000) as f32) };
    }
}
