//! Sequences of calls of all kinds on one communicator, compared with a model that shares nothing with plans, kernels or the oracle: plain
//! loops over all ranks' inputs, exact for integers.
//!
//! The sequences are pseudo-random, and the same in every run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use support::{Rank, options};
use weftlink_comm::{Communicator, Reduction};
use weftlink_plan::{Aliasing, Collective, DataType};
use weftlink_testkit::cases::values::{Value, factor, input};
use weftlink_testkit::cases::{By, Case, Counts, Memory, doing, mix};
use weftlink_testkit::{promise, with_type};

const RANKS: u32 = 3;
const CALLS: usize = 50;
const SEQUENCES: u32 = 12;

/// One call of a sequence.
#[derive(Clone, Debug)]
enum Call {
    Collective(Case),
    /// Every rank puts this word into every other's part of a window, and checks what it received.
    Puts(u64),
}

const INTEGERS: [DataType; 8] = [
    DataType::I8,
    DataType::U8,
    DataType::I16,
    DataType::U16,
    DataType::I32,
    DataType::U32,
    DataType::I64,
    DataType::U64,
];

fn collective() -> impl Strategy<Value = Collective> {
    let messages = prop::collection::vec((0..RANKS, 0..RANKS), 0..6);
    let torus = prop::sample::select(vec![[1, 1, RANKS], [1, RANKS, 1], [RANKS, 1, 1]]);
    prop_oneof![
        3 => Just(Collective::AllReduce),
        1 => (0..RANKS).prop_map(|root| Collective::Reduce { root }),
        1 => (0..RANKS).prop_map(|root| Collective::Broadcast { root }),
        1 => Just(Collective::AllGather),
        1 => Just(Collective::ReduceScatter),
        1 => Just(Collective::AllToAll),
        1 => (0..RANKS).prop_map(|root| Collective::Gather { root }),
        1 => (0..RANKS).prop_map(|root| Collective::Scatter { root }),
        1 => Just(Collective::Scan),
        1 => Just(Collective::ExclusiveScan),
        1 => messages.prop_map(|messages| Collective::SendReceive { messages }),
        1 => torus.prop_map(|torus| Collective::Neighbours { torus }),
        1 => Just(Collective::Barrier),
    ]
}

