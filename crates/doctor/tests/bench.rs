//! Output of nccl-tests against predictions: each finding fires, does not, or is unknown.

use weftlink_doctor::bench::{Explained, Input, Row, explain};
use weftlink_doctor::{Report, Severity};
use weftlink_fabric::{Fabric, resolve};
use weftlink_sim::predict::Options;

const A100: &str = include_str!("../../../testdata/logs/all_reduce-a100.log");

fn fabric() -> Fabric {
    resolve("dgx-a100").expect("a system of the catalog")
}

fn of(texts: &[&str], fabric: Option<&Fabric>) -> Explained {
    let names: Vec<String> = (0..texts.len()).map(|at| format!("{at}.log")).collect();
    let inputs: Vec<Input<'_>> =
        texts.iter().zip(&names).map(|(text, name)| Input { name, text, collective: None }).collect();
    explain(&inputs, fabric, &Options::default())
}

fn found(report: &Report, id: &str) -> Vec<(Severity, String)> {
    report
        .findings
        .iter()
        .filter(|finding| finding.id == id)
        .map(|finding| (finding.severity, finding.what.clone()))
        .collect()
}

fn is_fine(report: &Report, id: &str) -> bool {
    found(report, id).is_empty() && report.fine.iter().any(|(check, _)| *check == id)
}

fn is_unknown(report: &Report, id: &str) -> bool {
    found(report, id).is_empty() && report.uninspected.iter().any(|unknown| unknown.id == id)
}

/// The log with its rows replaced: sizes, microseconds out of place and in place, and wrong elements.
fn with_rows(rows: &[(u64, f64, f64, u64)]) -> String {
    let is_row = |line: &&str| line.trim_start().starts_with(|letter: char| letter.is_ascii_digit());
    let head: String =
        A100.lines().take_while(|line| !is_row(line)).map(|line| format!("{line}\n")).collect();
    let row = |(bytes, time, in_place, wrong): &(u64, f64, f64, u64)| {
        let (rate, other) = (*bytes as f64 / time / 1e3, *bytes as f64 / in_place / 1e3);
        format!(
            "{bytes} {} float sum -1 {time:.2} {rate:.4} {:.4} {wrong} {in_place:.2} {other:.4} {:.4} 0\n",
            bytes / 4,
            rate * 1.75,
            other * 1.75
        )
    };
    head + &rows.iter().map(row).collect::<String>()
}

/// What the model predicts, as a log.
fn predicted() -> Vec<(u64, f64, f64, u64)> {
    let explained = of(&[A100], Some(&fabric()));
    let rows = explained.tables[0].rows.iter();
    let time = |row: &Row| row.predicted.as_ref().map_or(0.0, |predicted| predicted.time_us);
    rows.map(|row| (row.bytes, time(row), time(row), 0)).collect()
}

#[test]
fn a_table_is_compared_with_the_machine() {
    let explained = of(&[A100], Some(&fabric()));
    let table = &explained.tables[0];
    assert_eq!((table.collective, table.ranks, table.line), ("all_reduce", Some(8), 16));
    assert_eq!((table.library.as_deref(), table.fabric.as_deref()), (Some("nccl 2.21"), Some("dgx-a100")));
    assert_eq!(table.hosts, ["dgx09"]);
    let row = &table.rows[6];
    assert!((row.measured_gb_per_s.unwrap() - 74.2).abs() < 0.1, "{row:?}");
    let it = row.predicted.as_ref().unwrap();
    let (half, most) = (it.half_us.unwrap(), it.most_us.unwrap());
    assert!(most.0 <= half.0 && half.0 < it.time_us && it.time_us < half.1 && half.1 <= most.1, "{it:?}");
    let printed = table.to_string();
    assert!(
        printed.starts_with("all_reduce of 0.log (line 16), 8 ranks against dgx-a100 with nccl 2.21\n"),
        "{printed}"
    );
    assert!(
        printed.contains("  slower\n") && printed.contains("256 MiB     6330.5       74.21"),
        "{printed}"
    );
    // The largest calls of the file reach a third of what such a machine reaches.
    let slow = found(&explained.report, "bench-speed");
    assert!(
        slow.iter()
            .any(|(severity, what)| *severity == Severity::Warning && what.contains("sizes above: 1 of 1")),
        "{slow:?}"
    );
    let costs: Vec<f64> = explained
        .report
        .findings
        .iter()
        .filter_map(|finding| Some(finding.cost.as_ref()?.usual_gb_per_s))
        .collect();
    assert!(costs.iter().any(|usual| *usual > 200.0), "{costs:?}");
}

