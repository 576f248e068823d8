//! The helpers of a job, one on each host: starting them, sending orders, receiving events.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use rustix::process::{Pid, Signal, kill_process_group};

use super::args::Job;
use super::wire::{Event, Order};
use crate::limits;

/// The longest event: a piece of output with every byte escaped.
const EVENT_BYTES_MAX: u64 = 1 << 20;

/// What arrives from the helpers and from signals.
pub(super) enum Heard {
    Event(usize, Event),
    /// A line that is not an event: a message of the remote shell.
    Talk(usize, String),
    Closed(usize),
    /// Wakes the main thread to check for signals.
    Wake,
}

/// The running helpers, to which orders go.
///
/// A thread for each writes to it, so that a helper that does not read blocks neither the others nor Ctrl-C.
#[derive(Clone)]
pub(super) struct Attending {
    inputs: Arc<Mutex<Vec<Option<Input>>>>,
    wake: SyncSender<Heard>,
}

/// Lines for the thread that writes to a helper.
type Input = Sender<Vec<u8>>;

impl Attending {
    /// No helpers yet. `wake` is notified of orders, too.
    pub(super) fn new(wake: SyncSender<Heard>) -> Attending {
        Attending { inputs: Arc::default(), wake }
    }

    /// Sends an order to all helpers.
    pub(super) fn tell(&self, order: &Order) {
        let count = self.inputs.lock().map_or(0, |inputs| inputs.len());
        (0..count).for_each(|host| self.tell_one(host, order));
        // If the channel is full, the main thread is awake.
        let _ = self.wake.try_send(Heard::Wake);
    }

    /// Sends an order to one host.
    pub(super) fn tell_one(&self, host: usize, order: &Order) {
        let Ok(mut line) = serde_json::to_vec(order) else { return };
        line.push(b'\n');
        if let Ok(inputs) = self.inputs.lock()
            && let Some(Some(input)) = inputs.get(host)
        {
            // A helper that does not read has exited; its closed output reports that.
            let _ = input.send(line);
        }
    }

    /// Adds the next host: orders for it go to this input.
    fn attend(&self, mut input: ChildStdin) -> anyhow::Result<()> {
        let (sender, lines) = channel::<Vec<u8>>();
        limits::listener(move || {
            // A write error means that the reader is gone.
            let _ = lines.iter().try_for_each(|line| input.write_all(&line));
        })?;
        if let Ok(mut inputs) = self.inputs.lock() {
            inputs.push(Some(sender));
        }
        Ok(())
    }

    /// Closes the input of a host after the orders that are queued.
    pub(super) fn hang_up(&self, host: usize) {
        if let Ok(mut inputs) = self.inputs.lock()
            && let Some(input) = inputs.get_mut(host)
        {
            *input = None;
        }
    }
}

/// A host's helper.
pub(super) struct Helper {
    pub(super) child: Child,
    pub(super) ports: Option<[u16; 2]>,
    /// The folder of the MPS daemon that it started.
    pub(super) mps: Option<PathBuf>,
    pub(super) closed: bool,
}

/// How long a remote shell may take to exit after its helper.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

impl Drop for Helper {
    fn drop(&mut self) {
        let begun = Instant::now();
        while self.closed && begun.elapsed() < ENDS_WITHIN && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(1));
        }
        self.kill();
        // Fails only for a process that has exited.
        let _ = self.child.wait();
    }
}

/// The command that starts a host's helper.
pub(super) fn helper_command(job: &Job, host: usize) -> Vec<String> {
    let placed = &job.hosts[host];
    let weft = [job.weft.clone(), "run".into(), "--as-host".into()];
    if placed.is_here {
        let own =
            std::env::current_exe().map_or(job.weft.clone(), |path| path.to_string_lossy().into_owned());
        return [vec![own], weft[1..].to_vec()].concat();
    }
    let mut command: Vec<String> = job.rsh.iter().map(|word| word.replace("{host}", &placed.host)).collect();
    if !job.rsh.iter().any(|word| word.contains("{host}")) {
        command.push(placed.host.clone());
    }
    let [path, rest @ ..] = weft;
    command.push(if joins_words(&job.rsh) { quoted(&path) } else { path });
    command.extend(rest);
    command
}

