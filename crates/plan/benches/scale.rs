//! How plans scale: ring, tree and hierarchical all-reduces, with the number of ranks doubling.
//!
//! Measures the time to write the program of one rank (with a given layout), the time and memory to write the whole plan, and
//! the time to prove it. Prints one row per size, the median of several repetitions, with the growth per doubling; with
//! `--csv FILE` after `--`, also writes the raw rows. Memory is the process's peak for that size, as the kernel counts it.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use weftlink_plan::{Algorithm, Collective, Layout, verify};
use weftlink_testkit::peak;

const REPETITIONS: usize = 5;
const PER_ISLAND: u32 = 8;
/// Above the first, only one rank's program is written; above the second, the plan is written but not proved.
const WHOLE_RANKS_MAX: u32 = 16_384;
const PROVED_RANKS_MAX: u32 = 1_024;

struct Row {
    algorithm: Algorithm,
    ranks: u32,
    program: Vec<Duration>,
    whole: Vec<Duration>,
    proof: Vec<Duration>,
    peak_mib: f64,
}

fn main() {
    let csv = std::env::args().skip_while(|arg| arg != "--csv").nth(1);
    println!("algorithm      ranks  program us  growth   plan ms  growth  proof ms  growth  peak MiB");
    let mut rows: Vec<Row> = Vec::new();
    for name in ["ring", "tree", "hierarchical"] {
        let Ok(algorithm) = name.parse() else { continue };
        for ranks in (5..=16).map(|power| 1 << power).chain([100_000]) {
            let row = measure(algorithm, ranks);
            let before =
                rows.iter().find(|before| before.algorithm == algorithm && before.ranks * 2 == ranks);
            let cell = |of: fn(&Row) -> &[Duration], scale: f64| {
                let time = median(of(&row)).map(|time| format!("{:.1}", time * scale));
                let growth = before.and_then(|before| Some(median(of(&row))? / median(of(before))?));
                let growth = growth.map(|growth| format!("{growth:.2}x"));
                (time.unwrap_or_default(), growth.unwrap_or_default())
            };
            let (program, program_growth) = cell(|row| &row.program, 1e6);
            let (whole, whole_growth) = cell(|row| &row.whole, 1e3);
            let (proof, proof_growth) = cell(|row| &row.proof, 1e3);
            println!(
                "{name:<13} {ranks:>6}  {program:>10}  {program_growth:>6}  {whole:>8}  {whole_growth:>6}  \
                 {proof:>8}  {proof_growth:>6}  {:>8.1}",
                row.peak_mib
            );
            rows.push(row);
        }
    }
    if let Some(file) = csv {
        std::fs::write(&file, raw(&rows)).unwrap_or_else(|error| panic!("cannot write {file}: {error}"));
        println!("raw rows in {file}");
    }
}

fn measure(algorithm: Algorithm, ranks: u32) -> Row {
    peak::reset();
    let layout = Layout::grid(ranks / PER_ISLAND, PER_ISLAND, 1);
    let mut row = Row { algorithm, ranks, program: vec![], whole: vec![], proof: vec![], peak_mib: 0.0 };
    let recipe = || algorithm.recipe(&Collective::AllReduce, &layout).expect("these do all-reduces");
    // Separate loops: freeing a plan would count as time of the next program.
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        black_box(recipe().program(ranks - 1));
        row.program.push(start.elapsed());
    }
    for _ in 0..if ranks > WHOLE_RANKS_MAX { 0 } else { REPETITIONS } {
        let start = Instant::now();
        let plan = black_box(recipe().plan());
        row.whole.push(start.elapsed());
        if ranks > PROVED_RANKS_MAX {
            continue;
        }
        let start = Instant::now();
        black_box(verify(plan).expect("built-in plans are right"));
        row.proof.push(start.elapsed());
    }
    row.peak_mib = peak::mib();
    row
}

fn median(times: &[Duration]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    Some(sorted.get(sorted.len() / 2)?.as_secs_f64())
}

fn raw(rows: &[Row]) -> String {
    let mut text = String::from("algorithm,ranks,repetition,program_us,plan_us,proof_us,peak_mib\n");
    for row in rows {
        for index in 0..REPETITIONS {
            let us = |times: &[Duration]| {
                times.get(index).map(|time| format!("{:.1}", time.as_secs_f64() * 1e6)).unwrap_or_default()
            };
            let (program, whole, proof) = (us(&row.program), us(&row.whole), us(&row.proof));
            let (name, ranks, peak) = (row.algorithm, row.ranks, row.peak_mib);
            let _ = writeln!(text, "{name},{ranks},{index},{program},{whole},{proof},{peak:.1}");
        }
    }
    text
}
