//! Deterministic communicators: every eligible plan, in every kind of memory, on threads, processes and both, on one host and over TCP, in a
//! world and in a part of one, gives the bits of one oracle, which knows no plan and combines the ranks in their order.
//!
//! The cross product of collectives, eligible plans, types, reductions and kinds of memory runs whole for few ranks, and a sample of it for
//! other numbers of ranks; lengths of blocks, lanes and aliasing rotate with it. The inputs reveal another order, and the last test
//! checks that they do: plans that are not eligible give other bits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Rank, options, proved};
use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Error, Options, Request};
use weftlink_plan::{Algorithm, Aliasing, Collective, DataType, Order, Reducer, Reduction, Verified, verify};
use weftlink_testkit::cases::values::{Value, factor, order_dependent_input};
use weftlink_testkit::cases::{By, Case, Counts, Memory, doing};
use weftlink_testkit::processes::this_program;
use weftlink_testkit::{promise, with_type};

const TYPES: [DataType; 8] = [
    DataType::F32,
    DataType::F64,
    DataType::F16,
    DataType::Bf16,
    DataType::F8E4m3,
    DataType::F8E5m2,
    DataType::Complex64,
    DataType::Complex128,
];
const REDUCTIONS: [Reduction; 6] = [
    Reduction::Sum,
    Reduction::Product,
    Reduction::Average,
    Reduction::PremultipliedSum,
    Reduction::Minimum,
    Reduction::Maximum,
];
const MEMORIES: [Memory; 4] = [Memory::Ordinary, Memory::Readable, Memory::Symmetric, Memory::Mixed];

/// Longer than a message that carries its flags, so that there are tiles, and not a multiple of anything.
const SMALL: [usize; 3] = [7, 701, 1];
/// Longer than any message, for one block in `LARGE_EVERY`.
const LARGE_BYTES: usize = 70_001;
const LARGE_EVERY: usize = 101;

fn collectives(ranks: u32) -> Vec<Collective> {
    vec![
        Collective::AllReduce,
        Collective::Reduce { root: 0 },
        Collective::Reduce { root: ranks - 1 },
        Collective::ReduceScatter,
        Collective::Scan,
        Collective::ExclusiveScan,
    ]
}

/// All plans there are for a collective, and that which is chosen.
fn plans(collective: &Collective, ranks: u32) -> Vec<By> {
    let by = |algorithm, packets, lanes| By::Algorithm { algorithm, packets, lanes };
    let all = doing(collective, ranks).flat_map(|algorithm| {
        let several =
            matches!(algorithm, Algorithm::Staged | Algorithm::Ring).then(|| by(algorithm, false, 3));
        [by(algorithm, false, 1), by(algorithm, true, 1)].into_iter().chain(several)
    });
    std::iter::once(By::Chosen).chain(all).collect()
}

/// Whether a deterministic communicator takes the plan of a case; nothing if it chooses.
fn is_eligible(case: &Case, plan: Option<&Verified>) -> bool {
    let needed = case.reduction.unwrap().order(Some(case.data_type), true);
    plan.is_none_or(|plan| plan.order() >= needed)
}

/// One in `every` of the cases of this many ranks, numbered.
fn cases(ranks: u32, every: usize, wanted: impl Fn(&Case, Option<&Verified>) -> bool) -> Vec<(usize, Case)> {
    let mut found = Vec::new();
    let mut number = 0;
    for collective in collectives(ranks) {
        for by in plans(&collective, ranks) {
            let mut plan = None;
            for memory in MEMORIES {
                for (data_type, reduction) in TYPES.into_iter().flat_map(|it| REDUCTIONS.map(|of| (it, of))) {
                    if !reduction.is_for(data_type.kind()) {
                        continue;
                    }
                    number += 1;
                    if number % every != 0 {
                        continue;
                    }
                    let turn = number / every;
                    let count = match turn % LARGE_EVERY {
                        0 => LARGE_BYTES / data_type.bytes(),
                        _ => SMALL[turn % SMALL.len()],
                    };
                    let uneven = collective.may_be_uneven() && turn.is_multiple_of(5);
                    let mut case = Case {
                        collective: collective.clone(),
                        ranks,
                        counts: if uneven { Counts::Uneven(count) } else { Counts::Even(count) },
                        data_type,
                        reduction: Some(reduction),
                        aliasing: Aliasing::BOTH[turn / 2 % 2],
                        memory,
                        by,
                    };
                    let plan = plan.get_or_insert_with(|| proved(&case)).as_deref();
                    if case.skip(plan.map(Deref::deref)).is_some() {
                        case.aliasing = Aliasing::BOTH[1 - turn / 2 % 2];
                        case.counts = Counts::Even(count);
                    }
                    if case.skip(plan.map(Deref::deref)).is_none() && wanted(&case, plan) {
                        found.push((number, case));
                    }
                }
            }
        }
    }
    found
}

