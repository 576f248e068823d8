//! A job with one process per rank on separate hosts: the same test binary, whose role is in its environment.
//!
//! Ranks report events on standard output and read commands from standard input; they exit when it is closed.

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

/// The timeout of everything that must happen.
pub(crate) const AMPLE: Duration = Duration::from_secs(60);
/// The port of rank 0 in its namespace.
const PORT: u16 = 29_500;
/// The prefix of a rank's lines, which distinguishes them from those of the test harness.
const SAYS: &str = "rank says: ";

/// The settings of all ranks of a job.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The address of rank 0.
    pub(crate) address: String,
    /// `WEFT_INTERFACE`.
    pub(crate) interface: &'static str,
    /// `WEFT_PORTS`.
    pub(crate) ports: &'static str,
    /// `WEFT_DEADLINE`, of calls.
    pub(crate) deadline: &'static str,
}

impl Settings {
    /// Ranks join on the first host, with a long deadline.
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
    /// Lines that no call has returned yet.
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
            read_lines(rank, child.stdout.take().unwrap(), SAYS, &sender);
            read_lines(rank, child.stderr.take().unwrap(), "", &sender);
            job.ranks.push(child);
        }
        job
    }

    /// Waits until a rank has printed a line that contains this, and returns the line. Lines that no call has returned yet count.
    pub(crate) fn expect_line(&mut self, rank: usize, what: &str) -> String {
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
    pub(crate) fn expect_all(&mut self, what: &str) -> Vec<String> {
        (0..self.ranks.len()).map(|rank| self.expect_line(rank, what)).collect()
    }

    /// Waits until any rank has said something that has this in it.
    pub(crate) fn expect_any(&mut self, what: &str) -> (usize, String) {
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
        self.expect_all("done");
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

fn read_lines(
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

/// Whether this rank was asked to stop.
static STOPPED: AtomicBool = AtomicBool::new(false);

impl Role {
    /// The role of this process; none in the test itself.
    pub(crate) fn of_this_process() -> Option<Role> {
        let setting = |name: &str| std::env::var(format!("WEFT_TEST_{name}")).ok();
        let numbers = |text: String| -> Vec<usize> {
            text.split_whitespace().map(|word| word.parse().unwrap()).collect()
        };
        let (rank, size) = match numbers(setting("RANK")?)[..] {
            [rank, size] => (rank, size),
            _ => panic!("WEFT_TEST_RANK has two numbers"),
        };
        let place = RendezvousAddress::Tcp { host: setting("ADDRESS").unwrap(), ports: PORT..=PORT };
        let knobs = Knobs::from_environment().unwrap();
        let meeting = Rendezvous {
            network: Network::of(&knobs),
            // The timeout of the rendezvous; calls have their own.
            ..Rendezvous::new(place, Token::new(setting("TOKEN").unwrap()).unwrap(), size, AMPLE)
        };
        std::thread::spawn(|| {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                STOPPED.store(line == "stop", Ordering::Relaxed);
            }
            // The test has ended or failed.
            if !STOPPED.load(Ordering::Relaxed) {
                std::process::exit(1);
            }
        });
        Some(Role { rank, meeting, options: Options::of(&knobs) })
    }

    /// Joins the job.
    pub(crate) fn join(&self) -> Bootstrap {
        match self.rank {
            0 => Bootstrap::listen(&self.meeting).unwrap(),
            rank => Bootstrap::join(&self.meeting, rank).unwrap(),
        }
    }

    /// Joins the job and creates a communicator.
    pub(crate) fn communicator(&self) -> Communicator {
        Communicator::new(self.join(), self.options).unwrap()
    }

    /// Makes no calls until it is asked to stop.
    pub(crate) fn wait_until_stopped(&self) {
        while !STOPPED.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes calls until a rank is asked to stop or a call fails, and reports the outcome.
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
            // Not after every call, so that output does not slow down the calls.
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
