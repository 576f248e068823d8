//! `weft plan` from the outside: what it prints, that `weft bench` runs what it prints, and what both refuse.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{root, scratch, shell, shown};
use serde_json::{Value, json};

const ALGORITHMS: [&str; 5] = ["exchange-ll", "exchange", "one-shot", "two-shot", "ring"];

#[test]
fn every_algorithm_is_listed_printed_and_proved() {
    let folder = scratch("plan-all");
    let list = shown(&folder, "weft plan --list");
    let listed: Value = serde_json::from_str(&shown(&folder, "weft plan --list --json")).unwrap();
    assert!(listed["algorithms"].as_array().unwrap().len() > ALGORITHMS.len());
    for name in ALGORITHMS {
        assert!(list.lines().any(|line| line.starts_with(&format!("{name} "))), "{list}");
        for ranks in [1, 2, 5] {
            let plan = format!("weft plan all-reduce -n {ranks} --algorithm {name}");
            let (count, ranks) =
                (ranks, if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") });
            let text = shown(&folder, &plan);
            assert!(text.starts_with(&format!("{name}: all-reduce on {ranks}, ")), "{text}");
            assert_eq!(text.lines().filter(|line| line.starts_with("rank ")).count(), count);
            let sentence = shown(&folder, &format!("{plan} --emit json > p.json && weft plan verify p.json"));
            assert!(
                sentence.starts_with(&format!("p.json: {name} for {ranks} computes all-reduce, ")),
                "{sentence}"
            );
        }
    }
}

#[test]
fn every_collective_has_a_choice_in_json() {
    let folder = scratch("plan-choice");
    for collective in [
        "all-reduce",
        "reduce",
        "broadcast",
        "all-gather",
        "all-gather-v",
        "reduce-scatter",
        "reduce-scatter-v",
        "all-to-all",
        "all-to-all-v",
        "gather",
        "scatter",
        "scan",
        "exclusive-scan",
        "barrier",
        "neighbours",
        "send-receive",
    ] {
        let size = if collective == "barrier" { "" } else { "--size 1MiB" };
        let told = shown(&folder, &format!("weft plan {collective} dgx-1-v100 {size} --json"));
        let told: Value = serde_json::from_str(&told).unwrap();
        let candidates = told["candidates"].as_array().unwrap();
        assert_eq!((&told["ranks"], &told["basis"]), (&8.into(), &"predicted".into()), "{collective}");
        assert_eq!(candidates[0]["verdict"], "chosen", "{collective}: {}", candidates[0]);
        assert!(candidates[1..].iter().all(|one| one["why"].as_str().is_some_and(|why| why.len() > 3)));
    }
}

#[test]
fn size_ranges_have_no_gaps() {
    let folder = scratch("plan-sizes");
    let command = "weft plan all-reduce \"2x hgx-h100 + 8x ndr\" --sizes 8..1GiB";
    let told: Value = serde_json::from_str(&shown(&folder, &format!("{command} --json"))).unwrap();
    let ranges = told["ranges"].as_array().unwrap();
    assert_eq!((&ranges[0]["from"], &ranges[ranges.len() - 1]["to"]), (&8.into(), &(1 << 30).into()));
    for pair in ranges.windows(2) {
        assert_eq!(pair[0]["to"].as_u64().unwrap() + 1, pair[1]["from"].as_u64().unwrap());
    }
    let text = shown(&folder, command);
    assert!(text.contains(&format!("Digest {}: ranks compare it", told["hash"].as_str().unwrap())), "{text}");
    for range in ranges {
        let [from, to] = [0, 1].map(|end| range["time_ps"][end].as_u64().unwrap());
        assert!(0 < from && from <= to, "{range}");
        assert!(range["busbw_bytes_per_second"][1].as_u64().unwrap() > 0, "{range}");
    }
    assert!(told["bound"]["algbw_bytes_per_second"].as_u64().unwrap() > 0, "{told}");
}

#[test]
fn switch_algorithms_are_named_and_can_be_excluded() {
    let folder = scratch("plan-switches");
    let command = "weft plan all-reduce \"2x hgx-h100 + 8x ndr\" --size 1G";
    let text = |options: &str| {
        let printed = shown(&folder, &format!("{command}{options}"));
        printed.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let usual = text("");
    assert!(usual.contains("(NVLink SHARP). If yours do not, add --without nvls-tree."), "{usual}");
    assert!(usual.contains("GB/s if switches reduce; at most "), "{usual}");
    assert!(usual.contains("needs network switches that reduce (SHARP)"), "{usual}");
    let sharp = text(" --sharp");
    assert!(sharp.contains("collnet-direct, collnet-chain need network switches that reduce"), "{sharp}");
    for of_network in [" --algorithm collnet-chain", " --sharp --algorithm collnet-chain"] {
        assert!(text(of_network).contains("collnet-chain"), "{of_network}");
    }
    let without = text(" --without nvls-tree");
    assert!(!without.contains("NVLink SHARP"), "{without}");
    assert!(without.contains("GB/s if GPUs reduce; at most "), "{without}");
}

#[test]
fn a_barrier_has_no_size_and_no_rate() {
    let folder = scratch("plan-barrier");
    let text = shown(&folder, "weft plan barrier hgx-h100");
    assert!(text.starts_with("barrier on 8 ranks of hgx-h100, in one island\n"), "{text}");
    let row = text.lines().find(|line| line.starts_with("one-shot ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[5..], ["-", "-", "-", "chosen"], "{row}");
    assert!(text.contains("\nNot for barrier: exchange-ll, exchange, "), "{text}");
    let text = shown(&folder, "weft plan send-receive hgx-h100 --messages 0:0");
    assert!(text.starts_with("send-receive of 1 message on 8 ranks"), "{text}");
}

#[test]
fn chosen_plan_can_be_emitted_proved_and_shown() {
    let folder = scratch("plan-chosen");
    shown(&folder, "weft plan all-reduce dgx-1-v100 --size 1GiB --emit json > p.json");
    let sentence = shown(&folder, "weft plan verify p.json");
    assert!(sentence.starts_with("p.json: ring for 8 ranks computes all-reduce"), "{sentence}");
    let text = shown(&folder, "weft plan all-reduce hgx-h100 --algorithm tree --show 3");
    assert!(text.contains("proved, hash") && text.contains("\nrank 3\n"), "{text}");
    assert!(!text.contains("\nrank 2\n"), "{text}");
    let dot = shown(&folder, "weft plan all-gather hgx-h100 --algorithm ring --emit dot");
    assert!(dot.starts_with("digraph"), "{dot}");
}

#[test]
fn show_works_with_100000_ranks() {
    let folder = scratch("plan-large");
    let cluster = "\"12500x hgx-h100 + 8x ndr\"";
    let text =
        shown(&folder, &format!("weft plan all-reduce {cluster} --algorithm hierarchical --show 99999"));
    assert!(text.contains("all-reduce on 100000 ranks") && text.contains("not proved"), "{text}");
    assert!(text.contains("\nrank 99999\n"), "{text}");
}

#[test]
fn plan_as_text() {
    let text = shown(&scratch("plan-words"), "weft plan all-reduce -n 4 --algorithm ring --lanes 2 --show 1");
    assert!(
        text.contains("  channel 1: simple (payload, then a flag), at most 2 messages in flight\n"),
        "{text}"
    );
    let program = text.split_once("\n\n").unwrap().1;
    assert_eq!(
        program,
        "rank 1
  lane 0, channel 0
     0  take input[2], send to rank 2
        for i = 0 to 1:
     1    combine message from rank 0 + input[(-2i) mod 8], send to rank 2
     2  combine message from rank 0 + input[4], store in output[4], send to rank 2
        for i = 0 to 1:
     3    take message from rank 0, store in output[(2 - 2i) mod 8], send to rank 2
     4  take message from rank 0, store in output[6]
  lane 1, channel 1
     0  take input[3], send to rank 0
        for i = 0 to 1:
     1    combine message from rank 2 + input[(4 + 2i) mod 8 + 1], send to rank 0
     2  combine message from rank 2 + input[1], store in output[1], send to rank 0
        for i = 0 to 1:
     3    take message from rank 2, store in output[(2 + 2i) mod 8 + 1], send to rank 0
     4  take message from rank 2, store in output[7]
"
    );
}

#[test]
fn emitted_plans_verify_and_run() {
    let folder = scratch("plan-round-trip");
    for (name, buffers) in [("ring --lanes 2", "-R 0"), ("two-shot", "-R 2")] {
        shown(&folder, &format!("weft plan all-reduce -n 3 --algorithm {name} --emit json > p.json"));
        let told: Value =
            serde_json::from_str(&shown(&folder, "weft plan verify --json - < p.json")).unwrap();
        assert_eq!((&told["verified"], &told["ranks"]), (&true.into(), &3.into()));
        let run = format!("weft bench --plan p.json -b 8 -e 8KiB -f 32 --iters 2 {buffers} --json");
        let run: Value = serde_json::from_str(&shown(&folder, &run)).unwrap();
        assert_eq!((&run["ranks"], &run["out_of_bounds"]), (&3.into(), &0.into()));
        assert_eq!(run["rows"][1]["plan"], name.split(' ').next().unwrap());
    }
    let done = shell(&folder, "weft bench all-reduce --plan p.json -R 2 -n 4");
    assert_eq!(done.code, Some(2));
    assert!(done.errors.contains("plan \"two-shot\" is for 3 ranks, not for -n 4"), "{}", done.errors);
}

#[test]
fn modified_plans_are_refused() {
    let folder = scratch("plan-tampered");
    let text = shown(&folder, "weft plan all-reduce -n 4 --algorithm ring --emit json");
    let mut plan: Value = serde_json::from_str(&text).unwrap();
    // Rank 2 adds its part of the wrong chunk on the way.
    plan["programs"][2]["lanes"][0]["nodes"][2]["step"]["inputs"][1]["local"]["chunk"] = json!(0);
    std::fs::write(folder.join("bad.json"), plan.to_string()).unwrap();
    for command in ["weft plan verify bad.json", "weft bench --plan bad.json"] {
        let done = shell(&folder, command);
        assert_eq!(done.code, Some(1), "{command}");
        assert!(
            done.errors.starts_with("weft: bad.json: plan \"ring\" is refused: rank 2, lane 0, step 2: "),
            "{}",
            done.errors
        );
        assert!(done.output.is_empty(), "{command}: {}", done.output);
    }
    let done = shell(&folder, "weft plan verify bad.json --json");
    assert_eq!(done.code, Some(1));
    let told: Value = serde_json::from_str(&done.output).unwrap();
    assert_eq!(told["verified"], false);
    assert_eq!(told["at"], json!({ "rank": 2, "lane": 0, "step": 2, "iterations": [] }));
    assert!(told["fault"].as_str().unwrap().contains("different chunks"), "{told}");
    for (file, text, fault, code) in [
        ("no.json", "{", "not a plan", 2),
        ("no.xml", "<algo/>", "algo: the attribute coll is missing", 1),
        ("none.json", "", "is empty", 2),
    ] {
        std::fs::write(folder.join(file), text).unwrap();
        let done = shell(&folder, &format!("weft plan verify {file} --json"));
        let told: Value = serde_json::from_str(&done.output).unwrap();
        assert_eq!((done.code, &told["verified"]), (Some(code), &false.into()), "{file}");
        assert!(told["fault"].as_str().unwrap().contains(fault), "{file}: {told}");
    }
}

#[test]
fn wrong_arguments_and_files_have_exit_codes() {
    let folder = scratch("plan-misuse");
    std::fs::write(folder.join("no.json"), "{ \"weft\": \"plan/9\" }").unwrap();
    std::fs::write(folder.join("empty.json"), "").unwrap();
    std::fs::write(folder.join("msccl.xml"), "\u{feff}\n<algo name=\"allreduce\" nchunksperloop=\"8\"/>")
        .unwrap();
    for (arguments, code, told) in [
        (
            "all-reduce",
            2,
            "or an algorithm: --algorithm exchange-ll, exchange, one-shot, two-shot, pull, staged, ring",
        ),
        ("all-reduce", 2, "name a fabric, such as hgx-h100"),
        ("all-reduce hgx-h100 -n 4", 2, "cannot be used with"),
        ("all-reduce hgx-h100 --size 1Gb", 2, "`1Gb` is not a size"),
        ("all-reduce hgx-h100 --size -1", 2, "`-1` is not a size"),
        ("all-reduce hgx-h100 --size 18446744073709551615", 2, "is too large; the largest size is 1 PB"),
        ("all-reduce hgx-h100 --sizes 1..18446744073709551615", 2, "is too large; the largest size is 1 PB"),
        ("all-reduce hgx-h100 --sizes 8...9", 2, "`.9` is not a size"),
        ("all-reduce hgx-h100 --sizes 1GiB..8", 2, "is larger than"),
        ("barrier hgx-h100 --size 8", 2, "--size does not apply to barrier"),
        ("all-reduce \"2x hgx-h100\"", 2, "add NICs to the spec, as in `2x hgx-h100 + 8x ndr`"),
        ("all-reduce \"2x hgx-h100\" --sizes 8..1G", 2, "add NICs to the spec"),
        ("all-reduce \"2x hgx-h100\" --show 0", 2, "add NICs to the spec"),
        ("barrier hgx-h100 --without one-shot,dissemination", 2, "--without: every algorithm for barrier"),
        ("all-reduce hgx-h100 --sizes 8", 2, "write two sizes with two dots between"),
        ("all-reduce hgx-h100 --root 1", 2, "--root does not apply to all-reduce"),
        ("broadcast hgx-h100 --root 8", 2, "is impossible on 8 ranks"),
        ("neighbours hgx-h100 --torus 3x3", 2, "3 x 3 is 9 places, but there are 8 ranks"),
        ("send-receive hgx-h100 --messages 0-1", 2, "write pairs of sender and receiver: 0:1,1:0"),
        ("all-reduce hgx-h100 --algorithm hierarchical", 2, "at least 2 islands"),
        ("all-reduce hgx-h100 --show 8", 2, "ranks are 0 to 7"),
        ("all-reduce hgx-h99", 2, "hgx-h"),
        ("--size 8", 2, "name a fabric"),
        (
            "all-reduce --algorithm bruk",
            2,
            "unknown algorithm `bruk`. Did you mean `bruck`? Known algorithms: exchange-ll",
        ),
        ("all-reduce -n 0 --algorithm ring", 2, "must be a whole number between 1 and 1024"),
        ("all-reduce -n 4 --algorithm ring --show 4", 2, "ranks are 0 to 3"),
        ("all-reduce -n 4 --algorithm ring --show 0 --emit json", 2, "a file holds all ranks"),
        ("all-reduce --algorithm exchange --lanes 3", 2, "--lanes works with --algorithm ring and staged"),
        ("all-reduce --algorithm tree --lanes 2", 2, "tree has a fixed number of lanes"),
        ("all-reduce --algorithm ring --size 8", 2, "sizes and --without need a fabric"),
        ("all-reduce --algorithm ring --without tree", 2, "sizes and --without need a fabric"),
        ("verify nothere.json", 2, "cannot read nothere.json"),
        ("verify .", 2, "cannot read ."),
        ("verify empty.json", 2, "empty.json is empty"),
        ("verify msccl.xml", 1, "msccl.xml: algo: the attribute coll is missing\n"),
        ("import msccl.xml", 1, "msccl.xml: algo: the attribute coll is missing\n"),
        (
            "all-reduce --algorithm one-shot --emit msccl",
            1,
            "it waits until rank 1 has entered the call, which MSCCL's XML",
        ),
        ("all-reduce hgx-h100 --emit msccl", 1, "--algorithm ring can be written"),
        (
            "verify no.json",
            2,
            "no.json: not a plan: unknown variant `plan/9`, expected `plan/1` at line 1 column 18\n",
        ),
    ] {
        let done = shell(&folder, &format!("weft plan {arguments}"));
        assert_eq!(done.code, Some(code), "{arguments}: {}", done.errors);
        assert!(done.errors.contains(told), "{arguments}: {}", done.errors);
        assert!(done.output.is_empty(), "{arguments}: {}", done.output);
    }
}

#[test]
fn docs_state_the_limits_of_a_proof() {
    let folder = scratch("plan-limits");
    let guide = std::fs::read_to_string(root().join("docs/plan.md")).unwrap();
    let limits = guide.split_once("| what | at most |").unwrap().1.split_once("\n\n").unwrap().0;
    let sync = json!({ "step": { "op": "sync" } });
    let signal = json!({ "step": { "op": "sync", "signals": [0] } });
    let repeated = |times: u32, node: &Value| json!([{ "loop": { "times": times, "body": [node] } }]);
    let lane = |nodes: Value| json!({ "nodes": nodes });
    let lanes = |count: usize, each: &Value| json!({ "lanes": vec![each; count] });
    let empty = lane(json!([]));
    let mut with_signals = lanes(256, &empty);
    with_signals["lanes"][0] = lane(repeated(600, &signal));
    for (what, ranks, program, changes) in [
        ("number of ranks", 70_000, lanes(1, &empty), json!({})),
        ("lanes of a rank", 1, lanes(257, &empty), json!({})),
        ("lanes of all ranks", 65, lanes(256, &empty), json!({})),
        (
            "number of channels",
            1,
            lanes(1, &empty),
            json!({ "channels": vec![json!({ "protocol": "ll", "depth": 1 }); 1025] }),
        ),
        (
            "depth of a channel",
            1,
            lanes(1, &empty),
            json!({ "channels": [{ "protocol": "ll", "depth": 257 }] }),
        ),
        ("number of counters", 1, lanes(1, &empty), json!({ "counters": 1025 })),
        ("number of chunks", 1, lanes(1, &empty), json!({ "chunks": { "input": 1, "output": 2_000_000 } })),
        ("work of one tile", 1, lanes(1, &lane(repeated(40_000_000, &sync))), json!({})),
        ("work of a proof", 1, lanes(256, &lane(repeated(10_000, &sync))), json!({})),
        ("signals of a proof", 16, with_signals, json!({ "counters": 1 })),
        (
            "chunks of all ranks and tiles",
            2,
            lanes(1, &empty),
            json!({ "chunks": { "input": 1_000_000, "output": 1_000_000 } }),
        ),
    ] {
        let mut plan = json!({
            "weft": "plan/1", "name": "large", "collective": "all-reduce", "ranks": ranks,
            "chunks": { "input": 1, "output": 1 }, "aliasing": ["in_place"],
            "programs": vec![program; ranks.min(65)],
        });
        let changed =
            changes.as_object().unwrap().iter().map(|(field, value)| (field.clone(), value.clone()));
        plan.as_object_mut().unwrap().extend(changed);
        std::fs::write(folder.join("large.json"), plan.to_string()).unwrap();
        let told = shell(&folder, "weft plan verify large.json").errors;
        assert!(told.contains(what), "{what}: {told}");
        let limit = told.split_once("more than the ").unwrap().1.split(' ').next().unwrap();
        let is_told = limits.split([' ', ';', '|']).any(|word| word == limit);
        assert!(is_told, "docs/plan.md does not tell that {what} has the limit {limit}");
    }
}

#[test]
fn msccl_programs_round_trip() {
    let folder = scratch("plan-msccl");
    let run = |command: &str| {
        let done = shell(&folder, command);
        assert_eq!(done.code, Some(0), "{command}: {}", done.errors);
        done.output
    };
    run("weft plan all-reduce -n 3 --algorithm exchange --emit msccl > exchange.xml");
    let proved = run("weft plan verify exchange.xml");
    assert!(
        proved.starts_with(
            "exchange.xml: exchange for 3 ranks computes all-reduce, out of place and in place;"
        )
    );
    assert_eq!(run("weft plan verify - < exchange.xml").replacen("-:", "exchange.xml:", 1), proved);
    run("weft plan import exchange.xml -o exchange.json");
    assert_eq!(run("weft plan import exchange.xml"), run("cat exchange.json"));
    assert_eq!(run("weft plan verify exchange.json").replace(".json", ".xml"), proved);
    run("sed '0,/rrc/s//rrs/' exchange.xml > astray.xml");
    let astray = shell(&folder, "weft plan verify astray.xml");
    assert_eq!(astray.code, Some(1));
    assert!(astray.errors.contains("gpu 0, tb 0, step 1"), "{}", astray.errors);
}
