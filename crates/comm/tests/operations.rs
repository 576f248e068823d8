//! User-defined operations, on the caller's own types, in rank order if they do not commute; and pre-multiplied sums.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytemuck::{Pod, Zeroable};
use weftlink_comm::{
    Buffers, Communicator, DataType, Error, Operation, Options, Reduction, Request, on_threads,
};
use weftlink_plan::{Aliasing, Collective, Verified, verify};
use weftlink_testkit::cases::doing;

/// A matrix of 2 x 2 whose products depend on their order, and wrap.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Matrix([u32; 4]);

impl Matrix {
    const ONE: Matrix = Matrix([1, 0, 0, 1]);

    fn of(rank: usize, at: usize) -> Self {
        Matrix([rank as u32 + 2, at as u32 + 1, 3, (rank * at) as u32])
    }

    fn times(self, other: Matrix) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        let sum = |a: u32, b: u32, c: u32, d: u32| a.wrapping_mul(b).wrapping_add(c.wrapping_mul(d));
        Matrix([sum(a, e, b, g), sum(a, f, b, h), sum(c, e, d, g), sum(c, f, d, h)])
    }
}

fn reducing(ranks: u32) -> Vec<Collective> {
    Collective::KINDS
        .into_iter()
        .chain((1..ranks).map(|root| Collective::Reduce { root }))
        .filter(Collective::reduces)
        .collect()
}

/// The expected part of a rank in the product of all.
fn product(collective: &Collective, rank: usize, ranks: usize, count: usize) -> Vec<Matrix> {
    let all = |ranks: usize, block: usize| {
        let at =
            |at| (0..ranks).fold(Matrix::ONE, |all, rank| all.times(Matrix::of(rank, block * count + at)));
        (0..count).map(at).collect::<Vec<_>>()
    };
    match *collective {
        Collective::AllReduce => all(ranks, 0),
        Collective::Reduce { root } if root as usize == rank => all(ranks, 0),
        Collective::ReduceScatter => all(ranks, rank),
        Collective::Scan => all(rank + 1, 0),
        Collective::ExclusiveScan if rank > 0 => all(rank, 0),
        _ => vec![],
    }
}

/// Makes a call in ordinary or symmetric memory, and compares.
fn multiply(comm: &mut Communicator, collective: &Collective, count: usize, plan: Option<&Verified>) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let by = plan.map(|plan| comm.load(plan.clone()).unwrap());
    let length = collective.gives(rank as u32, ranks as u32) as usize * count;
    let input: Vec<Matrix> = (0..length).map(|at| Matrix::of(rank, at)).collect();
    let wanted = product(collective, rank, ranks, count);
    let times = |a: Matrix, b: Matrix| a.times(b);
    let operation = Operation::user_defined(false, times);
    for symmetric in [false, true] {
        if !symmetric && plan.is_some_and(|plan| plan.needs_windows()) {
            continue;
        }
        let mut output = vec![Matrix::ONE; wanted.len()];
        if symmetric {
            let mut windows = [0; 2].map(|_| comm.window::<Matrix>(count * ranks).unwrap());
            let [first, second] = &mut windows;
            first[..length].copy_from_slice(&input);
            let buffers = (first.part(0..length), second.part_mut(0..wanted.len()));
            comm.run(Request { plan: by, ..Request::new(collective, buffers).operation(&operation) })
                .unwrap();
            output.copy_from_slice(&windows[1][..wanted.len()]);
        } else {
            let buffers = (&input[..], &mut output[..]);
            comm.run(Request { plan: by, ..Request::new(collective, buffers).operation(&operation) })
                .unwrap();
        }
        let name = plan.map_or("the plan that is chosen", |plan| &plan.name);
        assert!(output == wanted, "{collective} of {count} by {name}, rank {rank}, symmetric: {symmetric}");
    }
}

#[test]
fn noncommutative_operations_combine_in_rank_order() {
    for ranks in [1, 2, 3, 5] {
        for collective in reducing(ranks) {
            let plans: Vec<Verified> = doing(&collective, ranks)
                .map(|algorithm| verify(algorithm.flat(&collective, ranks, 1).unwrap()).unwrap())
                .filter(|plan| plan.in_rank_order() && plan.aliasing.contains(&Aliasing::OutOfPlace))
                .collect();
            on_threads(ranks as usize, |mut comm| {
                for count in [0, 1, 29, 1000] {
                    multiply(&mut comm, &collective, count, None);
                    plans.iter().for_each(|plan| multiply(&mut comm, &collective, count, Some(plan)));
                }
                Ok(())
            })
            .unwrap();
        }
    }
}

#[test]
fn invalid_operations_are_refused_without_harm() {
    let add = |a: u64, b: u64| a + b;
    let sums = on_threads(2, |mut comm| {
        let mut values = [1_u32, 2];
        let refused = [
            comm.all_reduce(&mut values, Operation::user_defined(true, add)),
            comm.all_reduce(&mut values, Reduction::PremultipliedSum),
            comm.all_reduce(&mut values, Reduction::UserDefined { commutes: true }),
            comm.all_reduce(&mut values, Operation::premultiplied_sum(2_u64)),
            comm.all_reduce(
                Buffers::from(&mut [1_u8]).of_type(DataType::Bool)?,
                Operation::premultiplied_sum(1_u8),
            ),
            comm.all_reduce(&mut [1.0_f32], Reduction::BitXor),
            comm.all_reduce(&mut [[1_u8; 3]], Reduction::Sum),
            comm.run(Request::new(&Collective::AllReduce, &mut values)),
            comm.run(
                Request::new(&Collective::Broadcast { root: 0 }, &mut values)
                    .operation(Operation::premultiplied_sum(2_u32)),
            ),
            comm.run(Request::new(&Collective::AllGather, (&[1_u32], &mut values)).operation(Reduction::Sum)),
        ];
        for (at, refused) in refused.into_iter().enumerate() {
            assert!(matches!(refused, Err(Error::Misuse(_))), "number {at}: {refused:?}");
        }
        comm.all_reduce(&mut values, Operation::premultiplied_sum(1 + comm.rank() as u32))?;
        Ok(values)
    });
    assert_eq!(sums, Ok(vec![[3, 6]; 2]));
}

#[test]
fn a_panic_in_a_user_function_aborts_all_ranks() {
    let ranks = Communicator::threads(2, Options::default()).unwrap();
    let done = std::sync::Barrier::new(2);
    let work = |mut comm: Communicator| {
        let panics = comm.rank() == 1;
        let add = |a: u32, b: u32| {
            assert!(!panics, "on purpose");
            a + b
        };
        let mut values = vec![1_u32; 1000];
        let call = || comm.all_reduce(&mut values, Operation::user_defined(true, add));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
        done.wait();
        // Rank 0 may be done, because it needs nothing more from rank 1; then its next call fails.
        let results =
            ended.map(|ended| ended.and_then(|()| comm.barrier()).map_err(|error| error.to_string()));
        // No rank leaves before this, because the others would notice.
        done.wait();
        results.ok()
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let [Some(Err(error)), None] = &results[..] else { panic!("{results:?}") };
    assert!(error.contains("rank 1") && error.contains("panicked"), "{error}");
}
