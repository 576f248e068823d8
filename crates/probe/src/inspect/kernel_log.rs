//! The kernel's log: from `/dev/kmsg`, or else from `dmesg` or the journal.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use rustix::fs::OFlags;

use super::command::{Output, run};

const DEVICE: &str = "/dev/kmsg";
/// Bytes kept of the end of the log.
const BYTES_MAX: usize = 4 << 20;
/// The longest record; the kernel refuses to return one in a smaller buffer.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// Records read; the largest buffers hold a tenth of that.
const RECORDS_MAX: usize = 4 << 20;
const LIMIT: Duration = Duration::from_secs(4);

/// The log, one line a message: `[   12.345678] NVRM: Xid ...`.
pub(super) fn read() -> Output {
    let reason = match read_device() {
        Ok(text) => return Output { text: Some(text), reason: None },
        Err(reason) => reason,
    };
    let printed = run(&["dmesg"], LIMIT);
    if let (Some(text), None) = (printed.text, printed.reason) {
        return Output { text: Some(last(&text)), reason: None };
    }
    let journal =
        run(&["journalctl", "-k", "-b", "-q", "--no-pager", "-n", "20000", "-o", "short-monotonic"], LIMIT);
    match (journal.text.filter(|text| text.contains("] ")), journal.reason) {
        (Some(text), None) => {
            let lines: Vec<String> = text.lines().map(without_host).collect();
            Output { text: Some(last(&lines.join("\n"))), reason: None }
        }
        _ => Output { text: None, reason: Some(reason) },
    }
}

/// Reads without blocking: at the end of the log the device returns an error instead of waiting for the next message.
fn read_device() -> Result<String, String> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(DEVICE);
    let mut device = opened.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("cannot open {DEVICE}: it needs root (the kernel runs with kernel.dmesg_restrict = 1)")
        }
        _ => format!("cannot open {DEVICE}: {error}"),
    })?;
    let mut lines = Lines::default();
    let mut record = vec![0; RECORD_BYTES_MAX];
    for _ in 0..RECORDS_MAX {
        match device.read(&mut record) {
            Ok(0) => break,
            Ok(bytes) => lines.push(message(&String::from_utf8_lossy(&record[..bytes]))),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // New messages overwrote the next record; the device continues with the oldest that is left.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(error) => return Err(format!("cannot read {DEVICE}: {error}")),
        }
    }
    Ok(lines.join())
}

/// The message of a record `level,number,microseconds,flags;message`, as `dmesg` prints it.
fn message(record: &str) -> String {
    let (prefix, rest) = record.split_once(';').unwrap_or(("", record));
    let text = rest.lines().next().unwrap_or_default();
    match prefix.split(',').nth(2).and_then(|time| time.parse::<u64>().ok()) {
        Some(time_us) => format!("[{:>5}.{:06}] {text}", time_us / 1_000_000, time_us % 1_000_000),
        None => text.to_owned(),
    }
}

/// A line of the journal as `dmesg` prints it: `[   12.345678] host kernel: text` without the host.
fn without_host(line: &str) -> String {
    match (line.split_once("] "), line.split_once(" kernel: ")) {
        (Some((time, _)), Some((before, text))) if time.len() < before.len() => format!("{time}] {text}"),
        _ => line.to_owned(),
    }
}

/// The last lines of at most [`BYTES_MAX`] bytes.
#[derive(Default)]
struct Lines {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Lines {
    fn push(&mut self, line: String) {
        self.bytes += line.len() + 1;
        self.lines.push_back(line);
        while self.bytes > BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.len() + 1;
        }
    }

    fn join(self) -> String {
        Vec::from(self.lines).join("\n")
    }
}

fn last(text: &str) -> String {
    let mut lines = Lines::default();
    text.lines().for_each(|line| lines.push(line.to_owned()));
    lines.join()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_printed_as_dmesg_does() {
        let record = "4,812,7531246,-;NVRM: loading\n SUBSYSTEM=pci\n";
        assert_eq!(message(record), "[    7.531246] NVRM: loading");
        assert_eq!(message("garbage"), "garbage");
        assert_eq!(message(""), "");
        assert_eq!(
            without_host("[   13.9] node7 kernel: pci 0000:01:00.0: x"),
            "[   13.9] pci 0000:01:00.0: x"
        );
        assert_eq!(without_host("-- No entries --"), "-- No entries --");
    }

    #[test]
    fn only_the_end_of_a_long_log_is_kept() {
        let long: String = (0..200_000).map(|number| format!("line {number} of a long log\n")).collect();
        let kept = last(&long);
        assert!(kept.len() <= BYTES_MAX && kept.ends_with("line 199999 of a long log"));
        assert!(!kept.contains("line 0 of"));
    }

    #[test]
    fn reading_ends_with_a_text_or_a_reason() {
        let log = read();
        assert!(log.text.is_some() != log.reason.is_some(), "{:?}", log.reason);
    }
}
