//! An MPS daemon for one test, with files of its own.

use std::fs::{DirBuilder, read_to_string, remove_dir_all};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weftlink_testkit::processes::command;

pub(super) const CONTROL: &str = "nvidia-cuda-mps-control";
pub(super) const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// The daemon writes its process id to this file among its pipes.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
const START: Duration = Duration::from_secs(20);
const QUIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);

/// A daemon, stopped when it is dropped.
#[derive(Debug)]
pub(super) struct Mps {
    control: PathBuf,
    pub(super) folder: PathBuf,
}

impl Mps {
    /// Starts a daemon by this program. The error is why there is none.
    pub(super) fn start(control: &Path) -> Result<Mps, String> {
        // Sockets in it have paths of at most 107 bytes.
        let folder = PathBuf::from(format!("/tmp/weft-test-mps-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|why| format!("cannot create {}: {why}", folder.display()))?;
        // From here on, dropping it removes the folder.
        let mps = Mps { control: control.to_owned(), folder };
        let mut start = mps.command();
        let child = start.arg("-d").stdin(Stdio::null()).spawn();
        let child = child.map_err(|why| format!("{} cannot be run: {why}", control.display()))?;
        match ended(child, START) {
            Some(true) => Ok(mps),
            Some(false) => Err(format!("`{} -d` failed: {}", control.display(), mps.last_log_line())),
            None => Err(format!("`{} -d` did not end", control.display())),
        }
    }

    fn command(&self) -> Command {
        let mut command = command(&self.control);
        command.env(PIPES, &self.folder).env(LOGS, &self.folder).env_remove("CUDA_VISIBLE_DEVICES");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn daemon(&self) -> Option<Pid> {
        let text = read_to_string(self.folder.join(PID_FILE)).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }

    fn last_log_line(&self) -> String {
        let log = read_to_string(self.folder.join("control.log")).unwrap_or_default();
        log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no log").to_owned()
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon() {
            if let Ok(mut child) = self.command().stdin(Stdio::piped()).spawn() {
                let _ = child.stdin.take().map(|mut input| input.write_all(b"quit -t 2\n"));
                ended(child, QUIT);
            }
            let begin = Instant::now();
            while is_running(daemon) && begin.elapsed() < QUIT {
                std::thread::sleep(POLL);
            }
            if is_running(daemon) {
                println!("the MPS daemon {daemon:?} does not quit; killing it");
                let _ = kill_process(daemon, Signal::KILL);
            }
        }
        let _ = remove_dir_all(&self.folder);
    }
}

/// Whether a process still runs. A zombie does not.
fn is_running(pid: Pid) -> bool {
    let stat = read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    state.is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// Whether a program succeeded; nothing if it took too long and was killed.
fn ended(mut child: Child, limit: Duration) -> Option<bool> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status.success());
        }
        std::thread::sleep(POLL);
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Starts a stand-in for the daemon: it logs every command, and ends at `quit`.
    const STAND_IN: &str = r#"#!/bin/sh
if [ "$1" = -d ]; then
    [ -z "$CUDA_VISIBLE_DEVICES" ] || exit 3
    setsid sleep 600 >/dev/null 2>&1 </dev/null &
    echo $! > "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
else
    cat > "$0.heard"
    kill $(cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid")
fi
"#;

    #[test]
    fn a_daemon_starts_and_stops_and_a_missing_one_has_a_reason() {
        let missing = Mps::start(Path::new("/no/such/nvidia-cuda-mps-control")).unwrap_err();
        assert!(missing.contains("/no/such/nvidia-cuda-mps-control cannot be run"), "{missing}");
        let script = std::env::temp_dir().join(format!("weft-test-mps-control-{}", std::process::id()));
        std::fs::write(&script, STAND_IN).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mps = Mps::start(&script).unwrap();
        let (folder, daemon) = (mps.folder.clone(), mps.daemon().unwrap());
        assert!(is_running(daemon));
        drop(mps);
        assert!(!is_running(daemon));
        assert!(!folder.exists());
        let heard = script.with_extension("heard");
        assert_eq!(read_to_string(&heard).unwrap(), "quit -t 2\n");
        std::fs::write(&script, "#!/bin/sh\nexit 7\n").unwrap();
        let failed = Mps::start(&script).unwrap_err();
        assert!(failed.ends_with("failed: no log"), "{failed}");
        std::fs::remove_file(script).unwrap();
        std::fs::remove_file(heard).unwrap();
    }
}
