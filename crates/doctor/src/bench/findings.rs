//! What is wrong with a table of measurements.

use weftlink_sim::accuracy::{BANDS, band, quantile};
use weftlink_sim::calibrate::outliers::Outlier;

use super::{Band, Row, Table};
use crate::finding::{Cost, Finding, Outcome, Report, Severity};
use crate::size::size;

/// A size whose bandwidth is below this part of that of the size before it is a drop.
const DROP: f64 = 0.8;
/// Drops of smaller calls are noise.
const DROP_BYTES_MIN: u64 = 64 << 10;
/// In place and out of place differ from this factor on.
const IN_PLACE: f64 = 1.3;
/// Differences of smaller calls are noise.
const IN_PLACE_BYTES_MIN: u64 = 1 << 20;
/// Lines that are shown of a finding.
const EVIDENCE_MAX: usize = 4;
/// Findings of one kind for one table.
const FOUND_MAX: usize = 4;

/// Where measured times lie, in bands of sizes.
pub(super) fn bands(rows: &[Row]) -> Vec<Band> {
    let of = |index: usize| {
        let here = rows.iter().filter(|row| band(row.bytes) == index);
        let pairs: Vec<_> = here.filter_map(|row| Some((row, row.predicted.as_ref()?))).collect();
        let ratios: Vec<f64> =
            pairs.iter().map(|(row, predicted)| row.measured_us / predicted.time_us).collect();
        let count = |is: &dyn Fn(f64, (f64, f64)) -> bool, is_half: bool| {
            let interval =
                |predicted: &super::Predicted| if is_half { predicted.half_us } else { predicted.most_us };
            pairs
                .iter()
                .filter(|(row, predicted)| {
                    interval(predicted).is_some_and(|range| is(row.measured_us, range))
                })
                .count()
        };
        let is_inside = |time: f64, (low, high): (f64, f64)| (low..=high).contains(&time);
        (!pairs.is_empty()).then(|| Band {
            name: BANDS[index].0,
            rows: pairs.len(),
            ratio: quantile(ratios, 0.5),
            in_half: count(&is_inside, true),
            in_most: count(&is_inside, false),
            slower: count(&|time, (_, high)| time > high, false),
            faster: count(&|time, (low, _)| time < low, false),
        })
    };
    (0..BANDS.len()).filter_map(of).collect()
}

/// Everything that one table shows.
pub(super) fn of_table(table: &Table, report: &mut Report) {
    report.add("bench-speed", speed(table));
    report.add("bench-wrong", wrong(table));
    report.add("bench-drop", drops(table));
    report.add("bench-in-place", in_place(table));
}

fn named(table: &Table) -> String {
    format!("{} of {}", table.collective, table.log)
}

fn shown(table: &Table, finding: Finding, rows: &[&Row]) -> Finding {
    rows.iter().take(EVIDENCE_MAX).fold(finding, |finding, row| {
        let predicted = row.predicted.as_ref().map_or_else(String::new, |predicted| {
            let range = predicted
                .most_us
                .map_or_else(String::new, |(low, high)| format!(", nine of ten {low:.1} to {high:.1} us"));
            format!("; predicted {:.1} us{range}", predicted.time_us)
        });
        let rate = row.measured_gb_per_s.map_or_else(String::new, |rate| format!(", busbw {rate:.2} GB/s"));
        let text = format!("{}: {:.1} us{rate}{predicted}", size(row.bytes), row.measured_us);
        finding.shown_by(format!("{} line {}", table.log, row.line), text)
    })
}

fn speed(table: &Table) -> Vec<Outcome> {
    if table.bands.is_empty() {
        return Vec::new();
    }
    let fabric = table.fabric.as_deref().unwrap_or("the machine");
    if !table
        .rows
        .iter()
        .any(|row| row.predicted.as_ref().is_some_and(|predicted| predicted.most_us.is_some()))
    {
        let ratio = table.bands.last().map_or(1.0, |band| band.ratio);
        let what = format!(
            "whether {} is as fast as it should be: it takes {ratio:.2} times the predicted time, and the prediction has no interval",
            named(table)
        );
        return vec![Outcome::Unknown {
            what,
            needs: "published measurements of this library and class of machines".to_owned(),
        }];
    }
    let of = |of_band: &Band| {
        let Band { name, rows, ratio, in_half, in_most, slower, faster } = of_band;
        let here: Vec<&Row> = table.rows.iter().filter(|row| BANDS[band(row.bytes)].0 == *name).collect();
        let outside = |is: &dyn Fn(f64, (f64, f64)) -> bool| -> Vec<&Row> {
            let is_outside = |row: &&&Row| {
                row.predicted
                    .as_ref()
                    .and_then(|predicted| predicted.most_us)
                    .is_some_and(|range| is(row.measured_us, range))
            };
            here.iter().filter(is_outside).copied().collect()
        };
        // Half of the rows and more, because single rows are noise.
        if 2 * slower > *rows {
            let slow = outside(&|time, (_, high)| time > high);
            let what = format!(
                "{}, sizes {name}: {slower} of {rows} sizes are slower than nine of ten machines like {fabric} (median {ratio:.2} times the predicted time)",
                named(table)
            );
            let finding = shown(table, Finding::new("bench-speed", Severity::Warning, what), &last(&slow));
            return Outcome::Found(advise(finding.costing(cost(&slow)), name));
        }
        if 2 * faster > *rows {
            let fast = outside(&|time, (low, _)| time < low);
            let what = format!(
                "{}, sizes {name}: {faster} of {rows} sizes are faster than nine of ten machines like {fabric} (median {ratio:.2} times the predicted time): the machine is better than the description, or the calls were not real",
                named(table)
            );
            let finding = shown(table, Finding::new("bench-speed", Severity::Note, what), &last(&fast))
                .fixed_by("compare the machine with the description: `weft topo` there, and `weft topo MACHINE` here")
                .fixed_by("calibrate: `weft sim calibrate LOG --fabric MACHINE -o mine.toml`");
            return Outcome::Found(finding);
        }
        Outcome::Fine(format!(
            "{}, sizes {name}: {in_most} of {rows} sizes are as fast as nine of ten machines like {fabric}, {in_half} as the middle half (median {ratio:.2} times the predicted time)",
            named(table)
        ))
    };
    table.bands.iter().map(of).collect()
}

