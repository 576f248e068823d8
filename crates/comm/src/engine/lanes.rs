//! Running lanes: what each step waits for, and which lane goes on.

use super::ports::Ports;
use super::state::State;
use super::step::words_of;
use super::{Run, Stopped, Tracer, Waiting};
use crate::compile::{Instruction, Need};
use crate::line::{Line, Poll};
use crate::shared::Noted;
use crate::wait::Stop;

/// Where a lane is.
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
        self.round = self.round.wrapping_add(run.program.tiles as u32);
        ran
    }

    /// The only lane: each wait is a wait.
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

    /// Several lanes: takes from each what is ready, and waits when nothing is.
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
            let noted = Noted::new(run.shared, run.call.number, None, Waiting::Anything);
            let waited = run.shared.waiter.wait_doubting(
                None,
                || {
                    let mut progress = Poll::Pending;
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
                    if running { progress } else { Poll::Ready }
                },
                || {
                    noted.again();
                    run.shared.doubt(run.call)
                },
            );
            noted.over(waited.is_ok());
            waited.map_err(|stop| {
                let (step, waiting) = self.stuck(run, ports);
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

    /// The first lane that waits for another rank, and what for.
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

    /// Takes the steps of a lane that need not wait.
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

    /// Waits for one of the things a step needs.
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
        let poll = || self.poll_need(run, ports, tile, instruction.bytes, need);
        let step = Some((0, instruction.ordinal));
        let noted = Noted::new(run.shared, run.call.number, step, waiting);
        let waited = run.shared.waiter.wait_doubting(Some(line), poll, || {
            noted.again();
            run.shared.doubt(run.call)
        });
        noted.over(waited.is_ok());
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

    /// Whether one of the things a step needs is there. A packet's payload is taken out of its lines if it is.
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
            Need::Message { end } => {
                let receiver = &mut ports.receivers[end as usize];
                if receiver.is_packet() {
                    receiver.fifo.take_packet(signature, &mut receiver.packet[..words_of(bytes)])
                } else {
                    receiver.fifo.poll(signature)
                }
            }
            Need::Credit { end } => {
                let has_credit = ports.senders[end as usize].fifo.has_credit();
                if has_credit { Poll::Ready } else { Poll::Pending }
            }
        }
    }

    /// The line to watch for a need, and its name.
    #[inline]
    fn awaited(&self, run: &Run<'_>, ports: &Ports, need: &Need) -> (&'static Line, Waiting) {
        match *need {
            Need::Entered { rank } => {
                (run.shared.header(rank as usize, run.call.number).line(), Waiting::Entered { rank })
            }
            Need::Reached { rank, counter, .. } => {
                (self.counter(rank, counter).line(), Waiting::Reached { rank, counter })
            }
            Need::Message { end } => {
                let receiver = &ports.receivers[end as usize];
                (receiver.fifo.arrival_line(), Waiting::Message { from: receiver.from })
            }
            Need::Credit { end } => {
                let sender = &ports.senders[end as usize];
                (sender.fifo.credit_line(), Waiting::Slot { to: sender.to })
            }
        }
    }
}

#[cold]
fn stopped(stop: Stop, lane: usize, instruction: &Instruction) -> Box<Stopped> {
    Box::new(Stopped { stop, step: Some((lane as u32, instruction.ordinal)), waiting: Waiting::Anything })
}
