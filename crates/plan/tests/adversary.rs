//! Plans and files made to break the verifier: correct plans that it refused, and inputs that took minutes or panicked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_plan::plan::{
    Aliasing, Buffer, Chunks, Digit, Group, Grouped, Input, Lane, Loop, Node, Output, Place, Program,
    RankDigit, Step, Switch, Symmetry, Wait,
};
use weftlink_plan::{Affine, Algorithm, Collective, Fault, Plan, verify, verify_by_classes};

/// A plan with these lanes of each rank.
fn plan(collective: Collective, ranks: u32, per_block: u32, lanes: impl Fn(u32) -> Vec<Vec<Node>>) -> Plan {
    let (input, output) = collective.blocks(ranks);
    let lane = |nodes| Lane { channel: 0, nodes };
    let program = |rank| Program { lanes: lanes(rank).into_iter().map(lane).collect() };
    Plan {
        collective,
        ranks,
        chunks: Chunks { input: input * per_block, output: output * per_block, scratch: 0 },
        aliasing: vec![Aliasing::OutOfPlace],
        channels: vec![],
        symmetry: None,
        programs: (0..ranks).map(program).collect(),
        ..Algorithm::Ring.plan(1, 1)
    }
}

fn turning(ranks: u32) -> Vec<RankDigit> {
    vec![RankDigit { size: ranks, turns: true }]
}

fn still(chunks: u32) -> Vec<Digit> {
    vec![Digit { size: chunks, with: None }]
}

/// Every rank reads all others' inputs and adds, in the order of the ranks from its own.
fn one_shot(ranks: u32, chunks: u32, symmetry: Symmetry) -> Plan {
    let chunk = || Affine::counted(0);
    let plan = plan(Collective::AllReduce, ranks, chunks, |rank| {
        let others = || (1..ranks).map(move |ahead| (rank + ahead) % ranks);
        let inputs =
            (0..ranks).map(|ahead| Input::held_by((rank + ahead) % ranks, rank, Place::input(chunk())));
        let sum = Step::reduce(inputs.collect()).to(Output::Local(Place::output(chunk())));
        let done = Step::sync().signal(0);
        let leave = Step::sync().after(others().map(|other| Wait::reached(other, 0, 1)));
        let enter = Step::sync().after(others().map(Wait::entered));
        vec![vec![enter.into(), Node::repeat(chunks, [sum]), done.into(), leave.into()]]
    });
    Plan { counters: 1, symmetry: Some(symmetry), ..plan }
}

#[test]
fn a_barrier_may_synchronise_in_a_second_lane() {
    let barrier = plan(Collective::Barrier, 2, 1, |rank| {
        let meet = Step::sync().after([Wait::reached(1 - rank, 0, 1)]);
        vec![vec![], vec![Step::sync().signal(0).into(), meet.into()]]
    });
    verify(Plan { counters: 1, ..barrier }).unwrap();
}

#[test]
fn a_barrier_without_synchronisation_is_refused() {
    let barrier = plan(Collective::Barrier, 2, 1, |rank| {
        let meet = if rank == 0 { vec![Wait::reached(1, 0, 1)] } else { vec![] };
        vec![vec![], vec![Step::sync().signal(0).into(), Step::sync().after(meet).into()]]
    });
    let refusal = verify(Plan { counters: 1, ..barrier }).unwrap_err();
    assert!(matches!(*refusal.fault, Fault::Unmet { rank: 1, other: 0 }), "{refusal}");
}

#[test]
fn classes_prove_agreement_of_pairs() {
    let symmetry = Symmetry { ranks: turning(2), input: vec![], output: vec![], scratch: vec![] };
    let plan = one_shot(2, 1, symmetry);
    verify(plan.clone()).unwrap();
    verify_by_classes(plan).unwrap();
}

