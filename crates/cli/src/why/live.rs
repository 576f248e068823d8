//! `weft why --attach JOB`: a job that runs or hangs.

use std::io::{self, Write};
use std::path::Path;

use anyhow::anyhow;
use serde_json::json;
use weftlink_comm::attach::{Attached, WithoutCommunicator, attach};
use weftlink_comm::why::{Job, explain, ranks_in_words};

use crate::screen::{self, say};
use crate::{Failure, counted};

pub(super) fn run(job: &str, dump: Option<&Path>, json: bool) -> Result<(), Failure> {
    if job.trim() == "1" {
        return Err(Failure::misuse(anyhow!(
            "process 1 adopts the processes of all jobs; give the pid of a rank or of `weft run`"
        )));
    }
    let found = attach(job).map_err(Failure::misuse)?;
    // Without any communicator there is nothing to judge: the program may not use Weft.
    let runs = found.without_communicator.iter().all(|rank| !rank.is_stopped) && found.refused.is_empty();
    let is_unknown = found.records.is_empty() && runs;
    let why = explain(&found.records);
    let mut files = Vec::new();
    for record in dump.map_or(&[][..], |_| &found.records) {
        let folder = dump.unwrap_or(Path::new("."));
        let path = record.dump(folder).map_err(|error| {
            Failure::finding(anyhow!(error).context(format!("cannot write into {}", folder.display())))
        })?;
        files.push(path.display().to_string());
    }
    if json {
        let elsewhere: Vec<_> = why.jobs.iter().filter_map(|job| elsewhere(job, &why.jobs, &found)).collect();
        crate::print_json(&json!({
            "jobs": why.jobs,
            "silent": found.without_communicator,
            "refused": found.refused,
            "elsewhere": elsewhere
                .iter()
                .map(|(job, ranks)| json!({ "job": job, "ranks": ranks, "command": command(job) }))
                .collect::<Vec<_>>(),
            "files": files,
        }))?;
    } else if !is_unknown {
        print(&mut screen::stdout(), &found, &why.jobs, dump, files.len())?;
    }
    io::stdout().flush()?;
    if is_unknown {
        return Err(Failure::misuse(anyhow!(
            "no rank of {job} has a communicator: they have not joined yet, or the program does not use Weft; only Weft \
             programs can be examined"
        )));
    }
    let is_fine = why.jobs.iter().all(|job| !job.is_wrong)
        && !why.jobs.is_empty()
        && found.without_communicator.is_empty()
        && found.refused.is_empty();
    if is_fine { Ok(()) } else { Err(Failure::Found) }
}

fn print(
    out: &mut impl Write,
    found: &Attached,
    jobs: &[Job],
    dump: Option<&Path>,
    files: usize,
) -> io::Result<()> {
    for job in jobs {
        super::print(out, job)?;
    }
    for WithoutCommunicator { rank, pid, is_stopped } in &found.without_communicator {
        let stopped = if *is_stopped { "is stopped, and " } else { "" };
        say!(
            out,
            "Rank {rank} (pid {pid}) {stopped}has no communicator: it has not joined the others yet, has closed it, or is no Weft program."
        )?;
    }
    for refused in &found.refused {
        say!(out, "Cannot read process {}: {}.", refused.pid, refused.why)?;
    }
    for (job, ranks) in jobs.iter().filter_map(|job| elsewhere(job, jobs, found)) {
        let (ranks, command) = (ranks_in_words(&ranks), command(job));
        say!(
            out,
            "Not found on this host: {ranks} of job {job}. If the job has other hosts, run `{command}` on every host, \
             copy the files into one folder and run `weft why DIR` on it."
        )?;
    }
    if let Some(folder) = dump {
        writeln!(out, "Wrote {} into {}.", counted(files, "record"), folder.display())?;
    }
    Ok(())
}

/// Ranks of a communicator that were not found on this host. Launchers number ranks as the largest communicator does, so
/// one of its ranks that is silent is not elsewhere.
fn elsewhere<'a>(job: &'a Job, jobs: &[Job], found: &Attached) -> Option<(&'a str, Vec<u32>)> {
    let is_largest = jobs.iter().all(|other| other.size <= job.size);
    let is_here = |rank: u32| is_largest && found.without_communicator.iter().any(|one| one.rank == rank);
    let ranks: Vec<u32> = job.missing.iter().copied().filter(|rank| !is_here(*rank)).collect();
    (!ranks.is_empty()).then_some((job.job.as_str(), ranks))
}

/// What collects the records of a host.
fn command(job: &str) -> String {
    format!("weft why --attach {job} --dump DIR")
}
