//! One draw: starts the ranks, waits for the phase, injects the fault, and collects the reports.

use std::path::PathBuf;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use weftlink_testkit::hosts::Hosts;
use weftlink_testkit::ports::Port;

use crate::draw::{Draw, Kind, Phase, Transport};
use crate::job::{Heard, Job};
use crate::judge;
use crate::proxy::{Ends, Harm, Proxy};
use crate::rank::{Gate, Role, Said, now};
use crate::roles::role;
use crate::{addresses, early, foreign, handler, partition, resume, single_copy, skew, sockets, strangers};

/// How a draw ended.
pub(crate) struct Report {
    pub(crate) draw: Draw,
    /// How long after the fault, or the call that met it, each survivor had its error.
    pub(crate) seconds: Vec<f64>,
    /// What was not as it should be, with all that the ranks said.
    pub(crate) failure: Option<String>,
    /// What this machine lacks for the draw, which was not made.
    pub(crate) skipped: Option<String>,
    /// The first error of a survivor, as it was worded.
    pub(crate) error: String,
    /// Everything that ranks told people: errors, refusals, warnings.
    pub(crate) messages: Vec<String>,
    pub(crate) wall_seconds: f64,
}

/// What happened in a draw, for whoever judges it.
pub(crate) struct Evidence {
    pub(crate) heard: Vec<Heard>,
    pub(crate) pids: Vec<u32>,
    /// When the fault was.
    pub(crate) at: f64,
    /// The links that were harmed.
    pub(crate) links: Vec<Ends>,
    /// How it harmed them.
    pub(crate) harm: Option<Harm>,
    pub(crate) second: Option<usize>,
    /// Whether the bit that was changed was part of a handshake.
    pub(crate) in_handshake: bool,
}

pub(crate) struct Scene {
    pub(crate) draw: Draw,
    pub(crate) job: Job,
    proxy: Option<Proxy>,
    place: String,
    /// The port of the meeting.
    _reserved: Port,
    pub(crate) at: f64,
    links: Vec<Ends>,
    harm: Option<Harm>,
    pub(crate) second: Option<usize>,
    /// What the harness saw of the processes that is not as it should be.
    pub(crate) seen: Option<String>,
    /// Of sockets that the processes had when it happened.
    names: Vec<String>,
    /// Strangers who stay.
    silent: Vec<Box<dyn Send>>,
}

/// Runs a draw.
pub(crate) fn run(seed: u64) -> Report {
    // A draw that keeps all cores busy has the machine for itself.
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
    let mut scene = Scene::start(draw.clone(), &marker, folder.clone(), hosts);
    scene.play();
    let hung = !scene.job.wait(|all| all.iter().all(|one| one.ended.is_some()));
    let Scene { job, proxy, at, links, harm, second, names, seen, .. } = scene;
    let links = match proxy.as_ref().map(Proxy::corrupted) {
        Some(ends) if draw.kind == Kind::Corrupt => ends.into_iter().collect(),
        _ => links,
    };
    let in_handshake = proxy.as_ref().is_some_and(Proxy::was_in_handshake);
    let (heard, pids) = (job.heard(), job.pids.clone());
    let evidence = Evidence { heard, pids, at, links, harm, second, in_handshake };
    let wall_seconds = job.seconds();
    drop((job, proxy));
    let judged = if hung { Err("it hangs".to_owned()) } else { judge::judge(&draw, &evidence) };
    let judged = judged.and_then(|seconds| seen.map_or(Ok(seconds), Err));
    let judged =
        judged.and_then(|seconds| nothing_is_left(&draw, &marker, &names, &folder).map(|()| seconds));
    let _ = std::fs::remove_dir_all(&folder);
    let error = (0..draw.size).filter(|rank| *rank != draw.victim);
    let error = error.filter_map(|rank| evidence.heard[rank].failure()).map(|(text, ..)| text.to_owned());
    let error = error.into_iter().next().unwrap_or_default();
    let failure = judged.as_ref().err().map(|why| format!("{draw}\n  {why}\n{}", told(&evidence)));
    let messages = evidence.heard.iter().flat_map(messages).collect();
    let (seconds, skipped) = (judged.unwrap_or_default(), None);
    Report { draw, seconds, failure, skipped, error, messages, wall_seconds }
}

