//! The table, as nccl-tests prints it: what is not a row begins with `#`. A last column names the plan.

use std::io::{self, IsTerminal, Write};

use weftlink_comm::kernels::Kernels;
use weftlink_fabric::bytes::Bytes;

use super::job::{ELEMENT, Job};
use super::rank::{ITERATIONS_MAX, ITERATIONS_MIN, LOOP_SECONDS};
use super::results::{Measured, Row, average_busbw_gb_per_s, wrong};
use crate::counted;

/// What stands above the rows.
pub(super) fn header(out: &mut impl Write, job: &Job, threads: bool, pids: &[u32]) -> io::Result<()> {
    let kind = match (threads, job.ranks) {
        (true, 1) => "a thread",
        (true, _) => "threads",
        (false, 1) => "a process",
        (false, _) => "processes",
    };
    let buffers = if job.symmetric { "symmetric memory" } else { "ordinary memory" };
    let checked = if job.check { "every element is checked" } else { "nothing is checked" };
    writeln!(out, "# weft {}: {} on this host", env!("CARGO_PKG_VERSION"), job.collective)?;
    writeln!(
        out,
        "# {} ({kind}), {buffers}, {} kernels",
        counted(job.ranks, "rank"),
        Kernels::detect().name()
    )?;
    writeln!(out, "# {}, {}; {checked}", counted(job.warmup, "warm-up call"), iterations(job))?;
    if let Some((name, lanes, hash)) = job.same_plan() {
        let lanes = if lanes == 1 { String::new() } else { format!(" of {lanes} lanes") };
        writeln!(out, "# plan {name}{lanes}, hash {hash}, at all sizes")?;
    }
    writeln!(out, "#")?;
    for (rank, pid) in pids.iter().enumerate() {
        let core = match &job.cores {
            Some(cores) => format!("core {:>3}", cores[rank]),
            None => "any core".to_owned(),
        };
        writeln!(out, "#  Rank {rank:>3} Pid {pid:>7} {core}")?;
    }
    writeln!(out, "#")?;
    let way = |title: &str| format!("{title:^33}");
    writeln!(out, "#{:49}{}  {}", "", way("out-of-place"), way("in-place").trim_end())?;
    let columns = format!("{:>9}{:>8}{:>8}{:>8}", "time", "algbw", "busbw", "#wrong");
    let units = format!("{:>9}{:>8}{:>8}{:8}", "(us)", "(GB/s)", "(GB/s)", "");
    let head = |size, count, kind, op, root| format!("#{size:>11}{count:>13}{kind:>10}{op:>8}{root:>8}");
    writeln!(out, "{}{columns}  {columns}  plan", head("size", "count", "type", "redop", "root"))?;
    writeln!(out, "{}{units}  {}", head("(B)", "(elements)", "", "", ""), units.trim_end())?;
    out.flush()
}

/// One row; shown at once.
pub(super) fn row(out: &mut impl Write, row: &Row) -> io::Result<()> {
    let way = |measured: &Option<Measured>| match measured {
        None => format!("{0:>9}{0:>8}{0:>8}{0:>8}", "N/A"),
        Some(measured) => {
            let wrong = measured.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
            let (algbw, busbw) = (measured.algbw_gb_per_s, measured.busbw_gb_per_s);
            format!("{:>9}{algbw:>8.2}{busbw:>8.2}{wrong:>8}", time(measured.time_us()))
        }
    };
    let (out_of_place, in_place) = (way(&row.out_of_place), way(&row.in_place));
    let (bytes, count, plan) = (row.bytes, row.count, &row.plan);
    let kind = ELEMENT.0;
    writeln!(out, "{bytes:>12}{count:>13}{kind:>10}{:>8}{:>8}{out_of_place}  {in_place}  {plan}", "sum", -1)?;
    out.flush()
}

/// What stands below the rows.
pub(super) fn footer(out: &mut impl Write, job: &Job, rows: &[Row]) -> io::Result<()> {
    let verdict = match wrong(rows) {
        _ if !job.check => "N/A (-c 0)".to_owned(),
        _ if rows.is_empty() => "N/A (nothing was measured)".to_owned(),
        0 => "0 OK".to_owned(),
        wrong => format!("{wrong} FAILED"),
    };
    writeln!(out, "# Out of bounds values : {verdict}")?;
    if let Some(rate) = average_busbw_gb_per_s(rows) {
        writeln!(out, "# Avg bus bandwidth    : {rate:.4}")?;
    }
    writeln!(out, "#")
}

/// A line on a terminal that says what is being measured, and goes away. Nothing where nobody looks.
pub(super) struct Progress {
    shown: bool,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { shown: false, is_terminal: io::stderr().is_terminal() }
    }

    pub(super) fn show(&mut self, count: usize) {
        if self.is_terminal {
            self.clear();
            eprint!("measuring {} ...", Bytes((count * ELEMENT.1) as u64));
            self.shown = true;
        }
    }

    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn iterations(job: &Job) -> String {
    match job.iterations {
        Some(calls) => counted(calls, "timed call"),
        None => format!("then as many as take {LOOP_SECONDS} s ({ITERATIONS_MIN} to {ITERATIONS_MAX})"),
    }
}

/// Microseconds with as many digits as fit and mean something.
fn time(us: f64) -> String {
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
}
