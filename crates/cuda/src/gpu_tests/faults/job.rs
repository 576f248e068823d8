//! The side of the test: starts ranks as threads or processes, has them do faults, and collects what they say, within bounds.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weftlink_bootstrap::Bootstrap;
use weftlink_testkit::processes::this_program;

use super::draw::{Fault, Kind, Place};
use super::judge::{Outcome, judge};
use super::rank::{Backend, Control, Report, SHRINK, serve};
use super::wire::{self, PLACE, RANK};

/// A rank that has not joined after this time hangs. Kernels may compile.
const JOIN: Duration = Duration::from_secs(60);
/// What a call may take beyond its timeout: waits for the report of a death and for the loss of a context.
const MARGIN: Duration = Duration::from_secs(5);
/// A test ends after this many faults that failed: each may take long.
const FAILED_MAX: usize = 3;
/// For processes to end.
const END: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// How ranks are started.
pub(super) struct Settings {
    /// The test, which runs itself again as a rank.
    pub(super) test: &'static str,
    pub(super) place: Place,
    pub(super) ranks: usize,
    pub(super) environment: Vec<(&'static str, String)>,
}

/// Ranks that are up.
pub(super) struct Job {
    workers: Vec<Worker>,
    /// The worker of each rank of the communicator.
    members: Vec<usize>,
    reports: Receiver<(usize, Report)>,
    /// Ranks in a new communicator, by worker, with its size.
    ready: BTreeMap<usize, usize>,
    place: Place,
    timeout: Duration,
}

struct Worker {
    seeds: Option<Seeds>,
    process: Option<Child>,
    thread: JoinHandle<()>,
}

enum Seeds {
    Channel(Sender<u64>),
    Pipe(ChildStdin),
}

/// What came of a fault.
pub(super) struct Verdict {
    /// What a survivor said.
    pub(super) said: String,
    /// The longest time until a survivor said it.
    pub(super) within: Duration,
    /// Contexts that were lost, and survivors.
    pub(super) lost: (usize, usize),
    /// The ranks of the next communicator; none if the contexts are lost.
    pub(super) ranks: Option<usize>,
}

impl Job {
    /// Starts ranks and waits until they have made a call.
    pub(super) fn start<B: Backend + 'static>(settings: &Settings) -> Result<Job, String> {
        let (sender, reports) = channel();
        let workers = match settings.place {
            Place::Threads => {
                let groups = Bootstrap::threads(settings.ranks).into_iter().enumerate();
                groups.map(|(id, group)| thread::<B>(id, group, sender.clone())).collect()
            }
            place => {
                let address = wire::new_address();
                let start = |id| process(id, place, settings, &address, sender.clone());
                (0..settings.ranks).map(start).collect::<Result<_, _>>()?
            }
        };
        let members = (0..settings.ranks).collect();
        let (ready, place, timeout) = (BTreeMap::new(), settings.place, B::TIMEOUT);
        let mut job = Job { workers, members, reports, ready, place, timeout };
        job.await_ready()?;
        Ok(job)
    }

    pub(super) fn ranks(&self) -> usize {
        self.members.len()
    }

    /// Has the ranks do a fault, and judges what they say.
    pub(super) fn fault(&mut self, fault: &Fault) -> Result<Verdict, String> {
        let faulty = self.members[fault.rank];
        for &member in &self.members {
            self.workers[member].send(fault.seed)?;
        }
        let outcomes = self.outcomes(fault, faulty)?;
        if fault.kind.kills() {
            self.workers[faulty].await_kill()?;
        }
        let texts = outcomes.iter().map(|(rank, (_, outcome))| (*rank, outcome.clone())).collect();
        let said = judge(fault, &texts)?;
        let is_survivor = |rank: &usize| *rank != fault.rank;
        let survivors = || outcomes.iter().filter(|(rank, _)| is_survivor(rank)).map(|(_, outcome)| outcome);
        let within = survivors().map(|(took, _)| *took).max().unwrap_or_default();
        if within > self.timeout + MARGIN + 2 * fault.after {
            return Err(format!("a survivor returned after {:.1} s", within.as_secs_f64()));
        }
        let lost = survivors().filter(|(_, outcome)| matches!(outcome, Outcome::Lost(_))).count();
        let lost_of = (lost, survivors().count());
        if lost > 0 {
            let is_expected = self.place == Place::Mps && fault.kind.kills();
            let verdict = Verdict { said, within, lost: lost_of, ranks: None };
            return if is_expected {
                Ok(verdict)
            } else {
                Err(format!("a context is lost: {}", verdict.said))
            };
        }
        if !fault.kind.stays() {
            self.members.remove(fault.rank);
        }
        self.await_ready()?;
        Ok(Verdict { said, within, lost: lost_of, ranks: Some(self.ranks()) })
    }

