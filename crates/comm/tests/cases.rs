//! Every case of the suite, on ranks that are threads and on ranks that are processes: results equal the oracle's bit
//! by bit, and the steps taken are the plan's.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, Meeting, Place, Token};
use weftlink_comm::{Communicator, Options, PlanId, Reduction, Request, Taken, Window};
use weftlink_plan::domain::elements::oracle;
use weftlink_plan::interpret::{Event, Shape};
use weftlink_plan::{Aliasing, Collective, Verified, verify};
use weftlink_testkit::cases::{self, Case, Memory};
use weftlink_testkit::trace::replay;

/// Traces are replayed for calls up to this length: longer ones have more of the same tiles.
const TRACED_COUNT_MAX: usize = 100_000;

#[test]
fn threads_pass_all_cases_and_follow_the_plan() {
    for (ranks, cases) in by_ranks() {
        let tickets = Arc::new(AtomicU64::new(0));
        let ends = Communicator::threads(ranks as usize, options()).unwrap();
        let run = |mut comm: Communicator| {
            let (cases, tickets) = (cases.clone(), Arc::clone(&tickets));
            std::thread::spawn(move || {
                let mut rank = Rank::new(&mut comm, &cases);
                cases.iter().map(|case| rank.run(case, &tickets)).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = ends.into_iter().map(run).collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        for (number, case) in cases.iter().enumerate() {
            let outcomes: Vec<_> = results.iter().map(|of_rank| of_rank[number].as_ref()).collect();
            check(case, &outcomes);
        }
    }
}

#[test]
fn processes_pass_all_cases() {
    const RANK: &str = "WEFT_TEST_RANK";
    let meeting = |ranks: u32| Meeting {
        place: Place::Abstract(format!("weft-test-{}-{ranks}", std::env::var("WEFT_TEST_PARENT").unwrap())),
        token: Token::new("cases").unwrap(),
        size: ranks as usize,
        deadline: Duration::from_secs(60),
    };
    if let Ok(rank) = std::env::var(RANK) {
        let (rank, ranks) = rank.split_once('/').unwrap();
        let (rank, ranks): (usize, u32) = (rank.parse().unwrap(), ranks.parse().unwrap());
        let meeting = meeting(ranks);
        let bootstrap = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        let mut comm = Communicator::new(bootstrap.unwrap(), options()).unwrap();
        let cases = by_ranks().remove(&ranks).unwrap();
        let mut end = Rank::new(&mut comm, &cases);
        for case in &cases {
            let Some(outcome) = end.run(case, &AtomicU64::new(0)) else { continue };
            let expected = expected(case, &outcome.plan, outcome.cut);
            assert!(bits(&outcome.output) == bits(&expected.0[rank]), "{case:?} on rank {rank}");
        }
        return;
    }
    for ranks in by_ranks().into_keys() {
        let start = |rank: u32| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "processes_pass_all_cases", "--nocapture"]);
            command
                .env(RANK, format!("{rank}/{ranks}"))
                .env("WEFT_TEST_PARENT", std::process::id().to_string());
            command.spawn().unwrap()
        };
        let children: Vec<_> = (0..ranks).map(start).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success(), "{ranks} ranks");
        }
    }
}

fn options() -> Options {
    Options { deadline: Duration::from_secs(60), ..Options::default() }
}

fn by_ranks() -> BTreeMap<u32, Vec<Case>> {
    let mut groups: BTreeMap<u32, Vec<Case>> = BTreeMap::new();
    for case in cases::all_reduce() {
        groups.entry(case.ranks).or_default().push(case);
    }
    groups
}

/// What one rank has to show for a case.
struct Outcome {
    plan: Arc<Verified>,
    cut: weftlink_plan::Cut,
    output: Vec<f32>,
    taken: Vec<Taken>,
}

/// One rank, with windows long enough for all its cases and the plans it has loaded.
struct Rank<'c> {
    comm: &'c mut Communicator,
    windows: [Window<f32>; 2],
    plans: BTreeMap<(String, u32), (PlanId, Arc<Verified>)>,
}

impl<'c> Rank<'c> {
    fn new(comm: &'c mut Communicator, cases: &[Case]) -> Self {
        // An offset that differs from rank to rank must not matter.
        let length = cases.iter().map(|case| case.count).max().unwrap_or(0) + 16 * comm.size();
        let windows = [comm.window::<f32>(length).unwrap(), comm.window::<f32>(length).unwrap()];
        Self { comm, windows, plans: BTreeMap::new() }
    }

