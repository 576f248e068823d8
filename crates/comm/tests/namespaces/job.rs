//! A job whose ranks are processes on hosts of their own: this very test binary again, told by its environment who it is.
//!
//! Ranks say what happens on their standard output, and are told what to do on their standard input; they end with it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Options, Reduction};
use weftlink_knobs::Knobs;
use weftlink_testkit::hosts::Hosts;

/// How long anything may take that must happen.
pub(crate) const AMPLE: Duration = Duration::from_secs(60);
/// Where rank 0 listens: nobody else does in its namespace.
const PORT: u16 = 29_500;
/// What a line of a rank begins with, among those of the test harness.
const SAYS: &str = "rank says: ";

/// What all ranks of a job are told.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Where rank 0 is.
    pub(crate) address: String,
    /// `WEFT_INTERFACE`.
    pub(crate) interface: &'static str,
    /// `WEFT_PORTS`.
    pub(crate) ports: &'static str,
    /// `WEFT_DEADLINE`, of calls.
    pub(crate) deadline: &'static str,
}

impl Settings {
    /// Ranks that meet on the first host, with time enough for everything.
    pub(crate) fn new() -> Settings {
        let address = Hosts::ipv4(0).to_string();
        Settings { address, interface: "", ports: "", deadline: "120s" }
    }
}

/// The ranks of a job, as the test sees them. None outlives it.
pub(crate) struct Job {
    pub(crate) ranks: Vec<Child>,
    inputs: Vec<ChildStdin>,
    said: Receiver<(usize, String)>,
    /// What was said and not asked for yet.
    pending: Vec<(usize, String)>,
}

impl Job {
    /// Starts a rank on each of these hosts, all of which run the test of this name.
    pub(crate) fn start(hosts: &Hosts, places: &[usize], test: &str, settings: &Settings) -> Job {
        let program = std::env::current_exe().unwrap();
        Job::start_as(places, test, settings, |rank| hosts.command(places[rank], &program))
    }

    /// The same, with a command for each rank to which the arguments of the test are added.
    pub(crate) fn start_as(
        places: &[usize],
        test: &str,
        settings: &Settings,
        command: impl Fn(usize) -> Command,
    ) -> Job {
        let token = format!("{test} {} {:?}", std::process::id(), Instant::now());
        let (sender, said) = channel();
        let mut job = Job { ranks: Vec::new(), inputs: Vec::new(), said, pending: Vec::new() };
        for rank in 0..places.len() {
            let mut command = command(rank);
            command
                .args([test, "--exact", "--nocapture"])
                .env("WEFT_TEST_RANK", format!("{rank} {}", places.len()))
                .env("WEFT_TEST_ADDRESS", &settings.address)
                .env("WEFT_TEST_TOKEN", &token)
                .env("WEFT_INTERFACE", settings.interface)
                .env("WEFT_PORTS", settings.ports)
                .env("WEFT_DEADLINE", settings.deadline)
                .env("WEFT_WARN_AFTER", "300ms")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            job.inputs.push(child.stdin.take().unwrap());
            hear(rank, child.stdout.take().unwrap(), SAYS, &sender);
            hear(rank, child.stderr.take().unwrap(), "", &sender);
            job.ranks.push(child);
        }
        job
    }

