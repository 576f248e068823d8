//! `weft knobs`, and docs/knobs.md, which is written from the same registry.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fmt::Write;

use common::{assert_current, scratch, shell};
use weftlink_knobs::KNOBS;

const INTRODUCTION: &str = "\
# Settings

<!-- Written by `make bless` from crates/knobs/src/registry.rs; change that. -->

Ranks read these environment variables. `weft knobs` prints their values and where each comes from, `weft knobs NAME` explains one, and
`--json` is for programs; both point out misspelt names. An empty variable counts as unset, except that an empty `WEFT_SECRET` is an error.
An invalid value is an error:

```console
$ WEFT_STREAMS=17 weft knobs
weft: WEFT_STREAMS=17: 17 is larger than 16; it takes a number from 1 to 16
[exit code 2]
```

The `Options` of a program take precedence; `Options::from_environment()` reads these settings. Programs always read `WEFT_TUNING`,
`WEFT_DEBUG`, `WEFT_DEBUG_FILE`, `WEFT_RECORD_DIR`, `WEFT_METRICS` and `WEFT_CACHE`. Settings marked *alike* must be the same on all ranks
of a job.

| setting | takes | default | alike | meaning |
|---|---|---|---|---|
";

#[test]
fn knobs_page_is_current() {
    let mut page = INTRODUCTION.to_owned();
    for knob in &KNOBS {
        let alike = if knob.all_alike { "yes" } else { "" };
        let (name, takes, default, meaning) = (knob.name, knob.takes, knob.default, knob.meaning);
        writeln!(page, "| `{name}` | {takes} | {default} | {alike} | {meaning} |").unwrap();
    }
    assert_current("docs/knobs.md", &page);
}

#[test]
fn values_have_an_origin() {
    let folder = scratch("knobs");
    let set = "WEFT_DEADLINE=5s WEFT_SECRET=swordfish WEFT_DEADLNE=7s";
    let done = shell(&folder, &format!("{set} weft knobs"));
    let words = |name: &str| -> Vec<String> {
        let line = done.output.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words("WEFT_DEADLINE")[1..4], ["5s", "environment", "300s"]);
    assert_eq!(words("WEFT_SECRET")[1..4], ["(hidden)", "environment", "none"]);
    assert_eq!(words("WEFT_STREAMS")[1..4], ["2", "default", "2"]);
    assert!(
        done.output.contains("There is no setting WEFT_DEADLNE. Did you mean WEFT_DEADLINE?"),
        "{}",
        done.output
    );
    let json = shell(&folder, &format!("{set} weft knobs --json")).output;
    assert!(!done.output.contains("swordfish") && !json.contains("swordfish"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["settings"].as_array().unwrap().len(), KNOBS.len());
    assert_eq!(json["unknown"][0]["nearest"], "WEFT_DEADLINE");
}

#[test]
fn log_lines_go_to_the_log_file() {
    let folder = scratch("debug");
    let bench = "weft bench all-reduce -n 2 -e 64 --iters 2";
    let done = shell(&folder, &format!("WEFT_DEBUG=INFO,call=TRACE WEFT_DEBUG_FILE=log.%r.txt {bench}"));
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    for rank in 0..2 {
        let told = std::fs::read_to_string(folder.join(format!("log.{rank}.txt"))).unwrap();
        for (level, what) in [
            ("INFO", format!("meet: weft {}, rank {rank} of 2 on ", env!("CARGO_PKG_VERSION"))),
            ("INFO", "settings in the environment: WEFT_DEBUG=INFO,call=TRACE".to_owned()),
            ("INFO", " memory takes ".to_owned()),
            ("TRACE", "call: #".to_owned()),
        ] {
            let said = |line: &&str| {
                line.starts_with(&format!("weft {level} "))
                    && line.contains(&what)
                    && line.contains(&format!("[rank {rank}]"))
            };
            assert!(told.lines().any(|line| said(&line)), "no {what:?} in the lines of rank {rank}");
        }
    }
    let quiet = shell(&folder, bench);
    assert_eq!(quiet.errors, "", "there is no log by default");
    let wrong = shell(&folder, &format!("WEFT_DEBUG=LOUD {bench}"));
    assert!(wrong.errors.contains("weft: WEFT_DEBUG=LOUD: unknown level"), "{}", wrong.errors);
    let nowhere = shell(&folder, &format!("WEFT_DEBUG=INFO WEFT_DEBUG_FILE=no/such/folder {bench}"));
    assert!(
        nowhere.errors.contains("weft: cannot write WEFT_DEBUG_FILE=no/such/folder: No such file"),
        "{}",
        nowhere.errors
    );
    assert!(nowhere.errors.contains("weft INFO "), "{}", nowhere.errors);
}
