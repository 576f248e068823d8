//! `weft bench`: measure collectives between ranks, on this host or wherever a launcher started them.
//!
//! The arguments (`args`, `names`, `elsewhere`) describe a job: rows, each of a case and a size. The command starts the ranks
//! (`spawn`) or is one of them (`launched`). They measure the link between two ranks (`probe`), then row by row (`rank`,
//! `measure`) with data that can be checked (`data`, `encode`) in rotating buffers (`slots`), or pair by pair (`pairs`). Their
//! reports (`job`) are merged (`results`) and printed (`table`, `json`, `csv`, `plot`, `trace`, `summary`), or become a tuning
//! table (`tune`). Rows between ranks on a GPU are measured by `gpu`, in this process.

mod args;
mod csv;
mod data;
mod elsewhere;
mod encode;
mod gpu;
mod job;
mod json;
mod launched;
mod measure;
mod names;
mod pairs;
mod plot;
mod predict;
mod probe;
mod rank;
mod results;
mod slots;
mod spawn;
mod summary;
mod table;
mod trace;
mod tune;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow};
use weftlink_comm::bootstrap::Environment;
use weftlink_sim::Constants;

pub(crate) use args::Args;
pub(crate) use probe::Pair;
pub(crate) use spawn::{RANK_COMMAND, allowed_cores, rank_main};

use crate::progress::Progress;
use crate::screen;
use crate::{Failure, counted};
use job::{Job, Machine, Message};
use pairs::Matrices;
use results::{Merger, Row};
use spawn::{End, Event, Ranks};
use table::Form;

/// How long to wait for the reports of other ranks once one has failed.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The results of a run.
struct Run<'j> {
    job: &'j Job,
    crew: Crew,
    started: SystemTime,
    machine: Machine,
    rows: Vec<Row>,
    matrices: Option<Matrices>,
    outcome: Outcome,
    /// The GPU, if ranks share one.
    gpu: Option<gpu::Gpu>,
}

/// The ranks.
struct Crew {
    are_threads: bool,
    /// The launcher, if this command did not start them.
    launcher: Option<&'static str>,
    /// Of each rank.
    pids: Vec<u32>,
    hosts: Vec<u32>,
}

