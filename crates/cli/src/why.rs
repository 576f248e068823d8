//! `weft why`: what everybody was waiting for, from the flight recorders of all ranks.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::anyhow;
use serde_json::json;
use weftlink_comm::recorder::read_folder;
use weftlink_comm::why::{Job, explain};

use crate::table::Table;
use crate::{Failure, counted};

/// What everybody was waiting for: the flight recorders of all ranks, merged
///
/// Ranks whose environment has WEFT_RECORD_DIR=DIR leave their records there when they fail or are killed. Copy those of
/// other hosts into one folder.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the records are
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folder = args.folder.display();
    let found = read_folder(&args.folder)
        .map_err(|error| Failure::misuse(anyhow!(error).context(format!("cannot read {folder}"))))?;
    let why = explain(&found.records);
    let is_wrong = why.jobs.iter().any(|job| job.is_wrong);
    if args.json {
        let passed_over: Vec<_> =
            found.passed_over.iter().map(|(file, why)| json!({ "file": file, "why": why })).collect();
        crate::print_json(&json!({ "jobs": why.jobs, "passed_over": passed_over }))?;
    } else {
        let mut out = io::stdout().lock();
        for job in &why.jobs {
            print(&mut out, job)?;
        }
        for (file, why) in &found.passed_over {
            writeln!(out, "Passed over {file}: {why}.")?;
        }
    }
    io::stdout().flush()?;
    match (found.records.is_empty(), is_wrong) {
        (true, _) => Err(Failure::finding(anyhow!(
            "there is no record in {folder}; ranks leave them where WEFT_RECORD_DIR says when they fail or are killed"
        ))),
        (false, true) => Err(Failure::Found),
        (false, false) => Ok(()),
    }
}

fn print(out: &mut impl Write, job: &Job) -> io::Result<()> {
    let hosts: std::collections::BTreeSet<&str> = job.ranks.iter().map(|rank| rank.host.as_str()).collect();
    let (ranks, records) = (counted(job.size as usize, "rank"), counted(job.ranks.len(), "record"));
    writeln!(out, "Job {}: {ranks}, {records} from {}.", job.job, counted(hosts.len(), "host"))?;
    for sentence in &job.sentences {
        writeln!(out, "  {sentence}")?;
    }
    let mut table =
        Table::new(["rank", "host", "pid", "state", "call", "is", "what", "plan", "waiting for", "since"]);
    for rank in &job.ranks {
        table.row([
            rank.rank.to_string(),
            rank.host.clone(),
            rank.pid.to_string(),
            rank.state.to_owned(),
            rank.call.map_or("-".to_owned(), |call| format!("#{call}")),
            rank.call_state.to_owned(),
            rank.what.clone(),
            rank.plan.clone(),
            rank.waiting.clone(),
            rank.waited_s.map_or_else(String::new, |seconds| format!("{seconds:.1} s")),
        ]);
    }
    writeln!(out, "\n{table}")?;
    if !job.late.is_empty() {
        let mut table = Table::new(["rank", "median us late", "most us late", "last in"]);
        for late in &job.late {
            let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
            let last = format!("{} of {} calls", late.was_last, late.calls);
            table.row([late.rank.to_string(), us(late.median_ns), us(late.most_ns), last]);
        }
        writeln!(out, "{table}")?;
    }
    Ok(())
}
