//! Once a count has been compiled, a call neither allocates nor frees memory, with any plan and any wait policy.
//!
//! System calls are not counted: a rank whose peer has no core yields and sleeps, and should.
#![allow(unsafe_code)] // An allocator of one's own is unsafe to write.
#![allow(clippy::unwrap_used)] // All of this is test.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use weftlink_comm::{Communicator, Error, Options, Reduction, Request};
use weftlink_plan::{Algorithm, Collective, verify};
use weftlink_testkit::cases::Memory;

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
                        .operation(Reduction::Sum)
                        .plan(plan),
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

/// Between hosts, with frames, encrypted or not, and sockets. A rank that waits for long sends its call to the other hosts, for which it
/// allocates; so every call is repeated until one did not allocate.
#[test]
fn calls_between_hosts_neither_allocate_nor_free() {
    const ROUNDS_MAX: usize = 200;
    const COUNTS: [usize; 2] = [1, 70_000];
    for (size, per_host, encrypt) in [(2, 1, false), (2, 1, true), (4, 2, false)] {
        let options = Options { encrypt, ..support::options(Memory::Ordinary) };
        support::on_hosts(size, per_host, options, |mut comm| {
            let collective = Collective::AllReduce;
            let mut plans = vec![None];
            for algorithm in Algorithm::doing(&collective) {
                match comm.built_in(algorithm, &collective) {
                    Ok(plan) => plans.push(Some(plan)),
                    Err(Error::Misuse(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(plans.len() > 3, "plans that cross hosts");
            let mut values = vec![1.0_f32; 70_000];
            let mut allocating = vec![true; COUNTS.len() * (plans.len() + 1)];
            for round in 0..ROUNDS_MAX {
                let mut places = allocating.iter_mut();
                for count in COUNTS {
                    let values = &mut values[..count];
                    let mut counted = |comm: &mut Communicator, call: &mut dyn FnMut(&mut Communicator)| {
                        let before = COUNTED.get();
                        call(comm);
                        // The first time plans are loaded and compiled.
                        *places.next().unwrap() &= round == 0 || COUNTED.get() != before;
                    };
                    for &plan in &plans {
                        counted(&mut comm, &mut |comm| {
                            let request =
                                Request::new(&collective, &mut values[..]).operation(Reduction::Maximum);
                            comm.run(Request { plan, ..request }).unwrap();
                        });
                    }
                    counted(&mut comm, &mut |comm| comm.broadcast(&mut values[..], 1).unwrap());
                }
                let mut left = [u8::from(allocating.contains(&true))];
                comm.all_reduce(&mut left[..], Reduction::Maximum).unwrap();
                if left == [0] {
                    return;
                }
            }
            panic!("{size} ranks, {per_host} a host, sealed: {encrypt}: {allocating:?}");
        });
    }
}

#[test]
fn allocations_are_counted() {
    let before = COUNTED.get();
    drop(std::hint::black_box(vec![1]));
    assert_eq!(COUNTED.get() - before, 2);
}