    /// How the calls of each rank ended, and after what time.
    fn outcomes(
        &mut self,
        fault: &Fault,
        faulty: usize,
    ) -> Result<BTreeMap<usize, (Duration, Outcome)>, String> {
        let (begin, mut outcomes) = (Instant::now(), BTreeMap::new());
        let expected = self.members.len() - usize::from(fault.kind.kills());
        let mut continues_at = None;
        // A rank that was stopped calls after that.
        let limit = self.timeout * 4 + MARGIN + 2 * fault.after;
        while outcomes.len() < expected {
            if begin.elapsed() > limit {
                let missing = (0..self.members.len()).filter(|rank| !outcomes.contains_key(rank));
                let missing: Vec<usize> = missing.collect();
                return Err(format!("ranks {missing:?} hang; the others: {outcomes:?}"));
            }
            if continues_at.is_some_and(|at| Instant::now() >= at) {
                continues_at = None;
                self.workers[faulty].signal(Signal::CONT)?;
            }
            let Some((worker, report)) = self.next(POLL)? else { continue };
            let Some(rank) = self.members.iter().position(|member| *member == worker) else { continue };
            match report {
                Report::Stopping => continues_at = Some(Instant::now() + self.timeout * 3 / 2),
                Report::Ended(took, outcome) => drop(outcomes.insert(rank, (took, outcome))),
                Report::Ready(size) => drop(self.ready.insert(worker, size)),
                Report::Broken(_) if worker == faulty && !fault.kind.stays() => {}
                Report::Broken(_) if matches!(outcomes.get(&rank), Some((_, Outcome::Lost(_)))) => {}
                Report::Broken(why) => return Err(format!("rank {rank}: {why}; so far: {outcomes:?}")),
            }
        }
        Ok(outcomes)
    }

    /// Waits until all ranks are in a new communicator.
    fn await_ready(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        while let Some(missing) = self.members.iter().find(|member| !self.ready.contains_key(member)) {
            if begin.elapsed() > SHRINK + JOIN {
                return Err(format!("worker {missing} has not joined"));
            }
            match self.next(POLL)? {
                Some((worker, Report::Ready(size))) => drop(self.ready.insert(worker, size)),
                Some((worker, Report::Broken(why))) if self.members.contains(&worker) => {
                    return Err(format!("rank {worker}: {why}"));
                }
                _ => {}
            }
        }
        let size = self.members.len();
        let wrong = self.members.iter().any(|member| self.ready[member] != size);
        let ready = std::mem::take(&mut self.ready);
        if wrong { Err(format!("{size} ranks are left, and they say {ready:?}")) } else { Ok(()) }
    }

