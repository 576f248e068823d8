//! `weft why`: what everybody was waiting for, from the flight recorders of all ranks.

mod live;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde_json::json;
use weftlink_comm::recorder::read_folder;
use weftlink_comm::why::{Job, explain};

use crate::table::Table;
use crate::{Failure, counted};

/// What everybody was waiting for: the flight recorders of all ranks, merged
///
/// Ranks whose environment has WEFT_RECORD_DIR=DIR leave their records there when they fail or are killed. Copy those of
/// other hosts into one folder. A job that runs, or hangs, is asked with --attach, and does not notice.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft why records                         what happened, from the files in a folder
  weft why --attach mine                   a job on this host, by its name: weft run --name mine ...
  weft why --attach 4711                   by the process of a rank, or of weft run
  weft why --attach 3f9a1c2b77d0           by the number of a communicator, as it is shown here
  weft why --attach mine --dump records    and write files: `weft why records` merges those of all hosts

Exit code 0 is fine, 1 something is wrong with the job, 2 it could not be looked at.")]
pub(crate) struct Args {
    /// Where the records are
    #[arg(value_name = "DIR", conflicts_with = "attach")]
    folder: Option<PathBuf>,
    /// Ask a job of this host that runs or hangs: the process of a rank or of `weft run`, a name (WEFT_JOB), or a number
    #[arg(long, value_name = "JOB")]
    attach: Option<String>,
    /// Also write what was found into a folder, as files
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match (&args.attach, &args.folder) {
        // Clap does not ask for what another argument excludes.
        (None, _) if args.dump.is_some() => {
            Err(Failure::misuse(anyhow!("--dump writes what --attach finds; say which job that is")))
        }
        (Some(job), _) => live::run(job, args.dump.as_deref(), args.json),
        (None, Some(folder)) => left_behind(folder, args.json),
        (None, None) => Err(Failure::misuse(anyhow!(
            "say where the records are (weft why DIR), or which job to ask (weft why --attach JOB)"
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
        (true, _) => Err(Failure::misuse(anyhow!(
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
        let mut table = Table::new(["rank", "us after the first: median", "most", "last in"]);
        for late in &job.late {
            let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
            let last = format!("{} of {} calls", late.was_last, late.calls);
            table.row([late.rank.to_string(), us(late.median_ns), us(late.most_ns), last]);
        }
        writeln!(out, "{table}")?;
    }
    Ok(())
}
