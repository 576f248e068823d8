//! `weft doctor` and `weft links`, as people call them.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod common;

use std::fs;
use std::path::Path;

use common::{Outcome, root, scratch, shell};
use serde_json::Value;

/// The healthy machine with eight GPUs, with some lines replaced.
fn machine(folder: &Path, replaced: &[(&str, &str)]) {
    let mut text = fs::read_to_string(root().join("testdata/doctor/hgx-h100.txt")).unwrap();
    for (path, line) in replaced {
        let before = text.lines().find(|known| known.starts_with(&format!("{path} "))).unwrap().to_owned();
        text = text.replacen(&before, line, 1);
    }
    fs::write(folder.join("machine.txt"), text).unwrap();
}

fn ids(report: &Value) -> Vec<&str> {
    report["findings"].as_array().unwrap().iter().map(|finding| finding["id"].as_str().unwrap()).collect()
}

#[test]
fn a_fault_is_found_costs_bandwidth_and_ends_with_1() {
    let folder = scratch("doctor-fault");
    machine(&folder, &[]);
    let healthy = shell(&folder, "weft doctor machine.txt --json");
    // A recording does not show everything.
    assert_eq!(healthy.code, Some(3), "{}", healthy.errors);
    let healthy: Value = serde_json::from_str(&healthy.output).unwrap();
    assert!(ids(&healthy).is_empty(), "{healthy:#}");
    machine(
        &folder,
        &[("nvml/3/nvlink/4", "nvml/3/nvlink/4 = down"), ("nvml/3/nvlink/5", "nvml/3/nvlink/5 = down")],
    );
    let Outcome { output, code, .. } = shell(&folder, "weft doctor machine.txt --json");
    let report: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((code, ids(&report)), (Some(1), vec!["nvlink-inactive"]), "{report:#}");
    let finding = &report["findings"][0];
    let cost = &finding["cost"];
    assert!(cost["now_gb_per_s"].as_f64().unwrap() < cost["usual_gb_per_s"].as_f64().unwrap(), "{finding:#}");
    assert!(
        !finding["evidence"].as_array().unwrap().is_empty()
            && !finding["fixes"].as_array().unwrap().is_empty()
    );
    let text = shell(&folder, "weft doctor machine.txt").output;
    assert!(text.contains("costs: ") && text.contains("fix 1: "), "{text}");
    let Outcome { output, code, .. } = shell(&folder, "weft doctor machine.txt --expect hgx-h100 --json");
    let expected: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(code, Some(1));
    assert!(ids(&expected).contains(&"expect-nvlink"), "{expected:#}");
}

#[test]
fn this_machine_is_examined_recorded_and_measured() {
    let folder = scratch("doctor-here");
    let Outcome { code, errors, .. } = shell(&folder, "weft doctor --record machine.txt --all");
    assert!(matches!(code, Some(0 | 1 | 3)), "{code:?}: {errors}");
    let recorded = shell(&folder, "weft doctor machine.txt --json");
    assert!(matches!(recorded.code, Some(0 | 1 | 3)), "{}", recorded.errors);
    let report: Value = serde_json::from_str(&recorded.output).unwrap();
    assert_eq!(report["subject"], "host0", "recordings have no names");
    let measured = shell(&folder, "weft doctor --measure --json");
    let report: Value = serde_json::from_str(&measured.output).unwrap();
    let paths = report["measured"]["paths"].as_array().unwrap();
    assert!(paths.iter().all(|path| path["is_right"] == true && path["gb_per_s"].as_f64().unwrap() > 0.0));
    assert!(!ids(&report).contains(&"wrong-data"), "{report:#}");
    let links = shell(
        &folder,
        "weft links --json && weft links --watch 0.1 --count 2 --json && weft links machine.txt",
    );
    assert_eq!(links.code, Some(0), "{}", links.errors);
}

