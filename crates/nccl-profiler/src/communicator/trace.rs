//! `WEFT_PROFILE`: the events as Perfetto and chrome://tracing show them.
//!
//! As in `weft bench --trace`, a process is a rank. Its rows are calls of the program, collectives, kernels by channel, and proxies by channel
//! and direction. Times are microseconds of the host's monotonic clock, so traces of ranks of one host fit together; `otherData` has what to
//! add for the time of day.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::Ordering;

use serde_json::{Map, Value, json};
use weftlink_shm::clock::{now_ns, realtime_offset_ns};

use crate::communicator::{Communicator, FOREIGN};
use crate::event::{Form, GPU_STOPPED, Kind, STATES};
use crate::interned;
use crate::lanes::Lanes;
use crate::pool::{Event, Pool};

/// A group of rows of a process, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Track {
    Calls,
    Launches,
    Collectives,
    Kernel { channel: u64 },
    Proxy { channel: u64, is_send: bool },
    Network { channel: u64, is_send: bool },
    ProxyThread,
}

impl Track {
    fn name(self) -> String {
        match self {
            Track::Calls => "calls of the program".to_owned(),
            Track::Launches => "groups and launches".to_owned(),
            Track::Collectives => "collectives and messages".to_owned(),
            Track::Kernel { channel } => format!("kernel, channel {channel}"),
            Track::Proxy { channel, is_send } => format!("proxy{}", place(channel, is_send)),
            Track::Network { channel, is_send } => format!("network{}", place(channel, is_send)),
            Track::ProxyThread => "proxy thread".to_owned(),
        }
    }
}

/// The channel and direction of a proxy, if they are known.
fn place(channel: u64, is_send: bool) -> String {
    match (channel, is_send) {
        (u64::MAX, _) => String::new(),
        (_, true) => format!(", channel {channel}, send"),
        (_, false) => format!(", channel {channel}, receive"),
    }
}

/// Writes the events; returns their number. The file is replaced when it is complete.
pub(crate) fn write(path: &Path, pool: &Pool, communicators: &[&Communicator]) -> io::Result<usize> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let (mut events, written) = (pool.events(), File::create(&beside));
    let mut file = BufWriter::new(written?);
    let now_ns = now_ns();
    run_on(&mut events);
    // An outer slice comes before those inside of it.
    events.sort_by_key(|event| (event.began_ns, std::cmp::Reverse(end_ns(event, now_ns)), event.number));
    let done = document(&mut file, &events, pool, communicators, now_ns)
        .and_then(|()| file.flush())
        .and_then(|()| fs::rename(&beside, path));
    done.inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })?;
    Ok(events.len())
}

