//! MPS, the NVIDIA service through which processes run kernels on one GPU at the same time.
//!
//! `--mps` starts a daemon for the job alone: its pipes and logs are in a new folder that only this user can enter, so that it
//! never meets the daemon of another job. It sees all GPUs of the host, because ranks would otherwise have to count GPUs in its
//! list instead of the host's. It stops when this value is dropped, after the ranks.
//!
//! A process that dies while its kernel runs destroys the CUDA contexts of all clients of the daemon. So before ranks are
//! killed, [`Mps::terminate`] asks the daemon to end their work on the GPU.
//!
//! Deliberately absent: a limit of threads for each client. It reserves nothing for others, so it makes no room for them.

use std::cell::Cell;
use std::fs::{DirBuilder, read_to_string, remove_dir_all};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::gpus::value;
use super::secret;
use super::tool::{self, ToolError};
use super::wire::Start;

const CONTROL: &str = "nvidia-cuda-mps-control";
/// The variable that names the folder of a daemon's pipes.
pub(super) const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// The daemon's folder without that variable.
const PIPES_DEFAULT: &str = "/tmp/nvidia-mps";
/// The daemon writes its process id to this file among its pipes.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// The longest path of a temporary folder: the pipes are sockets, whose paths have at most 107 bytes.
const PARENT_BYTES_MAX: usize = 48;

const START_WITHIN: Duration = Duration::from_secs(20);
const TERMINATE_WITHIN: Duration = Duration::from_secs(3);
/// The daemon shuts its servers down by force after this time.
const QUIT_FORCED_S: u32 = 2;
const QUIT_WITHIN: Duration = Duration::from_secs(4);
/// How long a daemon that has quit, or was killed, may take to exit.
const EXIT_WITHIN: Duration = Duration::from_secs(1);

/// An MPS daemon.
pub(super) struct Mps {
    pipes: PathBuf,
    /// A daemon that was started here.
    own: Option<Own>,
    /// It did not answer in time; it gets no further command.
    is_deaf: Cell<bool>,
}

struct Own {
    folder: PathBuf,
    /// The daemon's process; none if the kernel has no pidfd or the daemon wrote no process id.
    process: Option<(i32, OwnedFd)>,
}

/// Why no rank can start.
pub(super) enum Refused {
    Misuse(String),
    Failed(anyhow::Error),
}

const NOT_INSTALLED: &str = "--mps: nvidia-cuda-mps-control is not in PATH. It is part of the NVIDIA driver: install the \
    package nvidia-compute-utils-VERSION (Ubuntu), nvidia-cuda-mps (Debian) or nvidia-driver-cuda (RHEL, Fedora), or omit --mps";

impl Mps {
    /// Starts a daemon for this job.
    pub(super) fn start() -> Result<Mps, Refused> {
        let folder = new_folder().map_err(Refused::Failed)?;
        // From here on, dropping it removes the folder.
        let mut mps = Mps::of_folder(folder);
        let mut command = mps.control();
        command.arg("-d").env_remove("CUDA_VISIBLE_DEVICES");
        match tool::output(&mut command, "", START_WITHIN) {
            Ok(_) => {
                mps.find_process();
                Ok(mps)
            }
            Err(ToolError::Missing) => {
                mps.is_deaf.set(true);
                Err(Refused::Misuse(NOT_INSTALLED.to_owned()))
            }
            Err(error) => {
                mps.find_process();
                mps.is_deaf.set(true);
                let how = match error {
                    ToolError::TimedOut(limit) => format!("did not start it within {} s", limit.as_secs()),
                    ToolError::Failed(how) => how,
                    ToolError::Missing => String::new(),
                };
                Err(Refused::Failed(anyhow!(
                    "cannot start an MPS daemon: `{CONTROL} -d` {how}{}. Without --mps, ranks that share a GPU take turns on it",
                    mps.last_log_line()
                )))
            }
        }
    }

    /// A daemon of someone else that the ranks will use, if there is one.
    pub(super) fn running(start: &Start) -> Option<Mps> {
        let pipes = value(start, PIPES).filter(|folder| !folder.is_empty());
        let pipes = PathBuf::from(pipes.unwrap_or_else(|| PIPES_DEFAULT.to_owned()));
        pipes.join("control").exists().then(|| Mps { pipes, own: None, is_deaf: Cell::new(false) })
    }

    /// Stops a daemon that a helper left behind, if it has.
    pub(super) fn stop_abandoned(folder: &Path) {
        if folder.is_dir() {
            let mut mps = Mps::of_folder(folder.to_owned());
            mps.find_process();
            // The daemon may have exited, and another process may have its number.
            if let Some(own) = &mut mps.own {
                own.process.take_if(|(pid, _)| !is_started_with(*pid, folder));
            }
        }
    }

