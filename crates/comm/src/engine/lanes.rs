//! Running lanes: what each step waits for, and which lane runs next.

use std::os::fd::AsFd;

use weftlink_recorder::waiting::Waiting;
use weftlink_shm::line::{Line, Poll};
use weftlink_shm::wait::{Park, Stop};

use super::ports::Ports;
use super::state::State;
use super::{Run, Stopped, Tracer};
use crate::compile::{Instruction, Need, words_of};
use crate::shared::WaitRecord;
use crate::transport::Transports;

/// The position of a lane.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    tile: usize,
    next: usize,
}

impl State {
    /// Runs all tiles of a call.
    #[inline]
    pub(super) fn run(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        if let Some(steps) = &run.program.packets {
            self.round = self.round.wrapping_add(1);
            return self.run_packets(run, ports, steps, tracer);
        }
        self.begin(run.call);
        let ran = match self.lanes.len() {
            1 => self.run_lane(run, ports, tracer),
            _ => self.run_lanes(run, ports, tracer),
        };
        self.round = self.round.wrapping_add(if mutant!("round-counts-one-tile") {
            1
        } else {
            run.program.tiles as u32
        });
        ran.and_then(|()| flush(run, ports))
    }

    /// Runs the only lane: each wait blocks.
    #[inline]
    fn run_lane(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        for tile in 0..run.program.tiles {
            let start = run.program.start(tile);
            for instruction in &run.program.tile(tile).lanes[0] {
                tracer.waiting(0);
                self.wait_for_step(run, ports, tile, instruction)?;
                tracer.step(0, tile as u32, instruction.ordinal);
                self.take_step(run, ports, instruction, start)
                    .map_err(|stop| stopped(stop, 0, instruction))?;
                tracer.done(0, instruction.bytes);
            }
        }
        Ok(())
    }

    /// Runs several lanes: from each the steps that are ready, and blocks when none is.
    fn run_lanes(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        self.lanes.fill(Cursor::default());
        loop {
            let mut running = false;
            let mut failed = None;
            let watched = ports.transports.watched();
            let park = watched.as_ref().map_or(Park::Time, |watched| Park::SocketOrLine(watched.as_fd()));
            let record = WaitRecord::new(run.shared, run.call.number, None, Waiting::Anything);
            let waited = run.shared.waiter.wait_with_check(
                park,
                || {
                    let mut progress = Poll::Pending;
                    if ports.transports.need_progress() {
                        ports.transports.progress(None);
                        if ports.transports.is_broken(None) && !mutant!("lanes-ignore-faults") {
                            return Poll::Broken;
                        }
                    }
                    running = false;
                    for lane in 0..self.lanes.len() {
                        match self.run_ready(run, ports, lane, tracer) {
                            Ok(Poll::Pending) => {}
                            Ok(Poll::Ready) => progress = Poll::Ready,
                            Ok(mismatch) => return mismatch,
                            Err(stop) => {
                                failed = Some(stop);
                                return Poll::Ready;
                            }
                        }
                        running |= self.lanes[lane].tile < run.program.tiles;
                    }
                    match (running, progress) {
                        (false, _) => Poll::Ready,
                        (true, Poll::Pending) if self.misses_one(run, ports).is_some() => Poll::Broken,
                        (true, Poll::Pending) if record.is_long() => {
                            record.is_for(self.stuck(run, ports).1);
                            Poll::Pending
                        }
                        (true, progress) => progress,
                    }
                },
                |waited| {
                    record.poll(waited);
                    run.shared.check_peers(run.call, waited)
                },
            );
            record.end(waited.is_ok());
            waited.map_err(|stop| {
                let missed = self.misses_one(run, ports);
                let (step, waiting) = missed.unwrap_or_else(|| self.stuck(run, ports));
                Box::new(Stopped { stop, step, waiting })
            })?;
            if let Some(stopped) = failed {
                return Err(stopped);
            }
            if !running {
                return Ok(());
            }
        }
    }

    /// The first lane that waits for another rank, and its wait.
    #[cold]
    fn stuck(&mut self, run: &Run<'_>, ports: &mut Ports) -> (Option<(u32, u32)>, Waiting) {
        for lane in 0..self.lanes.len() {
            let Cursor { tile, next } = self.lanes[lane];
            if tile >= run.program.tiles {
                continue;
            }
            let Some(instruction) = run.program.tile(tile).lanes[lane].get(next) else { continue };
            for need in &instruction.needs {
                let is_own = matches!(*need, Need::Reached { rank, .. } if rank == self.rank);
                if !is_own && self.poll_need(run, ports, tile, instruction.bytes, need) != Poll::Ready {
                    return (Some((lane as u32, instruction.ordinal)), self.awaited(run, ports, need).1);
                }
            }
        }
        (None, Waiting::Anything)
    }