#[test]
fn classes_prove_agreement_of_cubes() {
    for (ranks, algorithm) in [(4, Algorithm::RecursiveDoubling), (8, Algorithm::RecursiveDoubling)] {
        let mut plan = algorithm.flat(&Collective::AllReduce, ranks, 1).unwrap();
        let bits = ranks.ilog2() as usize;
        let ranks = vec![RankDigit { size: 2, turns: true }; bits];
        plan.symmetry = Some(Symmetry { ranks, input: vec![], output: vec![], scratch: vec![] });
        // A turn does not preserve that the lower rank's part comes first, but that a rank's own part comes first.
        for node in plan.programs.iter_mut().flat_map(|program| &mut program.lanes[0].nodes) {
            let Node::Step(step) = node else { continue };
            if let [Input::Received { .. }, Input::Local(_)] = step.inputs[..] {
                step.inputs.reverse();
            }
        }
        verify(plan.clone()).unwrap();
        verify_by_classes(plan).unwrap();
    }
}

#[test]
fn plans_that_start_with_the_own_input_do_not_agree() {
    let symmetry = Symmetry { ranks: turning(3), input: vec![], output: vec![], scratch: vec![] };
    let plan = one_shot(3, 1, symmetry);
    for refusal in [verify(plan.clone()).unwrap_err(), verify_by_classes(plan).unwrap_err()] {
        assert!(matches!(*refusal.fault, Fault::Order { .. }), "{refusal}");
    }
}

#[test]
fn large_cubes_are_accepted() {
    const BITS: u32 = 9;
    let barrier = plan(Collective::Barrier, 1 << BITS, 1, |rank| {
        let wait = |bit: u32| Wait::reached(rank ^ (1 << bit), 0, bit + 1);
        let round = |bit: u32| Step::sync().after(bit.checked_sub(1).map(wait)).signal(0).into();
        let leave = Step::sync().after([wait(BITS - 1)]);
        vec![(0..BITS).map(round).chain([leave.into()]).collect()]
    });
    let ranks = vec![RankDigit { size: 2, turns: true }; BITS as usize];
    let symmetry = Symmetry { ranks, input: vec![], output: vec![], scratch: vec![] };
    verify_by_classes(Plan { counters: 1, symmetry: Some(symmetry), ..barrier }).unwrap();
}

#[test]
fn steps_that_never_run_may_name_anything() {
    let symmetry = Symmetry { ranks: turning(2), input: vec![], output: vec![], scratch: vec![] };
    let mut plan = one_shot(2, 1, symmetry);
    plan.agreement = weftlink_plan::plan::Agreement::UpToRounding;
    for program in &mut plan.programs {
        let far = Step::copy(Input::Local(Place::input(u32::MAX))).to(Output::sent(u32::MAX));
        program.lanes[0].nodes.insert(0, Node::repeat(0, [far]));
    }
    verify(plan.clone()).unwrap();
    verify_by_classes(plan).unwrap();
}

#[test]
fn fixed_chunks_cost_no_more_than_others() {
    const CHUNKS: u32 = 1 << 16;
    let symmetry =
        Symmetry { ranks: turning(2), input: still(CHUNKS), output: still(CHUNKS), scratch: vec![] };
    let plan = one_shot(2, CHUNKS, symmetry);
    let _ = verify_by_classes(plan);
}

#[test]
fn many_groups_are_not_searched_at_every_step() {
    const GROUPS: u32 = 1 << 16;
    const CHUNKS: u32 = 1 << 17;
    let mut plan = plan(Collective::AllReduce, 2, CHUNKS, |rank| {
        let group = GROUPS - 2 + rank;
        // The first has no modulus, so the two have to be walked to be compared.
        let (base, modulo) = if rank == 0 { (0, None) } else { ((CHUNKS / 2).into(), Some(CHUNKS)) };
        let chunk = Affine { offset: 0, base, by: vec![1], modulo };
        let own = Input::Switch(Grouped { group, buffer: Buffer::Input, chunk: chunk.clone() });
        let put = Step::copy(own).to(Output::Local(Place::output(chunk)));
        vec![vec![Node::repeat(CHUNKS, [put])]]
    });
    plan.groups = (0..GROUPS)
        .map(|group| {
            let members = if group < GROUPS - 2 { vec![0, 1] } else { vec![group + 2 - GROUPS] };
            Group { switch: Switch::Nvswitch, members }
        })
        .collect();
    let turned = vec![Digit { size: 2, with: Some(0) }, Digit { size: CHUNKS / 2, with: None }];
    plan.symmetry =
        Some(Symmetry { ranks: turning(2), input: turned.clone(), output: turned, scratch: vec![] });
    let _ = verify_by_classes(plan);
}

