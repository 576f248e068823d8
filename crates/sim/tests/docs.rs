//! `docs/model.md` and `docs/accuracy.md` are generated from the constants and the errors; `WEFT_BLESS=1` writes them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::path::Path;

use weftlink_sim::Constants;
use weftlink_sim::accuracy::{
    BANDS, Class, Summary, TableError, error, execute_rows, expected, quantile, summary,
};
use weftlink_sim::constants::{COUNT, Origin, TABLE};
use weftlink_sim::published::{Row, Use, read};

const PUBLISHED: &str = include_str!("../../../testdata/measurements/published.csv");
const ERRORS: &str = include_str!("../../../testdata/measurements/errors.csv");

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
    let [fitted, left_out] = tables();
    let mut page = String::from(include_str!("docs/accuracy.md"));
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

/// Predictions report the errors of the page.
#[test]
fn expected_errors_match_the_page() {
    let [_, left_out] = tables();
    for class in std::iter::once(None).chain(Class::ALL.map(Some)) {
        for band in 0..BANDS.len() {
            let (reported, found) = (expected(class, band), summary(&left_out, band, class));
            let near = |one: f64, other: f64| (one - other).abs() < 2e-3;
            assert!(
                reported.tables == found.tables
                    && near(reported.median, found.median)
                    && near(reported.ninetieth, found.ninetieth),
                "{class:?} {band}: {reported:?}, {found:?}"
            );
        }
    }
}

/// The errors of all tables, worst first: with their machine in the fit, and left out.
fn tables() -> [Vec<TableError>; 2] {
    let mut both = [Vec::new(), Vec::new()];
    for line in ERRORS.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let class = Class::ALL.into_iter().find(|class| class.name() == fields[2]).unwrap();
        for (tables, at) in both.iter_mut().zip([3, 5]) {
            tables.push(TableError {
                id: fields[0].to_owned(),
                system: String::new(),
                class,
                band: fields[1].parse().unwrap(),
                error: fields[at].parse().unwrap(),
                log_ratio: fields[at + 1].parse().unwrap(),
            });
        }
    }
    both.iter_mut().for_each(|tables| tables.sort_by(|one, other| other.error.total_cmp(&one.error)));
    both
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
        let times = execute_rows(&Constants::shipped(), &chosen, &mut |_| {});
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