    /// A lane that waits for a rank whose connection has failed, and its wait.
    fn misses_one(&self, run: &Run<'_>, ports: &mut Ports) -> Option<(Option<(u32, u32)>, Waiting)> {
        if mutant!("lanes-miss-nobody") || !ports.transports.have_faults() {
            return None;
        }
        for lane in 0..self.lanes.len() {
            let Cursor { tile, next } = self.lanes[lane];
            if tile >= run.program.tiles {
                continue;
            }
            let Some(instruction) = run.program.tile(tile).lanes[lane].get(next) else { continue };
            for need in &instruction.needs {
                let waiting = self.awaited(run, ports, need).1;
                let is_gone =
                    elsewhere(&waiting, run).is_some_and(|rank| ports.transports.is_broken(Some(rank)));
                if is_gone && self.poll_need(run, ports, tile, instruction.bytes, need) == Poll::Pending {
                    return Some((Some((lane as u32, instruction.ordinal)), waiting));
                }
            }
        }
        None
    }

    /// Runs the steps of a lane that are ready.
    fn run_ready(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        lane: usize,
        tracer: &mut impl Tracer,
    ) -> Result<Poll, Box<Stopped>> {
        let mut progress = Poll::Pending;
        while self.lanes[lane].tile < run.program.tiles {
            let Cursor { tile, next } = self.lanes[lane];
            let Some(instruction) = run.program.tile(tile).lanes[lane].get(next) else {
                self.lanes[lane] = Cursor { tile: tile + 1, next: 0 };
                progress = Poll::Ready;
                continue;
            };
            match self.poll_step(run, ports, tile, instruction) {
                Poll::Ready => {}
                Poll::Pending => return Ok(progress),
                mismatch => return Ok(mismatch),
            }
            tracer.step(lane as u32, tile as u32, instruction.ordinal);
            self.take_step(run, ports, instruction, run.program.start(tile))
                .map_err(|stop| stopped(stop, lane, instruction))?;
            tracer.done(lane as u32, instruction.bytes);
            self.lanes[lane].next += 1;
            progress = Poll::Ready;
        }
        Ok(progress)
    }

    /// Waits for everything a step needs, one after the other.
    #[inline]
    fn wait_for_step(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        tile: usize,
        instruction: &Instruction,
    ) -> Result<(), Box<Stopped>> {
        for need in &instruction.needs {
            if self.poll_need(run, ports, tile, instruction.bytes, need) != Poll::Ready {
                self.wait_for(run, ports, tile, instruction, need)?;
            }
        }
        Ok(())
    }

    /// Waits for one need of a step.
    #[inline(never)]
    pub(super) fn wait_for(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        tile: usize,
        instruction: &Instruction,
        need: &Need,
    ) -> Result<(), Box<Stopped>> {
        let (line, waiting) = self.awaited(run, ports, need);
        self.expect(run, ports, tile, instruction, need);
        let is_watched = line.is_none() || !ports.transports.are_idle();
        let watched = if is_watched { ports.transports.watched() } else { None };
        let park = match (&watched, line) {
            (Some(watched), None) => Park::Socket(watched.as_fd()),
            (Some(watched), Some(_)) => Park::SocketOrLine(watched.as_fd()),
            (None, Some(line)) => Park::Line(line),
            (None, None) => Park::Time,
        };
        let poll = || {
            let poll = self.poll_need(run, ports, tile, instruction.bytes, need);
            if poll != Poll::Pending || !ports.transports.need_progress() {
                return poll;
            }
            ports.transports.progress(elsewhere(&waiting, run));
            let broken = ports.transports.is_broken(elsewhere(&waiting, run));
            let poll = self.poll_need(run, ports, tile, instruction.bytes, need);
            if broken && poll == Poll::Pending { Poll::Broken } else { poll }
        };
        let step = Some((0, instruction.ordinal));
        let record = WaitRecord::new(run.shared, run.call.number, step, waiting);
        let waited = run.shared.waiter.wait_with_check(park, poll, |waited| {
            record.poll(waited);
            run.shared.check_peers(run.call, waited)
        });
        record.end(waited.is_ok());
        ports.transports.end_wait(waited.is_ok());
        waited.map_err(|stop| Box::new(Stopped { stop, step, waiting }))
    }