/// The last rows: the largest, whose bandwidths say most.
fn last<'r>(rows: &[&'r Row]) -> Vec<&'r Row> {
    rows[rows.len().saturating_sub(EVIDENCE_MAX)..].to_vec()
}

/// The bandwidths of the largest row.
fn cost(rows: &[&Row]) -> Option<Cost> {
    let row = rows.last()?;
    let (now_gb_per_s, usual_gb_per_s) = (row.measured_gb_per_s?, row.predicted.as_ref()?.gb_per_s);
    let sentence = format!(
        "{}: {now_gb_per_s:.1} instead of {usual_gb_per_s:.1} GB/s (bus bandwidth, predicted)",
        size(row.bytes)
    );
    (now_gb_per_s < usual_gb_per_s).then_some(Cost { sentence, now_gb_per_s, usual_gb_per_s })
}

fn advise(finding: Finding, band: &str) -> Finding {
    let small = band == BANDS[0].0 || band == BANDS[1].0;
    let first = match small {
        true => {
            "small calls are slow: check clocks and power (`nvidia-smi -q -d CLOCK,PERFORMANCE`), CPU binding of the ranks, and that `-w 5` warm-up calls were made"
        }
        false => {
            "large calls are slow: a link or a transport is missing. Run it again with NCCL_DEBUG=INFO and give the output to `weft doctor --log`"
        }
    };
    finding
        .fixed_by(first)
        .fixed_by("look at the host: `weft doctor`, and `weft doctor --measure` for every path")
}

fn wrong(table: &Table) -> Vec<Outcome> {
    let damaged: Vec<&Row> =
        table.rows.iter().filter(|row| row.wrong.is_some_and(|wrong| wrong > 0)).collect();
    if !damaged.is_empty() {
        let sum: u64 = damaged.iter().filter_map(|row| row.wrong).fold(0, u64::saturating_add);
        let what = format!(
            "{} has {sum} wrong values in {} sizes: data was damaged on its way",
            named(table),
            damaged.len()
        );
        let finding = damaged.iter().take(EVIDENCE_MAX).fold(
            Finding::new("bench-wrong", Severity::Critical, what),
            |finding, row| {
                let text = format!("{}: {} wrong", size(row.bytes), row.wrong.unwrap_or(0));
                finding.shown_by(format!("{} line {}", table.log, row.line), text)
            },
        );
        let finding = finding
            .fixed_by("copy a pattern between every pair of GPUs: `weft doctor --measure`; peer access that damages data is a fault of ACS, of the IOMMU or of a VM")
            .fixed_by("run again with NCCL_P2P_DISABLE=1, then with NCCL_NET_GDR_LEVEL=LOC: the one that helps names the path; do not train on this machine before");
        return vec![Outcome::Found(finding)];
    }
    match table.rows.iter().filter(|row| row.wrong.is_some()).count() {
        0 => vec![Outcome::Unknown {
            what: format!("whether the data of {} was right", named(table)),
            needs: "a run with checks (`-c 1`) of a version that prints #wrong".to_owned(),
        }],
        checked => vec![Outcome::Fine(format!("{}: no wrong value in {checked} sizes", named(table)))],
    }
}

