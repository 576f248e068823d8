//! Benchmarks how the simulator scales: collectives on hosts of eight GPUs with a NIC each, doubling the number of hosts.
//!
//! Prints time and memory of each size, separately for the fabric, the plan and the run, and the growth with each doubling.
//! `--least RANKS` and `--most RANKS` limit the sizes, `--only ALGORITHM` runs one algorithm.

use std::time::{Duration, Instant};

use weftlink_fabric::{Paths, resolve};
use weftlink_plan::cost::{Picoseconds, Placement};
use weftlink_plan::{Algorithm, Collective};
use weftlink_sim::Constants;
use weftlink_sim::engine::{Load, Nominal, run};
use weftlink_sim::execute::Runner;
use weftlink_sim::published;
use weftlink_sim::setup::Operation;
use weftlink_testkit::peak;

const COSTS: Nominal = Nominal { launch: Picoseconds(5_000_000), hop: Picoseconds(1_000_000) };

fn main() {
    let given = |option: &str| std::env::args().skip_while(|word| word != option).nth(1);
    let most: u32 = given("--most").map_or(100_000, |most| most.parse().expect("--most RANKS"));
    let least: u32 = given("--least").map_or(32, |least| least.parse().expect("--least RANKS"));
    let only = given("--only");
    println!(
        "collective  algorithm      ranks  fabric ms  plan ms  run ms  growth     steps  peak MiB  predicted"
    );
    let cases = [
        ("all-reduce", Collective::AllReduce, Algorithm::Ring),
        ("all-reduce", Collective::AllReduce, Algorithm::Tree),
        ("all-reduce", Collective::AllReduce, Algorithm::Hierarchical),
        ("all-to-all", Collective::AllToAll, Algorithm::Pairwise),
    ];
    for (name, collective, algorithm) in cases {
        if only.as_ref().is_some_and(|only| *only != algorithm.to_string()) {
            continue;
        }
        let mut before: Option<Duration> = None;
        let largest = if name == "all-to-all" { 4096 } else { most };
        for hosts in (2..)
            .map(|power| 1_u32 << power)
            .take_while(|hosts| hosts * 8 <= largest)
            .chain((largest == 100_000).then_some(12_500))
            .filter(|hosts| hosts * 8 >= least)
        {
            peak::reset();
            let start = Instant::now();
            let fabric = resolve(&format!("{hosts}x hgx-h100 + 8x ndr")).expect("a spec");
            let ground = Placement::of(&fabric);
            let built = start.elapsed();
            let start = Instant::now();
            let recipe = algorithm.recipe(&collective, ground.layout()).expect("possible there");
            let plan = recipe.partial(8);
            let planned = start.elapsed();
            let start = Instant::now();
            let paths = Paths::of(&fabric);
            let load = Load { bytes: 1 << 30, tiles: if algorithm == Algorithm::Tree { 16 } else { 1 } };
            let outcome = run(&plan, &paths, load, &COSTS).expect("built-in plans run");
            let ran = start.elapsed();
            let times = [built, planned, ran];
            row(name, &algorithm.to_string(), hosts * 8, times, before, outcome.steps, outcome.time);
            before = Some(ran);
        }
    }
    if only.is_none_or(|only| only == "messages") {
        messages(least, most);
    }
}

/// A library's all-to-all: every message on its own lane, all at once.
fn messages(least: u32, most: u32) {
    let constants = Constants::shipped();
    let mut before: Option<Duration> = None;
    for nodes in (2..8).map(|power| 1_u32 << power).filter(|nodes| (least..=most).contains(&(nodes * 8))) {
        let rows = published::read(&row_of(nodes)).expect("a row");
        let setup = &rows[0].0.setup;
        peak::reset();
        let start = Instant::now();
        let runner = Runner::new(&constants, setup).expect("a fabric");
        let built = start.elapsed();
        let start = Instant::now();
        let done = runner.execute(&[(Operation::AllToAll, 1 << 30)]).expect("NCCL does that");
        let ran = start.elapsed();
        let steps = done[0].outcome.as_ref().map_or(0, |outcome| outcome.steps);
        row("all-to-all", "messages", nodes * 8, [built, Duration::ZERO, ran], before, steps, done[0].time);
        before = Some(ran);
    }
}

/// A row of a measurement file: NCCL on this number of hosts.
fn row_of(nodes: u32) -> String {
    let columns = "id,gpu_id,intra,pcie_gen,gpus_per_node,nodes,net,nics_per_node,nic_gbps,library,library_version,collective,algo,proto";
    let rest = "size_bytes,time_us,use";
    format!(
        "{columns},{rest}\nscale,h100,nvswitch,5,8,{nodes},ib,8,400,nccl,2.26.2,alltoall,,,1073741824,1000,score\n"
    )
}

fn row(
    collective: &str,
    algorithm: &str,
    ranks: u32,
    [built, planned, ran]: [Duration; 3],
    before: Option<Duration>,
    steps: u64,
    predicted: Picoseconds,
) {
    let growth =
        before.map_or(String::new(), |before| format!("{:.2}x", ran.as_secs_f64() / before.as_secs_f64()));
    println!(
        "{collective:<11} {algorithm:<13} {ranks:>6}  {:>9.1}  {:>7.1}  {:>6.1}  {growth:>6}  {steps:>8}  {:>8.0}  {predicted}",
        ms(built),
        ms(planned),
        ms(ran),
        peak::mib(),
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