/// The expected output of each rank: the inputs combined from the first rank to the last, all at once, or in a scan one by one.
fn canonical(case: &Case) -> Vec<Vec<u8>> {
    let reduction = case.reduction.unwrap();
    let is_scan = matches!(case.collective, Collective::Scan | Collective::ExclusiveScan);
    let inputs: Vec<Vec<u8>> = (0..case.ranks).map(|rank| order_dependent_input(case, rank)).collect();
    let ranks = case.ranks as usize;
    with_type!(case.data_type, T => {
        let reducer = match reduction {
            Reduction::PremultipliedSum => Reducer::premultiplied_sum((0..case.ranks).map(factor::<T>).collect()),
            reduction => Reducer::named(reduction),
        };
        let reducer = reducer.unwrap();
        let output = |rank: usize| {
            let mut bytes = Vec::new();
            for block in 0..promise::blocks(&case.collective, ranks, rank).1 {
                let parts = promise::parts(&case.collective, ranks, rank, block);
                let of_block = parts[0].1;
                let before: usize = case.given(0)[..of_block].iter().sum();
                for at in 0..case.length(0, of_block as u32) {
                    let value = |&(rank, _): &(usize, usize)| {
                        let start = (before + at) * size_of::<T>();
                        reducer.before(rank as u32, T::read(&inputs[rank][start..start + size_of::<T>()]))
                    };
                    let values: Vec<T> = parts.iter().map(value).collect();
                    let others = values[1..].iter().copied();
                    let sum = if is_scan {
                        others.fold(values[0], |sum, next| reducer.combine(sum, [next]))
                    } else {
                        reducer.combine(values[0], others)
                    };
                    reducer.after(sum, parts.len() as u32).write(&mut bytes);
                }
            }
            bytes
        };
        (0..ranks).map(output).collect()
    })
}

/// The oracle: one for all plans, memories and ways to pass buffers.
#[derive(Default)]
struct Oracle(Mutex<BTreeMap<String, Arc<Vec<Vec<u8>>>>>);

impl Oracle {
    fn of(&self, case: &Case) -> Arc<Vec<Vec<u8>>> {
        let Case { collective, ranks, counts, data_type, reduction, .. } = case;
        let key = format!("{collective:?} {ranks} {counts:?} {data_type} {reduction:?}");
        let mut known = self.0.lock().unwrap();
        Arc::clone(known.entry(key).or_insert_with(|| Arc::new(canonical(case))))
    }
}

fn deterministic(is_readable: bool) -> Options {
    let memory = if is_readable { Memory::Readable } else { Memory::Ordinary };
    Options { deterministic: true, ..options(memory) }
}

/// Runs cases on this rank, and calls `look` with each outcome.
fn run(comm: Communicator, cases: &[(usize, Case)], mut look: impl FnMut(&Case, usize, Vec<u8>)) {
    let number = comm.rank();
    let all: Vec<Case> = cases.iter().map(|(_, case)| case.clone()).collect();
    let mut rank = Rank::giving(order_dependent_input, comm, &all).unwrap();
    for (at, case) in cases {
        // All ranks skip cases that this machine cannot run.
        if let Ok(outcome) = rank.run(*at, case, &AtomicU64::new(0)) {
            look(case, number, outcome.output);
        }
    }
}

/// A rank that holds its results to the oracle. Gives how many there were.
fn hold(comm: Communicator, cases: &[(usize, Case)], oracle: &Oracle) -> usize {
    let mut held = 0;
    run(comm, cases, |case, rank, output| {
        assert!(output == oracle.of(case)[rank], "{case}: rank {rank} holds other bits");
        held += 1;
    });
    held
}