/// What a rank told people, without what log lines begin with.
fn messages(heard: &Heard) -> Vec<String> {
    let said = heard.said.iter().filter_map(|said| match said {
        Said::Failed { error, .. } => Some(error.clone()),
        Said::Refused(text) => Some(text.clone()),
        _ => None,
    });
    let warned = heard.errors.lines().filter_map(|line| Some(line.split_once("fault: ")?.1.to_owned()));
    said.chain(warned).collect()
}

/// How many of the last lines of a rank's log are shown.
const TOLD_MAX: usize = 12;

/// All that was said.
fn told(evidence: &Evidence) -> String {
    let of = |(rank, heard): (usize, &Heard)| {
        let said: Vec<String> = heard.said.iter().map(|said| format!("{said:?}")).collect();
        let lines: Vec<&str> = heard.errors.lines().filter(|line| !line.is_empty()).collect();
        let errors = lines[lines.len().saturating_sub(TOLD_MAX)..].join("\n      ");
        let (pid, ended) = (evidence.pids[rank], &heard.ended);
        format!("    rank {rank} (pid {pid}), ended {ended:?}: {}\n      {errors}", said.join("; "))
    };
    let ranks: Vec<String> = evidence.heard.iter().enumerate().map(of).collect();
    format!("    fault at {:.3}, links {:?}\n{}", evidence.at, evidence.links, ranks.join("\n"))
}

fn nothing_is_left(
    draw: &Draw,
    marker: &str,
    names: &[String],
    folder: &std::path::Path,
) -> Result<(), String> {
    let processes = sockets::processes_with(marker);
    if !processes.is_empty() {
        return Err(format!("processes {processes:?} are left"));
    }
    if let Some(name) = names.iter().find(|name| sockets::is_there(name)) {
        return Err(format!("the socket @{name} is left"));
    }
    // Whoever is killed while it listens at a path leaves that; the next to listen there replaces it.
    let may_leave = draw.victim == 0 && draw.phase == Phase::Meeting;
    match std::fs::read_dir(folder).unwrap().flatten().next() {
        Some(file) if !may_leave => Err(format!("the file {} is left", file.path().display())),
        _ => Ok(()),
    }
}