    /// The next report, if one comes within a time.
    fn next(&self, within: Duration) -> Result<Option<(usize, Report)>, String> {
        match self.reports.recv_timeout(within) {
            Ok(report) => Ok(Some(report)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("all ranks have ended".to_owned()),
        }
    }

    /// Ends all ranks. Fails if a rank panics or hangs.
    pub(super) fn end(mut self) -> Result<(), String> {
        for worker in &mut self.workers {
            worker.seeds = None;
        }
        let begin = Instant::now();
        while self.workers.iter().any(|worker| !worker.thread.is_finished()) {
            if begin.elapsed() > END {
                return Err("a rank does not end".to_owned());
            }
            std::thread::sleep(POLL);
        }
        for (id, worker) in self.workers.iter_mut().enumerate() {
            if let Some(status) = worker.process.as_mut().map(Child::wait) {
                let status = status.map_err(|why| why.to_string())?;
                let was_killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
                if !status.success() && !was_killed {
                    return Err(format!("worker {id}: {status}"));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in self.workers.iter_mut().filter_map(|worker| worker.process.as_mut()) {
            // Ended ones are not harmed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Worker {
    fn send(&mut self, seed: u64) -> Result<(), String> {
        let sent = match &mut self.seeds {
            Some(Seeds::Channel(sender)) => sender.send(seed).map_err(|why| why.to_string()),
            Some(Seeds::Pipe(pipe)) => writeln!(pipe, "{seed}").map_err(|why| why.to_string()),
            None => Err("it has ended".to_owned()),
        };
        sent.map_err(|why| format!("cannot reach a rank: {why}"))
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = self.process.as_ref().and_then(|child| Pid::from_raw(child.id().cast_signed()));
        let sent = pid.map(|pid| kill_process(pid, signal));
        sent.ok_or("no process")?.map_err(|why| why.to_string())
    }

    /// Waits until a process that kills itself has ended.
    fn await_kill(&mut self) -> Result<(), String> {
        let (begin, child) = (Instant::now(), self.process.as_mut().ok_or("no process")?);
        loop {
            match child.try_wait().map_err(|why| why.to_string())? {
                Some(status) if std::os::unix::process::ExitStatusExt::signal(&status) == Some(9) => {
                    return Ok(());
                }
                Some(status) => return Err(format!("the rank was to be killed: {status}")),
                None if begin.elapsed() > END => return Err("a killed process does not end".to_owned()),
                None => std::thread::sleep(POLL),
            }
        }
    }
}

struct Channels {
    id: usize,
    seeds: Receiver<u64>,
    reports: Sender<(usize, Report)>,
}

impl Control for Channels {
    fn next(&mut self) -> Option<u64> {
        self.seeds.recv().ok()
    }

    fn report(&mut self, report: Report) {
        // The test may have ended.
        let _ = self.reports.send((self.id, report));
    }
}

fn thread<B: Backend + 'static>(id: usize, group: Bootstrap, reports: Sender<(usize, Report)>) -> Worker {
    let (seeds, received) = channel();
    let thread = std::thread::spawn(move || {
        let mut control = Channels { id, seeds: received, reports };
        let served = catch_unwind(AssertUnwindSafe(|| serve::<B>(group, Place::Threads, &mut control)));
        let why = if served.is_err() { "it panicked" } else { "it has ended" };
        control.report(Report::Broken(why.to_owned()));
    });
    Worker { seeds: Some(Seeds::Channel(seeds)), process: None, thread }
}

fn process(
    id: usize,
    place: Place,
    settings: &Settings,
    address: &str,
    reports: Sender<(usize, Report)>,
) -> Result<Worker, String> {
    debug_assert!(place != Place::Threads);
    let mut program = this_program();
    program.args(["--exact", settings.test, "--include-ignored", "--nocapture"]);
    program.env(RANK, id.to_string()).env(PLACE, address);
    program.envs(settings.environment.iter().map(|(name, value)| (name, value)));
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().map_err(|why| format!("cannot start a rank: {why}"))?;
    let (input, output) = (child.stdin.take().map(Seeds::Pipe), child.stdout.take());
    let thread = std::thread::spawn(move || {
        output.into_iter().for_each(|output| read(id, output, &reports));
        let _ = reports.send((id, Report::Broken("it has ended".to_owned())));
    });
    Ok(Worker { seeds: input, process: Some(child), thread })
}

/// Reads what a process says until it ends.
fn read(id: usize, output: ChildStdout, reports: &Sender<(usize, Report)>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if let Some(report) = wire::read(&line) {
            let _ = reports.send((id, report));
        }
    }
}

/// Runs the faults of seeds, one after the other, and prints a line for each. Ranks continue with the next fault as long as there are two.
pub(super) fn run<B: Backend + 'static>(settings: &Settings, seeds: std::ops::Range<u64>) {
    let (begin, mut faults) = (Instant::now(), 0);
    let (mut job, mut jobs, mut failed, mut lost) = (None, 0, Vec::new(), (0, 0));
    for seed in seeds {
        if failed.len() >= FAILED_MAX {
            println!("{}: no further faults", settings.place);
            break;
        }
        faults += 1;
        let since = Instant::now();
        let started = job.take().map_or_else(
            || {
                jobs += 1;
                Job::start::<B>(settings)
            },
            Ok,
        );
        let (started_ms, ranks) = (since.elapsed().as_millis(), started.as_ref().map_or(0, Job::ranks));
        let since = Instant::now();
        let fault = Fault::draw(seed, settings.place, ranks.max(1), B::TIMEOUT / 2);
        let ended = started.and_then(|mut started| {
            let verdict = started.fault(&fault)?;
            match verdict.ranks {
                Some(2..) => job = Some(started),
                _ => started.end()?,
            }
            Ok(verdict)
        });
        let (head, all_ms) =
            (format!("{}, {ranks} ranks, {fault}", settings.place), since.elapsed().as_millis());
        match ended {
            Ok(verdict) => {
                if fault.kind.kills() && settings.place == Place::Mps {
                    lost = (lost.0 + verdict.lost.0, lost.1 + verdict.lost.1);
                }
                let within_ms = verdict.within.as_millis();
                let next =
                    verdict.ranks.map_or("contexts lost".to_owned(), |ranks| format!("{ranks} continue"));
                let start = if started_ms > 0 { format!(", start {started_ms} ms") } else { String::new() };
                println!("{head}: {}; within {within_ms} ms; {next}; {all_ms} ms{start}", verdict.said);
            }
            Err(why) => {
                println!("FAILED {head}: {why}; {all_ms} ms");
                failed.push(seed);
            }
        }
    }
    // The last fault must not have damaged what a new job needs.
    let last = job.map_or_else(|| Job::start::<B>(settings), Ok).and_then(Job::end);
    println!(
        "{}: {faults} faults, {} failed, {jobs} jobs, {:.1} s; contexts lost after kills under MPS: {} of {}",
        settings.place,
        failed.len(),
        begin.elapsed().as_secs_f64(),
        lost.0,
        lost.1
    );
    assert!(failed.is_empty(), "seeds of faults that failed: {failed:?}");
    assert_eq!(last, Ok(()), "the last job");
}

/// Runs this process as a rank, if the test has started it as one.
pub(super) fn run_rank<B: Backend>(settings: &Settings) -> bool {
    let Some((group, mut control)) = wire::rank(settings.ranks) else { return false };
    match group {
        Ok(group) => serve::<B>(group, settings.place, &mut control),
        Err(why) => control.report(Report::Broken(why)),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_ends_is_noticed() {
        let (sender, reports) = channel();
        sender.send((0, Report::Broken("it panicked".to_owned()))).unwrap();
        let (ready, place, timeout) = (BTreeMap::new(), Place::Threads, Duration::from_millis(1));
        let mut job = Job { workers: Vec::new(), members: vec![0], reports, ready, place, timeout };
        assert_eq!(job.await_ready(), Err("rank 0: it panicked".to_owned()));
        let fault = Fault::draw(Kind::ALL.len() as u64, Place::Threads, 1, timeout);
        sender.send((0, Report::Broken("it has ended".to_owned()))).unwrap();
        let ended = job.outcomes(&Fault { kind: Kind::Late, ..fault }, 0);
        assert_eq!(ended, Err("rank 0: it has ended; so far: {}".to_owned()));
        drop(sender);
        assert_eq!(job.outcomes(&fault, 0), Err("all ranks have ended".to_owned()));
    }
}
