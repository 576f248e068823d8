//! `weft bench`: measure a collective between ranks on this host.
//!
//! The command starts the ranks (`spawn`), each of which measures all sizes (`rank`) and reports (`job`); what they
//! report is put together (`results`) and printed (`table`, `json`). A further collective is a name in `args`, a call in
//! `rank`, its data in `data` and its factor in `results`.

mod args;
mod data;
mod elsewhere;
mod job;
mod json;
mod rank;
mod results;
mod spawn;
mod table;

use std::io;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::anyhow;

pub(crate) use args::Args;
pub(crate) use spawn::{RANK_COMMAND, rank_main};

use crate::{Failure, counted};
use job::{Job, Message};
use results::{Merger, Row};
use spawn::{End, Event, Ranks};
use table::Progress;

/// How long other ranks may take to say what they know, once one has failed.
const LAST_WORDS: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let job = args.job()?;
    let mut ranks = Ranks::start(&job, args.threads).map_err(Failure::finding)?;
    let pids = ranks.pids(&job);
    let mut out = io::stdout().lock();
    if !args.json {
        table::header(&mut out, &job, args.threads, &pids)?;
    }
    let mut rows = Vec::new();
    let outcome = collect(&job, &mut ranks, |row| {
        if !args.json {
            table::row(&mut out, &row)?;
        }
        rows.push(row);
        Ok(())
    })?;
    // Whatever ends the run, no rank is left when the last line is printed.
    drop(ranks);
    if args.json {
        let ending = json::Ending { interrupted: outcome.signal().is_some(), error: outcome.error() };
        drop(out);
        crate::print_json(&json::document(&job, args.threads, &pids, &rows, &ending))?;
    } else {
        table::footer(&mut out, &job, &rows)?;
    }
    match (outcome, results::wrong(&rows)) {
        (Outcome::Interrupted(signal), _) => Err(Failure::Interrupted(signal)),
        (Outcome::Failed(error), _) => Err(Failure::finding(anyhow!(error))),
        (Outcome::Done, 0) => Ok(()),
        (Outcome::Done, wrong) => Err(Failure::finding(anyhow!(counted(wrong, "wrong element")))),
    }
}

/// How a run ended.
enum Outcome {
    Done,
    Interrupted(i32),
    Failed(String),
}

impl Outcome {
    fn signal(&self) -> Option<i32> {
        match self {
            Outcome::Interrupted(signal) => Some(*signal),
            _ => None,
        }
    }

    fn error(&self) -> Option<&str> {
        match self {
            Outcome::Failed(error) => Some(error),
            _ => None,
        }
    }
}

/// Hears all ranks until they are done or one is not going to be.
fn collect(
    job: &Job,
    ranks: &mut Ranks,
    mut show: impl FnMut(Row) -> io::Result<()>,
) -> Result<Outcome, Failure> {
    let mut merger = Merger::new(job);
    let mut progress = Progress::new();
    let mut left = vec![job.counts.len(); job.ranks];
    let mut gave_up = vec![false; job.ranks];
    let mut running = job.ranks;
    // What ranks say when they give up, best explanation first, and until when to wait for a better one.
    let mut failure: Option<(u8, String)> = None;
    let mut until: Option<Instant> = None;
    while running > 0 {
        let event = match until {
            None => ranks.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => ranks.events.recv_timeout(until.saturating_duration_since(Instant::now())),
        };
        let failed = match event {
            Err(_) => break,
            Ok(Event::Signal(signal)) => return Ok(Outcome::Interrupted(signal)),
            Ok(Event::Said(_, Message::Started { count })) => {
                progress.show(count);
                continue;
            }
            Ok(Event::Said(rank, Message::Measured(row))) => {
                left[rank] = left[rank].saturating_sub(1);
                if let Some(row) = merger.add(rank, row) {
                    progress.clear();
                    show(row)?;
                }
                continue;
            }
            Ok(Event::Said(rank, Message::Failed { error, secondary })) => {
                gave_up[rank] = true;
                (1 + u8::from(secondary), error)
            }
            Ok(Event::Closed(rank)) => {
                running -= 1;
                match ranks.end_of(rank).map_err(Failure::Finding)? {
                    End::Interrupted => return Ok(Outcome::Interrupted(signal_hook::consts::SIGINT)),
                    End::Died(how) if !gave_up[rank] => (0, how),
                    End::Died(_) => continue,
                    End::Fine if left[rank] == 0 => continue,
                    End::Fine => (3, format!("rank {rank} ended before it was done")),
                }
            }
        };
        if failure.as_ref().is_none_or(|known| failed.0 < known.0) {
            failure = Some(failed);
        }
        until = until.or_else(|| Some(Instant::now() + LAST_WORDS));
    }
    Ok(failure.map_or(Outcome::Done, |(_, error)| Outcome::Failed(error)))
}