#[test]
fn speed() {
    let right = of(&[&with_rows(&predicted())], Some(&fabric()));
    assert!(is_fine(&right.report, "bench-speed"), "{:#?}", right.report.findings);
    assert_eq!(right.tables[0].bands.iter().map(|band| band.in_half).sum::<usize>(), 7);
    let fast: Vec<_> = predicted()
        .into_iter()
        .map(|(bytes, time, other, wrong)| (bytes, time / 5.0, other / 5.0, wrong))
        .collect();
    let fast = found(&of(&[&with_rows(&fast)], Some(&fabric())).report, "bench-speed");
    assert!(
        fast.iter().all(|(severity, what)| *severity == Severity::Note && what.contains("faster"))
            && fast.len() == 4,
        "{fast:?}"
    );
    // Without a machine, or with another one, nothing is known.
    assert!(is_unknown(&of(&[A100], None).report, "bench-prediction"));
    let smaller = resolve("2x-rtx4090").unwrap();
    let report = of(&[A100], Some(&smaller)).report;
    assert!(
        report
            .uninspected
            .iter()
            .any(|unknown| unknown.what.contains("it has 8 ranks, and 2x-rtx4090 has 2 GPUs")),
        "{report:#?}"
    );
    assert!(is_unknown(&of(&["no table"], None).report, "bench-log"));
}

#[test]
fn wrong_values() {
    let mut rows = predicted();
    rows[3].3 = 1024;
    let report = of(&[&with_rows(&rows)], None).report;
    let found_here = found(&report, "bench-wrong");
    assert!(
        found_here[0].0 == Severity::Critical && found_here[0].1.contains("1024 wrong values in 1 sizes"),
        "{found_here:?}"
    );
    assert!(is_fine(&of(&[A100], None).report, "bench-wrong"));
    assert!(is_unknown(&of(&[&with_rows(&rows).replace("#wrong", "error")], None).report, "bench-wrong"));
}

#[test]
fn drops() {
    let mut rows = predicted();
    rows[4].1 *= 3.0;
    let report = of(&[&with_rows(&rows)], Some(&fabric())).report;
    let spike = found(&report, "bench-drop");
    assert!(spike.len() == 1 && spike[0].1.contains("something else ran"), "{spike:?}");
    rows[5].1 *= 3.0;
    rows[6].1 *= 3.0;
    let report = of(&[&with_rows(&rows)], Some(&fabric())).report;
    assert_eq!(found(&report, "bench-drop").len(), 1, "{:?}", found(&report, "bench-drop"));
    assert!(is_fine(&of(&[&with_rows(&predicted())], Some(&fabric())).report, "bench-drop"));
    assert!(is_unknown(&of(&[&with_rows(&predicted()[..2])], None).report, "bench-drop"));
}

#[test]
fn in_place() {
    let slower: Vec<_> =
        predicted().into_iter().map(|(bytes, time, _, wrong)| (bytes, time, time * 1.6, wrong)).collect();
    let slower = found(&of(&[&with_rows(&slower)], None).report, "bench-in-place");
    assert!(slower[0].1.contains("in place is 1.6 times slower"), "{slower:?}");
    assert!(is_fine(&of(&[A100], None).report, "bench-in-place"));
    // Small calls only.
    let report = of(&[&with_rows(&predicted()[..2])], None).report;
    assert!(found(&report, "bench-in-place").is_empty() && !is_fine(&report, "bench-in-place"));
}

#[test]
fn outliers() {
    let on = |host: &str, by: f64| {
        let rows: Vec<_> = predicted()
            .into_iter()
            .map(|(bytes, time, other, wrong)| (bytes, time * by, other * by, wrong))
            .collect();
        with_rows(&rows).replace("dgx09", host)
    };
    let logs = [on("n1", 1.0), on("n2", 1.01), on("n3", 1.4)];
    let texts: Vec<&str> = logs.iter().map(String::as_str).collect();
    let slow = found(&of(&texts, None).report, "bench-outlier");
    assert!(slow.len() == 1 && slow[0].1.starts_with("n3 is 1.39 times slower"), "{slow:?}");
    let even = [texts[0], texts[1], texts[0]];
    assert!(is_fine(&of(&even, None).report, "bench-outlier"));
    assert!(is_unknown(&of(&texts[..2], None).report, "bench-outlier"));
    let one = of(&texts[..1], None).report;
    assert!(found(&one, "bench-outlier").is_empty() && !is_unknown(&one, "bench-outlier"));
}