    /// Runs a case, or nothing if it is skipped.
    fn run(&mut self, case: &Case, tickets: &AtomicU64) -> Option<Outcome> {
        let key = (case.algorithm.name().to_owned(), case.lanes);
        let comm = &mut *self.comm;
        let (id, plan) = self.plans.entry(key).or_insert_with(|| {
            let plan = verify(case.plan()).unwrap();
            (comm.load(plan.clone()).unwrap(), Arc::new(plan))
        });
        if case.skip(plan).is_some() {
            return None;
        }
        let rank = comm.rank();
        let input = case.inputs().swap_remove(rank);
        let range = 16 * rank..16 * rank + case.count;
        let [first, second] = &mut self.windows;
        let (output, taken) = match (case.memory, case.aliasing) {
            (Memory::Ordinary, Aliasing::InPlace) => {
                let mut buffer = input.clone();
                let taken = comm.run_traced(
                    Request::new(&Collective::AllReduce, &mut buffer).with(Reduction::Sum).by(*id),
                    tickets,
                );
                (buffer, taken)
            }
            (Memory::Ordinary, Aliasing::OutOfPlace) => {
                let mut output = vec![f32::NAN; case.count];
                let taken = comm.run_traced(
                    Request::new(&Collective::AllReduce, (&input[..], &mut output[..]))
                        .with(Reduction::Sum)
                        .by(*id),
                    tickets,
                );
                (output, taken)
            }
            (Memory::Symmetric, Aliasing::InPlace) => {
                first[range.clone()].copy_from_slice(&input);
                let taken = comm.run_traced(
                    Request::new(&Collective::AllReduce, first.part_mut(range.clone()))
                        .with(Reduction::Sum)
                        .by(*id),
                    tickets,
                );
                (first[range].to_vec(), taken)
            }
            (Memory::Symmetric, Aliasing::OutOfPlace) => {
                first[range.clone()].copy_from_slice(&input);
                second[range.clone()].fill(f32::NAN);
                let buffers = (first.part(range.clone()), second.part_mut(range.clone()));
                let taken = comm.run_traced(
                    Request::new(&Collective::AllReduce, buffers).with(Reduction::Sum).by(*id),
                    tickets,
                );
                assert_eq!(first[range.clone()], input, "{case:?}: the input is left alone");
                (second[range].to_vec(), taken)
            }
        };
        let taken = taken.unwrap_or_else(|error| panic!("{case:?}: {error}"));
        let cut = comm.cut(*id, case.count, 4).unwrap().unwrap();
        Some(Outcome { plan: Arc::clone(plan), cut, output, taken })
    }
}

/// As numbers, 0 and -0 would be the same and NaN would differ from itself.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn expected(case: &Case, plan: &Verified, cut: weftlink_plan::Cut) -> (Vec<Vec<f32>>, Vec<Event>) {
    oracle(plan, cut, case.aliasing, &case.inputs(), |a, b| a + b)
}

/// Compares what all ranks did with the interpreter.
fn check(case: &Case, outcomes: &[Option<&Outcome>]) {
    let Some(first) = outcomes[0] else { return };
    let (plan, cut) = (&first.plan, first.cut);
    let (outputs, events) = expected(case, plan, cut);
    let mut order = Vec::new();
    for (rank, outcome) in (0..).zip(outcomes) {
        let outcome = outcome.expect("all ranks skip the same cases");
        assert!(
            bits(&outcome.output) == bits(&outputs[rank as usize]),
            "{case:?}: rank {rank} holds other bits than the oracle"
        );
        let event = |taken: &Taken| {
            let Taken { ticket, lane, tile, ordinal } = *taken;
            (ticket, Event { rank, lane, call: 0, tile, ordinal })
        };
        order.extend(outcome.taken.iter().map(event));
    }
    assert_eq!(order.len(), events.len(), "{case:?}");
    if case.count <= TRACED_COUNT_MAX {
        order.sort_by_key(|(ticket, _)| *ticket);
        let order: Vec<_> = order.into_iter().map(|(_, event)| event).collect();
        let shape = Shape { calls: 1, tiles: cut.tiles() as u32, aliasing: case.aliasing };
        replay(plan, shape, &order).unwrap_or_else(|what| panic!("{case:?}: {what}"));
    }
}
