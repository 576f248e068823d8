//! Ranks on several hosts, which are connected network namespaces.
//!
//! Where namespaces are not allowed, the test prints that it was skipped and passes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::process::{Child, Stdio};

use support::{build_driver, compile, with_library};
use weftlink_testkit::hosts::Hosts;

/// Runs a program on ranks of two hosts, and checks that all end well.
fn run(hosts: &Hosts, test: &str, program: &str, work: &str, places: &[usize], cuda: bool) {
    let folder = with_library(test);
    if cuda {
        build_driver(&folder);
    }
    let program = compile(&folder, program);
    let start = |(rank, host): (usize, &usize)| {
        let (rank, size) = (rank.to_string(), places.len().to_string());
        let mut command = hosts.command(*host, &program);
        command.args([work, "rank", &size, &rank]).arg(folder.join("id"));
        command.env_clear().env("WEFT_DEADLINE", "60s").stdout(Stdio::piped()).stderr(Stdio::piped());
        if cuda {
            command.env("TEST_CUDA", "1").env("LD_LIBRARY_PATH", &folder);
        }
        command.spawn().unwrap()
    };
    let ranks: Vec<Child> = places.iter().enumerate().map(start).collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let done = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(
            done.status.success() && out.ends_with("ok\n"),
            "rank {rank}: {:?}\n{out}\n{err}",
            done.status
        );
    }
}

#[test]
fn collectives_and_messages_between_hosts() {
    let Some(hosts) = hosts() else { return };
    run(&hosts, "hosts-collectives", "collectives", "all", &[0, 1, 1], false);
    run(&hosts, "hosts-messages", "groups", "messages", &[0, 0, 1], false);
    run(&hosts, "hosts-puts", "onesided", "puts", &[0, 1, 0], false);
    run(&hosts, "hosts-families", "groups", "families", &[1, 0, 1], false);
}

/// Between hosts, memory of a GPU is copied to the host and back.
#[test]
fn memory_of_gpus_between_hosts() {
    let Some(hosts) = hosts() else { return };
    run(&hosts, "hosts-gpu-collectives", "collectives", "all", &[0, 1, 0], true);
    run(&hosts, "hosts-gpu-puts", "onesided", "apart", &[0, 1], true);
    run(&hosts, "hosts-gpu-messages", "groups", "messages", &[0, 1, 1], true);
}

fn hosts() -> Option<Hosts> {
    Hosts::new(2).inspect_err(|why| println!("skipped: {why}")).ok()
}