/// Those that one communicator can run.
fn of_one(cases: Vec<(usize, Case)>) -> [Vec<(usize, Case)>; 2] {
    let (readable, others) = cases.into_iter().partition(|(_, case)| case.memory == Memory::Readable);
    [others, readable]
}

fn threads_agree(ranks: u32, every: usize) {
    let oracle = Oracle::default();
    for (is_readable, cases) in [false, true].into_iter().zip(of_one(cases(ranks, every, is_eligible))) {
        let ends = Communicator::threads(ranks as usize, deterministic(is_readable)).unwrap();
        let held: usize = std::thread::scope(|scope| {
            let held: Vec<_> =
                ends.into_iter().map(|comm| scope.spawn(|| hold(comm, &cases, &oracle))).collect();
            held.into_iter().map(|held| held.join().unwrap()).sum()
        });
        println!("{ranks} ranks: {} of {} cases", held / ranks as usize, cases.len());
    }
}

macro_rules! threads_agree {
    ($($test:ident: $ranks:literal, every $every:literal;)*) => {
        $(
            #[test]
            fn $test() {
                threads_agree($ranks, $every);
            }
        )*
    };
}

threads_agree! {
    two_threads: 2, every 5;
    three_threads: 3, every 1;
    four_threads: 4, every 11;
    five_threads: 5, every 7;
    six_threads: 6, every 13;
    seven_threads: 7, every 17;
    eight_threads: 8, every 19;
    nine_threads: 9, every 23;
}

/// How five ranks are spread: over processes, whose threads they are, and over hosts, which are pretended.
struct Spread {
    processes: &'static [&'static [usize]],
    /// The host of each rank, and of one more; nothing where all share memory.
    hosts: Option<[u64; 6]>,
}

const TOGETHER: &[&[usize]] = &[&[0, 1, 2, 3, 4, 5]];
const APART: &[&[usize]] = &[&[0], &[1], &[2], &[3], &[4], &[5]];
const MIXED: &[&[usize]] = &[&[0, 3], &[1, 5], &[2, 4]];
/// TCP only, and TCP between hosts that share memory inside, whose ranks do not follow each other.
const LONELY: Option<[u64; 6]> = Some([1, 2, 3, 4, 5, 6]);
const PAIRS: Option<[u64; 6]> = Some([1, 2, 2, 1, 2, 2]);

const SPREADS: [Spread; 9] = [
    Spread { processes: TOGETHER, hosts: None },
    Spread { processes: APART, hosts: None },
    Spread { processes: MIXED, hosts: None },
    Spread { processes: TOGETHER, hosts: LONELY },
    Spread { processes: TOGETHER, hosts: PAIRS },
    Spread { processes: APART, hosts: LONELY },
    Spread { processes: APART, hosts: PAIRS },
    Spread { processes: MIXED, hosts: LONELY },
    Spread { processes: MIXED, hosts: PAIRS },
];
/// Coprime to the lengths of the lists of cases, so that the sample has cases of all kinds.
const SPREAD_EVERY: usize = 61;
/// The rank of the world that is not in the split, which does the same as a world of five.
const LEFT_OUT: usize = 2;

/// One rank of a spread: the cases on a world of five, or on the five of six that a split gives, in the order of their ranks.
fn spread_rank(number: usize, rank: usize, is_split: bool, cases: &[Vec<(usize, Case)>; 2], parent: &str) {
    let Spread { hosts, .. } = SPREADS[number];
    let oracle = Oracle::default();
    for (is_readable, cases) in [false, true].into_iter().zip(cases) {
        if is_readable && hosts.is_some() {
            continue;
        }
        let name = format!("weft-determinism-{parent}-{number}-{is_split}-{is_readable}");
        let token = Token::new("determinism").unwrap();
        let size = if is_split { 6 } else { 5 };
        let network = Network { pretended_host: hosts.map(|hosts| hosts[rank]), ..Network::default() };
        let meeting =
            Rendezvous::new(RendezvousAddress::Abstract(name), token, size, Duration::from_secs(60));
        let meeting = Rendezvous { network, ..meeting };
        let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        let mut world = Communicator::new(met.unwrap(), deterministic(is_readable)).unwrap();
        if is_split {
            let part = (rank != LEFT_OUT).then_some(7);
            if let Some(five) = world.split(part, 0).unwrap() {
                assert!(hold(five, cases, &oracle) > 0, "all cases were skipped");
            }
            world.barrier().unwrap();
        } else {
            assert!(hold(world, cases, &oracle) > 0, "all cases were skipped");
        }
    }
}