/// Sizes at which the bandwidth is much lower than at the size before.
fn drops(table: &Table) -> Vec<Outcome> {
    let mut rows: Vec<&Row> = table.rows.iter().collect();
    rows.sort_by_key(|row| row.bytes);
    rows.dedup_by_key(|row| row.bytes);
    if rows.len() < 3 {
        let what = format!("whether the bandwidth of {} drops between sizes", named(table));
        return vec![Outcome::Unknown {
            what,
            needs: "a run over several sizes (`-b 8 -e 8G -f 2`)".to_owned(),
        }];
    }
    let rate = |row: &Row| row.bytes as f64 / row.measured_us;
    let mut found = Vec::new();
    for (at, pair) in rows.windows(2).enumerate() {
        let [before, after] = pair else { continue };
        let part = rate(after) / rate(before);
        if after.bytes < DROP_BYTES_MIN || part >= DROP || found.len() == FOUND_MAX {
            continue;
        }
        let both = before.predicted.as_ref().zip(after.predicted.as_ref());
        let usual =
            both.map(|(before_it, it)| (it.gb_per_s / before_it.gb_per_s, it.choice != before_it.choice, it));
        // The library's own choice does that.
        if usual.as_ref().is_some_and(|(usual, ..)| *usual < DROP) {
            continue;
        }
        let recovers = rows.get(at + 2).is_some_and(|next| rate(next) > rate(before));
        let why = match (recovers, usual) {
            (true, _) => {
                "the next size is faster again: something else ran at that moment, or the clock changed"
                    .to_owned()
            }
            (false, Some((_, true, it))) => {
                format!("the library switches to {} there, and the prediction does not drop", it.choice)
            }
            (false, _) => {
                "the library probably switches its algorithm or protocol too early or too late there"
                    .to_owned()
            }
        };
        let what = format!(
            "{}: the bandwidth at {} is {:.0} % lower than at {}; {why}",
            named(table),
            size(after.bytes),
            (1.0 - part) * 100.0,
            size(before.bytes)
        );
        let finding = shown(table, Finding::new("bench-drop", Severity::Warning, what), &[before, after]);
        let fix = match recovers {
            true => "measure the size again: `-b SIZE -e SIZE -n 200`, with nothing else on the hosts",
            false => {
                "measure around that size with NCCL_DEBUG_SUBSYS=TUNING, which prints the choice, and with NCCL_PROTO or NCCL_ALGO set to each"
            }
        };
        found.push(Outcome::Found(finding.fixed_by(fix)));
    }
    match found.is_empty() {
        true => vec![Outcome::Fine(format!("{}: the bandwidth does not drop between sizes", named(table)))],
        false => found,
    }
}

/// Sizes at which in place and out of place differ.
fn in_place(table: &Table) -> Vec<Outcome> {
    let large = table.rows.iter().filter(|row| row.bytes >= IN_PLACE_BYTES_MIN);
    let pairs: Vec<(&Row, f64)> =
        large.filter_map(|row| Some((row, row.in_place_us? / row.measured_us))).collect();
    if pairs.is_empty() {
        return Vec::new();
    }
    let is_odd = |ratio: f64| !(1.0 / IN_PLACE..=IN_PLACE).contains(&ratio);
    // One size is noise.
    let odd: Vec<&(&Row, f64)> =
        pairs.windows(2).filter(|pair| pair.iter().all(|(_, ratio)| is_odd(*ratio))).flatten().collect();
    let Some((_, ratio)) = odd.first() else {
        return vec![Outcome::Fine(format!("{}: in place is as fast as out of place", named(table)))];
    };
    let words = if *ratio > 1.0 { "slower" } else { "faster" };
    let mut rows: Vec<&Row> = odd.iter().map(|(row, _)| *row).collect();
    rows.dedup_by_key(|row| row.bytes);
    let what = format!(
        "{}: in place is {:.1} times {words} than out of place at {} sizes from 1 MiB",
        named(table),
        ratio.max(1.0 / ratio),
        rows.len()
    );
    let finding = rows.iter().take(EVIDENCE_MAX).fold(
        Finding::new("bench-in-place", Severity::Note, what),
        |finding, row| {
            let text = format!(
                "{}: {:.1} us out of place, {:.1} us in place",
                size(row.bytes),
                row.measured_us,
                row.in_place_us.unwrap_or(0.0)
            );
            finding.shown_by(format!("{} line {}", table.log, row.line), text)
        },
    );
    let fix = "run again with more iterations (`-n 100 -w 10`): the second half of a run is often the warmer one. If it stays, register buffers (`-R 1`) and compare";
    vec![Outcome::Found(finding.fixed_by(fix))]
}

/// Hosts that are slower than others which ran the same.
pub(super) fn of_hosts(slow: &[Outlier], runs: usize, is_enough: bool, report: &mut Report) {
    if runs < 2 {
        return;
    }
    let outcomes = if !is_enough {
        vec![Outcome::Unknown {
            what: "which host is slower than the others".to_owned(),
            needs: "three logs or more of the same calls on different hosts".to_owned(),
        }]
    } else if slow.is_empty() {
        vec![Outcome::Fine(format!("no host of {runs} tables is slower than the others"))]
    } else {
        let of = |outlier: &Outlier| {
            let Outlier { host, slower, runs } = outlier;
            let what =
                format!("{host} is {slower:.2} times slower than the median host, in {} tables", runs.len());
            let finding = Finding::new("bench-outlier", Severity::Warning, what)
                .fixed_by(format!("run `weft doctor` on {host} and on another host, and compare; or `weft doctor --all-ranks` under the launcher"))
                .fixed_by(format!("leave {host} out until it is repaired: `--exclude={host}` with Slurm"));
            Outcome::Found(finding)
        };
        slow.iter().map(of).collect()
    };
    report.add("bench-outlier", outcomes);
}
