//! Ranks on several hosts, which are connected network namespaces: they join over any interface that works, survive a short loss of link,
//! and report a long one.
//!
//! Where namespaces are not allowed, the tests print that they were skipped and pass. Every event has a minute, so results do not depend on
//! speed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "namespaces/job.rs"]
mod job;
mod support;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use job::{AMPLE, Job, Role, Settings, say};
use rustix::process::Signal;
use support::{Rank, is_right};
use weftlink_comm::Reduction;
use weftlink_plan::Collective;
use weftlink_testkit::cases::{Case, Memory, cases_of};
use weftlink_testkit::hosts::Hosts;

/// Which part of the cases each job runs.
const EVERY: usize = 67;

/// So many hosts, unless there can be none here.
fn hosts(count: usize) -> Option<Hosts> {
    Hosts::new(count).inspect_err(|why| println!("skipped: {why}")).ok()
}

#[test]
fn cases_pass_between_hosts() {
    if let Some(role) = Role::of_this_process() {
        return run_cases(&role);
    }
    let Some(hosts) = hosts(2) else { return };
    Job::start(&hosts, &[0, 0, 1, 1], "cases_pass_between_hosts", &Settings::new()).finish();
    // Without IPv4, by addresses of the other family; and with ranks dealt out.
    (0..2).for_each(|host| hosts.ip(host, "-4 addr flush dev eth0"));
    let settings = Settings { address: Hosts::ipv6(0).to_string(), ..Settings::new() };
    Job::start(&hosts, &[0, 1, 0, 1], "cases_pass_between_hosts", &settings).finish();
}

/// A part of the suite, compared with the oracle on every rank.
fn run_cases(role: &Role) {
    let comm = role.communicator();
    assert_eq!(comm.size(), 4);
    let all = Collective::NAMES.into_iter().flat_map(cases_of).filter(|case| {
        case.ranks == 4 && case.memory != Memory::Readable && case.collective != Collective::Barrier
    });
    let cases: Vec<(usize, Case)> = all.enumerate().step_by(EVERY).collect();
    let list: Vec<Case> = cases.iter().map(|(_, case)| case.clone()).collect();
    let mut rank = Rank::new(comm, &list).unwrap();
    let tickets = AtomicU64::new(0);
    let mut passed = 0;
    for (number, case) in &cases {
        if let Ok(outcome) = rank.run(*number, case, &tickets) {
            assert!(is_right(case, role.rank, &outcome), "{case}: other bits than the oracle");
            passed += 1;
        }
    }
    assert!(passed > cases.len() / 4, "{passed} of {} cases", cases.len());
    println!("{passed} of {} cases", cases.len());
    say("done");
}

#[test]
fn hosts_are_distinguished_by_network() {
    if let Some(role) = Role::of_this_process() {
        let met = role.join();
        say(&format!("hosts {:?}", met.hosts()));
        return say("done");
    }
    // One kernel, and so one boot, but two networks: memory cannot be handed over.
    let Some(hosts) = hosts(2) else { return };
    let places = [0, 1, 1, 0];
    let mut job = Job::start(&hosts, &places, "hosts_are_distinguished_by_network", &Settings::new());
    assert!(job.expect_all("hosts").iter().all(|output| output == "hosts [0, 1, 1, 0]"));
    job.finish();
}

#[test]
fn addresses_that_hosts_share_are_skipped() {
    if let Some(role) = Role::of_this_process() {
        return report_connections(&role);
    }
    let Some(hosts) = hosts(3) else { return };
    // As with containers: the first interface has the same address on all hosts, where each finds itself.
    for host in 0..3 {
        hosts.ip(host, "link add docker0 type bridge");
        hosts.ip(host, "addr add 172.17.0.1/16 dev docker0");
        hosts.ip(host, "link set docker0 up");
    }
    // The last two do not reach each other where they reach rank 0, but by a wire of their own.
    hosts.wire([1, 2], "eth1");
    for (host, other) in [(1, 2), (2, 1)] {
        hosts.ip(host, &format!("addr add 10.8.0.{}/24 dev eth1", 1 + host));
        hosts.ip(host, "link set eth1 up");
        hosts.ip(host, &format!("route add unreachable {}/32", Hosts::ipv4(other)));
        hosts.ip(host, &format!("route add unreachable {}/128", Hosts::ipv6(other)));
    }
    // All listen on the same port, so that a rank that connects to the wrong address reaches a rank of this job: itself.
    let settings = Settings { ports: "41000-41000", ..Settings::new() };
    let mut job = Job::start(&hosts, &[0, 1, 2], "addresses_that_hosts_share_are_skipped", &settings);
    let output = job.expect_all("connected to");
    job.finish();
    let [own, other] = ["10.8.0.3", "10.8.0.2"];
    assert!(output[1].contains(own) && !output[1].contains("172.17."), "{output:?}");
    assert!(output[2].contains(other) && !output[2].contains("172.17."), "{output:?}");
    assert!(!output[0].contains("172.17."), "{output:?}");
}

