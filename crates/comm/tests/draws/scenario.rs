//! One draw: starts the ranks, waits for the phase, injects the fault, and collects the reports.

use std::path::PathBuf;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use weftlink_testkit::hosts::Hosts;
use weftlink_testkit::ports::Port;

use crate::draw::{Draw, Kind, Phase, Transport};
use crate::job::{Job, RankLog};
use crate::judge;
use crate::proxy::{Ends, LinkFault, Proxy};
use crate::rank::{Event, Gate, Role, now};
use crate::roles::role;
use crate::{addresses, early, foreign, handler, partition, resume, single_copy, skew, sockets, strangers};

/// How a draw ended.
pub(crate) struct Report {
    pub(crate) draw: Draw,
    /// For each survivor, the seconds from the fault, or from the start of a later call, to its error.
    pub(crate) seconds: Vec<f64>,
    /// What failed, with the logs of all ranks.
    pub(crate) failure: Option<String>,
    /// Why this machine cannot run the draw.
    pub(crate) skipped: Option<String>,
    /// The first error message of a survivor.
    pub(crate) error: String,
    /// The errors, refusals and warnings of all ranks.
    pub(crate) messages: Vec<String>,
    pub(crate) wall_seconds: f64,
}

/// What happened in a draw.
pub(crate) struct Evidence {
    pub(crate) logs: Vec<RankLog>,
    pub(crate) pids: Vec<u32>,
    /// The time of the fault.
    pub(crate) at: f64,
    /// The faulty links.
    pub(crate) links: Vec<Ends>,
    /// Their fault.
    pub(crate) fault: Option<LinkFault>,
    pub(crate) second: Option<usize>,
    /// Whether the flipped bit was part of a handshake.
    pub(crate) in_handshake: bool,
}

pub(crate) struct Scenario {
    pub(crate) draw: Draw,
    pub(crate) job: Job,
    proxy: Option<Proxy>,
    address: String,
    /// The rendezvous port.
    _reserved: Port,
    pub(crate) at: f64,
    links: Vec<Ends>,
    fault: Option<LinkFault>,
    pub(crate) second: Option<usize>,
    /// A failure that the harness detected itself.
    pub(crate) seen: Option<String>,
    /// Abstract sockets of the ranks at the time of the fault.
    names: Vec<String>,
    /// Foreign connections that stay open.
    silent: Vec<Box<dyn Send>>,
}

/// Runs a draw.
pub(crate) fn run(seed: u64) -> Report {
    // A draw that keeps all cores busy runs alone.
    static MACHINE: RwLock<()> = RwLock::new(());
    let draw = Draw::new(seed);
    let (_shared, _alone) = match draw.kind {
        Kind::Resume => (None, MACHINE.write().ok()),
        _ => (MACHINE.read().ok(), None),
    };
    let hosts = match draw.kind {
        Kind::Addresses => addresses::hosts(&draw).map(Some),
        Kind::ForeignUid => foreign::skip().map_or(Ok(None), Err),
        _ => Ok(None),
    };
    match hosts {
        Ok(hosts) => run_here(draw, hosts.as_ref()),
        Err(why) => {
            let (seconds, error, messages, wall_seconds) = (Vec::new(), String::new(), Vec::new(), 0.0);
            Report { draw, seconds, failure: None, skipped: Some(why), error, messages, wall_seconds }
        }
    }
}

