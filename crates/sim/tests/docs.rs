//! `docs/model.md` and `docs/accuracy.md` are generated from the constants and the errors; `WEFT_BLESS=1` writes them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use weftlink_sim::accuracy::intervals::{self, Residual};
use weftlink_sim::accuracy::sites::Sites;
use weftlink_sim::accuracy::{
    BANDS, Class, Summary, TableError, by_table, error, execute_rows, quantile, summary,
};
use weftlink_sim::constants::{COUNT, Origin, TABLE, fingerprint};
use weftlink_sim::corrections::Calibrated;
use weftlink_sim::published::{Row, Use, read};

const PUBLISHED: &str = include_str!("../../../testdata/measurements/published.csv");
/// Every row of a site that is not frozen, with its prediction by the shipped constants and by constants fitted without its site.
const LEFT_OUT: &str = include_str!("../../../testdata/measurements/left_out.csv");

#[test]
fn the_model_page_is_current() {
    let mut page = String::from(include_str!("docs/model.md"));
    let count = |wanted: fn(&Origin) -> bool| TABLE.iter().filter(|one| wanted(&one.origin)).count();
    writeln!(
        page,
        "\n## Constants\n\nThe model has {COUNT} constants: {} fitted, {} set by hand, {} from NCCL's sources. A build with more than 100 fails.\n",
        count(|origin| matches!(origin, Origin::Fitted { .. })),
        count(|origin| matches!(origin, Origin::Set)),
        count(|origin| matches!(origin, Origin::Nccl)),
    )
    .unwrap();
    page += "| constant | value | unit | belongs to | meaning | from |\n|---|---:|---|---|---|---|\n";
    for one in TABLE {
        let from = match one.origin {
            Origin::Nccl => "NCCL".to_owned(),
            Origin::Set => "set".to_owned(),
            Origin::Fitted { start, spread } => format!("fitted from {start} ± {:.0} %", spread * 1e2),
        };
        writeln!(
            page,
            "| {} | {} | {} | {} | {} | {from} |",
            one.name, one.value, one.unit, one.belongs_to, one.meaning
        )
        .unwrap();
    }
    check("docs/model.md", &page);
}

#[test]
fn the_accuracy_page_is_current() {
    let Open { rows, sites, fitted, left_out } = open();
    let residuals = residuals(&rows, &sites, &left_out);
    let (fitted, left_out) = (by_table(&rows, &fitted), by_table(&rows, &left_out));
    let mut page = String::from(include_str!("docs/accuracy.md"));
    page += "\n## How often intervals hold\n\n";
    page += &coverage(&residuals);
    page += "\n## Errors on machines outside the fit\n\n";
    page += &by_class(&left_out);
    page += "\n## Errors with all machines in the fit\n\n";
    page += &by_class(&fitted);
    page += "\n## The worst tables\n\nWith the machine left out of the fit; + means that the prediction is too long.\n";
    for (band, (name, _)) in BANDS.iter().enumerate() {
        write!(page, "\n### {name}\n\n| table | class | error | known reason |\n|---|---|---:|---|\n")
            .unwrap();
        for table in left_out.iter().filter(|table| table.band == band).take(10) {
            let sign = if table.log_ratio < 0.0 { "-" } else { "+" };
            writeln!(
                page,
                "| {} | {} | {sign}{:.0} % | {} |",
                table.id,
                table.class.name(),
                table.error * 1e2,
                known(&table.id, band)
            )
            .unwrap();
        }
    }
    page += &beside_astra();
    check("docs/accuracy.md", &page);
}

/// The predictions with constants fitted without a row's site were computed with the shipped ones.
#[test]
fn left_out_predictions_belong_to_the_shipped_constants() {
    assert_eq!(
        LEFT_OUT.lines().next().unwrap(),
        format!("# constants {:#018x}", fingerprint()),
        "the fitted constants have changed: run `cargo run --release -p weftlink-sim --example fit -- leave-one-out`"
    );
}

/// The shipped intervals and the list of what was measured are those of the measurements.
#[test]
fn the_intervals_are_current() {
    let Open { rows, sites, left_out, .. } = open();
    let spreads = intervals::spreads(&residuals(&rows, &sites, &left_out));
    let mut text = String::from(
        "// Written by `make bless` from testdata/measurements/left_out.csv, which `fit -- leave-one-out` writes.\n\n\
         /// Lower and upper bounds of the inner and the outer interval.\n\
         const fn of(half: (f64, f64), most: (f64, f64)) -> Spread {\n    Spread { half, most }\n}\n\n\
         /// Rows: [`Class::ALL`]. Columns: [`intervals::SIZES`].\n\
         const SPREADS: Spreads = [\n",
    );
    for of_class in &spreads {
        text += "    [\n";
        for of in of_class {
            let ((low50, high50), (low90, high90)) = (of.half, of.most);
            writeln!(text, "        of(({low50:.3}, {high50:.3}), ({low90:.3}, {high90:.3})),").unwrap();
        }
        text += "    ],\n";
    }
    text += "];\n\n/// What was measured.\n#[rustfmt::skip]\nconst MEASURED: &[Measured] = &[\n";
    for (key, (sites, nodes)) in measured(&rows, &sites) {
        let sites: Vec<usize> = sites.into_iter().collect();
        writeln!(text, "    Measured {{ {key}, sites: &{sites:?}, nodes: {nodes} }},").unwrap();
    }
    text += "];\n";
    check("crates/sim/src/accuracy/table.rs", &text);
}