#[test]
fn interface_and_port_settings_are_used() {
    if let Some(role) = Role::of_this_process() {
        return report_connections(&role);
    }
    let Some(hosts) = hosts(2) else { return };
    hosts.wire([0, 1], "fast0");
    for host in 0..2 {
        hosts.ip(host, &format!("addr add 10.9.0.{}/24 dev fast0", 1 + host));
        hosts.ip(host, "link set fast0 up");
    }
    // They join over eth0, whose address they were given; later connections use the other interface.
    let settings = Settings { interface: "=fast0", ports: "42000-42003", ..Settings::new() };
    let places = [0, 0, 1, 1];
    let mut job = Job::start(&hosts, &places, "interface_and_port_settings_are_used", &settings);
    let (listening, connected) = (job.expect_all("listening at"), job.expect_all("connected to"));
    let reached = job.expect_all("reached at");
    job.finish();
    for output in &reached {
        assert!(
            output.split_whitespace().skip(2).all(|ip| ip.starts_with("10.9.0.")),
            "only that interface: {reached:?}"
        );
    }
    for output in &listening {
        let ports: Vec<u16> = output.split_whitespace().skip(2).map(|port| port.parse().unwrap()).collect();
        assert!(!ports.is_empty() && ports.iter().all(|port| (42_000..=42_003).contains(port)), "{output}");
    }
    assert!(connected.iter().any(|output| output.contains("10.9.0.")), "{connected:?}");
}

/// Makes calls, and reports the listeners and connections of this host.
fn report_connections(role: &Role) {
    let mut comm = role.communicator();
    for bytes in [8, 1 << 20] {
        let mut data = vec![1_u8; bytes];
        comm.all_reduce(&mut data, Reduction::Sum).unwrap();
        assert!(data.iter().all(|sum| usize::from(*sum) == comm.size()));
    }
    let (listening, connected, reached) = sockets();
    let words = |words: Vec<String>| words.join(" ");
    say(&format!("listening at {}", words(listening.iter().map(ToString::to_string).collect())));
    say(&format!("connected to {}", words(connected.into_iter().collect())));
    say(&format!("reached at {}", words(reached.into_iter().collect())));
    comm.barrier().unwrap();
    say("done");
}

/// The ports on which this host listens, the addresses to which it is connected, and those on which it listens.
fn sockets() -> (BTreeSet<u16>, BTreeSet<String>, BTreeSet<String>) {
    let (mut listening, mut connected, mut reached) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        for line in std::fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let port = u16::from_str_radix(words[1].rsplit(':').next().unwrap(), 16).unwrap();
            match words[3] {
                "0A" => {
                    listening.insert(port);
                    reached.insert(address(words[1]));
                }
                "01" => drop(connected.insert(address(words[2]))),
                _ => {}
            }
        }
    }
    (listening, connected, reached)
}

/// An address as the kernel's table has it: words in the order of this machine's bytes.
fn address(text: &str) -> String {
    let hex = text.split(':').next().unwrap();
    let words = (0..hex.len() / 8).map(|at| u32::from_str_radix(&hex[8 * at..][..8], 16).unwrap());
    let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    match <[u8; 16]>::try_from(&bytes[..]) {
        Ok(bytes) => Ipv6Addr::from(bytes).to_canonical().to_string(),
        Err(_) => Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[..]).unwrap()).to_string(),
    }
}

#[test]
fn a_stalled_network_is_logged_and_times_out() {
    if let Some(role) = Role::of_this_process() {
        return role.call_until_stopped();
    }
    let Some(hosts) = hosts(2) else { return };
    let settings = Settings { deadline: "2s", ..Settings::new() };
    let places = [0, 1];
    let mut job = Job::start(&hosts, &places, "a_stalled_network_is_logged_and_times_out", &settings);
    job.expect_all("calling");
    hosts.cut(1);
    for (rank, other) in [(0, "rank 1 (host b, pid "), (1, "rank 0 (host a, pid ")] {
        let warned = job.expect_line(rank, "weft WARN");
        assert!(warned.contains(" has waited ") && warned.contains(other), "{warned}");
        let failed = job.expect_line(rank, "failed:");
        assert!(failed.contains(" waiting for a message from ") && failed.contains(other), "{failed}");
    }
}

