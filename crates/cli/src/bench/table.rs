//! The table as nccl-tests prints it: lines that are not rows begin with `#`. The last columns are additions.
//!
//! A terminal that is too narrow for it shows a shorter one, which leaves out what all rows share. Programs read from a pipe or a
//! file, so these always get the full table.

use std::io::{self, Write};
use std::time::Duration;

use weftlink_fabric::bytes::Bytes;
use weftlink_kernels::Kernels;

use super::Crew;
use super::job::{Case, Job, Machine, Stats};
use super::rank::{ITERATIONS_MAX, ITERATIONS_MIN};
use super::results::{Measured, Row, average_busbw_gb_per_s, wrong};
use crate::counted;
use crate::units::size;

/// The columns of the full table up to the algorithm's name, and room for that.
const FULL_COLUMNS: usize = 150;

/// Which columns are shown.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Form {
    /// Those of nccl-tests.
    Full,
    /// Size, times, bus bandwidths, errors, prediction and algorithm.
    Narrow,
}

impl Form {
    /// The form for a terminal of so many columns, or for no terminal.
    pub(super) fn of(columns: Option<usize>) -> Self {
        match columns {
            Some(..FULL_COLUMNS) => Self::Narrow,
            _ => Self::Full,
        }
    }
}

/// What stands above the rows.
pub(super) fn header(out: &mut impl Write, job: &Job, crew: &Crew) -> io::Result<()> {
    let kind = match (crew.are_threads, job.ranks) {
        (true, 1) => "a thread",
        (true, _) => "threads",
        (false, 1) => "a process",
        (false, _) => "processes",
    };
    let checked = if job.check { "all elements checked" } else { "nothing checked" };
    let name = job.cases.first().map_or("p2p", |case| case.collective.name());
    let place = match crew.count_hosts() {
        1 => "this host".to_owned(),
        hosts => format!("{hosts} hosts"),
    };
    let by = crew.launcher.map_or(String::new(), |launcher| format!(", started by {launcher}"));
    writeln!(out, "# weft {}: {name} on {place}{by}", env!("CARGO_PKG_VERSION"))?;
    let kernels = Kernels::detect().name();
    let buffers = same_memory(job).map_or(String::new(), |symmetric| format!("{}, ", memory_name(symmetric)));
    writeln!(out, "# {} ({kind}), {buffers}{kernels} kernels", counted(job.ranks, "rank"))?;
    if job.pairs.is_none() {
        writeln!(out, "# {}, {}; {checked}", counted(job.warmup, "warm-up call"), iterations(job))?;
    }
    if let Some((name, lanes, hash)) = job.same_plan() {
        let lanes = if lanes == 1 { String::new() } else { format!(" of {lanes} lanes") };
        writeln!(out, "# plan {name}{lanes}, hash {hash}, at all sizes")?;
    }
    if job.deterministic {
        writeln!(out, "# deterministic: the same bits for every algorithm and kind of memory")?;
    }
    if rotates(job) {
        let total = Bytes(2 * job.cache_bytes as u64);
        writeln!(out, "# rotating: calls use different buffers in turn, {total} in all")?;
    }
    writeln!(out, "#")?;
    for (rank, (pid, host)) in crew.pids.iter().zip(&crew.hosts).enumerate() {
        let core = match &job.cores {
            Some(cores) => format!("core {:>3}", cores[rank]),
            None => "any core".to_owned(),
        };
        let host = if crew.count_hosts() == 1 { String::new() } else { format!(" host {host}") };
        writeln!(out, "#  Rank {rank:>3} Pid {pid:>7}{host} {core}")?;
    }
    out.flush()
}

/// The link between two ranks, and the headings. Calls that the simulator does not know are predicted from that link.
pub(super) fn columns(out: &mut impl Write, job: &Job, machine: &Machine, form: Form) -> io::Result<()> {
    if let (Some(latency), Some(rate)) = (machine.latency_us, machine.bandwidth_gb_per_s) {
        writeln!(out, "#  Rank 0 to rank 1: {latency:.2} us, {rate:.1} GB/s")?;
    }
    writeln!(out, "#")?;
    if form == Form::Narrow {
        return narrow_columns(out, job);
    }
    let way = |title: &str| format!("{title:^33}");
    writeln!(out, "#{:56}{}  {}", "", way("out-of-place"), way("in-place").trim_end())?;
    let columns = format!("{:>9}{:>8}{:>8}{:>8}", "time", "algbw", "busbw", "#wrong");
    let units = format!("{:>9}{:>8}{:>8}{:8}", "(us)", "(GB/s)", "(GB/s)", "");
    let head = |size, count, kind, op, root| format!("#{size:>11}{count:>13}{kind:>12}{op:>13}{root:>8}");
    let cache = if rotates(job) { "  cache" } else { "" };
    let names = head("size", "count", "type", "redop", "root");
    writeln!(out, "{names}{columns}  {columns}{:>9}  algorithm{cache}", "predict")?;
    writeln!(out, "{}{units}  {units}{:>9}", head("(B)", "(elements)", "", "", ""), "(us)")?;
    out.flush()
}

