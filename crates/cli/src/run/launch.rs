//! One start of a job: helpers on all hosts, ranks below them, and whatever happens until the last has ended.
//!
//! First every helper says that it is ready, so that no rank runs before all hosts are reached; then all get their orders.
//! When a rank fails, a host is lost or time is up, all are told to stop; helpers that do not manage that in time are
//! killed. Ranks that wait for one that failed have a moment before, since they can say what they were at. Every wait here has a bound but one: for ranks that run, unless --timeout gives one.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use weftlink_comm::Blame;

use super::args::Job;
use super::culprit;
use super::environment::{self, Afresh};
use super::helpers::{Attending, Heard, Helper, helper_command};
use super::output::Printer;
use super::signals::Signals;
use super::wire::{Binding, End, Event, Order};
use super::{report, secret};

/// How long a host may take to answer.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long ranks may go on when one has failed, to notice it and say so; not longer than the grace.
const NOTICE_WITHIN: Duration = Duration::from_secs(1);
/// How long helpers may take to stop, after the grace of their ranks.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Pieces of output that wait to be printed: a few megabytes at most.
const WAITING_MAX: usize = 32;

/// What became of a rank.
#[derive(Default)]
pub(super) struct Record {
    pub(super) host: usize,
    pub(super) pid: Option<u32>,
    pub(super) binding: Option<Binding>,
    /// How, and how long after the start.
    pub(super) end: Option<(End, Duration)>,
    /// It ended after it was told to.
    pub(super) told: bool,
    /// It was stopped by a signal or a debugger when it was told to end.
    pub(super) stopped: bool,
    /// Why its communicator failed, if it did.
    pub(super) said: Option<String>,
    /// The ranks that it blames for that.
    pub(super) blamed: Vec<Blame>,
}

/// Why the job was ended before all ranks had ended by themselves.
pub(super) enum Cause {
    /// This rank failed first, or the others failed for it.
    Rank(usize),
    /// A host could not be reached, or was lost.
    Host {
        host: usize,
        why: String,
    },
    /// What was asked cannot be done.
    Misuse {
        host: usize,
        why: String,
    },
    Timeout(Duration),
    /// A signal came before the ranks were started.
    Interrupted(i32),
    /// What ranks print can no longer be shown.
    Output(io::Error),
}

/// How one start went.
pub(super) struct Attempt {
    pub(super) records: Vec<Record>,
    /// Who failed because of the rank that is the cause, by what they said.
    pub(super) blamed_by: Vec<usize>,
    pub(super) cause: Option<Cause>,
}

/// Starts the job and sees it through.
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
    // Those that wait to say something find nobody who listens, and end.
    drop(heard);
    let Running { records, cause, lost, .. } = running;
    let found = culprit::find(&records);
    let (cause, found) = match (cause, found) {
        (Some(Cause::Rank(rank)), None) => (Some(Cause::Rank(rank)), None),
        // A failure that ended nothing is one all the same.
        (None | Some(Cause::Rank(_)), Some(found)) => (Some(Cause::Rank(found.rank)), Some(found)),
        (cause, _) => (cause.or(lost), None),
    };
    Ok(Attempt { records, blamed_by: found.map_or(Vec::new(), |found| found.blamed_by), cause })
}

struct Running<'j> {
    job: &'j Job,
    restarts: u32,
    helpers: Vec<Helper>,
    attending: Attending,
    records: Vec<Record>,
    cause: Option<Cause>,
    /// The first host that was lost while the others go on.
    lost: Option<Cause>,
    started: bool,
    /// When ranks are told to stop, until they are.
    stop_at: Option<Instant>,
    /// When helpers that have been told to stop are killed.
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
            self.attending.tell_one(host, &Order::Start(environment::start(self.job, host, &afresh)));
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
                    "it has Weft {version}, this is {ours}; say where {ours} is there by --weft-path"
                );
                self.end(Cause::Misuse { host, why });
            }
            Event::Note(note) => eprintln!("weft run: {}{note}", self.on(host)),
            Event::Started { rank, pid, binding } if known(rank) => {
                self.records[rank].pid = Some(pid);
                self.records[rank].binding = binding;
                if self.job.report_bindings {
                    eprintln!("weft run: {}", report::binding(self.job, rank, &self.records[rank]));
                }
            }
            Event::Output { rank, stream, piece, cut } if known(rank) => {
                // Once it has failed, what is left is not shown; the ranks are ending.
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
                        eprintln!("weft run: {}", report::ended(self.job, rank, &self.records[rank]));
                    }
                    _ => self.end(Cause::Rank(rank)),
                }
            }
            Event::Misuse(why) => self.end(Cause::Misuse { host, why }),
            Event::Failed(why) => self.end(Cause::Host { host, why }),
            Event::Started { rank, .. } | Event::Output { rank, .. } | Event::Ended { rank, .. } => {
                self.end(Cause::Host {
                    host,
                    why: format!("it speaks of rank {rank}, which it does not have"),
                });
            }
        }
    }

    /// A helper will say no more.
    fn closed(&mut self, host: usize) {
        self.attending.hang_up(host);
        let helper = &mut self.helpers[host];
        helper.closed = true;
        let all_ended = self.job.hosts[host].ranks.clone().all(|rank| self.records[rank].end.is_some());
        if all_ended || self.cause.is_some() {
            return;
        }
        // The kernel has killed its ranks, but not what they had started, which is in their groups. Out of reach elsewhere.
        if self.started && self.job.hosts[host].is_here {
            let left =
                self.records[self.job.hosts[host].ranks.clone()].iter().filter(|record| record.end.is_none());
            for pid in left.filter_map(|record| Pid::from_raw(i32::try_from(record.pid?).ok()?)) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
        // Its output is closed, so it has ended or is about to.
        let how = match helper.child.wait() {
            Ok(status) => report::describe_status(status),
            Err(error) => error.to_string(),
        };
        let before = if self.started { "was lost" } else { "could not be reached" };
        let why = format!("it {before}: `{}` {how}", helper_command(self.job, host).join(" "));
        if self.started && self.job.keep_going {
            eprintln!("weft run: {}{why}", self.on(host));
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
            // Told to stop, and did not: what they have started ends with them, or when they notice that we are gone.
            for (host, helper) in self.helpers.iter_mut().enumerate().filter(|(_, helper)| !helper.closed) {
                eprintln!(
                    "weft run: the helper on {} does not stop, and is killed",
                    self.job.hosts[host].host
                );
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

    /// Ends the job, for the first reason there is.
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
            // There are no ranks yet, and a remote shell may be waiting for a host that does not answer.
            for (host, helper) in self.helpers.iter_mut().enumerate() {
                self.attending.hang_up(host);
                helper.kill();
            }
        }
    }

    /// Tells all to stop.
    fn stop(&mut self) {
        self.stop_at = None;
        self.kill_at = Some(Instant::now() + self.job.grace + STOP_WITHIN);
        self.attending.tell(&Order::Stop);
    }

    /// Which host, where there are several.
    fn on(&self, host: usize) -> String {
        if self.job.hosts.len() > 1 { format!("on {}: ", self.job.hosts[host].host) } else { String::new() }
    }
}