#[test]
fn ranks_compare_their_hosts() {
    let folder = scratch("doctor-ranks");
    let command = "weft run -n 2 -- weft doctor --all-ranks --json 2>/dev/null";
    let Outcome { output, .. } = shell(&folder, &format!("{command} | sed 's/^.0. //'"));
    let told: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    let ranks = told["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2, "{told:#}");
    assert!(ranks[0]["report"].is_object() && ranks[1]["report"].is_null(), "{told:#}");
    assert_eq!(ids(&told["differences"]), Vec::<&str>::new(), "{told:#}");
    // One rank has another setting.
    let differs = "weft run -n 3 -- sh -c 'test $RANK = 1 && export NCCL_ALGO=Tree; exec weft doctor --all-ranks --json' 2>/dev/null";
    let Outcome { output, .. } = shell(&folder, &format!("{differs} | sed 's/^.0. //'"));
    let told: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    assert_eq!(ids(&told["differences"]), ["ranks-differ"], "{told:#}");
    let what = told["differences"]["findings"][0].to_string();
    assert!(what.contains("NCCL_ALGO") && what.contains("rank 1"), "{what}");
    let alone = shell(&folder, "env -u RANK -u WORLD_SIZE weft doctor --all-ranks");
    assert_eq!(alone.code, Some(2), "{}", alone.errors);
    assert!(
        alone.errors.contains("weft run --bind none --hosts a,b -- weft doctor --all-ranks"),
        "{}",
        alone.errors
    );
}

#[test]
fn logs_benchmarks_and_jobs_are_explained() {
    let folder = scratch("doctor-files");
    let data = root().join("testdata").canonicalize().unwrap();
    let of = |arguments: &str| {
        let done = shell(
            &folder,
            &format!("weft doctor {} --json", arguments.replace("DATA", data.to_str().unwrap())),
        );
        let value: Value =
            serde_json::from_str(&done.output).unwrap_or_else(|error| panic!("{error}: {}", done.errors));
        (done.code, value)
    };
    let (code, log) = of("--log DATA/logs/nccl-2.18-missing-nvlinks.log --expect dgx-a100");
    assert_eq!((code, ids(&log["report"])[0]), (Some(1), "log-topology"));
    assert_eq!(log["summary"]["versions"][0], "NCCL 2.18.3+cuda12.2");
    let (code, bench) = of("--bench DATA/logs/all_reduce-a100.log --expect dgx-a100");
    assert_eq!((code, ids(&bench["report"])[0]), (Some(1), "bench-speed"));
    let (code, job) = of("--job DATA/jobs/small-calls-rank*.json");
    assert_eq!(code, Some(1));
    assert!(ids(&job["report"]).contains(&"job-small-calls"), "{job:#}");
    let piped = format!("weft doctor --log - < {}/logs/nccl-2.28-healthy.log", data.display());
    let piped = shell(&folder, &piped).output;
    assert!(piped.contains("NCCL 2.28"), "{piped}");
}

#[test]
fn misuse_gets_advice() {
    let folder = scratch("doctor-misuse");
    fs::write(folder.join("other.txt"), "nothing").unwrap();
    for (command, advice) in [
        ("weft doctor other.txt", "weft doctor --record FILE writes"),
        ("weft doctor nowhere.txt", "nowhere.txt: "),
        ("weft doctor --bench other.txt", "other.txt cannot be read"),
        ("weft doctor --bench all-gather=nowhere.log", "cannot read nowhere.log"),
        ("weft doctor --log nowhere.log", "cannot read nowhere.log"),
        ("weft doctor --job other.txt", "other.txt: "),
        ("weft doctor --expect hgx-h200x", "Did you mean"),
        ("weft doctor --measure --log other.txt", "cannot be used with"),
        ("weft links other.txt", "unknown output"),
        ("weft links --watch 0", "write seconds from 0.1 to 3600"),
        ("weft links --count 2", "--watch"),
    ] {
        let Outcome { errors, code, output } = shell(&folder, command);
        assert_eq!(code, Some(2), "{command}: {output}{errors}");
        assert!(errors.replace('\n', " ").contains(advice), "{command}: {errors}");
    }
}