impl Crew {
    fn count_hosts(&self) -> usize {
        self.hosts.iter().max().map_or(1, |last| *last as usize + 1)
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.gpu {
        return gpu::run(args);
    }
    let launched = launched::of_this_process(args.launcher)?;
    let mut job = args.job(launched.as_ref())?;
    if launched.as_ref().is_some_and(|environment| environment.rank > 0) {
        return launched::follow(job);
    }
    let least = args.least_busbw_gb_per_s()?;
    let files = Files::create(args)?;
    let started = SystemTime::now();
    let (mut ranks, crew) = start(args, &mut job, launched.as_ref())?;
    let mut out = io::stdout().lock();
    let form = Form::of(screen::terminal_columns());
    let shows_table = args.shows_table();
    if shows_table {
        table::header(&mut out, &job, &crew)?;
    }
    let (outcome, machine, rows, matrices) = {
        let mut gathered =
            Gathered::new(&job, args.average(), crew.count_hosts() == 1, args.calibration.constants());
        let mut before = None;
        let outcome = collect(&job, &mut ranks, &mut gathered, |event| match event {
            Progressed::Probed(machine) if shows_table && job.pairs.is_none() => {
                table::columns(&mut out, &job, machine, form)
            }
            Progressed::Row(row) if shows_table => {
                let above = before.replace(row.case);
                table::row(&mut out, &job, row, above, form)
            }
            _ => Ok(()),
        })?;
        (outcome, gathered.merger.machine, gathered.rows, gathered.matrices)
    };
    // No rank is left when the last line is printed.
    drop(ranks);
    drop(out);
    let run = Run { job: &job, crew, started, machine, rows, matrices, outcome, gpu: None };
    finish(args, files, run, least)
}

/// The output files.
struct Files {
    csv: Option<Target>,
    plot: Option<Target>,
    json: Option<Target>,
    table: Option<Target>,
    trace: Option<Target>,
}

impl Files {
    /// Creates the files first: a write error must not come after minutes of measuring.
    fn create(args: &Args) -> Result<Self, Failure> {
        Ok(Self {
            csv: args.csv.as_deref().filter(|path| *path != Path::new("-")).map(create).transpose()?,
            plot: args.plot.as_deref().map(create).transpose()?,
            json: args.json_file.as_deref().map(create).transpose()?,
            table: args.output.as_deref().map(create).transpose()?,
            trace: args.trace.as_deref().map(create).transpose()?,
        })
    }
}

/// Writes the files and what stands below the rows, or the whole document. Returns the result of the command.
fn finish(args: &Args, files: Files, run: Run<'_>, least_gb_per_s: Option<f64>) -> Result<(), Failure> {
    let job = run.job;
    let mut out = io::stdout().lock();
    if let Some((mut file, name)) = files.csv {
        csv::write(&mut file, job, &run.rows)
            .with_context(|| format!("cannot write {name}"))
            .map_err(Failure::Finding)?;
    }
    if let Some(file) = files.plot {
        write(file, plot::svg(job, &run.rows).as_bytes())?;
    }
    if let Some(file) = files.trace {
        write(file, format!("{:#}\n", trace::document(job, &run.rows)).as_bytes())?;
    }
    if let Some(file) = files.json {
        write(file, format!("{:#}\n", json::document(&run)).as_bytes())?;
    }
    if args.tune {
        let found = tune::table(job, &run.rows, run.machine.reads_peers);
        match files.table {
            Some(file) => write(file, found.as_bytes())?,
            None => write!(out, "{found}")?,
        }
    } else if args.json {
        drop(out);
        crate::print_json(&json::document(&run))?;
    } else if args.shows_table() {
        match (&run.matrices, job.pairs) {
            (Some(matrices), Some(sizes)) => matrices.print(&mut out, sizes)?,
            _ => table::footer(&mut out, job, &run.rows)?,
        }
        if let Some(sentence) = summary::sentence(job, &run.rows).filter(|_| args.is_tour()) {
            writeln!(out, "{}", screen::record(&sentence))?;
        }
    } else {
        csv::write(&mut out, job, &run.rows)?;
    }
    verdict(run, least_gb_per_s)
}

/// Starts the ranks, or becomes rank 0 of those that a launcher started.
fn start(args: &Args, job: &mut Job, launched: Option<&Environment>) -> Result<(Ranks, Crew), Failure> {
    let Some(environment) = launched else {
        let ranks = Ranks::start(job, args.threads).map_err(Failure::finding)?;
        let (pids, hosts) = (ranks.pids(job), vec![0; job.ranks]);
        return Ok((ranks, Crew { are_threads: args.threads, launcher: None, pids, hosts }));
    };
    let met = launched::meet(job)?;
    let launcher = Some(environment.launcher.name());
    let crew = Crew { are_threads: false, launcher, pids: met.pids().to_vec(), hosts: met.hosts().to_vec() };
    Ok((Ranks::lead(job, met).map_err(Failure::finding)?, crew))
}

/// The result of the command.
fn verdict(run: Run<'_>, least_gb_per_s: Option<f64>) -> Result<(), Failure> {
    let average = results::average_busbw_gb_per_s(&run.rows);
    match (run.outcome, results::wrong(&run.rows)) {
        (Outcome::Interrupted(signal), _) => Err(Failure::Interrupted(signal)),
        (Outcome::Failed(error), _) => Err(Failure::finding(anyhow!(error))),
        (Outcome::Done, 0) if average.is_none() && !run.rows.is_empty() => Err(Failure::finding(anyhow!(
            "nothing was measured: the plan reads the buffers of other ranks, which this kernel does not allow; add -R 2"
        ))),
        (Outcome::Done, 0) => match (average, least_gb_per_s) {
            (Some(average), Some(least)) if average < least => Err(Failure::finding(anyhow!(
                "the average bus bandwidth is {average:.4} GB/s, below the minimum of {least:.4}"
            ))),
            _ => Ok(()),
        },
        (Outcome::Done, wrong) => Err(Failure::finding(anyhow!(counted(wrong, "wrong element")))),
    }
}

/// An output file and its name.
type Target = (File, String);

fn create(path: &Path) -> Result<Target, Failure> {
    let name = path.display().to_string();
    match File::create(path).with_context(|| format!("cannot write {name}")) {
        Ok(file) => Ok((file, name)),
        Err(error) => Err(Failure::Misuse(error)),
    }
}

fn write((mut file, name): Target, bytes: &[u8]) -> Result<(), Failure> {
    file.write_all(bytes).with_context(|| format!("cannot write {name}")).map_err(Failure::Finding)
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

/// The reports of ranks so far.
struct Gathered<'j> {
    merger: Merger<'j>,
    rows: Vec<Row>,
    matrices: Option<Matrices>,
}

impl<'j> Gathered<'j> {
    fn new(job: &'j Job, average: results::Average, is_one_host: bool, constants: Constants) -> Self {
        let matrices = job.pairs.map(|_| Matrices::new(job.ranks));
        Self { merger: Merger::new(job, average, is_one_host, constants), rows: Vec::new(), matrices }
    }
}

/// Progress to print at once.
enum Progressed<'a> {
    Probed(&'a Machine),
    Row(&'a Row),
}

/// Receives the reports of all ranks until they are done or one has failed.
fn collect(
    job: &Job,
    ranks: &mut Ranks,
    gathered: &mut Gathered<'_>,
    mut show: impl FnMut(Progressed<'_>) -> io::Result<()>,
) -> Result<Outcome, Failure> {
    let (mut progress, started) = (Progress::new(), Instant::now());
    let mut is_done = vec![false; job.ranks];
    let mut gave_up = vec![false; job.ranks];
    let mut running = job.ranks;
    // The best explanation of a failure so far, and until when to wait for a better one.
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
            Ok(Event::Said(_, Message::Probed(machine))) => {
                gathered.merger.machine = machine;
                show(Progressed::Probed(&machine))?;
                continue;
            }
            Ok(Event::Said(_, Message::Started { row })) => {
                progress.show(&table::progress(row, job, started.elapsed()));
                continue;
            }
            Ok(Event::Said(_, Message::Paired { from, to, pair })) => {
                if let Some(matrices) = &mut gathered.matrices {
                    matrices.add(from, to, pair);
                }
                continue;
            }
            Ok(Event::Said(rank, Message::Done)) => {
                is_done[rank] = true;
                continue;
            }
            Ok(Event::Said(rank, Message::Measured(row))) => {
                if let Some(row) = gathered.merger.add(rank, row) {
                    progress.clear();
                    show(Progressed::Row(&row))?;
                    gathered.rows.push(row);
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
                    End::Fine if is_done[rank] => continue,
                    End::Fine => (3, format!("rank {rank} exited before it was done")),
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