    fn of_folder(folder: PathBuf) -> Mps {
        let own = Own { folder: folder.clone(), process: None };
        Mps { pipes: folder, own: Some(own), is_deaf: Cell::new(false) }
    }

    /// The folder of a daemon that was started here.
    pub(super) fn own_folder(&self) -> Option<&Path> {
        self.own.as_ref().map(|own| own.folder.as_path())
    }

    /// Ends the work of ranks on their GPUs. `ranks` are their process groups. They may be killed afterwards.
    pub(super) fn terminate(&self, ranks: &[Pid]) {
        let end = Instant::now() + TERMINATE_WITHIN;
        let ask = |lines: &str| self.ask(lines, end.saturating_duration_since(Instant::now()));
        for server in numbers(&ask("get_server_list\n")) {
            let is_ours = |client: &i32| group_of(*client).is_some_and(|group| ranks.contains(&group));
            let clients = numbers(&ask(&format!("get_client_list {server}\n"))).into_iter().filter(is_ours);
            let lines: String =
                clients.map(|client| format!("terminate_client {server} {client}\n")).collect();
            if !lines.is_empty() {
                ask(&lines);
            }
        }
    }

    /// The answer to a command. An error has no answer: the ranks are killed anyway.
    fn ask(&self, lines: &str, limit: Duration) -> String {
        if self.is_deaf.get() {
            return String::new();
        }
        match tool::output(&mut self.control(), lines, limit) {
            Ok(text) => text,
            Err(error) => {
                self.is_deaf.set(matches!(error, ToolError::TimedOut(_)));
                String::new()
            }
        }
    }

    fn control(&self) -> Command {
        let mut command = Command::new(CONTROL);
        command.env(PIPES, &self.pipes);
        if let Some(own) = &self.own {
            command.env(LOGS, &own.folder);
        }
        command
    }

    fn find_process(&mut self) {
        if let Some(own) = &mut self.own {
            let text = read_to_string(own.folder.join(PID_FILE)).unwrap_or_default();
            own.process = numbers(&text).first().and_then(|pid| Some((*pid, open(*pid)?)));
        }
    }

    /// The reason in the daemon's log.
    fn last_log_line(&self) -> String {
        let log = read_to_string(self.pipes.join("control.log")).unwrap_or_default();
        log.lines()
            .rfind(|line| !line.trim().is_empty())
            .map_or_else(String::new, |line| format!(" ({line})"))
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        let Some(own) = self.own.take() else { return };
        let (daemon, process) = own.process.unzip();
        // The servers may outlive a daemon that has to be killed.
        let servers: Vec<OwnedFd> = daemon.map(children).into_iter().flatten().filter_map(open).collect();
        self.ask(&format!("quit -t {QUIT_FORCED_S}\n"), QUIT_WITHIN);
        for process in process.iter().chain(&servers) {
            if !has_exited(process) {
                let _ = pidfd_send_signal(process, Signal::KILL);
                has_exited(process);
            }
        }
        if let Err(error) = remove_dir_all(&own.folder) {
            eprintln!("weft run: cannot remove {}: {error}", own.folder.display());
        }
    }
}

/// A new folder that only this user can enter.
fn new_folder() -> anyhow::Result<PathBuf> {
    let mut parent = std::env::temp_dir();
    if parent.as_os_str().len() > PARENT_BYTES_MAX {
        parent = PathBuf::from("/tmp");
    }
    let folder = parent.join(format!("weft-mps-{}", &secret::random()?[..16]));
    DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .with_context(|| format!("cannot create {} for an MPS daemon", folder.display()))?;
    Ok(folder)
}

/// The lines that are process ids.
fn numbers(text: &str) -> Vec<i32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0).collect()
}

/// The process group of a process that has not exited. A leader outside of this PID namespace has the number 0.
fn group_of(pid: i32) -> Option<Pid> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name may contain anything; after it come the state, the parent and the group.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    fields.next().filter(|state| !["Z", "X"].contains(state))?;
    fields.nth(1)?.parse().ok().filter(|group| *group > 0).and_then(Pid::from_raw)
}

/// Whether the environment of a process names this folder.
fn is_started_with(pid: i32, folder: &Path) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let wanted = [PIPES.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
}

/// The child processes of a process.
fn children(pid: i32) -> Vec<i32> {
    let list = read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn open(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Waits until a process has exited, for a limited time.
fn has_exited(process: &OwnedFd) -> bool {
    let limit = Timespec { tv_sec: EXIT_WITHIN.as_secs().cast_signed(), tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
}
