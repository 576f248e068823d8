//! One draw, from start to end: ranks are started, brought to the phase, harmed, and heard.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use weftlink_testkit::ports::Port;

use crate::draw::{Draw, Kind, Phase, Transport};
use crate::job::{Heard, Job};
use crate::judge;
use crate::proxy::{Ends, Harm, Proxy};
use crate::rank::{Gate, Role, Said, now};
use crate::{skew, sockets, strangers};

/// How a draw ended.
pub(crate) struct Report {
    pub(crate) draw: Draw,
    /// How long after the fault, or the call that met it, each survivor had its error.
    pub(crate) seconds: Vec<f64>,
    /// What was not as it should be, with all that the ranks said.
    pub(crate) failure: Option<String>,
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

struct Scene {
    draw: Draw,
    job: Job,
    proxy: Option<Proxy>,
    place: String,
    /// The port of the meeting.
    _reserved: Port,
    at: f64,
    links: Vec<Ends>,
    harm: Option<Harm>,
    second: Option<usize>,
    /// Of sockets that the processes had when it happened.
    names: Vec<String>,
    /// Strangers who stay.
    silent: Vec<Box<dyn Send>>,
}

/// Runs a draw.
pub(crate) fn run(seed: u64) -> Report {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let draw = Draw::new(seed);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let marker = format!("weft-draw-{}-{number}-{seed}", std::process::id());
    let folder = std::env::temp_dir().join(&marker);
    std::fs::create_dir(&folder).unwrap();
    let mut scene = Scene::start(draw.clone(), &marker, folder.clone());
    scene.play();
    let hung = !scene.job.wait(|all| all.iter().all(|one| one.ended.is_some()));
    let Scene { job, proxy, at, links, harm, second, names, .. } = scene;
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
    let judged =
        judged.and_then(|seconds| nothing_is_left(&draw, &marker, &names, &folder).map(|()| seconds));
    let _ = std::fs::remove_dir_all(&folder);
    let error = (0..draw.size).filter(|rank| *rank != draw.victim);
    let error = error.filter_map(|rank| evidence.heard[rank].failure()).map(|(text, ..)| text.to_owned());
    let error = error.into_iter().next().unwrap_or_default();
    let failure = judged.as_ref().err().map(|why| format!("{draw}\n  {why}\n{}", told(&evidence)));
    let messages = evidence.heard.iter().flat_map(messages).collect();
    Report { draw, seconds: judged.unwrap_or_default(), failure, error, messages, wall_seconds }
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

/// All that was said.
fn told(evidence: &Evidence) -> String {
    let of = |(rank, heard): (usize, &Heard)| {
        let said: Vec<String> = heard.said.iter().map(|said| format!("{said:?}")).collect();
        let errors = heard.errors.trim().replace('\n', "\n      ");
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
    fn start(draw: Draw, marker: &str, folder: PathBuf) -> Scene {
        let reserved = Port::reserve();
        let port = reserved.number;
        let place = match draw.transport {
            Transport::Shared if draw.way % 4 == 3 => folder.join("meet").display().to_string(),
            Transport::Shared => format!("@{marker}"),
            _ => format!("127.0.0.1:{port}"),
        };
        let in_between = matches!(draw.kind, Kind::Cut | Kind::Corrupt | Kind::Stranger);
        let proxy = (in_between && draw.is_networked()).then(|| Proxy::new(draw.size, port));
        let roles: Vec<Role> = (0..draw.size).map(|rank| role(&draw, rank, &place, proxy.as_ref())).collect();
        let job = Job::start(&roles, marker, &folder);
        if let Some(proxy) = &proxy {
            proxy.know(job.pids.clone());
        }
        let (links, silent, names) = (Vec::new(), Vec::new(), Vec::new());
        Scene {
            draw,
            job,
            proxy,
            place,
            _reserved: reserved,
            at: now(),
            links,
            harm: None,
            second: None,
            names,
            silent,
        }
    }

    fn play(&mut self) {
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
                let late = (partner != 0 && size > 2).then_some(partner);
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

    fn harm(&mut self) {
        let Draw { victim, partner, size, way, .. } = self.draw;
        self.names = self.job.pids.iter().flat_map(|&pid| sockets::abstract_names(pid)).collect();
        self.at = now();
        match self.draw.kind {
            Kind::Kill | Kind::Shrink => self.job.signal(victim, Signal::KILL),
            Kind::Stop => self.job.signal(victim, Signal::STOP),
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
            Kind::Mismatch | Kind::Skew => {}
        }
    }

    /// Waits until the fault has shown, or lets the job end if it need not.
    fn see_the_end(&mut self) {
        let Draw { kind, victim, phase, .. } = self.draw;
        let is_over = |one: &Heard| one.ended.is_some() || one.failure().is_some() || one.is_done();
        match kind {
            Kind::Stop => {
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
            Kind::Stranger | Kind::Skew => self.job.finish(),
            // While the others shrink, or make their calls afterwards, whenever that is.
            Kind::Shrink if self.draw.way % 2 == 1 => {
                let Draw { partner, delay, .. } = self.draw;
                self.job.wait(|all| (0..all.len()).all(|rank| rank == victim || is_over(&all[rank])));
                std::thread::sleep(delay / 5);
                self.second = Some(partner);
                self.job.signal(partner, Signal::KILL);
            }
            Kind::Kill | Kind::Mismatch | Kind::Shrink => {}
        }
    }
}

/// What one rank is to do.
fn role(draw: &Draw, rank: usize, place: &str, proxy: Option<&Proxy>) -> Role {
    let is_victim = rank == draw.victim;
    let is_silent = draw.kind == Kind::Cut && draw.way % 3 == 2;
    let is_patient = !(draw.kind == Kind::Stop || is_silent);
    let meets_all = draw.phase != Phase::Meeting || matches!(draw.kind, Kind::Stranger | Kind::Skew);
    let holds = match draw.phase {
        Phase::Meeting => vec![Gate::Meet],
        Phase::Making if is_victim => vec![Gate::Make],
        Phase::First if is_victim || draw.way % 2 == 1 => vec![Gate::First],
        Phase::Between => vec![Gate::Next],
        _ => vec![],
    };
    let round = match draw.phase {
        Phase::First => 0,
        Phase::Large => draw.way as usize % 3,
        _ => draw.way as usize / 64 % 30,
    };
    let place = match proxy {
        Some(proxy) if rank > 0 => format!("127.0.0.1:{}", proxy.meeting_port),
        _ => place.to_owned(),
    };
    let skewed = draw.kind == Kind::Skew && rank == draw.victim.max(1);
    Role {
        seed: draw.seed,
        rank,
        token: format!("the secret of draw {}", draw.seed),
        announced_port: proxy.map(|proxy| proxy.ports[rank]),
        meeting_limit: Duration::from_secs(if meets_all { 30 } else { 3 }),
        deadline: if is_patient { Duration::from_secs(20) } else { Duration::from_millis(2500) },
        warn_after: if is_patient { Duration::from_secs(10) } else { Duration::from_millis(500) },
        holds,
        differs: (draw.kind == Kind::Mismatch && is_victim).then_some((round, draw.way % 7)),
        terms: (skewed && draw.way % 3 == 1).then(|| ("WEFT_ENCRYPT".to_owned(), "on".to_owned())),
        wrong_place: (skewed && draw.way % 3 == 2).then(|| skew::listen(draw, &place)),
        place,
    }
}
