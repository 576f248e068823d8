//! Plans with a switch on fibers of the host, where multicast addresses stand for the memory of all ranks: each rank's input is in one
//! window, its output in another.

use weftlink_plan::{Algorithm, Aliasing, Collective, DataType, Reduction, verify};
use weftlink_testkit::cases::{By, Case, Counts, Memory};

use super::faults::run_behind_a_switch;
use super::{Build, Library, Ranks, races_of};
use crate::cases::Buffers;
use crate::program::{Program, Sequences};
use crate::records::View;

/// The addresses of two windows: of the first memory of each rank, then of the second.
pub(super) fn table(buffers: &[Buffers]) -> Vec<u64> {
    let of = |number: usize| buffers.iter().map(move |buffers| buffers.memory[number].as_ptr().addr() as u64);
    of(0).chain(of(1)).collect()
}

/// A rank's buffers as the switch addresses them. Multicast addresses are those of the first rank.
pub(super) fn view(table: &[u64], views: &[View], rank: usize) -> View {
    let ranks = views.len();
    let multicast = |address: u64| {
        let own = [table[rank], table[ranks + rank]];
        // The window that begins last before the address.
        let window = usize::from(address.wrapping_sub(own[1]) < address.wrapping_sub(own[0]));
        table[ranks * window] + (address - own[window])
    };
    View { input: multicast(views[rank].input), output: multicast(views[rank].output) }
}

/// The kernel of a program. Unless its steps are constants, it is the same for all programs.
pub(super) fn library(program: &Program, case: &Case, build: Build) -> &'static Library {
    let is_traced = build == Build::Traced;
    let program = match build.is_fixed() {
        true => program.clone(),
        false => Program { sequences: Sequences::with_switch(), is_in_shared: !is_traced, ..program.clone() },
    };
    let reduction = case.reduction.unwrap_or(Reduction::Sum);
    Library::of_program(&program, (case.data_type, reduction), build)
}

fn collectives(ranks: u32) -> [Collective; 5] {
    let root = ranks / 2;
    [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast { root },
        Collective::Reduce { root },
    ]
}

fn case(collective: Collective, ranks: u32, bytes: usize, data_type: DataType, average: bool) -> Case {
    let reduction = if average { Reduction::Average } else { Reduction::Sum };
    Case {
        reduction: collective.reduces().then_some(reduction),
        collective,
        ranks,
        counts: Counts::Even(bytes / data_type.bytes()),
        data_type,
        aliasing: Aliasing::OutOfPlace,
        memory: Memory::Symmetric,
        by: By::Algorithm { algorithm: Algorithm::Nvls, packets: false, lanes: 1 },
    }
}

/// Calls of all collectives with blocks of some lengths, in place and not.
fn run(build: Build, ranks: u32, lengths: &[usize], types: &[DataType]) -> usize {
    let mut calls = 0;
    for collective in collectives(ranks) {
        let plan = Algorithm::Nvls.flat(&collective, ranks, 1).unwrap();
        let mut job = Ranks::new(&verify(plan).unwrap(), build);
        let reduces = collective.reduces();
        let types = if reduces { types } else { &[DataType::U8, DataType::Complex128][..] };
        for (number, &bytes) in lengths.iter().enumerate() {
            for (&data_type, aliasing) in
                types.iter().flat_map(|kind| [(kind, Aliasing::InPlace), (kind, Aliasing::OutOfPlace)])
            {
                let average = reduces && number % 2 == 1;
                let case = Case { aliasing, ..case(collective.clone(), ranks, bytes, data_type, average) };
                assert!(job.run(&case, number as u64), "{case}");
                calls += 1;
            }
        }
    }
    println!("switch: {calls} calls");
    calls
}

const TYPES: [DataType; 3] = [DataType::F32, DataType::F16, DataType::Bf16];

#[test]
fn collectives_through_a_switch_give_the_plan_s_results() {
    for ranks in [2, 3, 4, 7] {
        let calls = run(Build::Plain, ranks, &[16, 32, 0, 48, 1040, 2000, 4096, 4112], &TYPES);
        assert_eq!(calls, 3 * 8 * 6 + 2 * 8 * 4);
    }
}

#[test]
fn kernels_with_fixed_shapes_use_a_switch() {
    run(Build::Fixed, 3, &[1040, 2000], &[DataType::F32]);
}

#[test]
fn sums_of_a_switch_are_there_when_the_call_ends() {
    (0..20).for_each(|seed| run_behind_a_switch(Build::Plain, seed));
}

/// Run by the test below, in a process that has the sanitizer's library.
#[test]
#[ignore = "needs a sanitizer's library: steps_through_a_switch_have_no_data_race runs it"]
fn sanitized() {
    run(Build::Sanitized, 3, &[32, 1040], &[DataType::Bf16]);
    run(Build::FixedSanitized, 2, &[1040], &[DataType::F32]);
    (0..40).for_each(|seed| run_behind_a_switch(Build::Sanitized, seed));
    println!("switches end");
}

#[test]
fn steps_through_a_switch_have_no_data_race() {
    let races = races_of("host_tests::switch::sanitized", "switches end");
    assert!(races.is_empty(), "{} races, the first one {}", races.len(), races[0]);
}
