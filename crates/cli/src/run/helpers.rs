//! The helpers of a job, one on each host: how they are started, told and heard.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
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

/// The longest event: a piece of output all of whose bytes are escaped.
const EVENT_BYTES_MAX: u64 = 1 << 20;

/// What comes from the helpers, and from signals.
pub(super) enum Heard {
    Event(usize, Event),
    /// A line that is no event: what a remote shell has to say.
    Talk(usize, String),
    Closed(usize),
    /// Look whether a signal came.
    Wake,
}

/// Those who get orders: the helpers that run.
///
/// A thread for each writes to it, so that one that does not read holds up nobody: neither other helpers nor Ctrl-C.
#[derive(Clone)]
pub(super) struct Attending {
    inputs: Arc<Mutex<Vec<Option<Input>>>>,
    wake: SyncSender<Heard>,
}

/// To the thread that writes to a helper: lines to write.
type Input = Sender<Vec<u8>>;

impl Attending {
    /// Nobody yet; `wake` is told of orders, too.
    pub(super) fn new(wake: SyncSender<Heard>) -> Attending {
        Attending { inputs: Arc::default(), wake }
    }

    /// An order for all.
    pub(super) fn tell(&self, order: &Order) {
        let count = self.inputs.lock().map_or(0, |inputs| inputs.len());
        (0..count).for_each(|host| self.tell_one(host, order));
        // If it is full, the main thread is awake anyway.
        let _ = self.wake.try_send(Heard::Wake);
    }

    /// An order for one host.
    pub(super) fn tell_one(&self, host: usize, order: &Order) {
        let Ok(mut line) = serde_json::to_vec(order) else { return };
        line.push(b'\n');
        if let Ok(inputs) = self.inputs.lock()
            && let Some(Some(input)) = inputs.get(host)
        {
            // One that does not listen has ended, and its closed output tells.
            let _ = input.send(line);
        }
    }

    /// Orders for the next host go to this input from now on.
    fn attend(&self, mut input: ChildStdin) -> anyhow::Result<()> {
        let (sender, lines) = channel::<Vec<u8>>();
        limits::listener(move || {
            // An input that cannot be written to any more has no reader.
            let _ = lines.iter().try_for_each(|line| input.write_all(&line));
        })?;
        if let Ok(mut inputs) = self.inputs.lock() {
            inputs.push(Some(sender));
        }
        Ok(())
    }

    /// No more orders for a host, which its helper notices when it has read those before.
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
    pub(super) closed: bool,
}

/// How long a remote shell may take to end by itself when its helper has.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

impl Drop for Helper {
    fn drop(&mut self) {
        let begun = Instant::now();
        while self.closed && begun.elapsed() < ENDS_WITHIN && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(1));
        }
        self.kill();
        // Fails only for a process that has ended already.
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

/// Whether a remote shell joins the words of a command and has a shell on the other side take them apart again, as ssh does.
/// Others, such as `docker exec`, pass them on as they are.
fn joins_words(rsh: &[String]) -> bool {
    let name = rsh.first().and_then(|first| Path::new(first).file_name()).and_then(|name| name.to_str());
    name.is_some_and(|name| ["ssh", "rsh"].contains(&name))
}

/// A path as a word of a shell. The user's folder (`~/`) stays what it is there.
fn quoted(path: &str) -> String {
    let (home, rest) = path.strip_prefix("~/").map_or(("", path), |rest| ("~/", rest));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    match rest.chars().all(is_plain) {
        true => path.to_owned(),
        false => format!("{home}'{}'", rest.replace('\'', r"'\''")),
    }
}

impl Helper {
    /// Kills it, and what a remote shell has started besides; not its ranks, which have groups of their own and end with it.
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
            // A terminal's Ctrl-C is for this process, which passes it on.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                anyhow!("cannot run `{}`: {error}{}", command.join(" "), limits::no_process(&error))
            })?;
        let (input, pipes) = (child.stdin.take(), child.stdout.take().zip(child.stderr.take()));
        let helper = Helper { child, ports: None, closed: false };
        let (out, err) = pipes.ok_or_else(|| anyhow!("a helper was started without pipes"))?;
        attending.attend(input.ok_or_else(|| anyhow!("a helper was started without pipes"))?)?;
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

/// Passes on what a helper says until it ends.
fn hear(host: usize, output: impl BufRead, sender: &SyncSender<Heard>) {
    lines(output, |line| {
        let heard = match serde_json::from_slice(&line) {
            Ok(event) => Heard::Event(host, event),
            Err(_) => Heard::Talk(host, String::from_utf8_lossy(&line).trim_end().to_owned()),
        };
        // Sending fails when the job is done and nobody listens any more.
        sender.send(heard).is_ok()
    });
    let _ = sender.send(Heard::Closed(host));
}

/// Lines until the end, or until `take` wants no more; one that is too long is the end.
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