fn run_here(draw: Draw, hosts: Option<&Hosts>) -> Report {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let seed = draw.seed;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let marker = format!("weft-draw-{}-{number}-{seed}", std::process::id());
    let folder = std::env::temp_dir().join(&marker);
    std::fs::create_dir(&folder).unwrap();
    let mut scenario = Scenario::start(draw.clone(), &marker, folder.clone(), hosts);
    scenario.drive();
    let hung = !scenario.job.wait(|all| all.iter().all(|one| one.ended.is_some()));
    let Scenario { job, proxy, at, links, fault, second, names, seen, .. } = scenario;
    let links = match proxy.as_ref().map(Proxy::corrupted) {
        Some(ends) if draw.kind == Kind::Corrupt => ends.into_iter().collect(),
        _ => links,
    };
    let in_handshake = proxy.as_ref().is_some_and(Proxy::was_in_handshake);
    let (logs, pids) = (job.logs(), job.pids.clone());
    let evidence = Evidence { logs, pids, at, links, fault, second, in_handshake };
    let wall_seconds = job.seconds();
    drop((job, proxy));
    let judged = if hung { Err("it hung".to_owned()) } else { judge::judge(&draw, &evidence) };
    let judged = judged.and_then(|seconds| seen.map_or(Ok(seconds), Err));
    let judged =
        judged.and_then(|seconds| check_leftovers(&draw, &marker, &names, &folder).map(|()| seconds));
    let _ = std::fs::remove_dir_all(&folder);
    let error = (0..draw.size).filter(|rank| *rank != draw.victim);
    let error = error.filter_map(|rank| evidence.logs[rank].failure()).map(|(text, ..)| text.to_owned());
    let error = error.into_iter().next().unwrap_or_default();
    let failure = judged.as_ref().err().map(|why| format!("{draw}\n  {why}\n{}", transcript(&evidence)));
    let messages = evidence.logs.iter().flat_map(messages).collect();
    let (seconds, skipped) = (judged.unwrap_or_default(), None);
    Report { draw, seconds, failure, skipped, error, messages, wall_seconds }
}

/// Errors, refusals and warnings of a rank, without the prefix of log lines.
fn messages(log: &RankLog) -> Vec<String> {
    let events = log.events.iter().filter_map(|event| match event {
        Event::Failed { error, .. } => Some(error.clone()),
        Event::Refused(text) => Some(text.clone()),
        _ => None,
    });
    let warned = log.errors.lines().filter_map(|line| Some(line.split_once("fault: ")?.1.to_owned()));
    events.chain(warned).collect()
}

/// Lines shown of the end of a rank's stderr.
const LOG_LINES_MAX: usize = 12;

/// The logs of all ranks, for a failure report.
fn transcript(evidence: &Evidence) -> String {
    let of = |(rank, log): (usize, &RankLog)| {
        let events: Vec<String> = log.events.iter().map(|event| format!("{event:?}")).collect();
        let lines: Vec<&str> = log.errors.lines().filter(|line| !line.is_empty()).collect();
        let errors = lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n      ");
        let (pid, ended) = (evidence.pids[rank], &log.ended);
        format!("    rank {rank} (pid {pid}), ended {ended:?}: {}\n      {errors}", events.join("; "))
    };
    let ranks: Vec<String> = evidence.logs.iter().enumerate().map(of).collect();
    format!("    fault at {:.3}, links {:?}\n{}", evidence.at, evidence.links, ranks.join("\n"))
}

fn check_leftovers(
    draw: &Draw,
    marker: &str,
    names: &[String],
    folder: &std::path::Path,
) -> Result<(), String> {
    let processes = sockets::processes_with(marker);
    if !processes.is_empty() {
        return Err(format!("processes {processes:?} are still running"));
    }
    if let Some(name) = names.iter().find(|name| sockets::exists(name)) {
        return Err(format!("the socket @{name} still exists"));
    }
    // A killed listener leaves its socket file behind; the next listener replaces it.
    let may_leave = draw.victim == 0 && draw.phase == Phase::Rendezvous;
    match std::fs::read_dir(folder).unwrap().flatten().next() {
        Some(file) if !may_leave => Err(format!("the file {} still exists", file.path().display())),
        _ => Ok(()),
    }
}

