//! The cost of moving a cache line between cores: written by a kernel to memory that the other core has read, and read by a kernel
//! that adds it to something. For each size and each kind of access, the median of both halves over many messages, in ns per
//! line. Two threads, each pinned to a core.

#![allow(unsafe_code)] // Kernels take raw memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use weftlink_comm::{DataType, Reduction};
use weftlink_kernels::{Access, Kernels};
use weftlink_shm::memory::SharedMemory;

const MESSAGES: u64 = 1000;
const SIZES: [usize; 5] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];

fn main() {
    let plain = Access::default();
    let knowing = [Access { to_peers: true, ..plain }, Access { from_peers: true, ..plain }];
    println!("ns a line                write     read    write, taken ahead    read, side by side");
    for bytes in SIZES {
        let [write, read] = message(bytes, [plain; 2]);
        let [ahead, side_by_side] = message(bytes, knowing);
        println!("{bytes:>8} bytes       {write:>9.1} {read:>8.1} {ahead:>21.1} {side_by_side:>22.1}");
    }
}

/// The time of writing and of reading messages of a length, which rotate through eight places.
fn message(bytes: usize, [writing, reading]: [Access; 2]) -> [f64; 2] {
    let places = SharedMemory::create("bench", 8 * bytes).expect("some megabytes of memory").0;
    let (written, read) = (AtomicU64::new(0), AtomicU64::new(0));
    let slot = |message: u64| places.as_ptr().wrapping_add(message as usize % 8 * bytes).addr();
    let lines = (bytes / 64) as f64;
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] / lines
    };
    let kernels = Kernels::detect();
    let sum = kernels.reduction(DataType::F32, Reduction::Sum).expect("there are sums of f32");
    let copy = kernels.copy();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            pin(0);
            let mut own = vec![0_f32; bytes / 4];
            let each = |message: u64| {
                own.fill(message as f32);
                while read.load(Ordering::Acquire) != message {}
                let start = Instant::now();
                // SAFETY: both have that many bytes, and the reader has released the place.
                unsafe { copy.combine(&[slot(message) as *mut u8], &[own.as_ptr().cast()], bytes, writing) };
                written.store(message + 1, Ordering::SeqCst);
                start.elapsed().as_nanos() as f64
            };
            median((0..MESSAGES).map(each).collect())
        });
        let reader = scope.spawn(|| {
            pin(1);
            let (own, mut result) = (vec![1_f32; bytes / 4], vec![0_f32; bytes / 4]);
            let each = |message: u64| {
                while written.load(Ordering::Acquire) != message + 1 {}
                let start = Instant::now();
                let sources = [own.as_ptr().cast(), slot(message) as *const u8];
                // SAFETY: all have that many bytes, and the writer has published the place.
                unsafe { sum.combine(&[result.as_mut_ptr().cast()], &sources, bytes / 4, reading) };
                let time = start.elapsed().as_nanos() as f64;
                assert_eq!(result[bytes / 4 - 1], 1.0 + message as f32);
                read.store(message + 1, Ordering::SeqCst);
                time
            };
            median((0..MESSAGES).map(each).collect())
        });
        [writer, reader].map(|thread| thread.join().expect("it does not fail"))
    })
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}
