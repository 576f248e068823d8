//! The output of a command, bounded in time and size.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of output. `nvidia-smi -q` prints 10 kB for each GPU.
const BYTES_MAX: u64 = 16 << 20;
/// How often the command is polled.
const POLL: Duration = Duration::from_millis(5);

/// Runs a command without input and returns what it prints; otherwise why that failed.
pub(super) fn output(program: &str, arguments: &[&str], limit: Duration) -> Result<String, String> {
    let shown = format!("{program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    let (sender, printed) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        // A thread of its own, because a descendant of the command may keep the pipe open after the command has ended.
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stdout.take(BYTES_MAX).read_to_end(&mut bytes);
            // Nobody listens after the time limit.
            let _ = sender.send(read.map(|_| bytes));
        });
    }
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => thread::sleep(POLL),
            Ok(None) => {
                // It may have ended by itself in the meantime.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("`{shown}` did not end within {} s and was stopped", limit.as_secs()));
            }
            Err(error) => return Err(format!("cannot wait for `{shown}`: {error}")),
        }
    };
    let bytes = match printed.recv_timeout(end.saturating_duration_since(Instant::now()).max(POLL)) {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => return Err(format!("cannot read the output of `{shown}`: {error}")),
        Err(_) => return Err(format!("`{shown}` left its output open for more than {} s", limit.as_secs())),
    };
    if !status.success() {
        return Err(format!("`{shown}` failed ({status})"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_failure_and_absence_are_told_apart() {
        let limit = Duration::from_secs(60);
        assert_eq!(output("echo", &["a", "b"], limit).as_deref(), Ok("a b\n"));
        assert!(output("false", &[], limit).unwrap_err().contains("failed"));
        assert!(
            output("weft-no-such-command", &["x"], limit)
                .unwrap_err()
                .starts_with("cannot run `weft-no-such-command x`")
        );
    }

    #[test]
    fn a_command_that_hangs_is_stopped() {
        let error = output("sleep", &["1000"], Duration::from_millis(20)).unwrap_err();
        assert!(error.contains("was stopped"), "{error}");
    }
}