impl Scenario {
    fn start(draw: Draw, marker: &str, folder: PathBuf, hosts: Option<&Hosts>) -> Scenario {
        let reserved = Port::reserve();
        let port = reserved.number;
        let address = match draw.transport {
            _ if hosts.is_some() => format!("{}:{}", Hosts::ipv4(0), addresses::PORT),
            Transport::Shared if draw.way % 4 == 3 && draw.kind != Kind::ForeignUid => {
                folder.join("meet").display().to_string()
            }
            Transport::Shared => format!("@{marker}"),
            _ => format!("127.0.0.1:{port}"),
        };
        let in_between =
            matches!(draw.kind, Kind::Cut | Kind::Corrupt | Kind::Stranger | Kind::Flood | Kind::Partition);
        let proxy = (in_between && draw.is_networked()).then(|| Proxy::new(draw.size, port));
        let mut roles: Vec<Role> =
            (0..draw.size).map(|rank| role(&draw, rank, &address, proxy.as_ref())).collect();
        if draw.kind == Kind::ForeignUid {
            let wanted = roles[foreign::rank(&draw)].clone();
            roles.push(Role { is_foreign: true, ..wanted });
        }
        let job = Job::start(&roles, marker, &folder, hosts);
        if let Some(proxy) = &proxy {
            proxy.set_pids(job.pids.clone());
        }
        let (links, silent, names) = (Vec::new(), Vec::new(), Vec::new());
        let (at, fault, second, seen) = (now(), None, None, None);
        Scenario {
            draw,
            job,
            proxy,
            address,
            _reserved: reserved,
            at,
            links,
            fault,
            second,
            seen,
            names,
            silent,
        }
    }

    fn drive(&mut self) {
        match self.draw.kind {
            Kind::SingleCopy => return single_copy::drive(self),
            Kind::Early => return early::drive(self),
            Kind::Handler => return handler::drive(self),
            Kind::ForeignUid => return foreign::drive(self),
            Kind::Addresses => return addresses::drive(self),
            Kind::Resume => return resume::drive(self),
            Kind::Counts | Kind::Lane => return,
            _ => {}
        }
        let Draw { phase, victim, partner, size, delay, kind, .. } = self.draw;
        // `judge` reports ranks that failed too early.
        let is_over = |all: &[RankLog]| all.iter().any(|one| one.failure().is_some() || one.ended.is_some());
        let holding =
            |gate| move |all: &[RankLog]| all.iter().all(|one| one.is_holding(gate)) || is_over(all);
        match phase {
            Phase::Rendezvous => {
                self.job.wait(holding(Gate::Join));
                if kind == Kind::Skew {
                    skew::join(&self.draw, &self.address);
                }
                // One rank joins late, so that the others are waiting when the fault happens.
                let late = match kind {
                    Kind::Flood | Kind::Descriptors => Some(if partner == 0 { victim } else { partner }),
                    _ => (partner != 0 && size > 2).then_some(partner),
                };
                self.job.release((0..size).filter(|rank| Some(*rank) != late));
                std::thread::sleep(delay);
                self.inject();
                self.job.release(late);
            }
            Phase::Creating => {
                self.job.wait(|all| all[victim].is_holding(Gate::Create) || is_over(all));
                std::thread::sleep(delay);
                self.inject();
                self.job.release([victim]);
            }
            Phase::First if self.victim_is_late() => {
                self.job.wait(|all| all[victim].is_holding(Gate::First) || is_over(all));
                std::thread::sleep(delay);
                self.inject();
                self.job.release([victim]);
            }
            Phase::First => {
                self.job.wait(holding(Gate::First));
                self.job.release(0..size);
                std::thread::sleep(delay / 8);
                self.inject();
            }
            Phase::Between => {
                self.job.wait(holding(Gate::Next));
                self.inject();
                std::thread::sleep(delay);
                self.job.release(0..size);
            }
            _ => {
                self.job.wait(|all| all.iter().all(|one| one.events.contains(&Event::Warm)) || is_over(all));
                std::thread::sleep(delay);
                self.inject();
            }
        }
        self.await_outcome();
    }

    fn victim_is_late(&self) -> bool {
        self.draw.way.is_multiple_of(2)
    }