/// The measurements of sites that are not frozen, with predictions.
struct Open {
    rows: Vec<Row>,
    sites: Sites,
    /// Microseconds by the shipped constants.
    fitted: Vec<f64>,
    /// Microseconds by constants fitted without the row's site.
    left_out: Vec<f64>,
}

fn open() -> Open {
    let rows: Vec<Row> = read(PUBLISHED)
        .unwrap()
        .into_iter()
        .filter(|(_, purpose)| *purpose == Use::Score)
        .map(|(row, _)| row)
        .collect();
    let all = Sites::of(&rows);
    let mut index = 0..;
    let rows: Vec<Row> =
        rows.into_iter().filter(|_| !all.is_frozen(all.of_row(index.next().unwrap()))).collect();
    let sites = Sites::of(&rows);
    let (mut fitted, mut left_out) = (Vec::new(), Vec::new());
    for (row, line) in rows.iter().zip(LEFT_OUT.lines().skip(2)) {
        assert!(line.starts_with(&format!("{},", row.id)), "{line}");
        let mut last = line.rsplit(',').map(|field| field.parse::<f64>().unwrap());
        left_out.push(last.next().unwrap());
        fitted.push(last.next().unwrap());
    }
    assert_eq!(left_out.len(), rows.len());
    Open { rows, sites, fitted, left_out }
}

fn residuals(rows: &[Row], sites: &Sites, left_out: &[f64]) -> Vec<Residual> {
    let residual = |(index, (row, predicted)): (usize, (&Row, &f64))| Residual {
        site: sites.of_row(index),
        class: Class::of(&row.setup),
        bytes: row.bytes,
        log_ratio: libm::log(row.measured_us / predicted),
    };
    rows.iter().zip(left_out).enumerate().map(residual).collect()
}

/// What was measured, as fields of the source, with its sites and the most nodes.
fn measured(rows: &[Row], sites: &Sites) -> BTreeMap<String, (BTreeSet<usize>, u32)> {
    let mut all: BTreeMap<String, (BTreeSet<usize>, u32)> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        let setup = &row.setup;
        let key = format!(
            "class: Class::{:?}, library: Library::{:?}, generation: Generation::{:?}, operation: Operation::{:?}",
            Class::of(setup),
            setup.library,
            setup.gpu.generation(),
            row.operation
        );
        let (of, nodes) = all.entry(key).or_default();
        of.insert(sites.of_row(index));
        *nodes = setup.nodes.max(*nodes);
    }
    all
}

/// The shares of rows inside both intervals; each site counts once.
fn held(coverage: &[(usize, Class, usize, [f64; 2])]) -> [f64; 2] {
    [0, 1].map(|at| {
        let mut of_sites: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for (site, _, rows, held) in coverage {
            let of = of_sites.entry(*site).or_default();
            *of = (of.0 + held[at] * *rows as f64, of.1 + *rows as f64);
        }
        of_sites.values().map(|(held, rows)| held / rows).sum::<f64>() / of_sites.len() as f64
    })
}

fn coverage(residuals: &[Residual]) -> String {
    let all = intervals::nested_coverage(residuals);
    let mut text = String::from(
        "| class | sites | rows | in the 50 % interval | in the 90 % interval |\n|---|---:|---:|---:|---:|\n",
    );
    for class in std::iter::once(None).chain(Class::ALL.map(Some)) {
        let of: Vec<_> = all.iter().copied().filter(|one| class.is_none_or(|class| one.1 == class)).collect();
        let mut sites: Vec<usize> = of.iter().map(|(site, ..)| *site).collect();
        sites.dedup();
        let rows: usize = of.iter().map(|(_, _, rows, _)| rows).sum();
        let [half, most] = held(&of).map(|part| part * 1e2);
        assert!(
            class.is_some() || (half >= 45.0 && most >= 85.0),
            "intervals hold for {half:.0}, {most:.0} %"
        );
        let name = class.map_or("all", Class::name);
        writeln!(text, "| {name} | {} | {rows} | {half:.0} % | {most:.0} % |", sites.len()).unwrap();
    }
    text
}