fn document(
    out: &mut impl Write,
    events: &[Event],
    pool: &Pool,
    communicators: &[&Communicator],
    now_ns: u64,
) -> io::Result<()> {
    let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let counts = &pool.counts;
    let about = json!({
        "host": weftlink_knobs::host(),
        "pid": std::process::id(),
        "clock": "monotonic",
        "realtime_offset_ns": realtime_offset_ns(),
        "events_dropped": count(&counts.dropped),
        "events_of_unknown_types": count(&counts.unknown),
        "stale_handles": count(&counts.stale),
        "states_dropped": count(&counts.states_dropped),
    });
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[")?;
    let mut lines = Lines { out, is_first: true };
    for communicator in communicators {
        let process = process(communicator);
        lines.metadata("process_name", process, 0, "name", json!(name(communicator)))?;
        lines.metadata("process_sort_index", process, 0, "sort_index", json!(process))?;
    }
    if events.iter().any(|event| event.communicator == FOREIGN) {
        let name = "network operations for other processes";
        lines.metadata("process_name", FOREIGN_PROCESS, 0, "name", json!(name))?;
    }
    let process_of = |index: u32| match communicators.get(index as usize) {
        Some(communicator) => Some(process(communicator)),
        None => (index == FOREIGN).then_some(FOREIGN_PROCESS),
    };
    let by_number: HashMap<u64, &Event> = events.iter().map(|event| (event.number, event)).collect();
    let mut lanes: HashMap<(u32, Track), Lanes> = HashMap::new();
    let mut rows: BTreeMap<(u32, Track, usize), usize> = BTreeMap::new();
    for event in events {
        let Some(process) = process_of(event.communicator) else { continue };
        let track = track(event, &by_number);
        let (begin, end) = (event.began_ns, end_ns(event, now_ns));
        let lane = lanes.entry((event.communicator, track)).or_default().row(begin, end);
        let next = rows.len() + 1;
        let row = *rows.entry((event.communicator, track, lane)).or_insert(next);
        slices(&mut lines, event, (process, row), (begin, end))?;
    }
    for ((communicator, track, lane), row) in rows {
        let Some(process) = process_of(communicator) else { continue };
        let name = if lane == 0 { track.name() } else { format!("{} ({})", track.name(), lane + 1) };
        lines.metadata("thread_name", process, row, "name", json!(name))?;
        // Channels in their order, and the rows of one beside each other.
        let place = match track {
            Track::Calls => 0,
            Track::Launches => 1,
            Track::Collectives => 2,
            Track::Kernel { channel } => 100 + channel.min(10_000),
            Track::Proxy { channel, is_send } => 20_000 + 2 * channel.min(10_000) + u64::from(is_send),
            Track::Network { channel, is_send } => 50_000 + 2 * channel.min(10_000) + u64::from(is_send),
            Track::ProxyThread => 80_000,
        };
        lines.metadata("thread_sort_index", process, row, "sort_index", json!(1000 * place + lane as u64))?;
    }
    writeln!(lines.out, "\n]}}")
}

/// The process in the trace of what is done for others.
const FOREIGN_PROCESS: i64 = -1;

/// The process in the trace: the rank; later communicators of a process of NCCL have numbers of their own.
fn process(communicator: &Communicator) -> i64 {
    i64::from(communicator.index) * 1_000_000 + i64::from(communicator.rank().max(0))
}

fn name(communicator: &Communicator) -> String {
    let mut name = match (communicator.rank(), communicator.ranks) {
        (..0, _) => "unknown rank".to_owned(),
        (rank, ..=0) => format!("rank {rank}"),
        (rank, ranks) => format!("rank {rank} of {ranks}"),
    };
    if communicator.nodes > 0 {
        name += &format!(" on {} nodes", communicator.nodes);
    }
    name += &format!(", communicator {:012x}", communicator.number());
    if let Some(own) = &communicator.name {
        name += &format!(" ({own})");
    }
    name
}

/// What has a part that runs has not ended, though NCCL has stopped it: a collective is stopped when it was enqueued.
fn run_on(events: &mut [Event]) {
    let parents: HashMap<u64, u64> = events.iter().map(|event| (event.number, event.parent)).collect();
    let mut run: HashSet<u64> = HashSet::new();
    for event in events.iter().filter(|event| event.is_running) {
        let mut number = event.number;
        while let Some(parent) = parents.get(&number).filter(|parent| **parent < number) {
            number = *parent;
            if !run.insert(number) {
                break;
            }
        }
    }
    for event in events.iter_mut().filter(|event| run.contains(&event.number) && is_of_parts(event.kind)) {
        event.is_running = true;
    }
}

/// Whether an event lasts as long as its parts: not a call of the program, which returns before.
fn is_of_parts(kind: Kind) -> bool {
    !matches!(kind, Kind::GroupApi | Kind::CollApi | Kind::P2pApi | Kind::Group | Kind::KernelLaunch)
}

/// When an event ended: with its last part, where that is later. One that runs ends now.
fn end_ns(event: &Event, now_ns: u64) -> u64 {
    let part_ended_ns = if is_of_parts(event.kind) { event.part_ended_ns } else { 0 };
    let end_ns = if event.is_running { now_ns } else { event.ended_ns.max(part_ended_ns) };
    end_ns.max(event.began_ns)
}

fn track(event: &Event, by_number: &HashMap<u64, &Event>) -> Track {
    match event.kind {
        Kind::GroupApi | Kind::CollApi | Kind::P2pApi => Track::Calls,
        Kind::Group | Kind::KernelLaunch => Track::Launches,
        Kind::Coll | Kind::P2p | Kind::CeColl | Kind::CeSync | Kind::CeBatch => Track::Collectives,
        Kind::KernelCh | Kind::KernelPhase => Track::Kernel { channel: event.words[0] },
        Kind::ProxyOp => Track::Proxy { channel: event.words[0], is_send: event.words[1] != 0 },
        // A parent has a smaller number, so this ends.
        Kind::ProxyStep | Kind::NetPlugin => {
            let parent = by_number.get(&event.parent).filter(|parent| parent.number < event.number);
            let (channel, is_send) = match parent.map(|parent| track(parent, by_number)) {
                Some(Track::Proxy { channel, is_send }) => (channel, is_send),
                _ => (u64::MAX, false),
            };
            // The states of a step have slices of their own, with which those of transfers could overlap.
            match event.kind {
                Kind::ProxyStep => Track::Proxy { channel, is_send },
                _ => Track::Network { channel, is_send },
            }
        }
        Kind::ProxyCtrl => Track::ProxyThread,
    }
}

/// Whether the states of an event are slices. Those of other events, which contain events on the same row, are among its arguments.
fn has_slices(kind: Kind) -> bool {
    matches!(kind, Kind::ProxyStep | Kind::ProxyCtrl)
}

fn state_name(state: u64) -> &'static str {
    STATES.get(state as usize).copied().unwrap_or("unknown state")
}

