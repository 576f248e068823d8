//! Scaling of the fabric: builds racks of NVL72 and classifies every pair of GPUs, doubling the number of racks.
//!
//! Prints one row per size, with medians of several repetitions and the growth per doubling; `--csv FILE` after `--`
//! writes the raw rows. Memory is the peak of the process at that size, as reported by the kernel.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use weftlink_fabric::bisection::bisection;
use weftlink_fabric::{Measure, Paths, resolve};
use weftlink_testkit::peak;

const REPETITIONS: usize = 9;

struct Row {
    racks: usize,
    gpus: usize,
    links: usize,
    build: Vec<Duration>,
    classify: Vec<Duration>,
    bisect: Vec<Duration>,
    peak_mib: f64,
}

fn main() {
    let csv = std::env::args().skip_while(|arg| arg != "--csv").nth(1);
    let rows: Vec<Row> = (0..=7).map(|power| measure(1 << power)).collect();
    println!("racks    GPUs    links  build ms  growth  classify ms  growth  bisect ms  growth  peak MiB");
    let mut before: Option<&Row> = None;
    for row in &rows {
        let growth = |of: fn(&Row) -> &[Duration]| {
            before.map_or_else(String::new, |before| format!("{:.2}x", median(of(row)) / median(of(before))))
        };
        println!(
            "{:>5}  {:>6}  {:>7}  {:>8.2}  {:>6}  {:>11.2}  {:>6}  {:>9.2}  {:>6}  {:>8.1}",
            row.racks,
            row.gpus,
            row.links,
            median(&row.build),
            growth(|row| &row.build),
            median(&row.classify),
            growth(|row| &row.classify),
            median(&row.bisect),
            growth(|row| &row.bisect),
            row.peak_mib,
        );
        before = Some(row);
    }
    if let Some(file) = csv {
        std::fs::write(&file, raw(&rows)).unwrap_or_else(|error| panic!("cannot write {file}: {error}"));
        println!("raw rows in {file}");
    }
}

fn measure(racks: usize) -> Row {
    let spec = format!("{racks}x gb200-nvl72 + 4x ndr");
    peak::reset();
    let mut row = Row {
        racks,
        gpus: 0,
        links: 0,
        build: Vec::new(),
        classify: Vec::new(),
        bisect: Vec::new(),
        peak_mib: 0.0,
    };
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        let fabric = resolve(&spec).expect("the spec is well formed");
        row.build.push(start.elapsed());
        let start = Instant::now();
        let paths = Paths::of(&fabric);
        let classes = black_box(paths.classes());
        row.classify.push(start.elapsed());
        let pairs: u64 = classes.iter().map(|class| class.pairs).sum();
        row.gpus = fabric.gpus().len();
        row.links = fabric.links().len();
        assert_eq!(pairs, (row.gpus * (row.gpus - 1) / 2) as u64, "every pair has a class");
        let start = Instant::now();
        black_box(bisection(&paths, Measure::Nominal));
        row.bisect.push(start.elapsed());
    }
    row.peak_mib = peak::mib();
    row
}

fn median(times: &[Duration]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2].as_secs_f64() * 1e3
}

fn raw(rows: &[Row]) -> String {
    let mut text = String::from("racks,gpus,links,repetition,build_us,classify_us,bisect_us,peak_mib\n");
    for row in rows {
        for index in 0..REPETITIONS {
            let us = |times: &[Duration]| times[index].as_secs_f64() * 1e6;
            let (build, classify, bisect) = (us(&row.build), us(&row.classify), us(&row.bisect));
            let _ = writeln!(
                text,
                "{},{},{},{index},{build:.1},{classify:.1},{bisect:.1},{:.1}",
                row.racks, row.gpus, row.links, row.peak_mib
            );
        }
    }
    text
}
