//! Predictions on changed fabrics: what must not change them, and in which direction the rest must.
//!
//! Subjects are the presets of up to 32 GPUs (larger ones take minutes), clusters with features that presets lack, and random machines; for
//! some tests also three of 72 to 256 GPUs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fabrics;

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};

use weftlink_fabric::catalog::links;
use weftlink_fabric::{Device, DeviceId, DeviceKind, Fabric, FabricBuilder, HostId, Link, LinkSpec};
use weftlink_plan::cost::{Picoseconds, Placement};
use weftlink_plan::{Collective, Kind};
use weftlink_sim::engine::{Conditions, Disturbance};
use weftlink_sim::execute::Tenant;
use weftlink_sim::library::parse_library;
use weftlink_sim::predict::{self, Case, Options, operation, predict};
use weftlink_sim::published::{self, Use};
use weftlink_sim::setup::{Intra, Network, Setup};
use weftlink_testkit::random::Random;

/// Number of random fabrics.
const RANDOM: u64 = 200;
/// A call that bandwidth limits, and one that latency limits.
const SIZES: [u64; 2] = [1 << 16, 1 << 30];

/// Subjects with at most this many GPUs, for tests that predict each several times.
const GPUS_MAX: usize = 16;

fn subjects() -> impl Iterator<Item = Fabric> {
    let all = fabrics::described().into_iter().chain((1..=RANDOM).map(fabrics::random));
    all.filter(|fabric| (2..=32).contains(&fabric.gpus().len()))
}

fn small_subjects() -> impl Iterator<Item = Fabric> {
    subjects().filter(|fabric| fabric.gpus().len() <= GPUS_MAX)
}