impl Scene {
    fn start(draw: Draw, marker: &str, folder: PathBuf, hosts: Option<&Hosts>) -> Scene {
        let reserved = Port::reserve();
        let port = reserved.number;
        let place = match draw.transport {
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
            (0..draw.size).map(|rank| role(&draw, rank, &place, proxy.as_ref())).collect();
        if draw.kind == Kind::ForeignUid {
            let wanted = roles[foreign::rank(&draw)].clone();
            roles.push(Role { is_foreign: true, ..wanted });
        }
        let job = Job::start(&roles, marker, &folder, hosts);
        if let Some(proxy) = &proxy {
            proxy.know(job.pids.clone());
        }
        let (links, silent, names) = (Vec::new(), Vec::new(), Vec::new());
        let (at, harm, second, seen) = (now(), None, None, None);
        Scene { draw, job, proxy, place, _reserved: reserved, at, links, harm, second, seen, names, silent }
    }

    fn play(&mut self) {
        match self.draw.kind {
            Kind::SingleCopy => return single_copy::play(self),
            Kind::Early => return early::play(self),
            Kind::Handler => return handler::play(self),
            Kind::ForeignUid => return foreign::play_scene(self),
            Kind::Addresses => return addresses::play(self),
            Kind::Resume => return resume::play(self),
            Kind::Counts | Kind::Lane => return,
            _ => {}
        }
        let Draw { phase, victim, partner, size, delay, kind, .. } = self.draw;
        // What went wrong too early is told by the judge.
        let is_over = |all: &[Heard]| all.iter().any(|one| one.failure().is_some() || one.ended.is_some());
        let holding = |gate| move |all: &[Heard]| all.iter().all(|one| one.is_holding(gate)) || is_over(all);
        match phase {
            Phase::Meeting => {
                self.job.wait(holding(Gate::Meet));
                if kind == Kind::Skew {
                    skew::come(&self.draw, &self.place);
                }
                // Whoever comes late keeps the others waiting, so that the fault finds them so.
                let late = match kind {
                    Kind::Flood | Kind::Descriptors => Some(if partner == 0 { victim } else { partner }),
                    _ => (partner != 0 && size > 2).then_some(partner),
                };
                self.job.release((0..size).filter(|rank| Some(*rank) != late));
                std::thread::sleep(delay);
                self.harm();
                self.job.release(late);
            }
            Phase::Making => {
                self.job.wait(|all| all[victim].is_holding(Gate::Make) || is_over(all));
                std::thread::sleep(delay);
                self.harm();
                self.job.release([victim]);
            }
            Phase::First if self.victim_is_late() => {
                self.job.wait(|all| all[victim].is_holding(Gate::First) || is_over(all));
                std::thread::sleep(delay);
                self.harm();
                self.job.release([victim]);
            }
            Phase::First => {
                self.job.wait(holding(Gate::First));
                self.job.release(0..size);
                std::thread::sleep(delay / 8);
                self.harm();
            }
            Phase::Between => {
                self.job.wait(holding(Gate::Next));
                self.harm();
                std::thread::sleep(delay);
                self.job.release(0..size);
            }
            _ => {
                self.job.wait(|all| all.iter().all(|one| one.said.contains(&Said::Warm)) || is_over(all));
                std::thread::sleep(delay);
                self.harm();
            }
        }
        self.see_the_end();
    }

    fn victim_is_late(&self) -> bool {
        self.draw.way.is_multiple_of(2)
    }

    pub(crate) fn harm(&mut self) {
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
                let harm = if way % 3 == 2 { Harm::Silence } else { Harm::End };
                self.harm = Some(harm);
                if let Some(proxy) = &self.proxy {
                    proxy.harm(self.links.clone(), harm);
                }
            }
            Kind::Corrupt => self.proxy.iter().for_each(|proxy| proxy.corrupt(victim, way)),
            Kind::Stranger => {
                let recording = self.proxy.as_ref().map_or(Vec::new(), Proxy::recording);
                self.silent.push(strangers::come(&self.draw, &self.job.pids, &self.place, &recording));
            }
            Kind::Flood => {
                let recording = || self.proxy.as_ref().map_or(Vec::new(), Proxy::recording);
                // With two ranks of which one is late, nobody has said anything yet.
                let has_one = |_: &[Heard]| !recording().is_empty();
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
                self.harm = Some(Harm::End);
                self.proxy.iter().for_each(|proxy| proxy.harm(self.links.clone(), Harm::End));
            }
            _ => {}
        }
    }

    /// Waits until the fault has shown, or lets the job end if it need not.
    pub(crate) fn see_the_end(&mut self) {
        let Draw { kind, victim, phase, .. } = self.draw;
        let is_over = |one: &Heard| one.ended.is_some() || one.failure().is_some() || one.is_done();
        match kind {
            Kind::Stop | Kind::Early => {
                let others = move |all: &[Heard]| {
                    all.iter().enumerate().all(|(rank, one)| rank == victim || is_over(one))
                };
                self.job.wait(others);
                self.job.signal(victim, Signal::CONT);
            }
            Kind::Cut | Kind::Corrupt => {
                // A link that nothing goes over may be cut and nobody knows.
                let patience = if phase == Phase::Meeting { 12 } else { 4 };
                if !self.job.wait_for(Duration::from_secs(patience), |all| all.iter().any(is_over)) {
                    self.job.finish();
                }
            }
            Kind::Stranger | Kind::Skew | Kind::Flood | Kind::Descriptors => self.job.finish(),
            // While the others shrink, or make their calls afterwards, whenever that is.
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

/// Which of these processes are busy though they have nothing to do, if any.
fn busy(pids: &[u32]) -> Option<String> {
    let look = Duration::from_secs(1);
    let before: Vec<Duration> = pids.iter().map(|&pid| sockets::processor_time(pid)).collect();
    std::thread::sleep(look);
    let is_busy = |(pid, before): (&u32, Duration)| sockets::processor_time(*pid) - before > look / 2;
    let busy = pids.iter().zip(before).position(is_busy)?;
    Some(format!("rank {busy} is busy while it waits, with more connections than descriptors"))
}
