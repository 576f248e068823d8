//! Runs the commands whose output an inspection contains: without a shell, an input or root, and with bounds on time and bytes.
//!
//! Only the commands of [`COMMANDS`] run, so that a path that a check asks for can never start something else. All of them only read.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A command that an inspection may run.
struct Allowed {
    /// Its words; `{}` is the name of an interface.
    words: &'static str,
    needs_root: bool,
    limit: Duration,
}

const fn quick(words: &'static str) -> Allowed {
    Allowed { words, needs_root: false, limit: Duration::from_secs(4) }
}

/// Every command that `run/...` paths start.
const COMMANDS: &[Allowed] = &[
    quick("systemctl is-active nvidia-fabricmanager"),
    quick("systemctl is-active nvidia-persistenced"),
    quick("df -B1 /dev/shm"),
    quick("ibv_devinfo"),
    quick("scontrol show topology"),
    quick("ethtool -S {}"),
    quick("ethtool -a {}"),
    quick("mlnx_qos -i {}"),
    quick("dcb pfc show dev {}"),
    // Some controllers answer one record at a time.
    Allowed { words: "ipmitool sel elist", needs_root: true, limit: Duration::from_secs(8) },
];

/// Bytes kept of a command's output.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// Folders that an ordinary user's PATH may lack.
const MORE_FOLDERS: &str = "/usr/sbin:/sbin:/usr/bin:/bin";
/// The longest name of a network interface, and more than that of an RDMA device.
const INTERFACE_BYTES_MAX: usize = 64;

/// What a command printed, and why it failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Output {
    /// None if it printed nothing and failed.
    pub(super) text: Option<String>,
    /// None if it succeeded.
    pub(super) reason: Option<String>,
}

impl Output {
    fn failed(reason: impl Into<String>) -> Self {
        Self { text: None, reason: Some(reason.into()) }
    }
}

/// Runs an allowed command, given as its words with a space between each: `systemctl is-active nvidia-fabricmanager`.
pub(super) fn run_allowed(words: &str) -> Output {
    let Some(allowed) = COMMANDS.iter().find(|allowed| fits(allowed.words, words)) else {
        return Output::failed("an inspection does not run this command");
    };
    if allowed.needs_root && !rustix::process::geteuid().is_root() {
        return Output::failed("needs root");
    }
    let words: Vec<&str> = words.split(' ').collect();
    run(&words, allowed.limit)
}

/// True if `words` are those of the pattern, with the name of an interface for `{}`.
fn fits(pattern: &str, words: &str) -> bool {
    let (mut pattern, mut words) = (pattern.split(' '), words.split(' '));
    loop {
        match (pattern.next(), words.next()) {
            (None, None) => return true,
            (Some("{}"), Some(name)) if is_interface(name) => {}
            (Some(one), Some(other)) if one == other && one != "{}" => {}
            _ => return false,
        }
    }
}

fn is_interface(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    (1..=INTERFACE_BYTES_MAX).contains(&name.len()) && !name.starts_with('-') && name.chars().all(fits)
}

/// Runs a command and stops it, and all that it started, at the limit.
pub(super) fn run(words: &[&str], limit: Duration) -> Output {
    let Some((name, arguments)) = words.split_first() else {
        return Output::failed("no command");
    };
    let Some(program) = find(name) else {
        return Output::failed(format!("{name} is not installed"));
    };
    let spawned = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    match spawned {
        Ok(child) => wait(child, name, limit),
        Err(error) => Output::failed(format!("cannot start {name}: {error}")),
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(std::env::split_paths(OsStr::new(MORE_FOLDERS)));
    folders
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|file| Path::is_file(file))
}

fn wait(mut child: Child, name: &str, limit: Duration) -> Output {
    let deadline = Instant::now() + limit;
    let text = child.stdout.take().map(read_in_thread);
    let errors = child.stderr.take().map(read_in_thread);
    // A process that the command left behind may keep a pipe open, so nothing waits for a thread without a limit.
    let text = text.and_then(|text| text.recv_timeout(until(deadline)).ok());
    let errors = errors.and_then(|errors| errors.recv_timeout(until(deadline)).ok()).unwrap_or_default();
    let Some(status) = exit_status(&mut child, deadline) else {
        stop(&mut child);
        return Output::failed(format!("{name} was stopped after {} s", limit.as_secs()));
    };
    let text =
        text.map(|text| text.trim_end().to_owned()).filter(|text| status.success() || !text.is_empty());
    let reason = (!status.success()).then(|| {
        let line = errors.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        format!("{name}: {status}{}{}", if line.is_empty() { "" } else { ": " }, line.trim())
    });
    Output { text, reason }
}

fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn read_in_thread(source: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Whatever came before an error is kept; closing the pipe ends a command that prints more than the limit.
        let _ = source.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// How long a killed command may take to end.
const KILLED: Duration = Duration::from_millis(200);

/// None if it still runs at the deadline.
fn exit_status(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn stop(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
    // A process that waits for broken hardware does not end when it is killed.
    let _ = exit_status(child, Instant::now() + KILLED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_commands_run() {
        for words in
            ["systemctl is-active nvidia-fabricmanager", "ethtool -S ens1f0np0", "mlnx_qos -i eth0.7"]
        {
            assert!(COMMANDS.iter().any(|allowed| fits(allowed.words, words)), "{words}");
        }
        for words in [
            "rm -r x",
            "ethtool -S",
            "ethtool -S {}",
            "ethtool -S -x",
            "ethtool -S a;b",
            "ethtool -S a b",
            "",
        ] {
            assert!(!COMMANDS.iter().any(|allowed| fits(allowed.words, words)), "{words}");
            assert!(run_allowed(words).text.is_none(), "{words}");
        }
    }

    #[test]
    fn output_and_reason_are_kept() {
        let limit = Duration::from_secs(60);
        assert_eq!(run(&["echo", "one"], limit), Output { text: Some("one".into()), reason: None });
        let failed = run(&["sh", "-c", "echo inactive; echo why >&2; exit 3"], limit);
        assert_eq!(failed.text.as_deref(), Some("inactive"));
        assert_eq!(failed.reason.as_deref(), Some("sh: exit status: 3: why"));
        let missing = run(&["weft-no-such-command"], limit);
        assert_eq!(missing, Output::failed("weft-no-such-command is not installed"));
    }

    #[test]
    fn a_command_that_hangs_is_stopped() {
        let hung = run(&["sleep", "600"], Duration::from_millis(30));
        assert_eq!(hung.text, None);
        assert!(hung.reason.is_some_and(|reason| reason.contains("was stopped")));
    }

    #[test]
    fn output_is_bounded() {
        let endless = run(&["yes"], Duration::from_secs(60));
        let text = endless.text.unwrap();
        assert!(text.len() as u64 <= OUTPUT_BYTES_MAX && text.len() > 1000);
    }
}
