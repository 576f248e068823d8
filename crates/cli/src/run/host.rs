//! `weft run --as-host`: starts the ranks of one host, forwards their output, and makes sure that none outlives the job.
//!
//! One helper runs on every host of a job, this one included, so that all hosts work alike. Each rank has a process group of its
//! own, so that its child processes die with it. The helper stops the ranks on [`Order::Stop`] and when its standard input
//! closes, which is how it notices the death of `weft run`; the kernel kills them when the helper dies (`rank.rs`).
//!
//! The helper reaps no rank before all have exited: a pid, which is also the number of the process group, must not be reused
//! before the last signal is sent.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use weftlink_probe::{BindTo, CoreSet, Folder, cores, cpu_ranges, divide};

use super::args::Bind;
use super::ends::{Awaited, Ends};
use super::exit_report::{self, ExitReport};
use super::gpus::{self, Gpus, Which};
use super::limits;
use super::mps::{self, Mps, Refused};
use super::nccl;
use super::program;
use super::pump;
use super::rank::{ANYWHERE, RANK_COMMAND};
use super::secret::Port;
use super::wire::{Binding, End, Event, Order, Piece, RankStart, Start, Stream};
use crate::counted;

/// The longest order: an environment and a command line as long as the kernel allows.
const ORDER_BYTES_MAX: u64 = 16 << 20;
/// How long to wait for the output of a rank that has exited while a child of it keeps the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The stack of a reader thread.
const STACK_BYTES: usize = 128 << 10;

/// Events for the main thread.
enum Happening {
    Order(Order),
    /// Standard input is closed.
    Abandoned,
    Ended {
        index: usize,
        end: End,
        at: Instant,
    },
}

