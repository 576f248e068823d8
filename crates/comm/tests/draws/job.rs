//! The processes of a draw: starts them, sends them commands, reads their output, and always ends them.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use weftlink_testkit::hosts::Hosts;
use weftlink_testkit::processes::this_program;

use crate::foreign;
use crate::rank::{Gate, ROLE, Role, SAYS, Said};
use crate::sockets;

/// No draw takes longer than this, or it hangs: so long, and more with many ranks.
const HANG_LIMIT: Duration = Duration::from_secs(60);
const HANG_LIMIT_PER_RANK: Duration = Duration::from_secs(1);

/// How long a process may take to stop, or to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What one rank has said and done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) said: Vec<Said>,
    pub(crate) errors: String,
    /// The exit code; none if a signal ended it.
    pub(crate) ended: Option<Option<i32>>,
}

impl Heard {
    /// The first failure: its text, when the call began and when it failed.
    pub(crate) fn failure(&self) -> Option<(&str, &str, f64, f64)> {
        self.said.iter().find_map(|said| match said {
            Said::Failed { error, variant, began, at, .. } => {
                Some((error.as_str(), variant.as_str(), *began, *at))
            }
            _ => None,
        })
    }

    pub(crate) fn wrong(&self) -> Option<&str> {
        self.said
            .iter()
            .find_map(|said| if let Said::Wrong(what) = said { Some(what.as_str()) } else { None })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.said.iter().any(|said| matches!(said, Said::Done { .. }))
    }

    pub(crate) fn is_holding(&self, gate: Gate) -> bool {
        self.said.contains(&Said::Holding(gate))
    }
}

type Shared = Arc<(Mutex<Vec<Heard>>, Condvar)>;

/// All processes of one draw.
pub(crate) struct Job {
    heard: Shared,
    pub(crate) pids: Vec<u32>,
    /// The processes themselves: a number may be somebody else's by the time it is used.
    processes: Vec<OwnedFd>,
    inputs: Vec<Option<ChildStdin>>,
    began: Instant,
}

impl Job {
    /// Starts all roles, on these hosts if there are any. `marker` is put into their environment, to find what is left of them.
    pub(crate) fn start(
        roles: &[Role],
        marker: &str,
        folder: &std::path::Path,
        hosts: Option<&Hosts>,
    ) -> Job {
        let heard: Shared = Arc::new((Mutex::new(vec![Heard::default(); roles.len()]), Condvar::new()));
        let (mut pids, mut processes, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
        for (number, role) in roles.iter().enumerate() {
            let mut command = match hosts {
                Some(hosts) => hosts.command(number, std::env::current_exe().unwrap()),
                None => this_program(),
            };
            if role.is_foreign {
                foreign::of_another_user(&mut command);
            }
            let mut child = command
                .args(["--exact", "rank_of_a_draw", "--nocapture", "--test-threads=1"])
                .env(ROLE, serde_json::to_string(role).unwrap())
                .env("WEFT_DRAW_MARKER", marker)
                .env("TMPDIR", folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            pids.push(child.id());
            // Nobody has waited for it yet, so the number is still its own.
            processes.push(pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap());
            inputs.push(child.stdin.take());
            let heard = Arc::clone(&heard);
            std::thread::spawn(move || hear(child, number, &heard));
        }
        Job { heard, pids, processes, inputs, began: Instant::now() }
    }

    /// Lets ranks go on that are held, or will be.
    pub(crate) fn release(&mut self, ranks: impl IntoIterator<Item = usize>) {
        ranks.into_iter().for_each(|rank| self.tell(rank, "go"));
    }

    /// Tells rank 0 that it is enough.
    pub(crate) fn finish(&mut self) {
        self.tell(0, "finish");
    }

    fn tell(&mut self, rank: usize, line: &str) {
        if let Some(input) = &mut self.inputs[rank] {
            let _ = writeln!(input, "{line}");
        }
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        // To a process that has ended it is an error and nothing else.
        let sent = pidfd_send_signal(&self.processes[rank], signal);
        // On a busy machine threads go on for a while after their process was told to stop.
        let began = Instant::now();
        while signal == Signal::STOP && sent.is_ok() && began.elapsed() < STOP_LIMIT {
            if sockets::is_stopped(self.pids[rank]) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until something holds of what the ranks said. False if it does not before the limit of all draws.
    pub(crate) fn wait(&self, mut holds: impl FnMut(&[Heard]) -> bool) -> bool {
        let limit = HANG_LIMIT + HANG_LIMIT_PER_RANK * self.pids.len() as u32;
        self.wait_until(self.began + limit, &mut holds)
    }

    /// The same, for so long from now.
    pub(crate) fn wait_for(&self, limit: Duration, mut holds: impl FnMut(&[Heard]) -> bool) -> bool {
        self.wait_until(Instant::now() + limit, &mut holds)
    }

    fn wait_until(&self, end: Instant, holds: &mut dyn FnMut(&[Heard]) -> bool) -> bool {
        let (heard, changed) = &*self.heard;
        let mut all: MutexGuard<'_, Vec<Heard>> = heard.lock().unwrap();
        while !holds(&all) {
            let Some(left) = end.checked_duration_since(Instant::now()) else { return false };
            all = changed.wait_timeout(all, left).unwrap().0;
        }
        true
    }

    /// What all ranks have said so far.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.heard.0.lock().unwrap().clone()
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

impl Drop for Job {
    /// Ends what has not ended by itself, and waits for that.
    fn drop(&mut self) {
        for rank in 0..self.pids.len() {
            self.signal(rank, Signal::KILL);
        }
        self.wait_for(STOP_LIMIT, |all| all.iter().all(|one| one.ended.is_some()));
    }
}

/// Takes in what a process says, until it ends.
fn hear(mut child: Child, rank: usize, heard: &Shared) {
    let note = |change: &mut dyn FnMut(&mut Heard)| {
        change(&mut heard.0.lock().unwrap()[rank]);
        heard.1.notify_all();
    };
    std::thread::scope(|scope| {
        if let Some(errors) = child.stderr.take() {
            scope.spawn(|| {
                let mut errors = errors;
                let mut bytes = [0; 4096];
                while let Ok(got @ 1..) = errors.read(&mut bytes) {
                    note(&mut |heard| heard.errors += &String::from_utf8_lossy(&bytes[..got]));
                }
            });
        }
        for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufReader::lines).flatten() {
            let said = line.split_once(SAYS).and_then(|(_, text)| serde_json::from_str::<Said>(text).ok());
            if let Some(said) = said {
                note(&mut |heard| heard.said.push(said.clone()));
            } else if line.contains("panicked") {
                note(&mut |heard| heard.errors += &line);
            }
        }
    });
    let code = child.wait().ok().and_then(|status| status.code());
    note(&mut |heard| heard.ended = Some(code));
}
