//! The processes of a draw: starts them, sends them commands, reads their output, and kills those that remain.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use weftlink_testkit::hosts::Hosts;
use weftlink_testkit::processes::this_program;

use crate::foreign;
use crate::rank::{EVENT_PREFIX, Event, Gate, ROLE, Role};
use crate::sockets;

/// A draw that takes longer than this, plus the time per rank, hangs.
const HANG_LIMIT: Duration = Duration::from_secs(60);
const HANG_LIMIT_PER_RANK: Duration = Duration::from_secs(1);

/// The time in which a process must stop or exit after a signal.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The output and exit status of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankLog {
    pub(crate) events: Vec<Event>,
    pub(crate) errors: String,
    /// Set when the process has exited; the exit code, or none after a signal.
    pub(crate) ended: Option<Option<i32>>,
}

impl RankLog {
    /// The first failure: its message, its variant, and the times at which the call began and failed.
    pub(crate) fn failure(&self) -> Option<(&str, &str, f64, f64)> {
        self.events.iter().find_map(|event| match event {
            Event::Failed { error, variant, began, at, .. } => {
                Some((error.as_str(), variant.as_str(), *began, *at))
            }
            _ => None,
        })
    }

    pub(crate) fn wrong(&self) -> Option<&str> {
        self.events
            .iter()
            .find_map(|event| if let Event::Wrong(what) = event { Some(what.as_str()) } else { None })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Done { .. }))
    }

    pub(crate) fn is_holding(&self, gate: Gate) -> bool {
        self.events.contains(&Event::Holding(gate))
    }
}

type Shared = Arc<(Mutex<Vec<RankLog>>, Condvar)>;

/// All processes of one draw.
pub(crate) struct Job {
    logs: Shared,
    pub(crate) pids: Vec<u32>,
    /// Process descriptors: the kernel may reuse a pid.
    processes: Vec<OwnedFd>,
    inputs: Vec<Option<ChildStdin>>,
    began: Instant,
}

impl Job {
    /// Starts a process per role, on `hosts` if given. `marker` is in their environment, so that leftover processes can be found.
    pub(crate) fn start(
        roles: &[Role],
        marker: &str,
        folder: &std::path::Path,
        hosts: Option<&Hosts>,
    ) -> Job {
        let logs: Shared = Arc::new((Mutex::new(vec![RankLog::default(); roles.len()]), Condvar::new()));
        let (mut pids, mut processes, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
        for (number, role) in roles.iter().enumerate() {
            let mut command = match hosts {
                Some(hosts) => hosts.command(number, std::env::current_exe().unwrap()),
                None => this_program(),
            };
            if role.is_foreign {
                foreign::run_as_other_user(&mut command);
            }
            let mut child = command
                .args(["--exact", "rank_process", "--nocapture", "--test-threads=1"])
                .env(ROLE, serde_json::to_string(role).unwrap())
                .env("WEFT_DRAW_MARKER", marker)
                .env("TMPDIR", folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            pids.push(child.id());
            // The child has not been reaped, so its pid is still valid.
            processes.push(pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap());
            inputs.push(child.stdin.take());
            let logs = Arc::clone(&logs);
            std::thread::spawn(move || read_output(child, number, &logs));
        }
        Job { logs, pids, processes, inputs, began: Instant::now() }
    }

    /// Lets ranks pass their next gate.
    pub(crate) fn release(&mut self, ranks: impl IntoIterator<Item = usize>) {
        ranks.into_iter().for_each(|rank| self.send(rank, "go"));
    }

    /// Asks rank 0 to end the series of calls.
    pub(crate) fn finish(&mut self) {
        self.send(0, "finish");
    }

    fn send(&mut self, rank: usize, line: &str) {
        if let Some(input) = &mut self.inputs[rank] {
            let _ = writeln!(input, "{line}");
        }
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        // Fails for a process that has exited, which is fine.
        let sent = pidfd_send_signal(&self.processes[rank], signal);
        // On a busy machine, threads run for a while after SIGSTOP was sent.
        let began = Instant::now();
        while signal == Signal::STOP && sent.is_ok() && began.elapsed() < STOP_LIMIT {
            if sockets::is_stopped(self.pids[rank]) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until a condition on the logs of all ranks holds. False if the draw hangs first.
    pub(crate) fn wait(&self, mut holds: impl FnMut(&[RankLog]) -> bool) -> bool {
        let limit = HANG_LIMIT + HANG_LIMIT_PER_RANK * self.pids.len() as u32;
        self.wait_until(self.began + limit, &mut holds)
    }

    /// The same with a timeout.
    pub(crate) fn wait_for(&self, limit: Duration, mut holds: impl FnMut(&[RankLog]) -> bool) -> bool {
        self.wait_until(Instant::now() + limit, &mut holds)
    }

    fn wait_until(&self, end: Instant, holds: &mut dyn FnMut(&[RankLog]) -> bool) -> bool {
        let (logs, changed) = &*self.logs;
        let mut all: MutexGuard<'_, Vec<RankLog>> = logs.lock().unwrap();
        while !holds(&all) {
            let Some(left) = end.checked_duration_since(Instant::now()) else { return false };
            all = changed.wait_timeout(all, left).unwrap().0;
        }
        true
    }

    /// The logs of all ranks so far.
    pub(crate) fn logs(&self) -> Vec<RankLog> {
        self.logs.0.lock().unwrap().clone()
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

impl Drop for Job {
    /// Kills the processes that still run, and waits until they are gone.
    fn drop(&mut self) {
        for rank in 0..self.pids.len() {
            self.signal(rank, Signal::KILL);
        }
        self.wait_for(STOP_LIMIT, |all| all.iter().all(|one| one.ended.is_some()));
    }
}

/// Reads the output of a process until it exits.
fn read_output(mut child: Child, rank: usize, logs: &Shared) {
    let note = |change: &mut dyn FnMut(&mut RankLog)| {
        change(&mut logs.0.lock().unwrap()[rank]);
        logs.1.notify_all();
    };
    std::thread::scope(|scope| {
        if let Some(errors) = child.stderr.take() {
            scope.spawn(|| {
                let mut errors = errors;
                let mut bytes = [0; 4096];
                while let Ok(got @ 1..) = errors.read(&mut bytes) {
                    note(&mut |log| log.errors += &String::from_utf8_lossy(&bytes[..got]));
                }
            });
        }
        for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufReader::lines).flatten() {
            let event =
                line.split_once(EVENT_PREFIX).and_then(|(_, text)| serde_json::from_str::<Event>(text).ok());
            if let Some(event) = event {
                note(&mut |log| log.events.push(event.clone()));
            } else if line.contains("panicked") {
                note(&mut |log| log.errors += &line);
            }
        }
    });
    let code = child.wait().ok().and_then(|status| status.code());
    note(&mut |log| log.ended = Some(code));
}