/// Whether a remote shell joins the words of a command for a shell on the other side to split, as ssh does. Others, such as
/// `docker exec`, keep the words.
fn joins_words(rsh: &[String]) -> bool {
    let name = rsh.first().and_then(|first| Path::new(first).file_name()).and_then(|name| name.to_str());
    name.is_some_and(|name| ["ssh", "rsh"].contains(&name))
}

/// A path quoted for a shell, which still expands a leading `~/`.
fn quoted(path: &str) -> String {
    let (home, rest) = path.strip_prefix("~/").map_or(("", path), |rest| ("~/", rest));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    match rest.chars().all(is_plain) {
        true => path.to_owned(),
        false => format!("{home}'{}'", rest.replace('\'', r"'\''")),
    }
}

impl Helper {
    /// Kills the helper and the process group of the remote shell. The ranks have groups of their own and die with the helper.
    pub(super) fn kill(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
    }

    /// Starts the helper of one host, the next in order.
    pub(super) fn start(
        job: &Job,
        host: usize,
        attending: &Attending,
        sender: &SyncSender<Heard>,
    ) -> anyhow::Result<Helper> {
        let command = helper_command(job, host);
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            // Ctrl-C on the terminal goes to this process only, which forwards it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                anyhow!("cannot run `{}`: {error}{}", command.join(" "), limits::no_process(&error))
            })?;
        let (input, pipes) = (child.stdin.take(), child.stdout.take().zip(child.stderr.take()));
        let helper = Helper { child, ports: None, mps: None, closed: false };
        let (out, err) = pipes.ok_or_else(|| anyhow!("the helper has no pipes"))?;
        attending.attend(input.ok_or_else(|| anyhow!("the helper has no pipes"))?)?;
        let (events, talk) = (sender.clone(), sender.clone());
        limits::listener(move || hear(host, BufReader::new(out), &events))?;
        limits::listener(move || {
            lines(BufReader::new(err), |line| {
                talk.send(Heard::Talk(host, String::from_utf8_lossy(&line).trim_end().to_owned())).is_ok()
            });
        })?;
        Ok(helper)
    }
}

/// Forwards the events of a helper until its output closes.
fn hear(host: usize, output: impl BufRead, sender: &SyncSender<Heard>) {
    lines(output, |line| {
        let heard = match serde_json::from_slice(&line) {
            Ok(event) => Heard::Event(host, event),
            Err(_) => Heard::Talk(host, String::from_utf8_lossy(&line).trim_end().to_owned()),
        };
        // Sending fails when the job is done and the receiver is gone.
        sender.send(heard).is_ok()
    });
    let _ = sender.send(Heard::Closed(host));
}

/// Reads lines until the end, until `take` returns false, or until a line is too long.
fn lines(mut input: impl BufRead, mut take: impl FnMut(Vec<u8>) -> bool) {
    loop {
        let mut line = Vec::new();
        match (&mut input).take(EVENT_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if !take(line) => return,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_one_word_of_a_shell() {
        for (path, word) in [
            ("/opt/weft-1.2/bin/weft", "/opt/weft-1.2/bin/weft"),
            ("~/bin/weft", "~/bin/weft"),
            ("/my tools/weft", "'/my tools/weft'"),
            ("~/my tools/weft", "~/'my tools/weft'"),
            ("/tmp/$(touch x);weft", "'/tmp/$(touch x);weft'"),
            ("/it's/weft", r"'/it'\''s/weft'"),
        ] {
            assert_eq!(quoted(path), word);
        }
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(joins_words(&words("/usr/bin/ssh -p 22")) && !joins_words(&words("docker exec -i")));
    }
}