#[test]
fn loops_over_symmetric_chunks_are_bounded() {
    const CHUNKS: u32 = 1 << 18;
    let chunk = || Affine::counted(0);
    let ranks = vec![RankDigit { size: 2, turns: true }; 8];
    let mut plan = plan(Collective::AllReduce, 256, CHUNKS, |_| {
        let copy = Step::copy(Input::Local(Place::input(chunk()))).to(Output::Local(Place::output(chunk())));
        vec![vec![Node::Loop(Loop { times: 1 << 14, body: vec![copy.into()] })]]
    });
    plan.symmetry = Some(Symmetry { ranks, input: still(CHUNKS), output: still(CHUNKS), scratch: vec![] });
    let refusal = verify_by_classes(plan).unwrap_err();
    assert!(matches!(*refusal.fault, Fault::TooLarge { .. }), "{refusal}");
}

#[test]
fn walks_over_symmetries_are_bounded() {
    let mut plan = plan(Collective::AllReduce, 256, 1, |_| {
        let chunk = Affine { offset: 0, base: 0, by: vec![1], modulo: Some(1) };
        let copy = Step::copy(Input::Local(Place::input(chunk))).to(Output::Local(Place::output(0)));
        vec![vec![Node::repeat(1 << 14, [copy])]]
    });
    let ranks = vec![RankDigit { size: 2, turns: true }; 8];
    plan.symmetry = Some(Symmetry { ranks, input: vec![], output: vec![], scratch: vec![] });
    let refusal = verify_by_classes(plan).unwrap_err();
    assert!(matches!(*refusal.fault, Fault::TooLarge { .. }), "{refusal}");
}

#[test]
fn collectives_that_only_move_data_combine_nothing() {
    // Blocks of different lengths, added in unused memory.
    let mut plan = plan(Collective::AllGather, 2, 1, |rank| {
        let theirs = || Input::held_by(1 - rank, rank, Place::input(0));
        let own = || Input::Local(Place::input(0));
        let sum = Step::reduce(vec![own(), theirs()]).to(Output::Local(Place::scratch(0)));
        vec![vec![
            Step::copy(own()).to(Output::Local(Place::output(rank))).after([Wait::entered(1 - rank)]).into(),
            Step::copy(theirs()).to(Output::Local(Place::output(1 - rank))).into(),
            sum.signal(0).into(),
            Step::sync().after([Wait::reached(1 - rank, 0, 1)]).into(),
        ]]
    });
    (plan.counters, plan.uneven, plan.chunks.scratch) = (1, true, 1);
    let refusal = verify(plan).unwrap_err();
    assert!(matches!(*refusal.fault, Fault::Malformed(_)), "{refusal}");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let file = r#"<algo name="ä" proto="LL" nchunksperloop="1" ngpus="1" coll="allreduce" inplace="1">
  <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><ä/><tb id="0" send="-1" recv="-1" chan="0"></tb></gpu></algo>"#;
    Plan::from_msccl(file).unwrap();
    Plan::from_msccl(&format!("\u{feff}{file}")).unwrap();
}

#[test]
fn blocks_that_all_access_the_same_scratch_are_read_in_seconds() {
    let mut file = String::from(
        r#"<algo name="x" proto="LL" nchunksperloop="71" ngpus="1" coll="allreduce" inplace="1">
<gpu id="0" i_chunks="71" o_chunks="71" s_chunks="4047">"#,
    );
    for block in 0..256 {
        file += &format!(r#"<tb id="{block}" send="-1" recv="-1" chan="0">"#);
        for step in 0..57 {
            let first = step * 71;
            file += &format!(
                r#"<step s="{step}" type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="{first}" cnt="71" depid="-1" deps="-1" hasdep="0"/>"#
            );
        }
        file += "</tb>";
    }
    file += "</gpu></algo>";
    let _ = Plan::from_msccl(&file);
}

#[test]
fn plans_too_long_for_a_file_are_not_unrolled() {
    let mut plan = Algorithm::Ring.plan(1, 1);
    let nothing = Step::copy(Input::Local(Place::input(0))).to(Output::Local(Place::output(0)));
    plan.programs[0].lanes[0].nodes = vec![Node::repeat((1 << 20) + 1, [nothing])];
    assert!(plan.to_msccl().is_err());
}