/// An event, and inside of it the times between its states.
fn slices(
    lines: &mut Lines<impl Write>,
    event: &Event,
    place: (i64, usize),
    (begin, end): (u64, u64),
) -> io::Result<()> {
    lines.slice(&title(event), place, (begin, end), arguments(event))?;
    if !has_slices(event.kind) {
        return Ok(());
    }
    for (at, (from, state, value)) in event.states.iter().enumerate() {
        let until = event.states.get(at + 1).map_or(end, |(next, ..)| *next);
        let name = state_name(*state);
        let arguments = json!({ "state": state, "value": value });
        let (from, until) = ((*from).clamp(begin, end), until.clamp(begin, end));
        lines.slice(name, place, (from, until.max(from)), arguments)?;
    }
    Ok(())
}

/// What the slice is called: the function, where there is one.
fn title(event: &Event) -> String {
    let named = |at: usize| event.words.get(at).and_then(|word| interned::name(*word));
    match event.kind {
        Kind::Coll => {
            let way = [7, 8].into_iter().filter_map(named).collect::<Vec<_>>().join(" ");
            format!("{} {way}", named(0).unwrap_or("collective")).trim_end().to_owned()
        }
        Kind::P2p | Kind::CollApi | Kind::P2pApi | Kind::CeColl => {
            named(0).unwrap_or(event.kind.name()).to_owned()
        }
        Kind::KernelPhase => named(2).unwrap_or(event.kind.name()).to_owned(),
        kind => kind.name().to_owned(),
    }
}

fn arguments(event: &Event) -> Value {
    let mut arguments = Map::new();
    for ((name, form), word) in event.kind.fields().iter().zip(event.words) {
        let value = match form {
            Form::Number => json!(word),
            Form::Signed => json!(word as i64),
            Form::Flag => json!(word != 0),
            Form::Hexadecimal => json!(format!("{word:#x}")),
            Form::Name => json!(interned::name(word)),
        };
        arguments.insert((*name).to_owned(), value);
    }
    if event.call != 0 {
        arguments.insert("call".to_owned(), json!(event.call));
    }
    if event.is_running {
        arguments.insert("has_not_ended".to_owned(), json!(true));
    }
    if !has_slices(event.kind) && !event.states.is_empty() {
        let state = |(ns, state, value): &(u64, u64, u64)| {
            let after_us = ns.saturating_sub(event.began_ns) as f64 / 1e3;
            json!({ "name": state_name(*state), "state": state, "after_us": after_us, "value": value })
        };
        arguments.insert("states".to_owned(), event.states.iter().map(state).collect());
    }
    if let Some((_, _, stopped)) = event.states.iter().find(|(_, state, _)| GPU_STOPPED.contains(state)) {
        arguments.insert("gpu_stop_ns".to_owned(), json!(stopped));
    }
    arguments.into()
}

/// The events of the document, each on a line.
struct Lines<'o, W> {
    out: &'o mut W,
    is_first: bool,
}

impl<W: Write> Lines<'_, W> {
    fn line(&mut self, event: &Value) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_first) { "" } else { ",\n" };
        write!(self.out, "{comma}{event}")
    }

    fn metadata(&mut self, what: &str, process: i64, row: usize, key: &str, value: Value) -> io::Result<()> {
        self.line(&json!({ "ph": "M", "name": what, "pid": process, "tid": row, "args": { key: value } }))
    }

    fn slice(
        &mut self,
        name: &str,
        (process, row): (i64, usize),
        (begin, end): (u64, u64),
        arguments: Value,
    ) -> io::Result<()> {
        self.line(&json!({
            "ph": "X", "name": name, "cat": "nccl", "pid": process, "tid": row,
            "ts": begin as f64 / 1e3, "dur": (end - begin) as f64 / 1e3, "args": arguments,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Start, WORDS};

    #[test]
    fn a_collective_lasts_as_long_as_its_parts_and_a_call_does_not() {
        let pool = Pool::new(64);
        let start = |kind, parent, at| {
            pool.start(&Start { kind, parent, rank: 0, communicator: 0, words: [0; WORDS] }, 0, 0, at)
        };
        let call = start(Kind::CollApi, 0, 10);
        let coll = start(Kind::Coll, call, 20);
        let [one, other] = [30, 40].map(|at| start(Kind::KernelCh, coll, at));
        pool.stop(call, 50);
        pool.stop(coll, 60);
        pool.stop(one, 90);
        let ends = || {
            let mut events = pool.events();
            run_on(&mut events);
            events.iter().map(|event| end_ns(event, 1000)).collect::<Vec<_>>()
        };
        assert_eq!(ends(), [50, 1000, 90, 1000]);
        pool.stop(other, 95);
        assert_eq!(ends(), [50, 95, 90, 95]);
    }
}
