//! The link between ranks 0 and 1: the latency of 8 bytes and the bandwidth of large messages.

use std::time::Instant;

use weftlink_comm::{Communicator, Error, Request};
use weftlink_plan::Collective;

use super::job::Machine;
use super::rank::clock_ns;

const SMALL_BYTES: usize = 8;
const LARGE_BYTES: usize = 1 << 20;
const SMALL_CALLS: u32 = 200;
const LARGE_CALLS: u32 = 16;
/// Repetitions; the best counts.
const TRIES: u32 = 5;

/// Measures it. All ranks call this; the result of rank 0 counts.
pub(super) fn machine(comm: &mut Communicator) -> Result<Machine, Error> {
    let mut machine = Machine { clock_ns: clock_ns(), reads_peers: comm.reads_peers(), ..Machine::default() };
    if comm.size() < 2 {
        return Ok(machine);
    }
    let mut pair = Pair::new(comm, 0, 1, LARGE_BYTES);
    let (mut latency_s, mut transfer_s) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..TRIES {
        latency_s = latency_s.min(pair.latency_s(SMALL_BYTES, SMALL_CALLS)?);
        transfer_s = transfer_s.min(pair.transfer_s(LARGE_CALLS)?);
    }
    machine.latency_us = Some(latency_s * 1e6);
    machine.bandwidth_gb_per_s = Some(LARGE_BYTES as f64 / transfer_s / 1e9);
    Ok(machine)
}

/// Two ranks that exchange messages; the other ranks take part in the calls without data.
pub(crate) struct Pair<'c> {
    pub(super) comm: &'c mut Communicator,
    there: Collective,
    back: Collective,
    both: Collective,
    from: usize,
    to: usize,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl<'c> Pair<'c> {
    /// Messages of up to `bytes`.
    pub(crate) fn new(comm: &'c mut Communicator, from: usize, to: usize, bytes: usize) -> Self {
        let (a, b) = (from as u32, to as u32);
        let of = |messages: &[(u32, u32)]| Collective::SendReceive { messages: messages.to_vec() };
        let (there, back, both) = (of(&[(a, b)]), of(&[(b, a)]), of(&[(a, b), (b, a)]));
        Self { comm, there, back, both, from, to, sent: vec![1; bytes], received: vec![0; bytes] }
    }

    /// Half the time of a message and its answer.
    pub(crate) fn latency_s(&mut self, bytes: usize, calls: u32) -> Result<f64, Error> {
        self.there_and_back(bytes)?;
        self.comm.barrier()?;
        let started = Instant::now();
        for _ in 0..calls {
            self.there_and_back(bytes)?;
        }
        Ok(started.elapsed().as_secs_f64() / f64::from(2 * calls))
    }

    /// The time of one of many messages of full size, until the last has been answered.
    pub(super) fn transfer_s(&mut self, calls: u32) -> Result<f64, Error> {
        let bytes = self.sent.len();
        self.message(Way::There, bytes)?;
        self.comm.barrier()?;
        let started = Instant::now();
        for _ in 0..calls {
            self.message(Way::There, bytes)?;
        }
        self.message(Way::Back, SMALL_BYTES.min(bytes))?;
        Ok(started.elapsed().as_secs_f64() / f64::from(calls))
    }

    /// The time of one of many messages in both directions at once.
    pub(super) fn both_ways_s(&mut self, calls: u32) -> Result<f64, Error> {
        let bytes = self.sent.len();
        self.message(Way::Both, bytes)?;
        self.comm.barrier()?;
        let started = Instant::now();
        for _ in 0..calls {
            self.message(Way::Both, bytes)?;
        }
        self.message(Way::Back, SMALL_BYTES.min(bytes))?;
        Ok(started.elapsed().as_secs_f64() / f64::from(calls))
    }

    fn there_and_back(&mut self, bytes: usize) -> Result<(), Error> {
        self.message(Way::There, bytes)?;
        self.message(Way::Back, bytes)
    }

    #[inline]
    fn message(&mut self, way: Way, bytes: usize) -> Result<(), Error> {
        let (collective, from, to) = match way {
            Way::There => (&self.there, self.from, self.to),
            Way::Back => (&self.back, self.to, self.from),
            Way::Both => (&self.both, self.from, self.to),
        };
        let rank = self.comm.rank();
        let is_both = matches!(way, Way::Both) && (rank == from || rank == to);
        let (sends, receives) = (is_both || rank == from, is_both || rank == to);
        let length = |is_there: bool| if is_there { bytes } else { 0 };
        // All ranks pass buffers out of place, so that all choose the same plan.
        let buffers = (&self.sent[..length(sends)], &mut self.received[..length(receives)]);
        self.comm.run(Request::new(collective, buffers).count(bytes))
    }
}

#[derive(Clone, Copy)]
enum Way {
    There,
    Back,
    Both,
}