#[test]
fn results_agree_across_processes_threads_hosts_and_splits() {
    const PROCESS: &str = "WEFT_TEST_PROCESS";
    let parent = std::env::var("WEFT_TEST_PARENT").unwrap_or_else(|_| std::process::id().to_string());
    let ways = || (0..SPREADS.len()).flat_map(|number| [(number, false), (number, true)]);
    if let Ok(process) = std::env::var(PROCESS) {
        let words: Vec<usize> = process.split('/').map(|word| word.parse().unwrap()).collect();
        let [number, is_split, process] = words[..] else { panic!("{process}") };
        let cases = of_one(cases(5, SPREAD_EVERY, is_eligible));
        let world = if is_split == 1 { 6 } else { 5 };
        let (cases, parent) = (&cases, &parent);
        std::thread::scope(|scope| {
            for &rank in SPREADS[number].processes[process].iter().filter(|rank| **rank < world) {
                scope.spawn(move || spread_rank(number, rank, is_split == 1, cases, parent));
            }
        });
        return;
    }
    for (number, is_split) in ways() {
        let world = if is_split { 6 } else { 5 };
        let processes = SPREADS[number].processes;
        let has_ranks = |process: &usize| processes[*process].iter().any(|rank| *rank < world);
        let start = |process: usize| {
            let mut command = this_program();
            command.args([
                "--exact",
                "results_agree_across_processes_threads_hosts_and_splits",
                "--nocapture",
            ]);
            let role = format!("{number}/{}/{process}", u8::from(is_split));
            command.env(PROCESS, role).env("WEFT_TEST_PARENT", &parent).spawn().unwrap()
        };
        let children: Vec<_> = (0..processes.len()).filter(has_ranks).map(start).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success(), "spread {number}, split: {is_split}");
        }
    }
}

#[test]
fn ineligible_plans_change_bits() {
    const RANKS: u32 = 5;
    let wanted = |case: &Case, plan: Option<&Verified>| {
        case.memory == Memory::Symmetric && case.counts == Counts::Even(701) && !is_eligible(case, plan)
    };
    let cases = cases(RANKS, 1, wanted);
    let oracle = Oracle::default();
    let differs = Mutex::new(BTreeMap::<String, bool>::new());
    let ends = Communicator::threads(RANKS as usize, options(Memory::Symmetric)).unwrap();
    let work = |comm: Communicator| {
        run(comm, &cases, |case, rank, output| {
            let other = output != oracle.of(case)[rank];
            *differs.lock().unwrap().entry(case.to_string()).or_default() |= other;
        });
    };
    std::thread::scope(|scope| ends.into_iter().for_each(|comm| drop(scope.spawn(|| work(comm)))));
    let differs = differs.into_inner().unwrap();
    assert!(differs.len() > 100, "there are {}", differs.len());
    let same: Vec<_> = differs.iter().filter(|(_, differs)| !**differs).map(|(case, _)| case).collect();
    assert!(same.is_empty(), "{} of {} have the same bits: {same:#?}", same.len(), differs.len());
}

