//! `weft sim` from the outside: what it prints, that it can be read by programs, and what it refuses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;

use common::{Outcome, json, root, scratch, shell, shown};
use serde_json::Value;

fn time_us(folder: &Path, question: &str) -> f64 {
    json(folder, &format!("weft sim {question}"))["rows"][0]["time_us"].as_f64().unwrap()
}

#[test]
fn every_collective_has_a_prediction_with_an_error() {
    let folder = scratch("sim-all");
    for collective in
        ["all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter", "all-to-all", "send-receive"]
    {
        for fabric in ["hgx-h100", "2x hgx-a100 + 8x hdr", "dgx-1-v100", "4x-rtx4090"] {
            let found =
                json(&folder, &format!("weft sim {collective} '{fabric}' --sizes 1KiB..64MiB -f 256"));
            assert_eq!(found["fabric"], fabric);
            assert_eq!(found["library"], "nccl");
            let rows = found["rows"].as_array().unwrap();
            assert_eq!(rows.len(), 3, "{collective} on {fabric}");
            for row in rows {
                assert!(row["time_us"].as_f64().unwrap() > 1.0, "{row}");
                let of = |name: &str| row["intervals_us"][name].as_f64().unwrap();
                let time = row["time_us"].as_f64().unwrap();
                let bounds = [of("low90"), of("low50"), time, of("high50"), of("high90")];
                assert!(bounds.is_sorted() && bounds[0] > 0.0, "{row}");
                let busy = row["bottleneck"]["busy"].as_f64().unwrap_or(0.0);
                assert!(busy <= 1.001, "no link is busier than always: {row}");
            }
        }
    }
    let text = shown(&folder, "weft sim all-reduce hgx-h100 --size 1GiB --library nccl:2.22");
    for part in
        ["8 x h100 (nvswitch)", "library nccl 2.22", "NVLS", "NVLink 4", "At 1 GiB, half of all machines"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn what_if_options_change_the_time() {
    let folder = scratch("sim-what-if");
    let cluster = "all-reduce '4x hgx-h100 + 8x ndr' --size 256MiB";
    let usual = time_us(&folder, cluster);
    for (option, least) in
        [("--no-gpudirect", 1.5), ("--sockets", 5.0), ("--storage 40", 1.05), ("--algorithm tree", 1.05)]
    {
        let otherwise = time_us(&folder, &format!("{cluster} {option}"));
        assert!(otherwise > least * usual, "{option}: {otherwise} us, usually {usual} us");
    }
    let half = time_us(&folder, "all-reduce '4x hgx-h100 + 4x ndr' --size 256MiB");
    let whole = time_us(&folder, "all-reduce '4x hgx-h100 + 4x ndr' --size 256MiB --nics-per-gpu 1");
    assert!(half > 1.2 * whole, "{half} us with half the NICs, {whole} us");
    let node = time_us(&folder, "all-reduce hgx-h100 --size 256MiB");
    assert!(time_us(&folder, "all-reduce hgx-h100 --size 256MiB --no-peer-access") > 8.0 * node);
    assert!(
        time_us(&folder, "all-reduce hgx-h100 --size 8 --launch thread")
            > 1.5 * time_us(&folder, "all-reduce hgx-h100 --size 8")
    );
    let old = json(&folder, "weft sim all-reduce hgx-h100 --size 256MiB --library nccl:2.10");
    assert_eq!(old["rows"][0]["algorithm"], "Ring", "NVLS came with 2.17");
}

#[test]
fn fabrics_are_compared_and_copies_predicted() {
    let folder = scratch("sim-compare");
    let found = json(&folder, "weft sim compare hgx-b200 8x-rtx5090 '2x hgx-h100 + 8x eth100' --size 1GB");
    let time = |at: usize| found["fabrics"][at]["prediction"]["time_us"].as_f64().unwrap();
    assert!(time(1) > 10.0 * time(0) && time(2) > 10.0 * time(0), "{found}");
    let text = shown(&folder, "weft sim compare hgx-b200 8x-rtx5090 --size 1GB");
    assert!(text.contains("63.4") && text.contains("PCIe 5.0 x16"), "{text}");
    let copy =
        |question: &str| json(&folder, &format!("weft sim copy {question}"))["seconds"].as_f64().unwrap();
    let load = copy("numa0 gpu0 --fabric hgx-h100 --size 80GB");
    assert!((1.3..1.7).contains(&load), "80 GB over PCIe 5.0 in {load} s");
    assert!(copy("gpu0 gpu1 --fabric hgx-h100 --size 80GB") < load / 5.0);
    assert!(
        copy("gpu0 gpu1 --fabric 2x-rtx4090") > 2.0 * copy("gpu0 gpu1 --fabric 2x-rtx4090 --peer-access on")
    );
}

#[test]
fn plot_writes_svg() {
    let folder = scratch("sim-plot");
    shown(&folder, "weft sim all-reduce hgx-h100 --sizes 8..1GiB --plot a.svg");
    let picture = fs::read_to_string(folder.join("a.svg")).unwrap();
    assert!(picture.starts_with("<svg ") && picture.contains("all-reduce, hgx-h100, predicted"));
    assert_eq!(picture.matches("<path class=\"p\"").count(), 3, "a line in each panel and in the legend");
}

#[test]
fn disturbances_slow_the_call() {
    let folder = scratch("sim-disturbed");
    let slower = |question: &str| {
        let found = json(&folder, &format!("weft sim all-reduce {question}"));
        let row = &found["rows"][0];
        row["time_us"].as_f64().unwrap() / row["undisturbed_us"].as_f64().unwrap()
    };
    let cluster = "'2x hgx-h100 + 8x ndr' --size 256MiB --algorithm ring";
    for (question, least, most) in [
        (format!("{cluster} --slow host1/nic0,leaf0=0.5"), 1.4, 2.2),
        (format!("{cluster} --flap host1/nic0,leaf0=1ms,500us"), 1.3, 2.4),
        (format!("{cluster} --throttle 3=0.25"), 1.5, 4.2),
        (format!("{cluster} --beside all-reduce:256MiB"), 1.4, 2.2),
        ("dgx-1-v100 --size 64MiB --missing gpu0,gpu1".to_owned(), 1.1, 4.0),
        // Four GPUs of each host and the other four share nothing but NICs that are not theirs.
        (
            "'2x hgx-h100 + 8x ndr' --size 256MiB --gpus 0-3,8-11 --beside all-reduce:256MiB@4-7,12-15"
                .to_owned(),
            0.99,
            2.2,
        ),
    ] {
        let found = slower(&question);
        assert!((least..=most).contains(&found), "{question}: {found} times as long");
    }
    let text = shown(&folder, &format!("weft sim all-reduce {cluster} --beside all-to-all:16MiB"));
    assert!(
        text.contains("undisturbed") && text.contains("beside all-to-all of 16 MiB on 16 GPUs"),
        "{text}"
    );
}

#[test]
fn some_gpus_are_no_disturbance() {
    let folder = scratch("sim-gpus");
    let text = shown(&folder, "weft sim all-reduce dgx-h100 --gpus 0-3 --size 1G");
    assert!(text.contains("4 of 8 GPUs") && text.contains("seen as 4 x h100"), "{text}");
    assert!(!text.contains("undisturbed"), "{text}");
    let value = json(&folder, "weft sim all-reduce dgx-h100 --gpus 0-3 --size 1G");
    assert_eq!((&value["ranks"], &value["rows"][0]["undisturbed_us"]), (&4.into(), &Value::Null));
}

#[test]
fn intervals_are_wider_outside_the_evidence() {
    let folder = scratch("sim-unmeasured");
    let text = shown(&folder, "weft sim all-reduce hgx-h100 --library weft --size 64M");
    assert!(text.contains("No interval: there are no published measurements of weft."), "{text}");
    let wide = |fabric: &str, options: &str| {
        let found = json(&folder, &format!("weft sim all-reduce {fabric} --size 64M {options}"));
        let row = &found["rows"][0];
        let of = |name: &str| row["intervals_us"][name].as_f64().unwrap();
        (of("high90") / of("low90"), row["outside_the_evidence"].clone())
    };
    let (inside, none) = wide("hgx-h100", "--library nccl:2.22");
    assert_eq!(none, serde_json::json!([]));
    let (outside, why) = wide("hgx-h100", "--library nccl:2.12");
    assert!(outside > inside && why[0].as_str().unwrap().contains("older than the"), "{why}");
    let (_, why) = wide("8x-mi300x", "");
    assert!(why[0].as_str().unwrap().contains("measurements of rccl come from one site only"), "{why}");
    let newest = json(&folder, "weft sim all-reduce hgx-h100 --size 1M");
    assert_eq!(newest["library_version"], "2.32");
}

#[test]
fn plans_from_files_are_predicted() {
    let folder = scratch("sim-plan");
    shown(&folder, "weft plan all-reduce hgx-h100 --size 1GiB --algorithm ring --emit json > ring.json");
    // The plan that Weft chooses takes as long as its choice; the slots of its FIFOs are its own.
    shown(&folder, "weft plan all-gather '2x hgx-a100 + 8x hdr' --size 64MiB --emit json > gather.json");
    let own = time_us(&folder, "--plan gather.json '2x hgx-a100 + 8x hdr' --size 64MiB");
    let chosen = time_us(&folder, "all-gather '2x hgx-a100 + 8x hdr' --size 64MiB --library weft");
    assert!((own / chosen - 1.0).abs() < 0.1, "{own} us, chosen {chosen} us");
    let found = json(&folder, "weft sim --plan ring.json hgx-h100 --sizes 8..1GiB -f 4096");
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(
        (rows.len(), &found["library"], &found["collective"]),
        (3, &"weft".into(), &"all-reduce".into())
    );
    assert!(found["plan"]["hash"].is_string() && rows[0]["algorithm"] == "plan", "{found}");
    // Other orders of the words mean the same.
    let same = time_us(&folder, "all-reduce hgx-h100 --size 8 --plan ring.json");
    assert_eq!(rows[0]["time_us"].as_f64(), Some(same));
    let text = shown(&folder, "weft sim hgx-h100 --plan - --size 1GiB --trace t.json < ring.json");
    assert!(text.contains("proved") && text.contains("No interval"), "{text}");
    let trace: Value = serde_json::from_str(&fs::read_to_string(folder.join("t.json")).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|event| event["ph"] == "X"));
    // MSCCL's XML runs as --library msccl:FILE does.
    let four = "weft plan all-reduce -n 4 --algorithm ring --emit msccl > four.xml";
    shown(&folder, four);
    let by_plan = time_us(&folder, "--plan four.xml 4x-rtx4090 --size 1MiB");
    let by_name = time_us(&folder, "all-reduce 4x-rtx4090 --size 1MiB --library msccl:four.xml");
    assert_eq!(by_plan, by_name);
    assert!(time_us(&folder, "--plan four.xml 4x-rtx4090 --size 1MiB --library weft") > 1.0);
    for (question, message) in [
        ("--plan ring.json dgx-1-v100 --algorithm ring", "it has its own algorithm"),
        ("--plan ring.json hgx-h100 --protocol LL", "it has its own protocol"),
        ("--plan ring.json hgx-h100 --library nccl", "nccl runs its own algorithms"),
        ("--plan ring.json 4x-rtx4090", "is for 8 ranks, and 4x-rtx4090 has 4 GPUs; name a fabric with 8"),
        ("all-gather hgx-h100 --plan ring.json", "computes all-reduce, not all-gather"),
        ("--plan four.xml 4x-rtx4090 --library msccl:four.xml", "both name a program"),
        ("--plan ring.json hgx-h100 dgx-h100", "two words for one fabric"),
        ("--plan ring.json hgx-h100 --throttle 0=0.5", "disturbances work with nccl"),
        ("--plan nowhere.json hgx-h100", "cannot read nowhere.json"),
        ("hgx-h100", "write the collective first"),
    ] {
        let Outcome { errors, code, output } = shell(&folder, &format!("weft sim {question}"));
        assert!(matches!(code, Some(1 | 2)), "{question}: {code:?}\n{output}");
        assert!(errors.contains(message), "{question}: {errors}");
    }
}

#[test]
fn explanations_add_up() {
    let folder = scratch("sim-explain");
    for question in [
        "all-reduce hgx-h100 --sizes 8..1GiB -f 1024",
        "all-reduce '4x hgx-h100 + 8x ndr' --size 1GiB",
        "all-reduce '4x hgx-h100 + 8x ndr' --size 1GiB --algorithm ring",
        "all-gather 4x-rtx4090 --size 64MiB",
        "all-reduce 8x-mi300x --size 64MiB",
        "all-to-all '2x hgx-a100 + 8x hdr' --size 64MiB --library weft",
        "all-reduce dgx-1-v100 --size 64MiB --library weft",
    ] {
        let text = shown(&folder, &format!("weft sim {question} --explain"));
        let mut sum = 0.0;
        let mut sums = 0;
        // Lines that continue a sentence begin with spaces.
        for line in text.lines().filter(|line| !line.starts_with(' ')) {
            let mut words = line.split_whitespace();
            let (term, us) = (words.next().unwrap_or(""), words.next().unwrap_or("").parse::<f64>());
            match (term, us) {
                ("launch" | "hops" | "messages" | "wire" | "fill" | "hidden" | "host", Ok(us)) => sum += us,
                ("sum", Ok(us)) => {
                    assert!((sum - us).abs() < 0.05, "{question}: {sum}, printed {us}\n{text}");
                    (sum, sums) = (0.0, sums + 1);
                }
                _ => {}
            }
        }
        let found = json(&folder, &format!("weft sim {question} --explain"));
        let rows = found["rows"].as_array().unwrap();
        assert_eq!(sums, rows.len(), "{text}");
        assert_eq!(text.matches("the run: ").count(), sums, "{text}");
        for row in rows {
            let explain = &row["explain"];
            let all = explain["terms"].as_array().unwrap().iter();
            let added: f64 = all.map(|term| term["us"].as_f64().unwrap()).sum();
            let closed = explain["closed_form_us"].as_f64().unwrap();
            assert!((added / closed - 1.0).abs() < 1e-6, "{question}: {explain}");
            assert_eq!(explain["run_us"], row["time_us"]);
            for term in explain["terms"].as_array().unwrap() {
                let product = match term["term"].as_str().unwrap() {
                    "hops" => term["count"].as_f64().unwrap() * term["each_us"].as_f64().unwrap(),
                    "wire" if term["bytes"] != 0.0 => {
                        term["bytes"].as_f64().unwrap() / term["gb_per_s"].as_f64().unwrap() / 1e3
                    }
                    _ => continue,
                };
                assert!((product - term["us"].as_f64().unwrap()).abs() < 1e-6, "{question}: {term}");
            }
        }
    }
    let Outcome { errors, code, .. } =
        shell(&folder, "weft sim all-reduce hgx-h100 --size 8 --library gloo --explain");
    assert!(code == Some(2) && errors.contains("has no closed form"), "{errors}");
}

#[test]
fn other_collectives_are_predicted() {
    let folder = scratch("sim-others");
    for collective in ["gather", "scatter", "scan", "exclusive-scan", "barrier"] {
        for fabric in ["hgx-h100", "2x hgx-a100 + 8x hdr", "4x-rtx4090"] {
            let size = if collective == "barrier" { "" } else { "--size 1MiB" };
            let us = time_us(&folder, &format!("{collective} '{fabric}' --library weft {size}"));
            assert!((1.0..10_000.0).contains(&us), "{collective} on {fabric}: {us} us");
        }
    }
    // The root sends or receives all other parts through its own links.
    for collective in ["gather", "scatter"] {
        let us = time_us(&folder, &format!("{collective} hgx-h100 --size 1GiB"));
        let least = 7.0 / 8.0 * (1_u64 << 30) as f64 / 450e3;
        assert!((least..2.0 * least).contains(&us), "{collective}: {us} us, at least {least} us");
        let found = json(&folder, &format!("weft sim {collective} hgx-h100 --size 1GiB"));
        let why = &found["rows"][0]["outside_the_evidence"][0];
        assert!(why.as_str().unwrap().contains(&format!("measurements of {collective}")), "{why}");
    }
    let scatter = time_us(&folder, "scatter '2x hgx-h100 + 8x ndr' --size 1GiB");
    let gather = time_us(&folder, "gather '2x hgx-h100 + 8x ndr' --size 1GiB");
    assert!(gather > 2.0 * scatter, "with PXN only a scatter uses all NICs: {gather} us, {scatter} us");
    // Equal counts are no counts; the rank that gets more takes longer.
    for (collective, even, library) in [
        ("all-to-all-v", "all-to-all", "nccl"),
        ("all-to-all-v", "all-to-all", "weft"),
        ("all-gather-v", "", "weft"),
        ("reduce-scatter-v", "", "weft"),
    ] {
        let of = |counts: &str| {
            time_us(&folder, &format!("{collective} 4x-rtx4090 --size 64MiB --library {library} {counts}"))
        };
        let (equal, some, all) = (of("--counts 3,3,3,3"), of("--counts 5,1,1,1"), of("--counts 1,0,0,0"));
        assert_eq!(equal, of(""), "{collective}");
        if !even.is_empty() && library == "nccl" {
            assert_eq!(
                equal,
                time_us(&folder, &format!("{even} 4x-rtx4090 --size 64MiB --library {library}"))
            );
        }
        assert!(some > 1.1 * equal && all > some, "{collective} {library}: {equal} us, {some} us, {all} us");
    }
    for (question, message) in [
        ("all-gather-v hgx-h100 --size 8", "nccl has no all-gather-v: torch.distributed broadcasts"),
        ("all-to-all-v hgx-h100 --size 8 --counts 1,2", "2 counts for 8 GPUs"),
        ("all-to-all hgx-h100 --size 8 --counts 1,2", "all-to-all has no blocks of different lengths"),
        ("all-gather-v -n 4 --size 8", "is predicted on GPUs, not between cores"),
        ("scan hgx-h100 --size 8", "nccl has no scan: an all-gather"),
        ("exclusive-scan 8x-mi300x --size 8", "rccl has no exclusive-scan"),
        ("barrier hgx-h100", "nccl has no barrier: torch.distributed runs an all-reduce of one element"),
        ("barrier hgx-h100 --library weft --size 8", "leave out the size"),
        ("gather -n 4 --library gloo --size 8", "the model of gloo has no gather"),
    ] {
        let Outcome { errors, code, output } = shell(&folder, &format!("weft sim {question}"));
        assert_eq!(code, Some(2), "{question}\n{output}");
        assert!(errors.contains(message), "{question}: {errors}");
    }
}

#[test]
fn traces_hold_every_step() {
    let folder = scratch("sim-trace");
    shown(&folder, "weft sim all-reduce hgx-h100 --size 1MiB --algorithm ring --trace t.json");
    let trace: Value = serde_json::from_str(&fs::read_to_string(folder.join("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["args"]["name"] == "rank 0"));
    let steps: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert!(steps.len() >= 14, "{}", steps.len());
    assert!(steps.iter().any(|step| step["name"].as_str().unwrap().contains("sent to 1")));
    assert_eq!(trace["otherData"]["steps_left_out"], 0);
}

#[test]
fn wrong_arguments_get_advice() {
    let folder = scratch("sim-refused");
    for (question, message) in [
        ("all-reduce hgx-h100 --library ncll", "unknown library `ncll`. Did you mean `nccl`"),
        ("all-reduce hgx-h100 --library nccl:9.9", "unknown version `9.9` of nccl"),
        ("all-reduce '0x hgx-h100'", "systems must be 1 to 100000"),
        ("all-reduce '2x hgx-h100'", "no network connects"),
        ("all-reduce hgx-h900", "hgx-h900"),
        ("all-reduce hgx-h100 --size 100GB", "do not fit: the memory of NVIDIA H100 SXM5 80GB is 80 GB"),
        ("all-reduce hgx-h100 --size 0", "0 bytes"),
        ("all-reduce hgx-h100 --sizes 1GiB..8", "is larger than"),
        ("all-reduce hgx-h100 --algorithm rings", "Did you mean `Ring`"),
        ("all-reduce hgx-h100 --plot /nonexistent/a.svg", "cannot write /nonexistent/a.svg"),
        ("all-reduce hgx-h100 --slow gpu0,gpu1=0.5", "no link connects gpu0 to gpu1"),
        ("all-reduce hgx-h100 --slow gpu0,gpu77=0.5", "hgx-h100 has no device `gpu77`"),
        ("all-reduce hgx-h100 --throttle 9=0.5", "no GPU 9 to throttle"),
        ("all-reduce hgx-h100 --gpus 0", "needs two or more GPUs"),
        ("all-reduce hgx-h100 --gpus 0-8", "no GPU 8"),
        ("all-reduce hgx-h100 --beside nothing:1GiB", "nothing"),
        ("copy gpu0 gpu0 --fabric hgx-h100", "both source and target"),
        ("copy gpu0 gpu9 --fabric hgx-h100", "hgx-h100 has no device `gpu9`"),
        ("accuracy nowhere.csv", "cannot read nowhere.csv"),
    ] {
        let Outcome { errors, code, output } = shell(&folder, &format!("weft sim {question}"));
        assert!(matches!(code, Some(1 | 2)), "{question}: {code:?}\n{output}");
        assert!(errors.contains(message), "{question}: {errors}");
    }
}

#[test]
fn predictions_ignore_names_of_measurements() {
    let folder = scratch("sim-accuracy");
    let all = fs::read_to_string(root().join("testdata/measurements/published.csv")).unwrap();
    let mut lines = all.lines();
    let head = lines.next().unwrap();
    // One machine with NVLink, one of two nodes, and copies; no field of these has a comma in quotes.
    let some: Vec<&str> = lines
        .filter(|line| {
            ["p5-1n-ar-batch,", "nebius-h100-2n-ar,"].iter().any(|id| line.starts_with(id))
                || line.contains(",p2p_unidir_bw,")
        })
        .filter(|line| !line.contains('"'))
        .collect();
    assert!(some.len() > 20, "{} rows", some.len());
    fs::write(folder.join("some.csv"), format!("{head}\n{}\n", some.join("\n"))).unwrap();
    let text = shown(&folder, "weft sim accuracy some.csv --out predicted.csv");
    for part in ["constants", "NVLink or xGMI node", "systems, worst first", "rows, worst first"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let predicted = fs::read_to_string(folder.join("predicted.csv")).unwrap();
    assert!(
        predicted
            .starts_with("id,collective,size_bytes,predicted_us,low50_us,high50_us,low90_us,high90_us\n"),
        "{predicted}"
    );
    let column = |name: &str| head.split(',').position(|column| column == name).unwrap();
    let renamed: Vec<String> = some
        .iter()
        .map(|line| {
            let mut fields: Vec<&str> = line.split(',').collect();
            for name in ["system", "source", "notes"] {
                fields[column(name)] = "elsewhere";
            }
            fields[column("id")] = "a";
            fields.join(",")
        })
        .collect();
    fs::write(folder.join("renamed.csv"), format!("{head}\n{}\n", renamed.join("\n"))).unwrap();
    shown(&folder, "weft sim accuracy renamed.csv --out again.csv");
    let times = |file: &str| -> Vec<String> {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        text.lines().map(|line| line.rsplit(',').next().unwrap().to_owned()).collect()
    };
    assert_eq!(times("predicted.csv"), times("again.csv"));
    let value = json(&folder, "weft sim accuracy some.csv");
    assert!(value["all"][3]["median"].as_f64().unwrap() < 0.3, "{}", value["all"]);
}