    pub(crate) fn inject(&mut self) {
        let Draw { victim, partner, size, way, .. } = self.draw;
        self.names = self.job.pids.iter().flat_map(|&pid| sockets::abstract_names(pid)).collect();
        self.at = now();
        match self.draw.kind {
            Kind::Kill | Kind::Shrink => self.job.signal(victim, Signal::KILL),
            Kind::Early if early::kills(&self.draw) => self.job.signal(victim, Signal::KILL),
            Kind::Stop | Kind::Early | Kind::Resume => self.job.signal(victim, Signal::STOP),
            Kind::Cut => {
                let host = |rank| self.draw.host(rank);
                let is_one_link = self.draw.cuts_one_link();
                let pairs = (0..size).flat_map(|one| (one + 1..size).map(move |other| (one, other)));
                let is_harmed = |&(one, other): &Ends| match is_one_link {
                    true => (one, other) == (victim.min(partner), victim.max(partner)),
                    false => host(one) != host(other) && [host(one), host(other)].contains(&host(victim)),
                };
                self.links = pairs.filter(is_harmed).collect();
                let fault = if way % 3 == 2 { LinkFault::Stall } else { LinkFault::Close };
                self.fault = Some(fault);
                if let Some(proxy) = &self.proxy {
                    proxy.inject(self.links.clone(), fault);
                }
            }
            Kind::Corrupt => self.proxy.iter().for_each(|proxy| proxy.corrupt(victim, way)),
            Kind::Stranger => {
                let recording = self.proxy.as_ref().map_or(Vec::new(), Proxy::recording);
                self.silent.push(strangers::intrude(&self.draw, &self.job.pids, &self.address, &recording));
            }
            Kind::Flood => {
                let recording = || self.proxy.as_ref().map_or(Vec::new(), Proxy::recording);
                // With two ranks, one of them late, there is no traffic to record yet.
                let has_one = |_: &[RankLog]| !recording().is_empty();
                if size > 2 {
                    self.job.wait_for(Duration::from_secs(2), has_one);
                }
                let recording = recording();
                self.silent.push(strangers::flood(&self.job.pids, &recording));
            }
            Kind::Descriptors => {
                self.silent.push(strangers::flood(&self.job.pids, &[]));
                if self.draw.phase == Phase::Between {
                    self.seen = busy(&self.job.pids);
                }
            }
            Kind::Partition => {
                self.links = partition::links(&self.draw);
                self.fault = Some(LinkFault::Close);
                self.proxy.iter().for_each(|proxy| proxy.inject(self.links.clone(), LinkFault::Close));
            }
            _ => {}
        }
    }

    /// Waits until ranks report the fault. If the fault may stay unnoticed, ends the job.
    pub(crate) fn await_outcome(&mut self) {
        let Draw { kind, victim, phase, .. } = self.draw;
        let is_over = |one: &RankLog| one.ended.is_some() || one.failure().is_some() || one.is_done();
        match kind {
            Kind::Stop | Kind::Early => {
                let others = move |all: &[RankLog]| {
                    all.iter().enumerate().all(|(rank, one)| rank == victim || is_over(one))
                };
                self.job.wait(others);
                self.job.signal(victim, Signal::CONT);
            }
            Kind::Cut | Kind::Corrupt => {
                // A fault on an idle link may stay unnoticed.
                let seconds = if phase == Phase::Rendezvous { 12 } else { 4 };
                if !self.job.wait_for(Duration::from_secs(seconds), |all| all.iter().any(is_over)) {
                    self.job.finish();
                }
            }
            Kind::Stranger | Kind::Skew | Kind::Flood | Kind::Descriptors => self.job.finish(),
            // The second rank is killed while the others shrink, or in their calls afterwards.
            Kind::Shrink if self.draw.way % 2 == 1 => {
                let Draw { partner, delay, .. } = self.draw;
                self.job.wait(|all| (0..all.len()).all(|rank| rank == victim || is_over(&all[rank])));
                std::thread::sleep(delay / 5);
                self.second = Some(partner);
                self.job.signal(partner, Signal::KILL);
            }
            _ => {}
        }
    }
}

/// Reports a process that uses the CPU while it should be idle.
fn busy(pids: &[u32]) -> Option<String> {
    let interval = Duration::from_secs(1);
    let before: Vec<Duration> = pids.iter().map(|&pid| sockets::processor_time(pid)).collect();
    std::thread::sleep(interval);
    let is_busy = |(pid, before): (&u32, Duration)| sockets::processor_time(*pid) - before > interval / 2;
    let busy = pids.iter().zip(before).position(is_busy)?;
    Some(format!("rank {busy} uses the CPU while it waits, with more connections than descriptors"))
}