#[test]
fn a_short_loss_of_link_is_not_an_error() {
    if let Some(role) = Role::of_this_process() {
        return role.call_until_stopped();
    }
    let Some(hosts) = hosts(2) else { return };
    let places = [0, 0, 1, 1];
    let mut job = Job::start(&hosts, &places, "a_short_loss_of_link_is_not_an_error", &Settings::new());
    job.expect_all("calling");
    hosts.pull(1);
    // Calls block long enough for a warning.
    job.expect_any("weft WARN");
    job.forget();
    hosts.plug(1);
    job.expect_all("calling");
    job.stop();
    job.finish();
}

#[test]
fn messages_arrive_while_their_sender_is_busy() {
    const TEST: &str = "messages_arrive_while_their_sender_is_busy";
    const MESSAGE: [u8; 16 << 10] = [7; 16 << 10];
    if let Some(role) = Role::of_this_process() {
        let mut comm = role.communicator();
        let endpoint = comm.endpoint().unwrap();
        let go = |tag: u64| {
            if role.rank == 0 {
                return endpoint.send(1, tag, &MESSAGE, AMPLE).unwrap();
            }
            let mut got = [0; MESSAGE.len()];
            endpoint.receive(Some(0), tag, &mut got, AMPLE).unwrap();
            assert_eq!(got, MESSAGE);
        };
        (0..8).for_each(go);
        say("through");
        role.wait_until_stopped();
        // And while it leaves.
        (8..16).for_each(go);
        return say("done");
    }
    let Some(hosts) = hosts(2) else { return };
    // Of what is sent the kernel takes little at a time.
    let limit = "echo 4096 4096 4096 > /proc/sys/net/ipv4/tcp_wmem";
    assert!(hosts.command(0, "sh").args(["-c", limit]).status().unwrap().success());
    let mut job = Job::start(&hosts, &[0, 1], TEST, &Settings::new());
    job.expect_all("through");
    job.stop();
    job.finish();
}

#[test]
fn a_rank_killed_on_another_host_is_named() {
    if let Some(role) = Role::of_this_process() {
        return role.call_until_stopped();
    }
    let Some(hosts) = hosts(3) else { return };
    let places = [0, 0, 1, 1, 2];
    let mut job = Job::start(&hosts, &places, "a_rank_killed_on_another_host_is_named", &Settings::new());
    job.expect_all("calling");
    let pid = job.ranks[3].id();
    job.ranks[3].kill().unwrap();
    for rank in [0, 1, 2, 4] {
        let output = job.expect_line(rank, "failed:");
        assert!(output.contains(&format!("rank 3 (host b, pid {pid}) died")), "{output}");
    }
}

#[test]
fn a_death_in_another_pid_namespace_is_noticed() {
    if let Some(role) = Role::of_this_process() {
        return role.call_until_stopped();
    }
    let Some(hosts) = hosts(2) else { return };
    let program = std::env::current_exe().unwrap();
    let places = [0, 0, 1, 1];
    for victim in [1, 3] {
        // Ranks whose numbers say nothing to the others: each is process 1 of its namespace.
        let command = |rank: usize| -> Command {
            let mut command = hosts.command(places[rank], "unshare");
            command.args(["--pid", "--fork", "--kill-child"]).arg(&program);
            command
        };
        let test = "a_death_in_another_pid_namespace_is_noticed";
        let mut job = Job::start_as(&places, test, &Settings::new(), command);
        job.expect_all("calling");
        job.ranks[victim].kill().unwrap();
        let name = Hosts::name(places[victim]);
        for rank in (0..places.len()).filter(|rank| *rank != victim) {
            let output = job.expect_line(rank, "failed:");
            assert!(output.contains(&format!("rank {victim} (host {name}, pid 1) died")), "{output}");
        }
    }
}

