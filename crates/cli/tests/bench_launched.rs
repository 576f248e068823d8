//! `weft bench` as a rank of a job that a launcher started, here and on hosts that are network namespaces.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Outcome, scratch, shell};
use serde_json::Value;
use weftlink_testkit::hosts::Hosts;

const SMALL: &str = "-b 8 -e 4KiB -f 512 --iters 2";

fn run(name: &str, command: &str) -> Outcome {
    shell(&scratch(&format!("bench-launched-{name}")), command)
}

/// The document that a job prints, which must go well.
fn document(name: &str, before: &str, options: &str) -> Value {
    let done = run(name, &format!("{before} weft bench all-reduce {SMALL} --json {options}"));
    assert_eq!(done.code, Some(0), "{}\n{}", done.output, done.errors);
    serde_json::from_str(&done.output).unwrap()
}

fn assert_measured(run: &Value, ranks: usize) {
    assert_eq!((&run["ranks"], &run["error"]), (&ranks.into(), &Value::Null));
    assert_eq!(run["rows"].as_array().unwrap().len(), 2);
    assert_eq!(run["out_of_bounds"], 0);
    assert_eq!(run["pids"].as_array().unwrap().len(), ranks);
}

#[test]
fn rank_0_of_weft_run_prints() {
    let run = document("run", "weft run -n 3 --bind none --no-tag --", "");
    assert_measured(&run, 3);
    assert_eq!((&run["launcher"], &run["hosts"]), (&"weft-run".into(), &vec![0; 3].into()));
    // Each by a connection of its own, as if it were alone on its host.
    let run = document("apart", "WEFT_SHM=off weft run -n 2 --bind none --no-tag --", "");
    assert_measured(&run, 2);
    assert_eq!(run["hosts"], Value::from(vec![0, 1]));
}

#[test]
fn launcher_none_starts_ranks() {
    let run = document("none", "RANK=1 WORLD_SIZE=4", "--launcher none");
    assert_measured(&run, 2);
    assert_eq!(run["launcher"], Value::Null);
    let run = document("own-apart", "WEFT_SHM=off", "-n 2");
    assert_measured(&run, 2);
}

#[test]
fn options_that_contradict_the_launcher_are_refused() {
    for (options, told) in [
        (
            "-n 4",
            "weft: -n 4, but variables started this process as rank 1 of 3; omit -n, or add --launcher none to start other \
             ranks\n",
        ),
        ("--threads", "weft: --threads, but variables started this process as rank 1 of 3; omit it, or add "),
        (
            "--bind core",
            "weft: --bind core, but variables started this process as rank 1 of 3, and the launcher places ",
        ),
    ] {
        let environment = "RANK=1 WORLD_SIZE=3 WEFT_RENDEZVOUS=127.0.0.1:1";
        let done = run("contradicted", &format!("{environment} weft bench all-reduce {options}"));
        assert_eq!((done.code, done.output.as_str()), (Some(2), ""));
        assert!(done.errors.starts_with(told), "{}", done.errors);
    }
    let half = run("half", "RANK=1 weft bench all-reduce");
    assert_eq!(half.code, Some(2));
    assert!(
        half.errors.contains("WORLD_SIZE is not") && half.errors.contains("--launcher none"),
        "{}",
        half.errors
    );
}

#[test]
fn different_arguments_on_ranks_are_an_error() {
    let command = "weft run -n 2 --bind none -- sh -c 'exec weft bench all-reduce -b 8 -e $((8 << RANK)) -f 2 --iters 2'";
    let done = run("different", command);
    assert_eq!(done.code, Some(2), "{}\n{}", done.output, done.errors);
    assert!(done.errors.contains("rank 1 has another job than rank 0"), "{}", done.errors);
}

#[test]
fn ranks_on_hosts_in_namespaces_measure() {
    let hosts = match Hosts::new(2) {
        Ok(hosts) => hosts,
        Err(why) => return println!("skipped: {why}"),
    };
    let [one, other] = [0, 1].map(|host| hosts.number(host));
    let (shell, address) = (hosts.remote_shell(), Hosts::ipv4(0));
    let launcher = format!(
        "weft run -n 4 --hosts {one},{other} --rsh '{shell}' --address {address} --bind none --no-tag --"
    );
    let run = document("namespaces", &launcher, "");
    assert_measured(&run, 4);
    assert_eq!(run["hosts"], Value::from(vec![0, 0, 1, 1]));
}