/// The errors of ranks that differ in this option only.
fn on_three<T: Send>(
    is_deterministic: impl Fn(usize) -> bool,
    work: impl Fn(&mut Communicator) -> T + Sync,
) -> Vec<T> {
    let ends: Vec<_> = Bootstrap::threads(3).into_iter().enumerate().collect();
    // No rank leaves before all are done, because the others would notice.
    let done = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        let start = |(rank, end): (usize, Bootstrap)| {
            let options = Options { deterministic: is_deterministic(rank), ..options(Memory::Ordinary) };
            let (work, done) = (&work, &done);
            scope.spawn(move || {
                let mut comm = Communicator::new(end, options).unwrap();
                let gave = work(&mut comm);
                done.wait();
                gave
            })
        };
        let threads: Vec<_> = ends.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ineligible_plans_are_refused_without_harm() {
    let gave = on_three(
        |_| true,
        |comm| {
            let ring = comm.built_in(Algorithm::Ring, &Collective::AllReduce).unwrap();
            let mut values = [1.0_f32, 2.0, 3.0];
            let by_ring =
                Request::new(&Collective::AllReduce, &mut values).operation(Reduction::Sum).plan(ring);
            let Err(Error::Misuse(why)) = comm.run(by_ring) else { panic!("a ring adds as it likes") };
            assert!(why.contains("\"ring\"") && why.contains("deterministic"), "{why}");
            // Reductions that do not depend on the order may use any plan.
            let mut whole = [comm.rank() as i32, 5];
            comm.run(Request::new(&Collective::AllReduce, &mut whole).operation(Reduction::Sum).plan(ring))
                .unwrap();
            assert_eq!(whole, [3, 15]);
            comm.all_reduce(&mut values, Reduction::Sum).unwrap();
            values
        },
    );
    assert_eq!(gave, [[3.0, 6.0, 9.0]; 3]);
}

#[test]
fn ranks_that_disagree_on_the_mode_are_shown() {
    for error in
        on_three(|rank| rank == 1, |comm| comm.all_reduce(&mut [1.0_f32; 10], Reduction::Sum).unwrap_err())
    {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains("(sum)") && message.contains("(sum, deterministic)"), "{message}");
    }
}

#[test]
fn sums_of_scans_and_of_all_ranks_are_the_same() {
    let gave = on_three(
        |_| true,
        |comm| {
            let mine: Vec<f32> =
                (0..1000).map(|at| 1e7_f32.powi(comm.rank() as i32 - 1) / (at as f32 + 3.0)).collect();
            let (mut all, mut scanned) = (mine.clone(), mine);
            comm.all_reduce(&mut all, Reduction::Sum).unwrap();
            comm.scan(&mut scanned, Reduction::Sum).unwrap();
            (all, scanned)
        },
    );
    assert!(gave.iter().all(|(all, _)| *all == gave[0].0));
    assert_eq!(gave[2].1, gave[0].0, "the last rank's scan is the sum of all");
}

#[test]
fn the_document_lists_the_eligible_plans() {
    const RANKS: u32 = 8;
    let text = include_str!("../../../docs/determinism.md");
    let all = collectives(RANKS);
    let mut documented = Vec::new();
    for row in text.lines().filter_map(|line| line.strip_prefix("| ")) {
        let [names, eligible, others] = row.trim_end_matches(" |").split(" | ").collect::<Vec<_>>()[..]
        else {
            continue;
        };
        for collective in all.iter().filter(|it| names.split(", ").any(|name| name == it.name())) {
            let mut listed: Vec<_> = eligible.split(", ").map(|name| (name, true)).collect();
            listed.extend(others.split(", ").map(|name| (name, false)));
            listed.sort_unstable();
            let is_in = |algorithm: Algorithm| {
                let plan = algorithm.flat(collective, RANKS, 1).map(|plan| verify(plan).unwrap()).unwrap();
                assert_eq!(
                    plan.order() == Order::Canonical,
                    plan.order() >= Order::LeftToRight,
                    "{algorithm}"
                );
                (algorithm.name(), plan.order() == Order::Canonical)
            };
            let mut found: Vec<_> = doing(collective, RANKS).map(is_in).collect();
            found.sort_unstable();
            assert_eq!(found, listed, "{collective}");
            documented.push(collective);
        }
    }
    assert_eq!(documented.len(), all.len(), "some collectives are not in the table: {documented:?}");
}

#[test]
fn the_order_is_known_for_any_number_of_ranks() {
    // By classes no order would be known, and a deterministic communicator would find no plan.
    for (algorithm, collective, ranks) in [
        (Algorithm::Staged, Collective::AllReduce, 64),
        (Algorithm::Linear, Collective::Reduce { root: 3 }, 64),
        (Algorithm::Staged, Collective::ReduceScatter, 64),
        (Algorithm::Chain, Collective::Scan, 64),
    ] {
        let plan = verify(algorithm.flat(&collective, ranks, 1).unwrap()).unwrap();
        assert_eq!(plan.order(), Order::Canonical, "{algorithm} {collective} of {ranks}");
    }
}