    /// Waits until a rank has said something that has this in it, and returns that; also if it said so before and nobody
    /// asked.
    pub(crate) fn hear(&mut self, rank: usize, what: &str) -> String {
        let until = Instant::now() + AMPLE;
        let mut seen = 0;
        loop {
            let fits = |(who, line): &(usize, String)| *who == rank && line.contains(what);
            if let Some(found) = self.pending[seen..].iter().position(fits) {
                return self.pending.remove(seen + found).1;
            }
            seen = self.pending.len();
            match self.said.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(said) => self.pending.push(said),
                Err(_) => panic!("rank {rank} never said {what:?}; {:#?}", self.pending),
            }
        }
    }

    /// The same of all ranks, by rank.
    pub(crate) fn hear_all(&mut self, what: &str) -> Vec<String> {
        (0..self.ranks.len()).map(|rank| self.hear(rank, what)).collect()
    }

    /// Waits until any rank has said something that has this in it.
    pub(crate) fn hear_any(&mut self, what: &str) -> (usize, String) {
        let until = Instant::now() + AMPLE;
        loop {
            if let Some(found) = self.pending.iter().position(|(_, line)| line.contains(what)) {
                return self.pending.remove(found);
            }
            match self.said.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(said) => self.pending.push(said),
                Err(_) => panic!("nobody said {what:?}; {:#?}", self.pending),
            }
        }
    }

    /// Forgets what was said until now.
    pub(crate) fn forget(&mut self) {
        self.pending.clear();
        while self.said.try_recv().is_ok() {}
    }

    /// Sends a signal to a rank's process.
    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_raw(self.ranks[rank].id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Tells all ranks to stop; they end their calls together.
    pub(crate) fn stop(&mut self) {
        self.inputs.iter_mut().for_each(|input| drop(input.write_all(b"stop\n")));
    }

    /// Waits for all to end well.
    pub(crate) fn finish(mut self) {
        self.hear_all("done");
        for (rank, mut child) in std::mem::take(&mut self.ranks).into_iter().enumerate() {
            let status = child.wait().unwrap();
            assert!(status.success(), "rank {rank}: {status}; {:#?}", self.pending);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Both fail only for processes that have ended already.
        self.ranks.iter_mut().for_each(|child| drop(child.kill()));
        self.ranks.iter_mut().for_each(|child| drop(child.wait()));
    }
}

fn hear(
    rank: usize,
    output: impl std::io::Read + Send + 'static,
    begin: &'static str,
    to: &Sender<(usize, String)>,
) {
    let to = to.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The harness does not end its own line before the test begins.
            if let Some(at) = line.find(begin) {
                let _ = to.send((rank, line[at + begin.len()..].to_owned()));
            }
        }
    });
}

/// A rank, as it sees itself.
pub(crate) struct Role {
    pub(crate) rank: usize,
    meeting: Rendezvous,
    options: Options,
}

/// Whether this rank was told to stop.
static STOPPED: AtomicBool = AtomicBool::new(false);

impl Role {
    /// What this process was told, unless it is the test itself.
    pub(crate) fn of_this_process() -> Option<Role> {
        let told = |name: &str| std::env::var(format!("WEFT_TEST_{name}")).ok();
        let numbers = |text: String| -> Vec<usize> {
            text.split_whitespace().map(|word| word.parse().unwrap()).collect()
        };
        let (rank, size) = match numbers(told("RANK")?)[..] {
            [rank, size] => (rank, size),
            _ => panic!("WEFT_TEST_RANK has two numbers"),
        };
        let place = RendezvousAddress::Tcp { host: told("ADDRESS").unwrap(), ports: PORT..=PORT };
        let knobs = Knobs::from_environment().unwrap();
        let meeting = Rendezvous {
            network: Network::of(&knobs),
            // Of coming together, whatever calls have.
            ..Rendezvous::new(place, Token::new(told("TOKEN").unwrap()).unwrap(), size, AMPLE)
        };
        std::thread::spawn(|| {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                STOPPED.store(line == "stop", Ordering::Relaxed);
            }
            // The test is gone, or has given up.
            if !STOPPED.load(Ordering::Relaxed) {
                std::process::exit(1);
            }
        });
        Some(Role { rank, meeting, options: Options::of(&knobs) })
    }

    /// Meets the others.
    pub(crate) fn meet(&self) -> Bootstrap {
        match self.rank {
            0 => Bootstrap::listen(&self.meeting).unwrap(),
            rank => Bootstrap::join(&self.meeting, rank).unwrap(),
        }
    }

    /// Meets the others and makes a communicator with them.
    pub(crate) fn communicator(&self) -> Communicator {
        Communicator::new(self.meet(), self.options).unwrap()
    }

    /// Makes no calls until it is told to stop.
    pub(crate) fn wait_until_stopped(&self) {
        while !STOPPED.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes calls until somebody is told to stop, or one fails, and says how that went.
    pub(crate) fn call_until_stopped(&self) {
        let mut comm = self.communicator();
        for call in 1_u32.. {
            let stopped = u32::from(STOPPED.load(Ordering::Relaxed));
            let mut sums = [stopped, call, self.rank as u32];
            if let Err(error) = comm.all_reduce(&mut sums, Reduction::Sum) {
                say(&format!("failed: {error}"));
                return;
            }
            let size = comm.size() as u32;
            assert_eq!(sums[1..], [call * size, size * (size - 1) / 2]);
            if sums[0] > 0 {
                break;
            }
            // Not after every call: what is said must not slow down what is tested.
            if call % 50 == 0 {
                say("calling");
            }
        }
        say("done");
    }
}

/// Tells the test.
pub(crate) fn say(what: &str) {
    // One write, because standard error is written to at the same time.
    let _ = std::io::stdout().write_all(format!("\n{SAYS}{what}\n").as_bytes());
}