/// The helper.
pub(super) fn main() -> ExitCode {
    let events = Events::default();
    match serve(&events) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            events.tell(&Event::Failed(format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Writes whole events to standard output.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<()>>);

impl Events {
    fn tell(&self, event: &Event) {
        let Ok(mut line) = serde_json::to_vec(event) else { return };
        line.push(b'\n');
        let _whole = self.0.lock();
        // If the reader is gone, standard input closes, too, and the ranks are stopped.
        let _ = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
    }
}

fn serve(events: &Events) -> anyhow::Result<()> {
    let ports = [Port::reserve()?, Port::reserve()?];
    let version = env!("CARGO_PKG_VERSION").to_owned();
    events.tell(&Event::Ready { version, ports: [ports[0].number, ports[1].number] });
    let (sender, happenings) = channel();
    crate::limits::listener({
        let sender = sender.clone();
        move || take_orders(io::stdin().lock(), &sender)
    })?;
    let mut start = loop {
        match happenings.recv()? {
            Happening::Order(Order::Start(start)) => break start,
            // Stopped before the ranks were started.
            Happening::Order(Order::Signal(signal)) if !ends(signal) => {}
            _ => return Ok(()),
        }
    };
    let file = match program::find(&start) {
        Ok(file) => file,
        Err(error) => {
            events.tell(&Event::Misuse(error.to_string()));
            return Ok(());
        }
    };
    if let Err(why) = nccl::assign(&mut start) {
        events.tell(&Event::Misuse(why));
        return Ok(());
    }
    let mps = match prepare_gpus(&mut start, events) {
        Ok(mps) => mps,
        Err(Refused::Misuse(why)) => {
            events.tell(&Event::Misuse(why));
            return Ok(());
        }
        Err(Refused::Failed(error)) => return Err(error),
    };
    let grace = Duration::from_millis(start.grace_ms);
    // Without it, only the order of exits shows which rank failed first.
    let words = ExitReport::new().ok();
    let began = Instant::now();
    let mut ranks =
        Ranks { children: Vec::new(), left: 0, began, grace, words, stopped: BTreeSet::new(), mps };
    ranks.start(&start, &file, events, &sender)?;
    ranks.run(&start, &happenings, events);
    Ok(())
}

/// Whether a signal asks a program to stop.
pub(super) fn ends(signal: i32) -> bool {
    [Signal::INT, Signal::TERM, Signal::HUP].iter().any(|one| one.as_raw() == signal)
}

fn take_orders(mut input: impl BufRead, sender: &Sender<Happening>) {
    loop {
        let mut line = String::new();
        let read = (&mut input).take(ORDER_BYTES_MAX).read_line(&mut line);
        match read.map(|_| serde_json::from_str(&line)) {
            Ok(Ok(order)) => drop(sender.send(Happening::Order(order))),
            Ok(Err(error)) if !line.is_empty() => {
                eprintln!("weft run --as-host: cannot parse an order ({error}); stopping all ranks");
                break;
            }
            _ => break,
        }
    }
    let _ = sender.send(Happening::Abandoned);
}

/// The ranks of this host. Dropping it kills them.
struct Ranks {
    children: Vec<Child>,
    /// The number of ranks that have not exited.
    left: usize,
    /// When the first rank was started.
    began: Instant,
    grace: Duration,
    words: Option<ExitReport>,
    /// Ranks that a signal or a debugger had suspended when all were told to stop.
    stopped: BTreeSet<usize>,
    /// Stops after the ranks, if it was started here.
    mps: Option<Mps>,
}

impl Ranks {
    /// Called from the main thread: the kernel kills the ranks when this thread dies.
    fn start(
        &mut self,
        start: &Start,
        file: &Path,
        events: &Events,
        sender: &Sender<Happening>,
    ) -> anyhow::Result<()> {
        let shares = shares(start, events)?;
        // Two pipes per rank may exceed the usual limit of open files; the ranks get the old limit.
        let files = limits::raise_files();
        let files =
            start.files_limit.or(files).map_or(limits::UNCHANGED.to_owned(), |limit| limit.to_string());
        let weft = std::env::current_exe().context("cannot find the path of this program")?;
        // Without it, the order of nearly simultaneous exits is less certain.
        let mut ends = Ends::new(start.ranks.len()).ok();
        for (index, one) in start.ranks.iter().enumerate() {
            let share = shares.as_ref().map(|shares| &shares[index]);
            let mut command = Command::new(&weft);
            command
                .args([RANK_COMMAND, &std::process::id().to_string()])
                .arg(share.map_or(ANYWHERE.to_owned(), |share| cpu_ranges(&share.cpus)))
                .arg(&files)
                .arg("--")
                .arg(file)
                .args(&start.program)
                .current_dir(&start.workdir)
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            for name in &start.unset {
                command.env_remove(name);
            }
            for (name, value) in start.environment.iter().chain(&one.environment) {
                command.env(name, value);
            }
            match &self.words {
                Some(words) => command.env(exit_report::VARIABLE, words.path()),
                None => command.env_remove(exit_report::VARIABLE),
            };
            let mut child = command.spawn().map_err(|error| {
                anyhow!("cannot start rank {}: {error}{}", one.rank, crate::limits::no_process(&error))
            })?;
            let (out, err) = (child.stdout.take(), child.stderr.take());
            let pid = child.id();
            self.children.push(child);
            self.left += 1;
            let binding = share.map(|share| Binding {
                cpus: cpu_ranges(&share.cpus),
                cores: share.cores,
                numa: cpu_ranges(&share.numa),
            });
            events.tell(&Event::Started { rank: one.rank, pid, binding });
            let pipes = out.zip(err).ok_or_else(|| anyhow!("rank {} has no pipes", one.rank))?;
            let awaited = ends.as_mut().and_then(|ends| ends.of(index, pid));
            watch(index, one, (pid, awaited), pipes, start.by_lines, events, sender)?;
        }
        Ok(())
    }

    fn run(&mut self, start: &Start, happenings: &Receiver<Happening>, events: &Events) {
        // When the remaining ranks get SIGKILL; after that only the kernel can end them.
        let mut kill_at: Option<Instant> = None;
        let mut told_at: Option<Instant> = None;
        while self.left > 0 {
            let happening = match kill_at {
                Some(at) => happenings.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => happenings.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match happening {
                Ok(Happening::Ended { index, end, at }) => {
                    self.left -= 1;
                    let after_us = at.saturating_duration_since(self.began).as_micros();
                    let after_us = u64::try_from(after_us).unwrap_or(u64::MAX);
                    let told = told_at.is_some_and(|told| told <= at);
                    let rank = start.ranks[index].rank;
                    let stopped = self.stopped.contains(&index);
                    let words = self.words.as_mut().and_then(|words| words.of(rank));
                    if self.words.as_mut().is_some_and(ExitReport::take_nccl) {
                        events.tell(&Event::UsesNccl);
                    }
                    let (said, blamed) = words.map(|words| (words.why, words.blamed)).unzip();
                    let blamed = blamed.unwrap_or_default();
                    events.tell(&Event::Ended { rank, end, after_us, told, stopped, said, blamed });
                }
                Ok(Happening::Order(Order::Signal(signal))) => {
                    Signal::from_named_raw(signal).into_iter().for_each(|signal| self.pass_on(signal));
                }
                Ok(Happening::Order(Order::Stop) | Happening::Abandoned) if told_at.is_none() => {
                    told_at = Some(Instant::now());
                    // Recorded before SIGCONT resumes them.
                    self.stopped = (0..self.children.len()).filter(|&index| self.is_stopped(index)).collect();
                    self.pass_on(Signal::TERM);
                    kill_at = Some(Instant::now() + self.grace);
                }
                Ok(Happening::Order(Order::Kill)) | Err(RecvTimeoutError::Timeout) => {
                    told_at.get_or_insert_with(Instant::now);
                    self.kill();
                    // Repeated, because they may have started processes in the meantime.
                    kill_at = Some(Instant::now() + Duration::from_secs(1));
                }
                Ok(Happening::Order(_) | Happening::Abandoned) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    /// Forwards a signal. Those that ask to stop go to the process group of a rank, as from a terminal; others go to the rank
    /// only, because they kill a process without a handler.
    fn pass_on(&self, signal: Signal) {
        if ends(signal.as_raw()) {
            self.signal(signal);
            // A suspended rank receives it only once it is resumed.
            return self.signal(Signal::CONT);
        }
        for child in &self.children {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Whether a signal or a debugger has suspended a rank.
    fn is_stopped(&self, index: usize) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.children[index].id()));
        // The program name may contain parentheses; the state follows the last one.
        let state = stat.as_deref().ok().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
        matches!(state, Some('T' | 't'))
    }

    /// Kills all process groups.
    fn kill(&self) {
        if let Some(mps) = &self.mps {
            mps.terminate(&self.children.iter().map(Pid::from_child).collect::<Vec<_>>());
        }
        self.signal(Signal::KILL);
    }

    /// Signals all process groups; empty ones are ignored.
    fn signal(&self, signal: Signal) {
        for child in &self.children {
            let _ = kill_process_group(Pid::from_child(child), signal);
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
        self.children.iter_mut().for_each(|child| drop(child.wait()));
    }
}

/// Starts three threads for a rank: one for each stream, and one that waits for the process and both streams.
#[allow(clippy::too_many_arguments, reason = "these are the parts of a rank")]
fn watch(
    index: usize,
    one: &RankStart,
    (pid, awaited): (u32, Option<Awaited>),
    (out, err): (impl Read + Send + 'static, impl Read + Send + 'static),
    by_lines: bool,
    events: &Events,
    sender: &Sender<Happening>,
) -> anyhow::Result<()> {
    let (closed, ends) = channel::<()>();
    let pipes: [(Stream, Box<dyn Read + Send>); 2] =
        [(Stream::Out, Box::new(out)), (Stream::Err, Box::new(err))];
    let thread = || thread::Builder::new().stack_size(STACK_BYTES);
    for (stream, pipe) in pipes {
        let (rank, events, closed) = (one.rank, events.clone(), closed.clone());
        thread()
            .spawn(move || {
                let tell = |bytes: &[u8], cut| {
                    events.tell(&Event::Output { rank, stream, piece: Piece::new(bytes), cut })
                };
                // A read error ends the stream.
                let _ = pump::pieces(pipe, by_lines, tell);
                drop(closed);
            })
            .map_err(|error| anyhow!(weftlink_shm::limits::no_thread(&error)))?;
    }
    drop(closed);
    let sender = sender.clone();
    thread()
        .spawn(move || {
            let at = awaited.and_then(|awaited| awaited.wait());
            let end = await_end(pid);
            let at = at.unwrap_or_else(Instant::now);
            // Disconnected when both streams are closed.
            let _ = ends.recv_timeout(LAST_WORDS);
            let _ = sender.send(Happening::Ended { index, end, at });
        })
        .map_err(|error| anyhow!(weftlink_shm::limits::no_thread(&error)))?;
    Ok(())
}

/// Waits until a child has exited, without reaping it.
fn await_end(pid: u32) -> End {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    loop {
        let Some(pid) = pid else { return End::Code(-1) };
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => return End::Code(code),
                (None, Some(signal)) => return End::Signal(signal),
                (None, None) => {}
            },
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            // ECHILD: there is nothing left to wait for.
            Err(_) => return End::Code(-1),
        }
    }
}

/// Assigns GPUs to the ranks and starts MPS, as far as the job asks for it.
fn prepare_gpus(start: &mut Start, events: &Events) -> Result<Option<Mps>, Refused> {
    let Some(Gpus { which, mps, .. }) = start.gpus.clone() else { return Ok(None) };
    let (on_a_gpu, notes) = gpus::assign(start).map_err(Refused::Misuse)?;
    notes.into_iter().for_each(|note| events.tell(&Event::Note(note)));
    if mps {
        let mps = Mps::start()?;
        if let Some(folder) = mps.own_folder() {
            events.tell(&Event::Mps(folder.to_owned()));
            start.environment.push((mps::PIPES.to_owned(), folder.to_string_lossy().into_owned()));
        }
        return Ok(Some(mps));
    }
    let running = if which == Which::Shared { Mps::running(start) } else { None };
    if running.is_none() && on_a_gpu > 1 {
        events.tell(&Event::Note(format!(
            "{on_a_gpu} ranks share a GPU without MPS: they take turns, and a message between them takes milliseconds. Add --mps"
        )));
    }
    Ok(running)
}

/// The binding of each rank.
fn shares(start: &Start, events: &Events) -> anyhow::Result<Option<Vec<CoreSet>>> {
    let closeness = match start.bind {
        Bind::None => return Ok(None),
        Bind::Core => BindTo::Core,
        Bind::Numa => BindTo::Numa,
    };
    let allowed = crate::bench::allowed_cores()?;
    let cores = cores(&Folder::new("/"), &allowed);
    let shares = divide(&cores, start.ranks.len(), closeness);
    if shares.is_none() {
        let (ranks, cores) = (counted(start.ranks.len(), "rank"), counted(cores.len(), "core"));
        events.tell(&Event::Note(format!("{ranks} on {cores}: ranks are not bound and share cores")));
    }
    Ok(shares)
}