    /// Whether everything a step needs is there.
    fn poll_step(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        tile: usize,
        instruction: &Instruction,
    ) -> Poll {
        let poll = |need| self.poll_need(run, ports, tile, instruction.bytes, need);
        instruction.needs.iter().map(poll).find(|poll| *poll != Poll::Ready).unwrap_or(Poll::Ready)
    }

    /// Whether one need of a step is met. The payload of a packet is copied out of its lines then.
    #[inline]
    fn poll_need(&self, run: &Run<'_>, ports: &mut Ports, tile: usize, bytes: usize, need: &Need) -> Poll {
        let signature = run.call.signature;
        match *need {
            Need::Entered { rank } => run.shared.header(rank as usize, run.call.number).poll(
                run.call.number,
                signature,
                run.call.number,
            ),
            Need::Reached { rank, counter, count, per_tile } => {
                // Sequences wrap, and products of wrapped numbers are the wrapped products.
                let at = |tiles: usize| self.round.wrapping_add(tiles as u32).wrapping_mul(per_tile);
                let counter = self.counter(rank, counter);
                counter.poll(at(tile).wrapping_add(count), signature, at(run.program.tiles))
            }
            Need::Message { port } => ports.receivers[port as usize].poll(run.call.signatures(), bytes),
            Need::Credit { port } => ports.senders[port as usize].poll(),
            Need::Packet { port } => ports.packet_receivers[port as usize].poll(signature, words_of(bytes)),
            Need::PacketCredit { port } => ports.packet_senders[port as usize].poll(),
        }
    }

    /// The line to sleep on for a need, if there is one, and its name.
    #[inline]
    fn awaited(&self, run: &Run<'_>, ports: &Ports, need: &Need) -> (Option<&'static Line>, Waiting) {
        match *need {
            Need::Entered { rank } => {
                let line = run.shared.header(rank as usize, run.call.number).line();
                (Some(line), Waiting::Entered { rank })
            }
            Need::Reached { rank, counter, .. } => {
                (Some(self.counter(rank, counter).line()), Waiting::Reached { rank, counter })
            }
            Need::Message { port } => {
                let receiver = &ports.receivers[port as usize];
                (receiver.line(), Waiting::Message { from: receiver.from() })
            }
            Need::Credit { port } => {
                let sender = &ports.senders[port as usize];
                (sender.line(), Waiting::Slot { to: sender.to() })
            }
            Need::Packet { port } => {
                let receiver = &ports.packet_receivers[port as usize];
                (Some(receiver.line()), Waiting::Message { from: receiver.from })
            }
            Need::PacketCredit { port } => {
                let sender = &ports.packet_senders[port as usize];
                (Some(sender.line()), Waiting::Slot { to: sender.to })
            }
        }
    }
}

/// Waits until transports have handed everything to the kernel: no thread sends after the call.
#[inline]
fn flush(run: &Run<'_>, ports: &mut Ports) -> Result<(), Box<Stopped>> {
    if ports.transports.are_idle() { Ok(()) } else { drain(run, &mut ports.transports) }
}

#[cold]
fn drain(run: &Run<'_>, transports: &mut Transports) -> Result<(), Box<Stopped>> {
    let waiting = Waiting::Sent { to: transports.awaited().unwrap_or(run.rank) };
    let watched = transports.watched();
    let park = watched.as_ref().map_or(Park::Time, |watched| Park::Socket(watched.as_fd()));
    let poll = || {
        transports.progress(None);
        match (transports.are_idle(), transports.is_broken(None)) {
            (true, _) => Poll::Ready,
            (false, true) => Poll::Broken,
            (false, false) => Poll::Pending,
        }
    };
    let record = WaitRecord::new(run.shared, run.call.number, None, waiting);
    let waited = run.shared.waiter.wait_with_check(park, poll, |waited| {
        record.poll(waited);
        run.shared.check_peers(run.call, waited)
    });
    record.end(waited.is_ok());
    waited.map_err(|stop| Box::new(Stopped { stop, step: None, waiting }))
}

/// The awaited rank, if it is on another host.
fn elsewhere(waiting: &Waiting, run: &Run<'_>) -> Option<u32> {
    waiting.rank().filter(|&rank| !run.shared.is_here(rank))
}

#[cold]
fn stopped(stop: Stop, lane: usize, instruction: &Instruction) -> Box<Stopped> {
    Box::new(Stopped { stop, step: Some((lane as u32, instruction.ordinal)), waiting: Waiting::Anything })
}
