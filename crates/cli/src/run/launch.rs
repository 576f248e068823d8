//! One start of a job: helpers on all hosts, their ranks, and the events until the last rank has exited.
//!
//! Every helper first reports that it is ready, so that no rank starts before all hosts are reached; then all get their orders.
//! When a rank fails, a host is lost or the time is up, all helpers are told to stop their ranks; helpers that take too long are
//! killed. Ranks that wait for a failed one get a moment before that to report it. Every wait has a bound except the one for
//! running ranks, which --timeout bounds.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use weftlink_comm::Blame;

use super::args::Job;
use super::culprit;
use super::environment::{self, Afresh};
use super::helpers::{Attending, Heard, Helper, helper_command};
use super::mps::Mps;
use super::output::Printer;
use super::signals::Signals;
use super::wire::{Binding, End, Event, Order};
use super::{report, secret};
use crate::screen;

/// The time limit for a host to answer.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long ranks may run after one has failed, to notice and report it; not longer than the grace period.
const NOTICE_WITHIN: Duration = Duration::from_secs(1);
/// The time limit for helpers to stop, after the grace period of their ranks.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Pieces of output in the queue, a few megabytes at most.
const WAITING_MAX: usize = 32;

/// The state of a rank.
#[derive(Default)]
pub(super) struct Record {
    pub(super) host: usize,
    pub(super) pid: Option<u32>,
    pub(super) binding: Option<Binding>,
    /// How it exited, and how long after the start.
    pub(super) end: Option<(End, Duration)>,
    /// It exited after it was told to stop.
    pub(super) told: bool,
    /// A signal or a debugger had suspended it when it was told to stop.
    pub(super) stopped: bool,
    /// Why its communicator failed, if it did.
    pub(super) said: Option<String>,
    /// The ranks that it blames for that.
    pub(super) blamed: Vec<Blame>,
}

/// Why the job was stopped before all ranks had exited.
pub(super) enum Cause {
    /// This rank failed first, or others failed because of it.
    Rank(usize),
    /// A host could not be reached, or was lost.
    Host {
        host: usize,
        why: String,
    },
    /// Wrong arguments.
    Misuse {
        host: usize,
        why: String,
    },
    Timeout(Duration),
    /// A signal came before the ranks were started.
    Interrupted(i32),
    /// The output of ranks cannot be printed.
    Output(io::Error),
}

/// The result of one start.
pub(super) struct Attempt {
    pub(super) records: Vec<Record>,
    /// The ranks that blame the rank in `cause`.
    pub(super) blamed_by: Vec<usize>,
    pub(super) cause: Option<Cause>,
    /// A rank has made an NCCL communicator of Weft.
    pub(super) uses_nccl: bool,
}

/// Starts the job and supervises it until all ranks have exited.
pub(super) fn attempt(
    job: &Job,
    restarts: u32,
    deadline: Option<Instant>,
    signals: &Signals,
    printer: &mut Printer,
) -> anyhow::Result<Attempt> {
    let (sender, heard) = sync_channel(WAITING_MAX);
    let attending = Attending::new(sender.clone());
    let host_of = |rank| job.hosts.iter().position(|host| host.ranks.contains(&rank)).unwrap_or_default();
    let mut running = Running {
        job,
        restarts,
        helpers: Vec::new(),
        attending: attending.clone(),
        records: (0..job.size).map(|rank| Record { host: host_of(rank), ..Record::default() }).collect(),
        cause: None,
        uses_nccl: false,
        lost: None,
        started: false,
        stop_at: None,
        kill_at: None,
        printer,
    };
    signals.attend(Some(attending));
    for host in 0..job.hosts.len() {
        match Helper::start(job, host, &running.attending, &sender) {
            Ok(helper) => running.helpers.push(helper),
            Err(error) => {
                running.end(Cause::Misuse { host, why: format!("{error:#}") });
                break;
            }
        }
    }
    drop(sender);
    running.see_through(&heard, deadline, signals)?;
    signals.attend(None);
    // Threads that still send find the channel closed and exit.
    drop(heard);
    // A helper that was killed has left its MPS daemon behind. Only those of this host can be reached.
    let is_here = |host: usize| job.hosts[host].is_here;
    let daemons = running.helpers.iter_mut().enumerate().filter(|(host, _)| is_here(*host));
    let daemons: Vec<PathBuf> = daemons.filter_map(|(_, helper)| helper.mps.take()).collect();
    running.helpers.clear();
    daemons.iter().for_each(|folder| Mps::stop_abandoned(folder));
    let Running { records, cause, lost, uses_nccl, .. } = running;
    let found = culprit::find(&records);
    let (cause, found) = match (cause, found) {
        (Some(Cause::Rank(rank)), None) => (Some(Cause::Rank(rank)), None),
        // With --keep-going a failure stops nothing, and is still a failure.
        (None | Some(Cause::Rank(_)), Some(found)) => (Some(Cause::Rank(found.rank)), Some(found)),
        (cause, _) => (cause.or(lost), None),
    };
    Ok(Attempt { records, blamed_by: found.map_or(Vec::new(), |found| found.blamed_by), cause, uses_nccl })
}