fn counts() -> impl Strategy<Value = Counts> {
    prop_oneof![
        4 => (0_usize..300).prop_map(Counts::Even),
        2 => (0_usize..5000).prop_map(Counts::Even),
        1 => (30_000_usize..60_000).prop_map(Counts::Even),
        1 => (1_usize..3000).prop_map(Counts::Uneven),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let memory = prop::sample::select(vec![Memory::Ordinary, Memory::Symmetric, Memory::Mixed]);
    let parts = (
        collective(),
        counts(),
        prop::sample::select(INTEGERS.to_vec()),
        prop::sample::select(Reduction::NAMED.to_vec()),
        prop::sample::select(Aliasing::BOTH.to_vec()),
        memory,
        any::<prop::sample::Index>(),
    );
    let case = parts.prop_map(|(collective, counts, data_type, reduction, aliasing, memory, plan)| {
        let reduction = collective.reduces().then_some(reduction);
        let mut case =
            Case { collective, ranks: RANKS, counts, data_type, reduction, aliasing, memory, by: By::Chosen };
        if !case.collective.may_be_uneven() {
            case.counts = Counts::Even(counts_of(counts));
        }
        if case.collective == Collective::Barrier {
            case.counts = Counts::Even(0);
        }
        let mut plans: Vec<By> = doing(&case.collective, RANKS)
            .flat_map(|algorithm| [false, true].map(|packets| By::Algorithm { algorithm, packets, lanes: 1 }))
            .collect();
        plans.retain(|by| {
            let case = Case { by: *by, ..case.clone() };
            case.plan().is_some_and(|plan| plan.is_ok_and(|plan| case.skip(Some(&plan)).is_none()))
        });
        if plans.is_empty() {
            // No plan does it in one buffer.
            case.aliasing = Aliasing::OutOfPlace;
        }
        // Half of all calls let the communicator choose.
        let at = plan.index(2 * plans.len().max(1));
        case.by = plans.get(at).copied().unwrap_or(By::Chosen);
        Call::Collective(case)
    });
    prop_oneof![9 => case, 1 => any::<u64>().prop_map(Call::Puts)]
}

fn counts_of(counts: Counts) -> usize {
    match counts {
        Counts::Even(count) | Counts::Uneven(count) => count,
    }
}

#[test]
fn any_sequence_of_calls_is_right() {
    let config =
        Config { cases: SEQUENCES, failure_persistence: None, max_shrink_iters: 60, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner
        .run(&prop::collection::vec(call(), CALLS), |calls| {
            let run = || run(&calls);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
                .map_err(|_| TestCaseError::fail("a rank failed, as shown above"))
        })
        .unwrap();
}

/// Makes all calls on all ranks; each compares its results with the model.
fn run(calls: &[Call]) {
    let cases: Vec<Case> = calls
        .iter()
        .filter_map(|call| match call {
            Call::Collective(case) => Some(case.clone()),
            Call::Puts(_) => None,
        })
        .collect();
    let work = |comm: Communicator| {
        let me = comm.rank();
        let mut rank = Rank::new(comm, &cases).unwrap();
        for (number, call) in calls.iter().enumerate() {
            match call {
                Call::Puts(word) => puts(&mut rank, *word),
                Call::Collective(case) => {
                    // All ranks skip cases that this backend cannot run.
                    let Ok(outcome) = rank.run(number, case, &AtomicU64::new(0)) else { continue };
                    assert!(outcome.output == model(case, me as u32), "call {number}, {case}: rank {me}");
                }
            }
        }
    };
    let ends = Communicator::threads(RANKS as usize, options(Memory::Ordinary)).unwrap();
    std::thread::scope(|scope| ends.into_iter().for_each(|comm| drop(scope.spawn(|| work(comm)))));
}

fn puts(rank: &mut Rank, word: u64) {
    let Rank { comm, windows: [window, _], .. } = rank;
    let (me, size) = (comm.rank(), comm.size());
    let peers = || (0..size).filter(move |peer| *peer != me);
    let value = |from: usize, to: usize| mix(word ^ (from * size + to) as u64).to_ne_bytes();
    comm.open(window, |open| {
        for peer in peers() {
            open.put(peer, 8 * me, &value(me, peer)).unwrap();
            open.signal(peer, word as usize % 16).unwrap();
        }
        for peer in peers() {
            open.wait(peer, word as usize % 16).unwrap();
            let mut got = [0; 8];
            open.get(me, 8 * peer, &mut got).unwrap();
            assert_eq!(got, value(peer, me), "from rank {peer} to rank {me}");
        }
        Ok(())
    })
    .unwrap();
}

/// The expected output of a rank.
fn model(case: &Case, rank: u32) -> Vec<u8> {
    let (collective, ranks, size) = (&case.collective, case.ranks as usize, case.data_type.bytes());
    let inputs: Vec<Vec<u8>> = (0..case.ranks).map(|rank| input(case, rank)).collect();
    let mut output = Vec::new();
    for block in 0..promise::blocks(collective, ranks, rank as usize).1 {
        let parts = promise::parts(collective, ranks, rank as usize, block);
        let length = case.length(parts[0].0 as u32, parts[0].1 as u32);
        let sources: Vec<(usize, &[u8])> = parts
            .iter()
            .map(|&(rank, block)| {
                let before: usize = case.given(rank as u32)[..block].iter().sum();
                (rank, &inputs[rank][before * size..][..length * size])
            })
            .collect();
        let Some(reduction) = case.reduction else {
            sources.iter().for_each(|(_, bytes)| output.extend_from_slice(bytes));
            continue;
        };
        for at in 0..length {
            let value =
                |&(rank, bytes): &(usize, &[u8])| (rank, number(&bytes[at * size..][..size], case.data_type));
            let values: Vec<(usize, i128)> = sources.iter().map(value).collect();
            let result = combined(reduction, case.data_type, &values);
            output.extend_from_slice(&result.to_le_bytes()[..size]);
        }
    }
    output
}

fn is_signed(data_type: DataType) -> bool {
    matches!(data_type, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64)
}

/// An integer of a type from its bytes, the least first.
fn number(bytes: &[u8], data_type: DataType) -> i128 {
    let value = bytes.iter().rev().fold(0, |value: i128, byte| value << 8 | i128::from(*byte));
    wrapped(value, data_type)
}

/// A number wrapped to the range of a type.
fn wrapped(value: i128, data_type: DataType) -> i128 {
    let past = 1_i128 << (8 * data_type.bytes());
    let value = value.rem_euclid(past);
    if is_signed(data_type) && value >= past / 2 { value - past } else { value }
}

fn combined(reduction: Reduction, data_type: DataType, values: &[(usize, i128)]) -> i128 {
    let numbers = || values.iter().map(|(_, value)| *value);
    let truths = || numbers().filter(|value| *value != 0).count();
    let sum = |numbers: &mut dyn Iterator<Item = i128>| wrapped(numbers.sum(), data_type);
    match reduction {
        Reduction::Sum => sum(&mut numbers()),
        Reduction::Product => {
            numbers().fold(1, |product, value| wrapped(product.wrapping_mul(value), data_type))
        }
        Reduction::Minimum => numbers().min().unwrap(),
        Reduction::Maximum => numbers().max().unwrap(),
        Reduction::Average => sum(&mut numbers()) / values.len() as i128,
        Reduction::PremultipliedSum => sum(&mut values
            .iter()
            .map(|(rank, value)| wrapped(value.wrapping_mul(factor_of(*rank as u32, data_type)), data_type))),
        Reduction::LogicalAnd => i128::from(truths() == values.len()),
        Reduction::LogicalOr => i128::from(truths() > 0),
        Reduction::LogicalXor => i128::from(truths() % 2 == 1),
        Reduction::BitAnd => numbers().reduce(|a, b| a & b).unwrap(),
        Reduction::BitOr => numbers().reduce(|a, b| a | b).unwrap(),
        Reduction::BitXor => numbers().reduce(|a, b| a ^ b).unwrap(),
        Reduction::UserDefined { .. } => unreachable!("it has no name"),
    }
}

fn factor_of(rank: u32, data_type: DataType) -> i128 {
    let mut bytes = Vec::new();
    with_type!(data_type, T => factor::<T>(rank).write(&mut bytes));
    number(&bytes, data_type)
}
