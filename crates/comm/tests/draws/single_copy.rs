//! Reads of a peer's memory through the kernel (process_vm_readv), while a third rank is killed: the rank whose memory is read gets its
//! error and overwrites its buffer, and the reader must not return the overwritten values.

use std::time::Duration;

use rustix::process::Signal;
use weftlink_comm::{Communicator, Error};

use crate::calls::{Call, Outcome};
use crate::draw::Draw;
use crate::job::RankLog;
use crate::rank::{Event, Gate, Rank, now, report};
use crate::scenario::Scenario;

/// The value that the source writes into its buffer after the call.
const OVERWRITTEN: u32 = u32::MAX;

/// The rank whose memory is read.
fn source(draw: &Draw) -> usize {
    draw.partner
}

/// A rank that reads it, and is stopped for a while. The last rank forwards no news of a death.
fn reader(draw: &Draw) -> usize {
    draw.size - 1
}

/// One rank sends a block to each of the others.
struct Sent {
    count: usize,
    is_scatter: bool,
    messages: Vec<(u32, u32)>,
    input: Vec<u32>,
    output: Vec<u32>,
}

impl Sent {
    fn new(draw: &Draw, me: usize) -> Sent {
        let (source, is_scatter) = (source(draw), (draw.way / 3).is_multiple_of(2));
        // Shorter messages are copied.
        let count_min = if is_scatter { 20 << 10 } else { 140 << 10 };
        let factor = if draw.way % 3 == 2 && !cfg!(debug_assertions) { 32 } else { 1 };
        let count = (count_min + (draw.way / 6 % 100_000) as usize) * factor;
        let others = (0..draw.size).filter(|rank| *rank != source);
        let messages: Vec<(u32, u32)> = others.map(|rank| (source as u32, rank as u32)).collect();
        let to: Vec<usize> = match is_scatter {
            true => (0..draw.size).collect(),
            false => messages.iter().map(|(_, to)| *to as usize).collect(),
        };
        let input = if me == source {
            to.iter().flat_map(|to| vec![*to as u32; count]).collect()
        } else {
            Vec::new()
        };
        let gets = me != source || is_scatter;
        Sent {
            count,
            is_scatter,
            messages,
            input,
            output: vec![OVERWRITTEN - 1; if gets { count } else { 0 }],
        }
    }

    fn call(&mut self, comm: &mut Communicator, root: usize) -> Result<(), Error> {
        let Sent { count, is_scatter, messages, input, output } = self;
        output.fill(OVERWRITTEN - 1);
        match *is_scatter {
            true if comm.rank() == root => comm.scatter((&input[..], &mut output[..]), root),
            true => comm.scatter(&mut output[..], root),
            false => comm.send_receive((&input[..], &mut output[..]), messages, *count),
        }
    }
}

impl Rank {
    pub(crate) fn read_peers(&mut self, mut comm: Communicator) -> Result<(), Outcome> {
        let (me, source) = (comm.rank(), source(&self.draw));
        let mut sent = Sent::new(&self.draw, me);
        sent.call(&mut comm, source)?;
        self.call(&mut comm, Call::barrier(), 0)?;
        report(&Event::Warm);
        self.hold(Gate::Next);
        let made = sent.call(&mut comm, source);
        if made.is_err() {
            // The buffer is the caller's again: a peer that still reads it must not return these values.
            sent.input.fill(OVERWRITTEN);
        } else if let Some(place) = sent.output.iter().position(|value| *value != me as u32) {
            let value = sent.output[place];
            return Err(Outcome::Wrong(format!(
                "value {place} of {} is {value} and should be {me}",
                sent.count
            )));
        }
        self.made(made.map_err(Outcome::Failed))?;
        self.call(&mut comm, Call::barrier(), 1)
    }
}

/// Drives the draw.
pub(crate) fn drive(scenario: &mut Scenario) {
    let draw = scenario.draw.clone();
    let (source, reader) = (source(&draw), reader(&draw));
    let is_over = |one: &RankLog| one.failure().is_some() || one.ended.is_some();
    let are_ready = |all: &[RankLog]| all.iter().all(|one| one.is_holding(Gate::Next) || is_over(one));
    scenario.job.wait(are_ready);
    let others = (0..draw.size).filter(|rank| ![draw.victim, source].contains(rank));
    let stops = draw.way % 3 != 2;
    if draw.way.is_multiple_of(3) {
        // Stop the reader when it has announced the call and waits for the source.
        scenario.job.release(others);
        std::thread::sleep(draw.delay);
        scenario.job.signal(reader, Signal::STOP);
        scenario.job.release([source]);
        std::thread::sleep(Duration::from_millis(50));
    } else {
        // Stop the reader in the middle of the call, or not at all.
        scenario.job.release([source]);
        std::thread::sleep(Duration::from_millis(20));
        scenario.job.release(others);
        std::thread::sleep(draw.delay / 50);
        if stops {
            scenario.job.signal(reader, Signal::STOP);
        }
    }
    scenario.at = now();
    scenario.job.signal(draw.victim, Signal::KILL);
    if stops {
        scenario.job.wait(|all| is_over(&all[source]));
        scenario.job.signal(reader, Signal::CONT);
    }
}
