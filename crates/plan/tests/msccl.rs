//! MSCCL's XML: programs are proved and compute their collective; faults are reported at their place in the file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use weftlink_plan::collective::Promise;
use weftlink_plan::domain::elements::oracle;
use weftlink_plan::msccl::At;
use weftlink_plan::plan::{Agreement, Aliasing, Lane, Node, Program, Protocol};
use weftlink_plan::{Algorithm, Collective, Cut, MscclError, Plan, Verified, verify};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/msccl")
}

fn text(name: &str) -> String {
    fs::read_to_string(folder().join(format!("{name}.xml"))).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The outputs of a proved plan on every rank, checked against the promises of its collective.
fn outputs(plan: &Verified) -> Vec<Vec<u64>> {
    const COUNT: usize = 37;
    let (collective, ranks) = (&plan.collective, plan.ranks);
    let number = |rank: u32, block: u32, at: usize| {
        1_000_003 * u64::from(rank + 1) + 1009 * u64::from(block) + at as u64
    };
    let input = |rank| {
        let blocks = collective.gives(rank, ranks);
        (0..blocks).flat_map(|block| (0..COUNT).map(move |at| number(rank, block, at))).collect()
    };
    let inputs: Vec<Vec<u64>> = (0..plan.ranks).map(input).collect();
    let cut = Cut::new(COUNT, plan.chunks_per_block(), 1, 2);
    let mut all = Vec::new();
    for &aliasing in &plan.aliasing {
        let (outputs, _) = oracle(plan, cut, aliasing, &inputs, |a, b| a + b);
        for (rank, output) in (0..).zip(&outputs) {
            assert_eq!(output.len(), collective.gets(rank, ranks) as usize * COUNT);
            for (position, &value) in output.iter().enumerate() {
                let at = position % COUNT;
                let block = (position / COUNT) as u32;
                let promised = match collective.promise(rank, ranks, block).unwrap() {
                    Promise::Copy { rank, block } => number(rank, block, at),
                    Promise::Reduction { block, below } => {
                        (0..below).map(|from| number(from, block, at)).sum()
                    }
                };
                assert_eq!(value, promised, "{} {aliasing}, rank {rank}, element {position}", plan.name);
            }
        }
        all.extend(outputs);
    }
    all
}

fn proved(text: &str, name: &str) -> Verified {
    let plan = Plan::from_msccl(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    verify(plan).unwrap_or_else(|refusal| panic!("{name}: {refusal}"))
}

/// Reads and proves a file, writes its plan and reads that again: the same collective, and the same results.
fn round_trips(text: &str, name: &str) {
    let plan = proved(text, name);
    let written = plan.to_msccl().unwrap_or_else(|error| panic!("{name}: {error}"));
    let again = proved(&written, name);
    assert_eq!((&plan.collective, &plan.aliasing), (&again.collective, &again.aliasing), "{name}");
    assert_eq!((plan.agreement, plan.chunks.input), (again.agreement, again.chunks.input), "{name}");
    assert_eq!(outputs(&plan), outputs(&again), "{name}");
    assert_eq!(again.to_msccl().unwrap(), written, "{name}: writing what was written changes nothing");
}

#[test]
fn files_are_proved_and_round_trip() {
    for file in files(&folder()) {
        round_trips(&fs::read_to_string(&file).unwrap(), &file.display().to_string());
    }
}

/// Every built-in plan for a number of ranks.
fn built_in(ranks: u32) -> Vec<Plan> {
    let mut kinds = Collective::KINDS.to_vec();
    let root = ranks - 1;
    kinds.extend([Collective::Reduce { root }, Collective::Broadcast { root }]);
    kinds.extend([Collective::Gather { root }, Collective::Scatter { root }]);
    let all =
        Algorithm::ALL.into_iter().flat_map(|algorithm| kinds.iter().map(move |kind| (algorithm, kind)));
    all.filter_map(|(algorithm, kind)| algorithm.flat(kind, ranks, 3).ok()).collect()
}

#[test]
fn built_in_plans_round_trip() {
    let mut went = BTreeSet::new();
    for ranks in [1, 2, 3, 5, 8] {
        for plan in built_in(ranks) {
            let name = format!("{} {} of {ranks}", plan.name, plan.collective);
            let plan = verify(plan).unwrap();
            let written = match plan.to_msccl() {
                Ok(written) => written,
                // Plans that access other ranks' memory, and collectives that MSCCL does not have.
                Err(MscclError::Inexpressible { .. } | MscclError::InexpressiblePlan(_)) => continue,
                Err(error) => panic!("{name}: {error}"),
            };
            went.insert((plan.name.clone(), plan.collective.name()));
            let again = proved(&written, &name);
            assert_eq!((&plan.collective, &plan.aliasing), (&again.collective, &again.aliasing), "{name}");
            assert_eq!(again.agreement, Agreement::SameBits, "{name}");
            assert_eq!(outputs(&plan), outputs(&again), "{name}");
            assert_eq!(again.to_msccl().unwrap(), written, "{name}");
        }
    }
    for (name, collective) in [
        ("ring", "all-reduce"),
        ("ring", "all-gather"),
        ("ring", "reduce-scatter"),
        ("exchange", "all-reduce"),
        ("exchange-ll", "all-reduce"),
        ("chain", "broadcast"),
        ("chain", "reduce"),
        ("linear", "gather"),
        ("linear", "scatter"),
        ("pairwise", "all-to-all"),
    ] {
        assert!(went.contains(&(name.to_owned(), collective)), "{name} {collective}: {went:?}");
    }
}

#[test]
fn inexpressible_plans_are_refused() {
    let says = |plan: Plan, what: &str| {
        let message = plan.to_msccl().unwrap_err().to_string();
        assert!(message.contains(what), "{message} does not say {what}");
    };
    says(
        Algorithm::OneShot.plan(2, 1),
        "rank 0, lane 0, step 0: it waits until rank 1 has entered the call; MSCCL's XML has no way",
    );
    let mut peers = Algorithm::OneShot.plan(2, 1);
    let Node::Step(step) = &mut peers.programs[0].lanes[0].nodes[0] else { panic!("a step") };
    step.waits.clear();
    says(peers, "it reads the memory of rank 1");
    let mut mixed = Algorithm::Ring.plan(3, 2);
    mixed.channels[1].protocol = Protocol::Ll;
    says(mixed, "different protocols");
    let mut barrier = Plan::outline("barrier", Collective::Barrier, 2, 1);
    barrier.programs = vec![Program { lanes: vec![Lane { channel: 0, nodes: vec![] }] }; 2];
    says(barrier, "it is a barrier; MSCCL's XML has no way");
    let mut malformed = Algorithm::Ring.plan(3, 2);
    malformed.aliasing.clear();
    says(malformed, "is refused");
}

#[test]
fn attributes_of_files_are_read() {
    use Aliasing::{InPlace, OutOfPlace};
    for (name, collective, aliasing) in [
        ("ring-3", Collective::AllReduce, vec![OutOfPlace, InPlace]),
        ("one-pass-3", Collective::AllReduce, vec![InPlace]),
        ("all-gather-2", Collective::AllGather, vec![InPlace]),
        ("reduce-scatter-2", Collective::ReduceScatter, vec![OutOfPlace]),
        ("broadcast-3", Collective::Broadcast { root: 1 }, vec![InPlace]),
        ("all-to-all-2", Collective::AllToAll, vec![OutOfPlace]),
        ("reduce-2", Collective::Reduce { root: 0 }, vec![InPlace]),
        ("gather-2", Collective::Gather { root: 1 }, vec![OutOfPlace]),
        ("scatter-2", Collective::Scatter { root: 0 }, vec![OutOfPlace, InPlace]),
    ] {
        let plan = Plan::from_msccl(&text(name)).unwrap();
        assert_eq!((plan.collective, plan.aliasing), (collective, aliasing), "{name}");
    }
    // Each rank begins with its own part, so that three parts are added in three orders.
    let one_pass = Plan::from_msccl(&text("one-pass-3")).unwrap();
    assert_eq!(one_pass.agreement, Agreement::UpToRounding);
    assert_eq!(Plan::from_msccl(&text("ring-3")).unwrap().agreement, Agreement::SameBits);
    // NCCL's eight slots, of which a message takes four with Simple.
    let depth = |name: &str| {
        let channel = Plan::from_msccl(&text(name)).unwrap().channels[0];
        (channel.protocol, channel.depth)
    };
    assert_eq!(depth("ring-3"), (Protocol::Ll, 8));
    assert_eq!(depth("one-pass-3"), (Protocol::Simple, 2));
}

/// The file with one text replaced by another, at its n-th occurrence.
fn planted(name: &str, from: &str, nth: usize, to: &str) -> String {
    let text = text(name);
    let (position, _) = text.match_indices(from).nth(nth).unwrap_or_else(|| panic!("{name} has no {from}"));
    format!("{}{to}{}", &text[..position], &text[position + from.len()..])
}

/// The file with the first occurrences of two texts swapped.
fn swapped(name: &str, first: &str, second: &str) -> String {
    text(name).replacen(first, "\0", 1).replacen(second, first, 1).replacen('\0', second, 1)
}

#[test]
fn wrong_programs_are_refused_at_their_step() {
    let read = r#"srcbuf="i" srcoff="2""#;
    for (what, text, (rank, lane, step), says) in [
        (
            "a wrong chunk is sent",
            planted("ring-3", r#"type="s" srcbuf="i" srcoff="1""#, 0, r#"type="s" srcbuf="i" srcoff="2""#),
            (2, 0, 1),
            "it combines r1[2] with r2[1], which are different chunks",
        ),
        (
            "a wrong chunk is added",
            planted("ring-3", &format!(r#"type="rrs" {read}"#), 0, r#"type="rrs" srcbuf="i" srcoff="1""#),
            (0, 0, 1),
            "it combines r2[2] with r0[1], which are different chunks",
        ),
        (
            "two steps change places",
            swapped(
                "one-pass-3",
                r#"type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="1" deps="1" hasdep="0""#,
                r#"type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="0" cnt="2" depid="2" deps="1" hasdep="0""#,
            ),
            (0, 0, 1),
            "scratch chunk 0 of rank 0 is read here while rank 0, lane 1, step 1 (iteration 0) may still be writing it",
        ),
        (
            "a wait is missing",
            planted("one-pass-3", r#"depid="2" deps="1""#, 1, r#"depid="-1" deps="-1""#),
            (1, 0, 2),
            "output chunk 0 of rank 1 is written here while rank 1, lane 2, step 0 (iteration 0) may still be reading it",
        ),
        (
            "another wait is missing",
            planted("reduce-scatter-2", r#"depid="1" deps="0""#, 0, r#"depid="-1" deps="-1""#),
            (0, 0, 1),
            "scratch chunk 0 of rank 0 is read",
        ),
        (
            "the input is written out of place",
            planted(
                "ring-3",
                r#"type="r" srcbuf="i" srcoff="2" dstbuf="o""#,
                0,
                r#"type="r" srcbuf="i" srcoff="2" dstbuf="i""#,
            ),
            (0, 0, 4),
            "it writes the input",
        ),
    ] {
        let plan = Plan::from_msccl(&text).unwrap_or_else(|error| panic!("{what}: {error}"));
        let refusal = verify(plan).unwrap_err();
        let message = refusal.to_string();
        let spot = refusal.spot.unwrap_or_else(|| panic!("{what}: {message}"));
        assert_eq!((spot.rank, spot.lane, spot.step), (rank, lane, step), "{what}: {message}");
        assert!(message.contains(says), "{what}: {message} does not say {says}");
    }
}

#[test]
fn invalid_programs_are_refused_at_their_place() {
    let at = |gpu, tb, step| At { gpu, tb, step };
    let step = |gpu, tb, step| at(Some(gpu), Some(tb), Some(step));
    for (text, place, says) in [
        (
            planted("one-pass-3", r#"hasdep="1""#, 0, r#"hasdep="0""#),
            step(0, 0, 0),
            "step 0 of tb 1, which does not signal because its hasdep is 0",
        ),
        (
            planted("one-pass-3", r#"deps="1""#, 0, r#"deps="7""#),
            step(0, 0, 1),
            "step 7 of tb 1, which does not exist",
        ),
        (planted("one-pass-3", r#"depid="1""#, 0, r#"depid="0""#), step(0, 0, 0), "its own tb"),
        (
            planted("one-pass-3", r#"cnt="2""#, 2, r#"cnt="1""#),
            step(1, 1, 1),
            "of gpu 0, tb 1, step 0, which sends 1",
        ),
        (
            planted("one-pass-3", r#"tb id="2""#, 0, r#"tb id="3""#),
            at(Some(0), Some(3), None),
            "there is no tb 2",
        ),
        (
            planted("one-pass-3", r#"tb id="2""#, 0, r#"tb id="1""#),
            at(Some(0), Some(1), None),
            "two tbs of the gpu have this id",
        ),
        (
            planted("one-pass-3", r#"gpu id="2""#, 0, r#"gpu id="3""#),
            at(Some(3), None, None),
            "there is no gpu 2",
        ),
        (planted("one-pass-3", r#"ngpus="3""#, 0, r#"ngpus="4""#), At::default(), "there are 3 gpus"),
        (
            planted("ring-3", r#"recv="2""#, 0, r#"recv="1""#),
            step(0, 0, 1),
            "gpu 2, tb 0, step 0 sends to gpu 0",
        ),
        (planted("ring-3", r#"recv="2""#, 0, r#"recv="0""#), at(Some(0), Some(0), None), "gpu 0 itself"),
        (planted("ring-3", r#"recv="2""#, 0, r#"recv="9""#), at(Some(0), Some(0), None), "there are 3 gpus"),
        (planted("ring-3", r#"recv="2""#, 0, r#"recv="-1""#), step(0, 0, 1), "the tb's recv is -1"),
        (
            planted("one-pass-3", r#"send="2" recv="2""#, 0, r#"send="1" recv="2""#),
            at(Some(0), Some(2), None),
            "tb 1 also has send 1 on channel 0",
        ),
        (planted("ring-3", r#"s="2" type"#, 0, r#"s="3" type"#), step(0, 0, 2), "s is 3 here"),
        (
            planted("ring-3", r#"srcoff="1""#, 0, r#"srcoff="3""#),
            step(0, 0, 2),
            "it uses input chunk 3, but the gpu has 3",
        ),
        (planted("ring-3", r#"srcoff="1""#, 0, r#"srcoff="-1""#), step(0, 0, 2), "srcoff, which is -1"),
        (planted("ring-3", r#"type="rrs""#, 0, r#"type="res_add""#), step(0, 0, 1), "res_add"),
        (planted("ring-3", r#"type="rrs""#, 0, r#"type="put""#), step(0, 0, 1), "type is `put`"),
        (planted("ring-3", r#"cnt="1""#, 0, r#"cnt="72""#), step(0, 0, 0), "cnt is `72`"),
        (planted("ring-3", r#"cnt="1""#, 0, r#"cnt="many""#), step(0, 0, 0), "cnt is `many`"),
        (planted("ring-3", "allreduce", 0, "custom"), At::default(), "coll is `custom`"),
        (planted("ring-3", "LL", 0, "LL64"), At::default(), "proto is `LL64`"),
        (
            planted("all-to-all-2", r#"nchunksperloop="4""#, 0, r#"nchunksperloop="3""#),
            At::default(),
            "a multiple of 2",
        ),
        (planted("all-to-all-2", r#"outofplace="1""#, 0, r#"outofplace="0""#), At::default(), "never run"),
    ] {
        let error = Plan::from_msccl(&text).unwrap_err();
        let message = error.to_string();
        let MscclError::Program { at, .. } = error else { panic!("{message}") };
        assert_eq!(at, place, "{message}");
        assert!(message.contains(says), "{message} does not say {says}");
    }
}

#[test]
fn invalid_xml_is_refused_with_its_line() {
    for (text, says) in [
        ("", "line 1: the file ends without an <algo>"),
        ("<system version=\"1\"/>", "line 1: the root element is <system>"),
        ("<algo\nname=\"x\"", "line 1"),
        (
            "<!-- -->\n<algo name=\"x\" proto=\"LL\" ngpus=\"1\" coll=\"allreduce\" nchunksperloop=\"1\">\n<gpu id=\"0\">",
            "truncated",
        ),
        (
            "<algo name=\"x\" proto=\"LL\" ngpus=\"1\" coll=\"allreduce\" nchunksperloop=\"1\">\n</gpu>",
            "line 2",
        ),
        (
            "<algo proto=\"LL\" ngpus=\"1\" coll=\"allreduce\" nchunksperloop=\"1\">\n<gpu id=\"0\">\n<tb id=\"0\">\n<op/>",
            "line 4: <op>",
        ),
    ] {
        let message = Plan::from_msccl(text).unwrap_err().to_string();
        assert!(message.contains(says), "{message} does not say {says}");
    }
}

/// The files under WEFT_SHARED/samples/msccl, if there are any.
#[test]
fn samples_are_proved_and_round_trip() {
    let Ok(samples) = std::env::var("WEFT_SHARED") else {
        println!("skipped: WEFT_SHARED is not set");
        return;
    };
    for file in files(&Path::new(&samples).join("samples/msccl")) {
        let text = fs::read_to_string(&file).unwrap();
        round_trips(&text, &file.display().to_string());
    }
}
