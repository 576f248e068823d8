//! Whole calls of two ranks that are threads, as short as they can be: `make miri` interprets them, and with them the unsafe code that
//! carries a call from the caller's buffers through shared memory and back.

use std::time::Duration;

use weftlink_plan::{Algorithm, Collective};

use crate::{Background, Communicator, Operation, Options, Reduction, Request};

/// Runs `work` on two ranks, and returns their results.
fn on_two<T: Send>(work: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    // An interpreted call takes seconds.
    let options =
        Options { deadline: Duration::from_secs(600), single_copy: Some(false), ..Options::default() };
    let ranks = Communicator::threads(2, options).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ordinary_memory() {
    let gave = on_two(|mut comm| {
        let mine = comm.rank() as f32 + 1.0;
        let (mut sum, mut all) = ([mine; 5], [0_u8; 6]);
        comm.all_reduce(&mut sum[..], Reduction::Sum).unwrap();
        comm.all_gather((&[mine as u8; 3][..], &mut all[..])).unwrap();
        (sum, all)
    });
    assert_eq!(gave, [([3.0; 5], [1, 1, 1, 2, 2, 2]); 2]);
}

#[test]
fn windows() {
    let gave = on_two(|mut comm| {
        let plan = comm.built_in(Algorithm::TwoShot, &Collective::AllReduce).unwrap();
        let mut window = comm.window::<i32>(7).unwrap();
        window.fill(comm.rank() as i32 + 1);
        for _ in 0..3 {
            let request =
                Request::new(&Collective::AllReduce, &mut window).operation(Reduction::Sum).plan(plan);
            comm.run(request).unwrap();
        }
        window[6]
    });
    assert_eq!(gave, [12; 2]);
}

#[test]
fn operations_of_the_caller() {
    let gave = on_two(|mut comm| {
        let longest = |one: [u16; 3], other: [u16; 3]| if one > other { one } else { other };
        let mut values = [[comm.rank() as u16; 3]; 2];
        comm.all_reduce(&mut values[..], Operation::user_defined(true, longest)).unwrap();
        values
    });
    assert_eq!(gave, [[[1; 3]; 2]; 2]);
}

#[test]
fn borrowed_by_a_scope() {
    let gave = on_two(|comm| {
        let background: Background = comm.into_background().unwrap();
        let mut values = [background.rank() as f64 + 1.0; 4];
        background.scope(|scope| {
            let request = Request::new(&Collective::AllReduce, &mut values[..]).operation(Reduction::Product);
            scope.start(request).wait().unwrap();
        });
        values[3]
    });
    assert_eq!(gave, [2.0; 2]);
}

#[test]
fn messages() {
    let gave = on_two(|mut comm| {
        let (rank, long) = (comm.rank(), Duration::from_secs(600));
        let endpoint = comm.endpoint().unwrap();
        let mut got = vec![0; 300];
        match rank {
            0 => endpoint.send(1, 7, &[5; 300], long).unwrap(),
            _ => drop(endpoint.receive(Some(0), 7, &mut got, long).unwrap()),
        }
        comm.barrier().unwrap();
        got[299]
    });
    assert_eq!(gave, [0, 5]);
}
