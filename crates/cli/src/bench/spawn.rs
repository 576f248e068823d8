//! Starts the ranks, as processes or as threads, hears them, and sees to it that none outlives the command.
//!
//! A rank that is a process runs `weft bench-rank RANK`: this same program, told what to do on its standard input and
//! heard on its standard output. It ends in one of three ways: by itself, by [`Ranks`] being dropped, which kills it, or
//! with the command, however that ends, because it asked the kernel for a signal at its parent's death. It stays in the
//! command's process group, so that a terminal's Ctrl-Z and Ctrl-C reach it too.
//!
//! Everything that happens comes as an [`Event`] through one channel. Nobody waits without bound for a rank: its own
//! waits have the job's deadline, and its death closes its standard output.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, anyhow};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;
use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Error};
use weftlink_knobs::Knobs;

use super::job::{Job, Message, Orders};
use super::launched;
use super::rank::{self, Report};
use crate::limits;

/// The hidden command that a rank runs.
pub(crate) const RANK_COMMAND: &str = "bench-rank";

/// What happens while ranks run.
pub(super) enum Event {
    /// A rank says something.
    Said(usize, Message),
    /// A rank will say no more.
    Closed(usize),
    /// The command was told to stop by this signal.
    Signal(i32),
}

/// Ranks that were started.
pub(super) struct Ranks {
    pub(super) events: Receiver<Event>,
    /// The processes, unless ranks are threads of this one.
    children: Vec<Child>,
}

impl Ranks {
    /// Starts a job's ranks.
    pub(super) fn start(job: &Job, as_threads: bool) -> anyhow::Result<Self> {
        let (sender, events) = channel();
        forward_signals(sender.clone())?;
        let mut ranks = Self { events, children: Vec::new() };
        if as_threads {
            start_threads(job, &sender)?;
        } else {
            ranks.start_processes(job, &sender)?;
        }
        Ok(ranks)
    }

    /// Becomes rank 0 of a job that has met.
    pub(super) fn lead(job: &Job, met: Bootstrap) -> anyhow::Result<Self> {
        let (sender, events) = channel();
        forward_signals(sender.clone())?;
        launched::lead(job, met, sender)?;
        Ok(Self { events, children: Vec::new() })
    }

    /// The process of each rank that was started here.
    pub(super) fn pids(&self, job: &Job) -> Vec<u32> {
        match self.children.as_slice() {
            [] => vec![std::process::id(); job.ranks],
            children => children.iter().map(Child::id).collect(),
        }
    }

    /// How a rank that will say no more has ended.
    pub(super) fn end_of(&mut self, rank: usize) -> anyhow::Result<End> {
        let Some(child) = self.children.get_mut(rank) else {
            return Ok(End::Fine);
        };
        let pid = child.id();
        let status = child.wait().with_context(|| format!("cannot tell how rank {rank} ended"))?;
        Ok(match status.signal() {
            _ if status.success() => End::Fine,
            Some(SIGINT) => End::Interrupted,
            _ => End::Died(format!("rank {rank} (pid {pid}) {}", describe(status))),
        })
    }

    fn start_processes(&mut self, job: &Job, sender: &Sender<Event>) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        let (parent, secret) = (std::process::id(), random_name()?);
        let place = format!("weft-bench-{parent}-{}", &secret[..16]);
        let mut inputs = Vec::new();
        for rank in 0..job.ranks {
            let mut child = Command::new(&program)
                .args([RANK_COMMAND, &rank.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| {
                    anyhow!("cannot start rank {rank}: {error}{}", limits::no_process(&error))
                })?;
            let ends = child.stdin.take().zip(child.stdout.take());
            self.children.push(child);
            let (input, output) = ends.ok_or_else(|| anyhow!("rank {rank} was started without pipes"))?;
            let sender = sender.clone();
            limits::listener(move || hear(rank, BufReader::new(output), &sender))?;
            inputs.push(input);
        }
        // All are on their way before the first is told, since telling takes as long as a rank takes to listen.
        for (rank, mut input) in inputs.into_iter().enumerate() {
            let (job, place, token) = (job.clone(), place.clone(), secret.clone());
            let orders = serde_json::to_vec(&Orders { job, rank, place, token, parent })?;
            // One that does not listen has died, and its closed output will tell.
            let _ = input.write_all(&orders);
        }
        Ok(())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        self.children.iter_mut().for_each(|child| drop(child.kill()));
        self.children.iter_mut().for_each(|child| drop(child.wait()));
    }
}