/// One row, flushed at once. `before` is the case of the row above.
pub(super) fn row(
    out: &mut impl Write,
    job: &Job,
    row: &Row,
    before: Option<usize>,
    form: Form,
) -> io::Result<()> {
    let case = &job.cases[row.case];
    let is_new = before.is_none_or(|before| job.cases[before].symmetric != case.symmetric);
    if same_memory(job).is_none() && is_new {
        writeln!(out, "# {}:", memory_name(case.symmetric))?;
    }
    match form {
        Form::Full => full_row(out, job, case, row)?,
        Form::Narrow => narrow_row(out, job, case, row, before)?,
    }
    for (name, measured) in [("out of place", &row.out_of_place), ("in place", &row.in_place)] {
        let Some(stats) = measured.as_ref().and_then(|measured| measured.stats) else { continue };
        let [min, p50, p95, p99, max] =
            [stats.min_us, stats.p50_us, stats.p95_us, stats.p99_us, stats.max_us].map(time);
        let calls = counted(stats.calls, "call");
        let indent = if form == Form::Narrow { "\n#   " } else { "" };
        writeln!(out, "#  {name}, {calls} (us):{indent} min {min} p50 {p50} p95 {p95} p99 {p99} max {max}")?;
    }
    out.flush()
}

fn full_row(out: &mut impl Write, job: &Job, case: &Case, row: &Row) -> io::Result<()> {
    let way = |measured: &Option<Measured>| match measured {
        None => format!("{0:>9}{0:>8}{0:>8}{0:>8}", "N/A"),
        Some(measured) => {
            let wrong = measured.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
            let (algbw, busbw) = (measured.algbw_gb_per_s, measured.busbw_gb_per_s);
            format!("{:>9}{algbw:>8.2}{busbw:>8.2}{wrong:>8}", time(measured.time_us))
        }
    };
    let (out_of_place, in_place) = (way(&row.out_of_place), way(&row.in_place));
    let (kind, op, root) = (case.data_type.name(), op_name(case), root(case));
    let predicted = row.predicted_us.map_or_else(|| "N/A".to_owned(), time);
    let cache = if rotates(job) { format!("  {}", cache_name(case)) } else { String::new() };
    writeln!(
        out,
        "{:>12}{:>13}{kind:>12}{op:>13}{root:>8}{out_of_place}  {in_place}{predicted:>9}  {}{cache}",
        row.bytes, row.count, row.plan
    )
}

fn narrow_columns(out: &mut impl Write, job: &Job) -> io::Result<()> {
    writeln!(out, "#{:9}{:^17}{}", "", "out-of-place", format!("{:^17}", "in-place").trim_end())?;
    let last = if rotates(job) { "  cache   " } else { "  predict" };
    let (names, units) = (format!("{:>9}{:>8}", "time", "busbw"), format!("{:>9}{:>8}", "(us)", "(GB/s)"));
    writeln!(out, "#{:>9}{names}{names}{:>7}{last}  algorithm", "size", "#wrong")?;
    let unit = if rotates(job) { "" } else { "     (us)" };
    writeln!(out, "{}", format!("#{:>9}{units}{units}{:7}{unit}", "(B)", "").trim_end())?;
    out.flush()
}

/// What all rows of a case share stands above them.
fn narrow_row(
    out: &mut impl Write,
    job: &Job,
    case: &Case,
    row: &Row,
    before: Option<usize>,
) -> io::Result<()> {
    let shared = |case: &Case| {
        let root = case.collective.root().map_or(String::new(), |root| format!(", root {root}"));
        let op = case.op.map_or(String::new(), |op| format!(" {}", op.name()));
        format!("# {}{op}{root}:", case.data_type.name())
    };
    if before.is_none_or(|before| shared(&job.cases[before]) != shared(case)) {
        writeln!(out, "{}", shared(case))?;
    }
    let way = |measured: &Option<Measured>| match measured {
        None => format!("{0:>9}{0:>8}", "N/A"),
        Some(measured) => format!("{:>9}{:>8.2}", time(measured.time_us), measured.busbw_gb_per_s),
    };
    let (out_of_place, in_place) = (way(&row.out_of_place), way(&row.in_place));
    let wrong = row.measured().filter_map(|measured| measured.wrong).reduce(|one, other| one + other);
    let wrong = wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
    let last = match rotates(job) {
        true => format!("  {:<8}", cache_name(case)),
        false => format!("{:>9}", row.predicted_us.map_or_else(|| "N/A".to_owned(), time)),
    };
    writeln!(out, "{:>10}{out_of_place}{in_place}{wrong:>7}{last}  {}", row.bytes, row.plan)
}

