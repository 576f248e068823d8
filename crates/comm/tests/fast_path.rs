//! Once a count has been compiled, a call allocates nothing and frees nothing, whatever the plan and however it waits.
//!
//! System calls are not counted here: a rank whose peer was not given a core yields and sleeps, and should.
#![allow(unsafe_code)] // An allocator of one's own is unsafe to write.
#![allow(clippy::unwrap_used)] // All of this is test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use weftlink_comm::{Communicator, Options, Reduction, Request};
use weftlink_plan::{Algorithm, Collective, verify};

thread_local!(static COUNTED: Cell<u64> = const { Cell::new(0) });

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is the system allocator's; counting is a thread-local that needs neither memory nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNTED.set(COUNTED.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        COUNTED.set(COUNTED.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[test]
fn calls_neither_allocate_nor_free() {
    const ROUNDS: usize = 20;
    let work = |mut comm: Communicator| {
        let size = comm.size() as u32;
        let mut plans: Vec<_> = Algorithm::doing(&Collective::AllReduce)
            .map(|algorithm| comm.built_in(algorithm, &Collective::AllReduce).unwrap())
            .collect();
        plans.push(comm.load(verify(Algorithm::Ring.plan(size, 2)).unwrap()).unwrap());
        let (input, mut output) = (comm.window::<f32>(70_000).unwrap(), comm.window::<f32>(70_000).unwrap());
        let mut values = vec![1.0; 70_000];
        let mut round = |comm: &mut Communicator| {
            for count in [0, 1, 112, 113, 5000, 70_000] {
                for &plan in &plans {
                    comm.run(
                        Request::new(
                            &Collective::AllReduce,
                            (input.part(0..count), output.part_mut(0..count)),
                        )
                        .with(Reduction::Sum)
                        .by(plan),
                    )
                    .unwrap();
                }
                comm.all_reduce(&mut values[..count], Reduction::Sum).unwrap();
                comm.all_reduce(output.part_mut(0..count), Reduction::Sum).unwrap();
            }
        };
        round(&mut comm);
        let before = COUNTED.get();
        (0..ROUNDS).for_each(|_| round(&mut comm));
        COUNTED.get() - before
    };
    for size in [1, 2, 3] {
        for spin in [true, false] {
            let options = Options { spin: Some(spin), ..Options::default() };
            let ranks = Communicator::threads(size, options).unwrap();
            let counted: Vec<u64> = std::thread::scope(|scope| {
                let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(counted, vec![0; size], "{size} ranks, spinning: {spin}");
        }
    }
}

#[test]
fn the_count_would_show() {
    let before = COUNTED.get();
    drop(std::hint::black_box(vec![1]));
    assert_eq!(COUNTED.get() - before, 2);
}