/// How a rank ended.
pub(super) enum End {
    /// As it should.
    Fine,
    /// By Ctrl-C, which reaches all processes of a terminal's group.
    Interrupted,
    /// Otherwise: the sentence says how.
    Died(String),
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => {
            let name = signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned);
            let why = if name == "SIGKILL" { " (by hand, or by the kernel for want of memory)" } else { "" };
            format!("was killed by {name}{why}")
        }
        (None, code) => format!("ended with exit code {}", code.unwrap_or_default()),
    }
}

/// Passes on what a rank says until it ends.
fn hear(rank: usize, output: impl BufRead, sender: &Sender<Event>) {
    for line in output.lines() {
        let Ok(line) = line else { break };
        let message = serde_json::from_str(&line).unwrap_or_else(|error| {
            let error = format!("rank {rank} says what makes no sense ({error}): {line}");
            Message::Failed { error, secondary: false }
        });
        // Sending fails when the command is done and no longer listens.
        let _ = sender.send(Event::Said(rank, message));
    }
    let _ = sender.send(Event::Closed(rank));
}

fn start_threads(job: &Job, sender: &Sender<Event>) -> anyhow::Result<()> {
    for (rank, comm) in Communicator::threads(job.ranks, rank::options(job)?)?.into_iter().enumerate() {
        let (job, closing) = (job.clone(), Closing { rank, sender: sender.clone() });
        let work = move || {
            let tell = |message| drop(closing.sender.send(Event::Said(rank, message)));
            run(&job, rank, || Ok(comm), tell);
        };
        thread::Builder::new().spawn(work).map_err(|error| anyhow!(weftlink_comm::no_thread(&error)))?;
    }
    Ok(())
}

/// Says that a thread has ended, even if it panics.
struct Closing {
    rank: usize,
    sender: Sender<Event>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.sender.send(Event::Closed(self.rank));
    }
}

/// `weft bench-rank RANK`: a rank that is a process.
pub(crate) fn rank_main() -> ExitCode {
    let mut text = String::new();
    let orders = set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(anyhow::Error::new)
        .and_then(|()| Ok(io::stdin().lock().read_to_string(&mut text)?))
        .and_then(|_| Ok(serde_json::from_str::<Orders>(&text)?));
    let Orders { job, rank, place, token, parent } = match orders {
        Ok(orders) => orders,
        Err(error) => {
            eprintln!(
                "weft: `{RANK_COMMAND}` is what `weft bench` runs, with orders on standard input: {error}"
            );
            return ExitCode::from(2);
        }
    };
    // A parent that was gone before the kernel was asked sends no signal any more.
    if getppid().map(|pid| pid.as_raw_nonzero().get() as u32) != Some(parent) {
        return ExitCode::FAILURE;
    }
    let tell = |message: Message| {
        // Only a parent that has ended does not listen, and the kernel is about to end this process too.
        let _ = serde_json::to_writer(io::stdout(), &message);
        let _ = writeln!(io::stdout());
    };
    let meet = || {
        let (size, deadline) = (job.ranks, job.deadline);
        let network = Network::of(&Knobs::from_environment()?);
        let meeting = Rendezvous::new(RendezvousAddress::Abstract(place), Token::new(token)?, size, deadline);
        let meeting = Rendezvous { network, ..meeting };
        let bootstrap = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        Communicator::new(bootstrap?, rank::options(&job)?)
    };
    match run(&job, rank, meet, tell) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Binds the calling thread, meets the others, does the job and tells how it went; true if well.
pub(super) fn run(
    job: &Job,
    rank: usize,
    meet: impl FnOnce() -> Result<Communicator, Error>,
    mut report: impl Report,
) -> bool {
    if let Some(core) = job.cores.as_ref().map(|cores| cores[rank])
        && let Err(error) = bind(core)
    {
        let error = format!("rank {rank} cannot be bound to core {core} ({error}); try --bind none");
        report.tell(Message::Failed { error, secondary: false });
        return false;
    }
    let done = meet().and_then(|comm| rank::run(comm, job, &mut report));
    if let Err(error) = &done {
        let secondary = matches!(error, Error::Aborted { .. } | Error::Left { .. });
        report.tell(Message::Failed { error: error.to_string(), secondary });
    }
    done.is_ok()
}

/// The cores that this process may use.
pub(crate) fn allowed_cores() -> anyhow::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("cannot tell which cores may be used")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
}

fn bind(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

fn forward_signals(sender: Sender<Event>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for Ctrl-C")?;
    limits::listener(move || signals.forever().for_each(|signal| drop(sender.send(Event::Signal(signal)))))
}

/// 128 random bits.
fn random_name() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
