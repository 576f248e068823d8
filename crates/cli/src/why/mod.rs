//! `weft why`: why a job failed or hangs, from the flight recorders of its ranks.

mod live;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde_json::json;
use weftlink_comm::recorder::read_folder;
use weftlink_comm::why::{Job, explain};

use crate::screen::{self, say};
use crate::table::Table;
use crate::{Failure, counted};

/// Explain why a job failed or hangs, from the flight recorders of its ranks
///
/// Ranks with WEFT_RECORD_DIR=DIR in their environment leave a record in DIR when they fail or are killed. Copy the records of all
/// hosts into one folder. --attach reads the memory of a job that runs or hangs, without disturbing it; of ranks on GPUs, also what their
/// kernels wait for.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft why records                       records of a job that has failed
  weft why --attach mine                 a running job: weft run --name mine
  weft why --attach 4711                 by the pid of a rank or of weft run
  weft why --attach 3f9a1c2b77d0         by the number of a communicator
  weft why --attach mine --dump records  also write the records of this host

Exit code 0 if nothing is wrong, 1 if the job failed or hangs, 2 if it cannot be read.")]
pub(crate) struct Args {
    /// The folder with the records
    #[arg(value_name = "DIR", conflicts_with = "attach")]
    folder: Option<PathBuf>,
    /// Examine a running job on this host: its name (WEFT_JOB), the pid of a rank or of `weft run`, or the number of a communicator
    #[arg(long, value_name = "JOB")]
    attach: Option<String>,
    /// With --attach: write the records to DIR
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match (&args.attach, &args.folder) {
        // clap cannot require --attach and exclude DIR at once.
        (None, _) if args.dump.is_some() => Err(Failure::misuse(anyhow!("--dump requires --attach JOB"))),
        (Some(job), _) => live::run(job, args.dump.as_deref(), args.json),
        (None, Some(folder)) => left_behind(folder, args.json),
        (None, None) => Err(Failure::misuse(anyhow!(
            "name a folder of records (weft why DIR) or a running job (weft why --attach JOB)"
        ))),
    }
}

fn left_behind(folder: &Path, json: bool) -> Result<(), Failure> {
    let found = read_folder(folder).map_err(|error| {
        Failure::misuse(anyhow!(error).context(format!("cannot read {}", folder.display())))
    })?;
    let folder = folder.display();
    let why = explain(&found.records);
    let is_wrong = why.jobs.iter().any(|job| job.is_wrong);
    if json {
        let passed_over: Vec<_> =
            found.passed_over.iter().map(|(file, why)| json!({ "file": file, "why": why })).collect();
        crate::print_json(&json!({ "jobs": why.jobs, "passed_over": passed_over }))?;
    } else {
        let mut out = screen::stdout();
        for job in &why.jobs {
            print(&mut out, job)?;
        }
        for (file, why) in &found.passed_over {
            say!(out, "Skipped {file}: {why}.")?;
        }
    }
    io::stdout().flush()?;
    match (found.records.is_empty(), is_wrong) {
        (true, _) => Err(Failure::misuse(anyhow!(
            "there is no record in {folder}; ranks write them to WEFT_RECORD_DIR when they fail or are killed"
        ))),
        (false, true) => Err(Failure::Found),
        (false, false) => Ok(()),
    }
}

fn print(out: &mut impl Write, job: &Job) -> io::Result<()> {
    let hosts: std::collections::BTreeSet<&str> = job.ranks.iter().map(|rank| rank.host.as_str()).collect();
    let (ranks, records) = (counted(job.size as usize, "rank"), counted(job.ranks.len(), "record"));
    say!(out, "Job {}: {ranks}, {records} from {}.", job.job, counted(hosts.len(), "host"))?;
    for sentence in &job.sentences {
        writeln!(out, "{}", screen::record(&format!("  {sentence}")))?;
    }
    let headings = ["rank", "host", "pid", "state", "call", "is", "what", "plan", "since", "waiting for"];
    let mut table = Table::new(headings).optional(&["plan", "pid", "host"]);
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
            rank.waited_s.map_or_else(String::new, |seconds| format!("{seconds:.1} s")),
            rank.waiting.clone(),
        ]);
    }
    writeln!(out, "\n{table}")?;
    if !job.late.is_empty() {
        let mut table = Table::new(["rank", "us after the first: median", "maximum", "last in"]);
        for late in &job.late {
            let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
            let last = format!("{} of {} calls", late.was_last, late.calls);
            table.row([late.rank.to_string(), us(late.median_ns), us(late.most_ns), last]);
        }
        writeln!(out, "{table}")?;
    }
    Ok(())
}