fn by_class(tables: &[TableError]) -> String {
    let mut text = String::from("| class |");
    BANDS.iter().for_each(|(name, _)| write!(text, " {name} |").unwrap());
    text += "\n|---|---:|---:|---:|---:|\n";
    for class in std::iter::once(None).chain(Class::ALL.map(Some)) {
        write!(text, "| {} |", class.map_or("all", Class::name)).unwrap();
        for band in 0..BANDS.len() {
            let Summary { tables, median, ninetieth } = summary(tables, band, class);
            write!(text, " {:.1} ({:.0}) of {tables} |", median * 1e2, ninetieth * 1e2).unwrap();
        }
        text.push('\n');
    }
    text
}

/// The reason for a table's large error, if known.
fn known(id: &str, band: usize) -> &'static str {
    let starts = |start: &str| id.starts_with(start);
    match () {
        () if starts("a100pcie-2n-ib-nogdr") => {
            "all calls take twice as long beyond 6 GiB: not caused by the library"
        }
        () if starts("a100pcie-2n") => "a NIC listed with 200 Gb/s delivers 110",
        () if starts("dgx2-12of16") => {
            "an old benchmark with four GPUs busy: an all-gather takes as long as an all-reduce, which moves twice the bytes"
        }
        () if starts("gcp-a3high") => "two sources for the same machine differ by 40 %",
        () if starts("p100pcie-2x") => "the measured time halves abruptly at 64 MiB",
        () if starts("polaris") && id.ends_with("setup1") => {
            "sockets over Slingshot: 4.7 GB/s per NIC, while other hosts get 3.3"
        }
        () if starts("polaris") => {
            "setups with the same columns differ by up to a factor of three, because of libfabric settings that no column records"
        }
        () if starts("alps") && band == 1 => {
            "the library's tuner uses LL over Slingshot up to some size, 2 to 7 times slower than the protocol after it"
        }
        () if starts("alps") => "congestion: the same call takes up to six times as long on another day",
        () if starts("p2p-4090-8x") => "no column records the sockets of the two cards",
        () if starts("p2p-2080ti") => {
            "copies in both directions gain nothing; on other machines they gain 40 %"
        }
        () if starts("rtx2080ti") => "all-gather and all-to-all move the same bytes but differ by 37 %",
        () if starts("p5en-16n") => "three rows, the first of which includes warm-up",
        () if starts("cw-gb200-2racks") => {
            "two racks take 400 us longer up to 4 GiB; one rack shows no cause"
        }
        () => "unknown",
    }
}

/// Recorded results of another simulator beside ours, on the same rows.
fn beside_astra() -> String {
    let rows: Vec<Row> = read(PUBLISHED)
        .unwrap()
        .into_iter()
        .filter(|(_, purpose)| *purpose == Use::Score)
        .map(|(row, _)| row)
        .collect();
    let ours = |id: &str, least: u64, most: u64| {
        let chosen: Vec<Row> =
            rows.iter().filter(|row| row.id == id && (least..=most).contains(&row.bytes)).cloned().collect();
        let times = execute_rows(&Calibrated::default(), &chosen, &mut |_| {});
        let errors: Vec<f64> =
            times.into_iter().zip(&chosen).map(|(time, row)| error(time.unwrap(), row.measured_us)).collect();
        match errors.len() {
            0 => "no data".to_owned(),
            count => {
                format!(
                    "{:.0} % (median {:.0} %)",
                    errors.iter().sum::<f64>() / count as f64 * 1e2,
                    quantile(errors, 0.5) * 1e2
                )
            }
        }
    };
    let mut text = String::from(include_str!("docs/astra.md"));
    text += "\n| table | ASTRA-sim's best algorithm, to 1 MiB | from 64 MiB | ours, to 1 MiB | from 64 MiB |\n|---|---|---|---|---|\n";
    for (id, small, large) in [
        ("p5-1n-ar-batch", "25 % (halving and doubling)", "8 % (direct); 17 % (ring)"),
        ("h100-dgx-1n-g8-all_gather", "no data", "16 % (ring)"),
        ("h100-dgx-1n-g8-alltoall", "no data", "22 % (direct)"),
    ] {
        writeln!(
            text,
            "| {id} | {small} | {large} | {} | {} |",
            ours(id, 0, 1 << 20),
            ours(id, 64 << 20, u64::MAX)
        )
        .unwrap();
    }
    let two = |bytes| ours("nebius-h100-2n-ar", bytes, bytes);
    writeln!(
        text,
        "| nebius-h100-2n-ar, 1 MiB and 1 GiB alone | 37 % (no contention between nodes) | 38 % | {} | {} |",
        two(1 << 20),
        two(1 << 30)
    )
    .unwrap();
    text += include_str!("docs/seconds.md");
    text
}

/// Compares a file with its expected text, or writes it.
fn check(file: &str, text: &str) {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(file);
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "{file} is out of date; run `make bless`");
}