struct Running<'j> {
    job: &'j Job,
    restarts: u32,
    helpers: Vec<Helper>,
    attending: Attending,
    records: Vec<Record>,
    cause: Option<Cause>,
    uses_nccl: bool,
    /// The first lost host while the others continue.
    lost: Option<Cause>,
    started: bool,
    /// When to tell the ranks to stop.
    stop_at: Option<Instant>,
    /// When to kill helpers that have not stopped.
    kill_at: Option<Instant>,
    printer: &'j mut Printer,
}

impl Running<'_> {
    fn see_through(
        &mut self,
        heard: &Receiver<Heard>,
        deadline: Option<Instant>,
        signals: &Signals,
    ) -> anyhow::Result<()> {
        let ready_by = Instant::now() + READY_WITHIN;
        while self.helpers.iter().any(|helper| !helper.closed) {
            if let Some(signal) = signals.ending().filter(|_| !self.started) {
                self.end(Cause::Interrupted(signal));
            }
            if !self.started
                && self.cause.is_none()
                && self.helpers.iter().all(|helper| helper.ports.is_some())
            {
                self.start_ranks()?;
            }
            let ready = Some(ready_by).filter(|_| !self.started);
            let wake = match self.cause {
                None => [ready, deadline].into_iter().flatten().min(),
                Some(_) => self.stop_at.or(self.kill_at),
            };
            let next = match wake {
                Some(at) => heard.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(Heard::Event(host, event)) => self.take(host, event),
                Ok(Heard::Talk(host, line)) => eprintln!("[{}] {line}", self.job.hosts[host].host),
                Ok(Heard::Closed(host)) => self.closed(host),
                Ok(Heard::Wake) => {}
                Err(RecvTimeoutError::Timeout) => self.time_is_up(ready_by, deadline),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(())
    }

    fn start_ranks(&mut self) -> anyhow::Result<()> {
        let ports = self.helpers[0].ports.unwrap_or_default().map(|port| port.to_string());
        let afresh = Afresh { secret: secret::random()?, ports, restarts: self.restarts };
        for host in 0..self.helpers.len() {
            self.attending
                .tell_one(host, &Order::Start(Box::new(environment::start(self.job, host, &afresh))));
        }
        self.started = true;
        Ok(())
    }

    fn take(&mut self, host: usize, event: Event) {
        let known = |rank: usize| self.job.hosts[host].ranks.contains(&rank);
        match event {
            Event::Ready { version, ports } if version == env!("CARGO_PKG_VERSION") => {
                self.helpers[host].ports = Some(ports);
            }
            Event::Ready { version, .. } => {
                let ours = env!("CARGO_PKG_VERSION");
                let why = format!(
                    "it runs Weft {version}, this host runs {ours}; give the path of {ours} there with --weft-path"
                );
                self.end(Cause::Misuse { host, why });
            }
            Event::UsesNccl => self.uses_nccl = true,
            Event::Mps(folder) => self.helpers[host].mps = Some(folder),
            Event::Note(note) => screen::complain("weft run", &format!("{}{note}", self.on(host))),
            Event::Started { rank, pid, binding } if known(rank) => {
                self.records[rank].pid = Some(pid);
                self.records[rank].binding = binding;
                if self.job.report_bindings {
                    screen::complain("weft run", &report::binding(self.job, rank, &self.records[rank]));
                }
            }
            Event::Output { rank, stream, piece, cut } if known(rank) => {
                // After a write error the rest is dropped; the ranks are stopping.
                let shown = match self.cause {
                    Some(Cause::Output(_)) => Ok(()),
                    _ => self.printer.put(rank, stream, &piece.into_bytes(), cut),
                };
                if let Err(error) = shown {
                    self.end(Cause::Output(error));
                }
            }
            Event::Ended { rank, end, after_us, told, stopped, said, blamed } if known(rank) => {
                let record = &mut self.records[rank];
                record.end = Some((end, Duration::from_micros(after_us)));
                (record.told, record.stopped, record.said, record.blamed) = (told, stopped, said, blamed);
                match end {
                    End::Code(0) => {}
                    _ if self.job.keep_going && self.cause.is_none() => {
                        screen::complain("weft run", &report::ended(self.job, rank, &self.records[rank]));
                    }
                    _ => self.end(Cause::Rank(rank)),
                }
            }
            Event::Misuse(why) => self.end(Cause::Misuse { host, why }),
            Event::Failed(why) => self.end(Cause::Host { host, why }),
            Event::Started { rank, .. } | Event::Output { rank, .. } | Event::Ended { rank, .. } => {
                self.end(Cause::Host {
                    host,
                    why: format!("it reported rank {rank}, which it does not run"),
                });
            }
        }
    }

    /// A helper has closed its output.
    fn closed(&mut self, host: usize) {
        self.attending.hang_up(host);
        let helper = &mut self.helpers[host];
        helper.closed = true;
        let all_ended = self.job.hosts[host].ranks.clone().all(|rank| self.records[rank].end.is_some());
        if all_ended || self.cause.is_some() {
            return;
        }
        // The kernel has killed its ranks, but not their child processes. Only those of this host can be reached.
        if self.started && self.job.hosts[host].is_here {
            let left =
                self.records[self.job.hosts[host].ranks.clone()].iter().filter(|record| record.end.is_none());
            for pid in left.filter_map(|record| Pid::from_raw(i32::try_from(record.pid?).ok()?)) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
        // Its output is closed, so it exits soon.
        let how = match helper.child.wait() {
            Ok(status) => report::describe_status(status),
            Err(error) => error.to_string(),
        };
        let before = if self.started { "was lost" } else { "could not be reached" };
        let why = format!("it {before}: `{}` {how}", helper_command(self.job, host).join(" "));
        if self.started && self.job.keep_going {
            screen::complain("weft run", &format!("{}{why}", self.on(host)));
            self.lost.get_or_insert(Cause::Host { host, why });
            return;
        }
        self.end(Cause::Host { host, why });
    }

    fn time_is_up(&mut self, ready_by: Instant, deadline: Option<Instant>) {
        let now = Instant::now();
        if self.stop_at.is_some() {
            self.stop();
        } else if self.cause.is_some() {
            // Their ranks die with them, or when the helpers notice that this process is gone.
            for (host, helper) in self.helpers.iter_mut().enumerate().filter(|(_, helper)| !helper.closed) {
                let host = &self.job.hosts[host].host;
                screen::complain("weft run", &format!("the helper on {host} did not stop; killing it"));
                helper.kill();
                helper.closed = true;
            }
        } else if let Some(limit) = self.job.timeout.filter(|_| deadline.is_some_and(|at| at <= now)) {
            self.end(Cause::Timeout(limit));
        } else if ready_by <= now
            && let Some(host) = self.helpers.iter().position(|helper| helper.ports.is_none())
        {
            let command = helper_command(self.job, host).join(" ");
            let why = format!("it did not answer within {} s to `{command}`", READY_WITHIN.as_secs());
            self.end(Cause::Host { host, why });
        }
    }

    /// Stops the job. The first reason counts.
    fn end(&mut self, cause: Cause) {
        if self.cause.is_some() {
            return;
        }
        let is_noticed = matches!(cause, Cause::Rank(_));
        self.cause = Some(cause);
        if is_noticed {
            self.stop_at = Some(Instant::now() + NOTICE_WITHIN.min(self.job.grace));
            return;
        }
        self.stop();
        if !self.started {
            // No ranks yet; a remote shell may be waiting for a host that does not answer.
            for (host, helper) in self.helpers.iter_mut().enumerate() {
                self.attending.hang_up(host);
                helper.kill();
            }
        }
    }

    /// Tells all helpers to stop their ranks.
    fn stop(&mut self) {
        self.stop_at = None;
        self.kill_at = Some(Instant::now() + self.job.grace + STOP_WITHIN);
        self.attending.tell(&Order::Stop);
    }

    /// A prefix that names the host, if there are several.
    fn on(&self, host: usize) -> String {
        if self.job.hosts.len() > 1 { format!("on {}: ", self.job.hosts[host].host) } else { String::new() }
    }
}
