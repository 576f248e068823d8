//! Faults in every collective: a missing rank, a rank that leaves, a rank that makes another call. Every rank concerned gets an error that
//! names the cause. `faults.rs` covers single collectives and the communicator as a whole.
//!
//! Some ranks do not depend on others: a root may return when it has sent. So a barrier follows every call, in which such a rank
//! learns of the fault at the latest.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Barrier;
use std::time::Duration;

use weftlink_comm::{Blame, Buffers, Communicator, DataType, Error, Options, Reduction, Request};
use weftlink_plan::Collective;

/// Long enough that only a real wait for nothing reaches it.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

/// Runs something on each rank, with patience of both kinds, and returns what each gave.
fn on_ranks<T: Send>(
    size: usize,
    deadline: Duration,
    work: impl Fn(Communicator) -> T + Sync,
) -> Vec<Vec<T>> {
    let run = |spin| {
        let options = Options { deadline, spin: Some(spin), ..Options::default() };
        let ranks = Communicator::threads(size, options).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    vec![run(true), run(false)]
}

/// One collective of each kind, for this many ranks.
fn collectives(ranks: u32) -> Vec<Collective> {
    let messages = (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
    let others = [Collective::SendReceive { messages }, Collective::Neighbours { torus: [1, 1, ranks] }];
    Collective::KINDS.into_iter().chain(others).collect()
}

/// A call with blocks of `count` elements.
#[derive(Clone)]
struct Call {
    collective: Collective,
    count: usize,
    data_type: DataType,
    reduction: Reduction,
}

impl Call {
    fn of(collective: Collective) -> Self {
        Call { collective, count: 1000, data_type: DataType::F32, reduction: Reduction::Sum }
    }

    /// Makes it in ordinary memory, and then a barrier.
    fn make(&self, comm: &mut Communicator) -> Result<(), Error> {
        self.make_within(comm, LONG)
    }

    /// The same, waiting so long for other ranks.
    fn make_within(&self, comm: &mut Communicator, deadline: Duration) -> Result<(), Error> {
        let Call { collective, count, data_type, reduction } = self;
        let (rank, size) = (comm.rank() as u32, comm.size() as u32);
        let bytes = |blocks: u32| blocks as usize * count * data_type.bytes();
        let input = vec![1_u8; bytes(collective.gives(rank, size))];
        let mut output = vec![0; bytes(collective.gets(rank, size))];
        let buffers = Buffers::from((&input[..], &mut output[..])).of_type(*data_type)?;
        let request = Request::new(collective, buffers);
        let request = if collective.reduces() { request.operation(*reduction) } else { request };
        comm.run(request.deadline(deadline))?;
        comm.run(Request::new(&Collective::Barrier, Buffers::none()).deadline(deadline))
    }
}

#[test]
fn a_missing_rank_is_named_at_the_deadline() {
    for collective in collectives(2) {
        let done = Barrier::new(2);
        for errors in on_ranks(2, LONG, |mut comm| {
            let call = Call::of(collective.clone());
            // Plans are loaded before: that would be another wait.
            call.make(&mut comm).unwrap();
            let error = (comm.rank() == 0).then(|| call.make_within(&mut comm, SHORT).unwrap_err());
            // Only then may rank 1 go: a rank that leaves is another error.
            done.wait();
            error
        }) {
            let error = errors[0].as_ref().unwrap();
            assert!(matches!(error, Error::Deadline { .. }), "{collective}: {error}");
            let text = error.to_string();
            assert!(
                text.contains("timed out")
                    && text.contains("rank 0 was waiting for")
                    && text.contains("rank 1"),
                "{collective}: {text}"
            );
        }
    }
}

#[test]
fn a_rank_missing_while_plans_load_is_named() {
    for collective in collectives(2) {
        let done = Barrier::new(2);
        for errors in on_ranks(2, LONG, |mut comm| {
            let call = Call::of(collective.clone());
            let is_there = comm.rank() == 0;
            let error = is_there.then(|| call.make_within(&mut comm, SHORT).unwrap_err().to_string());
            done.wait();
            error
        }) {
            let error = errors[0].as_ref().unwrap();
            assert!(error.contains("rank 1"), "{collective}: {error}");
        }
    }
}

#[test]
fn departures_are_reported_at_once() {
    for collective in collectives(3) {
        for errors in on_ranks(3, LONG, |mut comm| {
            let call = Call::of(collective.clone());
            call.make(&mut comm).unwrap();
            (comm.rank() != 1).then(|| call.make(&mut comm).unwrap_err())
        }) {
            for rank in [0, 2] {
                let error = errors[rank].as_ref().unwrap();
                let is_reported = matches!(error, Error::Left { .. } | Error::Aborted { .. });
                assert!(is_reported, "{collective}, rank {rank}: {error}");
            }
            let named = errors
                .iter()
                .flatten()
                .any(|error| matches!(error, Error::Left { left: Blame { rank: 1, .. }, .. }));
            assert!(named, "{collective}: {errors:?}");
        }
    }
}

/// Pairs of calls that differ, each with the text that errors must show of it.
fn differences() -> Vec<[(Call, String); 2]> {
    let mut all = Vec::new();
    for collective in collectives(2) {
        let usual = Call::of(collective.clone());
        let name = collective.name();
        let mut add = |shown: String, other: Call, shown_of_other: String| {
            all.push([(usual.clone(), shown), (other, shown_of_other)]);
        };
        if collective != Collective::Barrier {
            let other = Call { count: 2000, ..usual.clone() };
            add(format!("{name} of 1000 f32"), other, format!("{name} of 2000 f32"));
            let other = Call { data_type: DataType::I32, ..usual.clone() };
            add(format!("{name} of 1000 f32"), other, format!("{name} of 1000 i32"));
        }
        if collective.reduces() {
            let other = Call { reduction: Reduction::Maximum, ..usual.clone() };
            add("(sum)".to_owned(), other, "(max)".to_owned());
        }
        let root = 1;
        let other = match collective {
            Collective::Reduce { .. } => Collective::Reduce { root },
            Collective::Broadcast { .. } => Collective::Broadcast { root },
            Collective::Gather { .. } => Collective::Gather { root },
            Collective::Scatter { .. } => Collective::Scatter { root },
            Collective::SendReceive { .. } => Collective::SendReceive { messages: vec![(0, 1), (0, 1)] },
            Collective::Neighbours { .. } => Collective::Neighbours { torus: [2, 1, 1] },
            Collective::Barrier => Collective::AllReduce,
            Collective::AllReduce => Collective::Scan,
            _ => Collective::AllReduce,
        };
        let shown = |collective: &Collective| match collective.root() {
            Some(root) => format!("rank {root}"),
            None => collective.name().to_owned(),
        };
        add(shown(&collective), Call { collective: other.clone(), ..usual.clone() }, shown(&other));
    }
    all
}

#[test]
fn every_mismatch_shows_both_calls() {
    for calls in differences() {
        for load in [false, true] {
            let done = Barrier::new(2);
            for errors in on_ranks(2, LONG, |mut comm| {
                if load {
                    // Plans are there, so that the difference is noticed in the call.
                    calls[0].0.make(&mut comm).unwrap();
                    calls[1].0.make(&mut comm).unwrap();
                }
                // A rank that does not depend on the other completes its call, and fails in one of the next.
                let made = calls[comm.rank()].0.make(&mut comm);
                let made = made.and_then(|()| calls[0].0.make(&mut comm)).and_then(|()| {
                    calls[1].0.make(&mut comm)?;
                    comm.barrier()
                });
                // No rank leaves before this, because the others would notice.
                done.wait();
                made.unwrap_err()
            }) {
                let shows = |error: &&Error| {
                    let text = error.to_string();
                    calls.iter().all(|(_, shown)| text.contains(shown))
                };
                let is_reported = |error: &Error| {
                    shows(&error) || matches!(error, Error::Aborted { reason: "calls differ", .. })
                };
                let what = format!("{} and {}", calls[0].0.collective, calls[1].0.collective);
                assert!(errors.iter().all(is_reported), "{what}, loaded: {load}: {errors:?}");
                assert!(errors.iter().any(|error| shows(&error)), "{what}, loaded: {load}: {errors:?}");
            }
        }
    }
}

#[test]
fn differing_block_lengths_are_an_error() {
    for gathers in [true, false] {
        for errors in on_ranks(2, LONG, |mut comm| {
            let counts = if comm.rank() == 0 { [100, 200] } else { [200, 100] };
            let rank = comm.rank();
            let (block, whole) = (vec![1.0_f32; counts[rank]], vec![1.0_f32; 300]);
            let (mut got, mut all) = (block.clone(), whole.clone());
            if gathers {
                comm.all_gather_v((&block, &mut all), &counts).and_then(|()| comm.barrier()).unwrap_err()
            } else {
                comm.reduce_scatter_v((&whole, &mut got), Reduction::Sum, &counts)
                    .and_then(|()| comm.barrier())
                    .unwrap_err()
            }
        }) {
            for error in errors {
                assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            }
        }
    }
}
