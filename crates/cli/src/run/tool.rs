//! Runs a program of the NVIDIA driver (`nvidia-smi`, `nvidia-cuda-mps-control`) within a time limit.
//!
//! Its output goes to memory files rather than pipes: a daemon that it leaves behind may keep them open, and reading a pipe
//! would then never end.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use super::report::describe_status;

/// Output beyond this is dropped.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
const KILL_WITHIN: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(2);

/// Why a program gave no answer.
#[derive(Debug)]
pub(super) enum ToolError {
    /// It is not in `PATH`.
    Missing,
    /// It was killed at the time limit.
    TimedOut(Duration),
    /// It could not be run, or failed: `exited with code 9: message`.
    Failed(String),
}

/// Runs a program with a short text as its standard input. Returns its standard output if it exits with 0 within `limit`.
pub(super) fn output(command: &mut Command, input: &str, limit: Duration) -> Result<String, ToolError> {
    let failed = |error: io::Error| ToolError::Failed(format!("could not be run: {error}"));
    let (out, err) = (memory_file().map_err(failed)?, memory_file().map_err(failed)?);
    let mut child = command
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(out.try_clone().map_err(failed)?)
        .stderr(err.try_clone().map_err(failed)?)
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ToolError::Missing,
            _ => failed(error),
        })?;
    if let Some(mut standard_input) = child.stdin.take() {
        // A pipe holds the whole input. A program that has exited does not read it; its exit code says why.
        let _ = standard_input.write_all(input.as_bytes());
    }
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() < end => thread::sleep(POLL),
            None => {
                let _ = child.kill();
                // A process that waits in the driver does not exit before that answers; it is left behind.
                let killed = Instant::now();
                while child.try_wait().is_ok_and(|status| status.is_none()) && killed.elapsed() < KILL_WITHIN
                {
                    thread::sleep(POLL);
                }
                return Err(ToolError::TimedOut(limit));
            }
        }
    };
    let out = text(out).map_err(failed)?;
    if status.success() {
        Ok(out)
    } else {
        Err(ToolError::Failed(how(status, &out, &text(err).map_err(failed)?)))
    }
}

fn memory_file() -> io::Result<File> {
    Ok(memfd_create("weft-run-tool", MemfdFlags::CLOEXEC)?.into())
}

/// The program shares the position in the file.
fn text(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `exited with code 9: the message`.
fn how(status: ExitStatus, out: &str, err: &str) -> String {
    let message: Vec<&str> = [err, out]
        .iter()
        .flat_map(|text| text.lines())
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    match message.join(" ") {
        message if message.is_empty() => describe_status(status),
        message => format!("{}: {message}", describe_status(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, input: &str, limit_ms: u64) -> Result<String, ToolError> {
        output(Command::new("sh").args(["-c", script]), input, Duration::from_millis(limit_ms))
    }

    #[test]
    fn programs_answer_fail_or_time_out() {
        assert_eq!(shell("cat; echo heard >&2", "words\n", 60_000).unwrap(), "words\n");
        let failed = |result| match result {
            Err(ToolError::Failed(how)) => how,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(shell("echo no driver; exit 9", "", 60_000)), "exited with code 9: no driver");
        assert_eq!(failed(shell("exit 3", "unread", 60_000)), "exited with code 3");
        assert!(matches!(shell("exec sleep 600", "", 50), Err(ToolError::TimedOut(_))));
        let missing = output(&mut Command::new("no-such-tool"), "", Duration::from_secs(60));
        assert!(matches!(missing, Err(ToolError::Missing)));
    }

    #[test]
    fn daemons_may_keep_the_output_open() {
        let pid = shell("sleep 600 & echo $!", "", 60_000).unwrap();
        assert!(Command::new("kill").arg(pid.trim()).status().unwrap().success(), "it runs");
    }
}
