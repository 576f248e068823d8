//! Reads a log line by line. Nothing fails: a line that is not understood is left out.
//!
//! The library prints most facts without their communicator. Before 2.18 its address stands only in the last line of the initialisation;
//! what the same thread printed before belongs to it. A connection that a later thread makes belongs to the rank on the same GPU.

mod calls;
mod comms;
mod finish;
mod network;
mod other;
mod settings;
mod warnings;
mod wires;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use super::line::{self, Level, Message};
use super::model::{Log, Process, Rank, Seen, Stage};
use super::topology;

/// Lines that are read; the rest of a longer log is left out.
const LINES_MAX: usize = 20_000_000;
const PROCESSES_MAX: usize = 65_536;
const RANKS_MAX: usize = 131_072;
const TOPOLOGIES_MAX: usize = 1024;
/// Threads that are followed.
const THREADS_MAX: usize = 1 << 20;

/// Reads a log.
pub fn read(text: &str) -> Log {
    let mut reader = Reader::default();
    for (at, raw) in text.lines().enumerate() {
        if at == LINES_MAX {
            reader.leave_out("lines");
            break;
        }
        let (number, raw) = (at + 1, line::clean(raw));
        reader.log.lines = number;
        let messages = line::messages(number, &raw);
        if messages.is_empty() {
            reader.other(number, &raw);
        }
        for message in &messages {
            reader.log.messages += 1;
            reader.message(message);
        }
    }
    reader.finish()
}

/// A thread of a process.
type Thread = (usize, u32);

/// What is known while a log is read.
#[derive(Default)]
struct Reader {
    log: Log,
    processes: BTreeMap<(String, u32), usize>,
    /// The rank that each thread initialises, or initialised last.
    threads: BTreeMap<Thread, usize>,
    /// The rank at each address of a communicator.
    addresses: BTreeMap<(usize, String), usize>,
    /// The last rank of each GPU of a process.
    devices: BTreeMap<(usize, i32), usize>,
    /// Ranks whose rings are connected.
    with_rings: BTreeSet<usize>,
    /// Connections that were read: rank, channel, source and target.
    connected: BTreeSet<(usize, u32, u32, u32)>,
    /// The settings by name and value.
    settings: BTreeMap<(String, String), usize>,
    /// The algorithms that were read: call, bytes, algorithm, protocol.
    chosen: BTreeSet<(String, u64, String, String)>,
    /// The topology that each thread is printing.
    dumps: BTreeMap<Thread, topology::Dump>,
    /// The last warning of each thread.
    warned: BTreeMap<Thread, usize>,
    /// Timeouts by rank and group.
    timeouts: BTreeMap<(u32, String), usize>,
    /// How many of each kind were left out.
    left_out: BTreeMap<&'static str, usize>,
}

impl Reader {
    fn leave_out(&mut self, what: &'static str) {
        *self.left_out.entry(what).or_default() += 1;
    }

    fn message(&mut self, message: &Message<'_>) {
        let Some(process) = self.process(message) else { return };
        if message.level == Level::Warn {
            self.warning(process, message);
            return;
        }
        let _is_read = self.result(process, message)
            || self.topology(process, message)
            || self.wires(process, message)
            || self.comms(process, message)
            || self.calls(process, message)
            || self.network(process, message)
            || self.settings(process, message);
    }

    /// The process of a message; nothing if there are too many.
    fn process(&mut self, message: &Message<'_>) -> Option<usize> {
        let key = (message.host.to_owned(), message.pid);
        if let Some(process) = self.processes.get(&key) {
            return Some(*process);
        }
        if self.log.processes.len() == PROCESSES_MAX {
            self.leave_out("processes");
            return None;
        }
        let (host, pid) = key.clone();
        self.log.processes.push(Process { host, pid, ..Process::default() });
        let process = self.log.processes.len() - 1;
        self.processes.insert(key, process);
        Some(process)
    }

    /// A new rank, which the thread of a message initialises.
    fn new_rank(&mut self, process: usize, message: &Message<'_>) -> Option<usize> {
        if self.log.ranks.len() == RANKS_MAX || self.threads.len() == THREADS_MAX {
            self.leave_out("ranks of communicators");
            return None;
        }
        let device = message.device;
        self.log.ranks.push(Rank {
            process,
            thread: message.tid,
            device,
            seen: seen(message),
            ..Rank::default()
        });
        let rank = self.log.ranks.len() - 1;
        self.threads.insert((process, message.tid), rank);
        self.devices.extend(device.map(|device| ((process, device), rank)));
        Some(rank)
    }

    /// The rank that a message is about; `starts` if such a message is printed while a communicator is initialised, and never later.
    fn rank(&mut self, process: usize, message: &Message<'_>, starts: bool) -> Option<usize> {
        let address = words::address(message.text).map(|address| (process, address.to_owned()));
        if let Some(rank) = address.and_then(|address| self.addresses.get(&address)) {
            return Some(*rank);
        }
        let of_thread = self.threads.get(&(process, message.tid)).copied();
        match of_thread {
            Some(rank) if !starts || self.log.ranks[rank].stage < Stage::Complete => Some(rank),
            None if !starts => {
                let of_device =
                    message.device.and_then(|device| self.devices.get(&(process, device)).copied());
                of_device.or_else(|| self.new_rank(process, message))
            }
            _ => self.new_rank(process, message),
        }
    }

    /// Notes how far a rank came.
    fn reach(&mut self, rank: usize, stage: Stage, message: &Message<'_>) {
        let rank = &mut self.log.ranks[rank];
        if stage > rank.stage {
            (rank.stage, rank.seen) = (stage, seen(message));
        }
    }
}

impl Reader {
    /// Reads a line of what the library detected of the machine.
    fn topology(&mut self, process: usize, message: &Message<'_>) -> bool {
        let thread = (process, message.tid);
        if let Some(dump) = topology::Dump::begins(process, message) {
            if let Some(rank) = self.rank(process, message, true) {
                self.reach(rank, Stage::Topology, message);
            }
            let before = self.dumps.remove(&thread);
            before.into_iter().for_each(|before| self.keep_topology(before));
            if self.dumps.len() < TOPOLOGIES_MAX {
                self.dumps.insert(thread, dump);
            }
            return true;
        }
        let Some(dump) = self.dumps.get_mut(&thread) else { return false };
        if dump.read(message) {
            return true;
        }
        if let Some(dump) = self.dumps.remove(&thread) {
            self.keep_topology(dump);
        }
        false
    }

    fn keep_topology(&mut self, dump: topology::Dump) {
        let Some(topology) = dump.finish() else { return };
        // Every process prints its own: those of one host that are alike count once.
        let host = |process: usize| self.log.processes.get(process).map(|process| process.host.as_str());
        let is_known = self.log.topologies.iter().any(|known| {
            host(known.process) == host(topology.process)
                && known.gpus.len() == topology.gpus.len()
                && known.has_rates_of(&topology)
        });
        if !is_known && self.log.topologies.len() < TOPOLOGIES_MAX {
            self.log.topologies.push(topology);
        }
    }
}

/// A message as evidence.
fn seen(message: &Message<'_>) -> Seen {
    Seen { line: message.number, text: line::kept(message.whole) }
}