/// The collective of a call, for its bound.
fn collective(kind: Kind, ranks: u32) -> Collective {
    match kind {
        Kind::AllReduce => Collective::AllReduce,
        Kind::AllGather => Collective::AllGather,
        Kind::ReduceScatter => Collective::ReduceScatter,
        Kind::Broadcast => Collective::Broadcast { root: 0 },
        Kind::Reduce => Collective::Reduce { root: 0 },
        Kind::AllToAll => Collective::AllToAll,
        Kind::Gather => Collective::Gather { root: 0 },
        Kind::Scatter => Collective::Scatter { root: 0 },
        Kind::Scan => Collective::Scan,
        Kind::ExclusiveScan => Collective::ExclusiveScan,
        Kind::Barrier => Collective::Barrier,
        _ => {
            Collective::SendReceive { messages: (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect() }
        }
    }
}

fn time_us(kind: Kind, fabric: &Fabric, bytes: u64, options: &Options) -> Option<f64> {
    match predict(kind, fabric, &[bytes], options) {
        Ok(predicted) => Some(predicted.rows[0].time_us()),
        Err(error) if error.is_misuse() => None,
        Err(error) => panic!("{kind} on {}: {error}", fabric.name()),
    }
}

/// Runs a check on every subject and reports all failures together.
fn on_each(subjects: impl Iterator<Item = Fabric>, check: impl Fn(&Fabric, &mut Vec<String>)) {
    let mut failures = Vec::new();
    for fabric in subjects {
        let name = fabric.name().to_owned();
        if catch_unwind(AssertUnwindSafe(|| check(&fabric, &mut failures))).is_err() {
            failures.push(format!("{name}: panicked"));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// The predicted collectives. Calls with counts are those without if no counts are given.
fn kinds() -> impl Iterator<Item = Kind> {
    predict::kinds().filter(|kind| !kind.is_uneven())
}

/// Reports the collectives of 1 GiB that are faster than the bound of the fabric.
fn beats_the_bound(fabric: &Fabric, each: &[Options], failures: &mut Vec<String>) {
    let placement = Placement::of(fabric);
    for kind in kinds() {
        let Some(bound) = placement.bounds().bound(&collective(kind, fabric.gpus().len() as u32)) else {
            continue;
        };
        for options in each {
            let Some(time) = time_us(kind, fabric, 1 << 30, options) else { continue };
            let rate = (1_u64 << 30) as f64 / time * 1e6;
            if rate > bound.bytes_per_second as f64 * 1.001 {
                let (rate, limit, cut) = (rate / 1e9, bound.bytes_per_second as f64 / 1e9, &bound.cut);
                failures.push(format!("{}: {kind} {rate:.2} GB/s, bound {limit:.2}: {cut}", fabric.name()));
            }
        }
    }
}

#[test]
fn no_prediction_beats_the_bound_of_its_fabric() {
    let weft = Options { library: Some(parse_library("weft").unwrap()), ..Options::default() };
    let each = [Options::default(), weft];
    on_each(subjects(), |fabric, failures| beats_the_bound(fabric, &each, failures));
}

#[test]
fn no_prediction_beats_the_bound_of_a_large_fabric() {
    on_each(fabrics::large(), |fabric, failures| beats_the_bound(fabric, &[Options::default()], failures));
}

#[test]
fn no_published_measurement_beats_the_bound_of_its_fabric() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/measurements/published.csv");
    let rows = published::read(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut last: Option<(Setup, Fabric)> = None;
    let mut failures = Vec::new();
    for (row, _) in rows.iter().filter(|(row, purpose)| *purpose == Use::Score && !row.operation.is_copy()) {
        if last.as_ref().is_none_or(|(setup, _)| *setup != row.setup) {
            last = Some((row.setup.clone(), row.setup.fabric().unwrap()));
        }
        let (_, fabric) = last.as_ref().unwrap();
        let kind = kinds().find(|kind| operation(*kind).unwrap() == row.operation).unwrap();
        let placement = Placement::of(fabric);
        let ranks = fabric.gpus().len() as u32;
        let Some(bound) = placement.bounds().bound(&collective(kind, ranks)) else { continue };
        let rate = row.bytes as f64 / row.measured_us * 1e6;
        if rate > bound.bytes_per_second as f64 {
            let (rate, bound) = (rate / 1e9, bound.bytes_per_second as f64 / 1e9);
            failures.push(format!("{} {} B: {rate:.2} GB/s, bound {bound:.2}", row.id, row.bytes));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Some links of a fabric, at most `most`, spread over all of them.
fn some_links(fabric: &Fabric, most: usize, random: &mut Random) -> Vec<(DeviceId, DeviceId)> {
    let links: Vec<&Link> = fabric.links().iter().filter(|link| link.source < link.target).collect();
    let count = most.min(links.len());
    (0..count)
        .map(|_| links[random.below(links.len() as u64) as usize])
        .map(|link| (link.source, link.target))
        .collect()
}

#[test]
fn slowing_a_link_of_a_fixed_plan_never_gains() {
    on_each(small_subjects(), |fabric, failures| {
        let mut random = Random(fabric.links().len() as u64 | 1);
        for kind in kinds() {
            let Ok(case) = Case::new(kind, fabric, &Options::default()) else { continue };
            let runner = case.runner().unwrap();
            let run = |conditions: &Conditions| {
                let done = runner.execute_with_conditions(case.operation, 1 << 28, conditions, None);
                done.unwrap_or_else(|error| panic!("{}: {kind}: {error}", fabric.name())).time.0 as f64
            };
            for link in some_links(&case.fabric, 3, &mut random) {
                let slower = Conditions::only(Disturbance::Slow { link, fraction: 0.5 });
                let (usual, slow) = (run(&slower.undisturbed()), run(&slower));
                if slow < usual * 0.99 {
                    let (a, b) = (fabric.device_name(link.0), fabric.device_name(link.1));
                    failures.push(format!(
                        "{}: {kind} gains from a slower {a} to {b}: {:.3}",
                        fabric.name(),
                        slow / usual
                    ));
                }
            }
        }
    });
}

/// The fabric with hosts renamed and its devices listed in another order: kind by kind. Devices of one kind stay in their order, since
/// their numbers are part of the description: rank 0 is the first GPU, and its rail that of the first NIC.
fn rearranged(fabric: &Fabric) -> Fabric {
    let mut builder = FabricBuilder::new("another name");
    for index in 0..fabric.hosts().len() {
        builder.host(format!("other{}", fabric.hosts().len() - index), None);
    }
    builder.peer_access(fabric.peer_access());
    let mut order: Vec<DeviceId> = fabric.device_ids().collect();
    order.sort_by_key(|id| Reverse(fabric.device(*id).kind.stem()));
    let mut placed = vec![DeviceId(0); order.len()];
    for id in order {
        let device = fabric.device(id);
        let host = device.host.map(|host| HostId(host.0));
        placed[id.index()] = builder.add_device(Device { host, ..device.clone() });
    }
    for link in fabric.links() {
        let spec = builder.spec(fabric.spec(link).clone());
        builder.link(placed[link.source.index()], placed[link.target.index()], link.count, spec);
    }
    builder.finish().unwrap()
}

#[test]
fn names_and_order_of_devices_do_not_matter() {
    on_each(small_subjects(), |fabric, failures| {
        let other = rearranged(fabric);
        for kind in kinds() {
            for bytes in SIZES {
                let times = [fabric, &other].map(|fabric| time_us(kind, fabric, bytes, &Options::default()));
                if let [Some(one), Some(two)] = times
                    && (two / one - 1.0).abs() > 0.001
                {
                    failures.push(format!(
                        "{}: {kind} of {bytes} B: {one:.2} us, rearranged {two:.2}",
                        fabric.name()
                    ));
                }
            }
        }
    });
}

/// The fabric with a drive on each NUMA node.
fn with_drives(fabric: &Fabric) -> Fabric {
    let mut builder = FabricBuilder::new(fabric.name());
    builder.append(fabric, |_, host| host.name.clone());
    let spec = builder.spec(links::pcie(4, 4));
    for numa in fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_))) {
        let drive = builder.add(fabric.device(numa).host, DeviceKind::Storage);
        builder.connect(numa, drive, 1, spec);
    }
    builder.finish().unwrap()
}

/// Reports the collectives whose time drives change.
fn change_with_drives(fabric: &Fabric, failures: &mut Vec<String>) {
    let more = with_drives(fabric);
    for kind in kinds() {
        let times = [fabric, &more].map(|fabric| time_us(kind, fabric, 1 << 26, &Options::default()));
        if times[0] != times[1] {
            failures.push(format!("{}: {kind}: {:?} us", fabric.name(), times));
        }
    }
}

#[test]
fn links_that_carry_nothing_do_not_matter() {
    on_each(small_subjects(), change_with_drives);
}

#[test]
fn links_that_carry_nothing_do_not_matter_in_a_rack() {
    on_each(fabrics::large().take(1), change_with_drives);
}

/// The fabric with all rates halved.
fn halved(fabric: &Fabric) -> Fabric {
    fabric.with_links(|link, spec| {
        let half = |rate: &Option<weftlink_fabric::figure::LinkRate>| {
            rate.clone().map(|rate| {
                rate.map(|rate| weftlink_fabric::rate::Rate::from_bytes(rate.bytes_per_second() / 2))
            })
        };
        let spec =
            LinkSpec { nominal: half(&spec.nominal), effective: half(&spec.effective), ..spec.clone() };
        Some((link.count, spec))
    })
}

/// Other limits of a call: the lanes of messages, of trees and between two GPUs of a switch, the copies of sockets by CPUs, and the memory
/// of a host.
fn is_limited_by_links(predicted: &weftlink_sim::predict::Predicted) -> bool {
    let outcome = predicted.rows[0].execution.outcome.as_ref();
    let lanes = predicted.case.setup.ranks() == 2 && predicted.case.setup.intra == Intra::NvSwitch;
    let setup = &predicted.case.setup;
    let host = setup.network == Network::Tcp || setup.intra == Intra::PcieHost;
    let busiest = outcome.filter(|_| !lanes && !host).and_then(|outcome| outcome.busiest());
    busiest.is_some_and(|(_, part)| part > 0.9)
}

#[test]
fn halving_every_rate_doubles_the_time_of_large_calls() {
    on_each(small_subjects(), |fabric, failures| {
        let half = halved(fabric);
        for kind in kinds() {
            let ask = |fabric: &Fabric| predict(kind, fabric, &[4 << 30], &Options::default()).ok();
            let (Some(before), Some(after)) = (ask(fabric), ask(&half)) else { continue };
            let chosen = |predicted: &weftlink_sim::predict::Predicted| predicted.rows[0].execution.algorithm;
            if !is_limited_by_links(&before) || chosen(&before) != chosen(&after) {
                continue;
            }
            let ratio = after.rows[0].time_us() / before.rows[0].time_us();
            if (ratio / 2.0 - 1.0).abs() > 0.05 {
                failures.push(format!("{}: {kind}: {ratio:.3} times", fabric.name()));
            }
        }
    });
}

#[test]
fn disjoint_jobs_do_not_affect_each_other() {
    let specs = ["hgx-h100", "dgx-2", "4x hgx-h100 + 8x ndr", "4x hgx-a100 + 4x hdr", "gb200-nvl72"];
    on_each(specs.into_iter().map(|spec| weftlink_fabric::resolve(spec).unwrap()), |fabric, failures| {
        let half = fabric.gpus().len() as u32 / 2;
        for kind in kinds() {
            // What the library has no operation for is refused.
            let Ok(case) = Case::new(kind, fabric, &Options::default()) else { continue };
            let runner = case.runner().unwrap();
            let tenant = |gpus: std::ops::Range<u32>| Tenant {
                operation: case.operation,
                bytes: 1 << 24,
                gpus: gpus.collect(),
                start: Picoseconds(0),
            };
            let jobs = [tenant(0..half), tenant(half..2 * half)];
            let calm = Conditions::default();
            let run = |jobs: &[Tenant]| runner.execute_concurrently(jobs, &calm, None).unwrap();
            let together = run(&jobs);
            for (job, beside) in jobs.iter().zip(together) {
                let alone = run(std::slice::from_ref(job)).remove(0);
                if alone.time != beside.time {
                    failures.push(format!(
                        "{}: {kind}: alone {}, beside {}",
                        fabric.name(),
                        alone.time,
                        beside.time
                    ));
                }
            }
        }
    });
}

/// Rows of measurements are fabrics: what is surveyed on them is what their columns say. One host of a rack looks like any host with
/// NVSwitches.
#[test]
fn rows_and_their_fabrics_agree() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/measurements/published.csv");
    let rows = published::read(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut failures: Vec<String> = Vec::new();
    for (row, _) in rows.iter().filter(|(row, purpose)| {
        *purpose == Use::Score && !(row.setup.intra == Intra::Nvl72 && row.setup.nodes == 1)
    }) {
        let seen = Setup::of(&row.setup.fabric().unwrap()).unwrap();
        let (seen, told) = (seen.name(), row.setup.name());
        let line = format!("{told}: seen as {seen}");
        if seen != told && !failures.contains(&line) {
            failures.push(line);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