/// What stands below the rows.
pub(super) fn footer(out: &mut impl Write, job: &Job, rows: &[Row]) -> io::Result<()> {
    let verdict = match wrong(rows) {
        _ if !job.check => "N/A (-c 0)".to_owned(),
        _ if rows.iter().flat_map(Row::measured).next().is_none() => "N/A (nothing was measured)".to_owned(),
        0 => "0 OK".to_owned(),
        wrong => format!("{wrong} FAILED"),
    };
    let is_timed = |measured: &Measured| measured.stats.is_some();
    if job.stats == Some(Stats::Undisturbed) && !rows.iter().flat_map(Row::measured).all(is_timed) {
        writeln!(out, "# --stats: some calls are too short to time one by one; --stats=all does it anyway")?;
    }
    writeln!(out, "# Out of bounds values : {verdict}")?;
    if let Some(rate) = average_busbw_gb_per_s(rows) {
        writeln!(out, "# Avg bus bandwidth    : {rate:.4}")?;
    }
    writeln!(out, "#")
}

/// The memory that all cases are in, if it is one kind.
pub(super) fn same_memory(job: &Job) -> Option<bool> {
    let first = job.cases.first()?.symmetric;
    job.cases.iter().all(|case| case.symmetric == first).then_some(first)
}

/// One word for the memory of a case.
pub(super) fn memory_kind(job: &Job, case: &Case) -> &'static str {
    match case.symmetric {
        _ if job.on_gpu => "device",
        true => "symmetric",
        false => "ordinary",
    }
}

pub(super) fn memory_name(symmetric: bool) -> &'static str {
    if symmetric { "symmetric memory" } else { "ordinary memory" }
}

pub(super) fn cache_name(case: &Case) -> &'static str {
    if case.rotating { "rotating" } else { "cached" }
}

/// The reduction; `none` if the collective has none, as in nccl-tests.
pub(super) fn op_name(case: &Case) -> &'static str {
    case.op.map_or("none", |op| op.name())
}

/// The root; -1 if the collective has none, as in nccl-tests.
pub(super) fn root(case: &Case) -> i64 {
    case.collective.root().map_or(-1, i64::from)
}

fn rotates(job: &Job) -> bool {
    job.cases.iter().any(|case| case.rotating)
}

/// The progress line: what is measured, and the time left.
pub(super) fn progress(row: usize, job: &Job, passed: Duration) -> String {
    let (case, count) = job.rows[row];
    let bytes = size(job.cases[case].bytes(count, job.ranks) as u64);
    let left = left(passed, row, job.rows.len());
    format!("measuring {bytes} ({} of {}{left})", row + 1, job.rows.len())
}

/// The time left, extrapolated.
fn left(passed: Duration, done: usize, all: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let seconds = passed.as_secs_f64() * (all - done) as f64 / done as f64;
    format!(
        ", {} left",
        if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
    )
}

fn iterations(job: &Job) -> String {
    match job.iterations {
        Some(calls) => counted(calls, "timed call"),
        None => format!("timed calls for {} s ({ITERATIONS_MIN} to {ITERATIONS_MAX})", job.loop_seconds),
    }
}

/// Microseconds with the significant digits.
pub(super) fn time(us: f64) -> String {
    match us {
        ..1000.0 => format!("{us:.2}"),
        ..100_000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_the_digits_that_mean_something() {
        for (us, shown) in
            [(0.444, "0.44"), (999.0, "999.00"), (12_345.67, "12345.7"), (1_234_567.8, "1234568")]
        {
            assert_eq!(time(us), shown);
        }
    }

    #[test]
    fn time_left_is_extrapolated() {
        let passed = Duration::from_secs(30);
        assert_eq!(left(passed, 0, 4), "");
        assert_eq!(left(passed, 1, 4), ", 2 min left");
        assert_eq!(left(passed, 2, 4), ", 30 s left");
    }
}
