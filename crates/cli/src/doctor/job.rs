//! `weft doctor --job`: what a job does with communication, from traces or Weft's records.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde_json::json;
use weftlink_comm::attach::attach;
use weftlink_comm::recorder::read_folder;
use weftlink_doctor::job::{Job, JobError, SizeClass, Summary, explain, records};
use weftlink_fabric::Fabric;

use super::{Args, exit, print_with_report, text};
use crate::Failure;
use crate::screen::{self, say};
use crate::table::Table;
use crate::units::size;

pub(super) fn run(sources: &[PathBuf], expected: Option<&Fabric>, args: &Args) -> Result<(), Failure> {
    let mut job = Job::default();
    for source in sources {
        add(&mut job, source)?;
    }
    let (summary, report) = explain(&job, expected);
    if args.json {
        print_with_report(json!(summary), &report)?;
    } else {
        let mut out = screen::stdout();
        print(&mut out, &summary)?;
        text::print(&mut out, &report, args.all)?;
    }
    exit(&report)
}

/// A folder of records, a trace, or a running job.
fn add(job: &mut Job, source: &Path) -> Result<(), Failure> {
    let name = source.display().to_string();
    let wrong = |error: JobError| Failure::misuse(anyhow!("{name}: {error}"));
    if source.is_dir() {
        let found =
            read_folder(source).map_err(|error| Failure::misuse(anyhow!("cannot read {name}: {error}")))?;
        if found.records.is_empty() {
            return Err(Failure::misuse(anyhow!("there is no record of Weft in {name}")));
        }
        return records::add(job, &found.records).map_err(wrong);
    }
    if !source.exists() {
        let found = attach(&name).map_err(|error| {
            Failure::misuse(anyhow!("{name} is neither a file nor a folder, and as a running job: {error}"))
        })?;
        if found.records.is_empty() {
            return Err(Failure::misuse(anyhow!("no rank of {name} has a communicator of Weft yet")));
        }
        return records::add(job, &found.records).map_err(wrong);
    }
    let file = File::open(source).map_err(|error| Failure::misuse(anyhow!("cannot read {name}: {error}")))?;
    job.add_trace(&name, file).map_err(wrong)
}

fn print(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    say!(out, "{}", summary.subject)?;
    for note in &summary.notes {
        say!(out, "Note: {}.", note.trim_end_matches('.'))?;
    }
    let us = |value: Option<f64>| value.map_or("-".to_owned(), |us| format!("{:.3}", us / 1e3));
    let mut table = Table::new(["collective", "size", "calls", "GB", "time ms"]).numbers(&["size"]);
    for collective in &summary.collectives {
        let mut row = |name: &str, of: String, class: &SizeClass| {
            let gb = format!("{:.3}", class.bytes as f64 / 1e9);
            table.row([name.to_owned(), of, class.calls.to_string(), gb, us(class.time_us)]);
        };
        row(collective.collective, "all".to_owned(), &collective.all);
        for class in &collective.sizes {
            let below =
                class.below_bytes.map_or("larger".to_owned(), |bytes| format!("below {}", size(bytes)));
            row("", below, class);
        }
    }
    writeln!(out, "\n{table}")?;
    let mut table = Table::new(["rank", "calls", "communication ms", "exposed ms", "waited ms", "came last"]);
    for rank in &summary.ranks {
        table.row([
            rank.name.clone(),
            rank.calls.to_string(),
            us(rank.communication_us),
            us(rank.exposed_us),
            us((rank.compared > 0).then_some(rank.waited_us)),
            match rank.compared {
                0 => "-".to_owned(),
                compared => format!("{} of {compared}", rank.came_last),
            },
        ]);
    }
    writeln!(out, "{table}")?;
    if !summary.rates.is_empty() {
        let headings = ["collective", "size", "ranks", "calls", "time us", "busbw GB/s", "predicted GB/s"];
        let mut table = Table::new(headings).numbers(&["size"]).optional(&["predicted GB/s"]);
        for rate in &summary.rates {
            table.row([
                rate.collective.to_owned(),
                size(rate.bytes),
                rate.ranks.to_string(),
                rate.calls.to_string(),
                format!("{:.1}{}", rate.time_us, if rate.includes_waiting { "*" } else { "" }),
                format!("{:.2}", rate.busbw_gb_per_s),
                rate.predicted_busbw_gb_per_s.map_or("-".to_owned(), |rate| format!("{rate:.2}")),
            ]);
        }
        writeln!(out, "{table}")?;
        if summary.rates.iter().any(|rate| rate.includes_waiting) {
            say!(out, "* includes waiting for other ranks")?;
        }
    }
    Ok(())
}