#[test]
fn a_resumed_rank_is_not_an_error() {
    const STOPPED: usize = 8;
    if let Some(role) = Role::of_this_process() {
        return role.call_until_stopped();
    }
    let Some(hosts) = hosts(1) else { return };
    // In the tree of 16 ranks, rank 8 stands between rank 0 and ranks 9, 10 and 12.
    let places = [0; 16];
    let mut job = Job::start(&hosts, &places, "a_resumed_rank_is_not_an_error", &Settings::new());
    job.expect_all("calling");
    job.signal(STOPPED, Signal::STOP);
    job.forget();
    // Every warning is preceded by a message of that rank to all others, so these are far more than the sockets of a rank
    // that does not read have room for.
    let (until, mut named, mut warned) = (Instant::now() + Duration::from_secs(40), 0, 0);
    while warned < 800 && Instant::now() < until {
        let (_, warning) = job.expect_any(" has waited ");
        warned += 1;
        named += usize::from(warning.contains(&format!(" s for rank {STOPPED} (pid ")));
    }
    assert!(2 * named > warned, "{named} of {warned} warnings name the stopped rank alone");
    job.signal(STOPPED, Signal::CONT);
    job.forget();
    job.expect_all("calling");
    job.stop();
    job.finish();
}

/// Shrinks on command, and reports the survivors.
fn shrink_on_command(role: &Role) {
    let mut comm = role.communicator();
    comm.barrier().unwrap();
    say("calling");
    role.wait_until_stopped();
    say("shrinks");
    match comm.shrink() {
        Err(error) => say(&format!("cannot shrink: {error}")),
        Ok(mut comm) => {
            let mut sum = [1_u32];
            comm.all_reduce(&mut sum, Reduction::Sum).unwrap();
            assert_eq!(sum[0] as usize, comm.size());
            say(&format!("shrank to {:?}", comm.origins()));
        }
    }
    say("done");
}

#[test]
fn a_stopped_leader_with_two_addresses_is_waited_for() {
    if let Some(role) = Role::of_this_process() {
        return shrink_on_command(&role);
    }
    // Every host has two addresses, one of each family. Rank 2 is dead; rank 0, to which the others connect, is stopped.
    let Some(hosts) = hosts(3) else { return };
    let test = "a_stopped_leader_with_two_addresses_is_waited_for";
    let mut job = Job::start(&hosts, &[0, 1, 2], test, &Settings::new());
    job.expect_all("calling");
    job.ranks[2].kill().unwrap();
    job.signal(0, Signal::STOP);
    job.stop();
    job.expect_line(1, "shrinks");
    // Longer than rank 1 waits for an answer at both addresses.
    std::thread::sleep(Duration::from_secs(12));
    job.signal(0, Signal::CONT);
    for rank in [0, 1] {
        let output = job.expect_line(rank, "shrank to");
        assert_eq!(output, "shrank to [0, 1]", "rank {rank}");
    }
}

/// Disconnects a host, makes all ranks shrink, and checks which continue.
fn partition(test: &str, places: &[usize], cut: usize, winners: &[usize]) {
    let Some(hosts) = hosts(1 + places.iter().max().unwrap()) else { return };
    // Long enough to find that no address of two ranks of another host answers.
    let settings = Settings { deadline: "25s", ..Settings::new() };
    let mut job = Job::start(&hosts, places, test, &settings);
    job.expect_all("calling");
    hosts.cut(cut);
    job.stop();
    for rank in 0..places.len() {
        job.expect_line(rank, "shrinks");
        let output = job.expect_line(rank, "shr");
        if winners.contains(&rank) {
            assert_eq!(output, format!("shrank to {winners:?}"), "rank {rank}");
        } else {
            let lost = output.contains("cannot shrink: ") && output.contains("cannot be reached");
            assert!(lost && output.contains("restart"), "rank {rank}: {output}");
        }
    }
    job.finish();
}

#[test]
fn the_larger_side_of_a_partition_continues() {
    match Role::of_this_process() {
        Some(role) => shrink_on_command(&role),
        None => partition("the_larger_side_of_a_partition_continues", &[0, 1, 2], 2, &[0, 1]),
    }
}

#[test]
fn a_minority_with_rank_0_does_not_continue() {
    match Role::of_this_process() {
        Some(role) => shrink_on_command(&role),
        None => partition("a_minority_with_rank_0_does_not_continue", &[0, 1, 1], 0, &[1, 2]),
    }
}

#[test]
fn the_half_with_rank_0_continues() {
    match Role::of_this_process() {
        Some(role) => shrink_on_command(&role),
        None => partition("the_half_with_rank_0_continues", &[0, 0, 1, 1], 1, &[0, 1]),
    }
}
