//! Running lanes: what each step waits for, and which lane goes on.

use super::ends::{Ends, ReceiveEnd};
use super::step::words_of;
use super::{Run, Stopped, Tracer, Waiting};
use crate::compile::{Instruction, Source, Target, WaitFor};
use crate::counter::Counter;
use crate::line::Poll;

/// Where a lane is.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    tile: usize,
    next: usize,
}

impl Ends {
    /// Runs all tiles of a call.
    #[inline]
    pub(super) fn run(&mut self, run: &Run<'_>, tracer: &mut impl Tracer) -> Result<(), Box<Stopped>> {
        self.begin(run.call);
        let ran =
            if self.lanes.len() == 1 { self.run_lane(run, tracer) } else { self.run_lanes(run, tracer) };
        self.round = self.round.wrapping_add(run.program.tiles as u32);
        ran
    }

    /// The only lane: each wait is a wait.
    #[inline]
    fn run_lane(&mut self, run: &Run<'_>, tracer: &mut impl Tracer) -> Result<(), Box<Stopped>> {
        for tile in 0..run.program.tiles {
            let start = run.program.start(tile);
            for instruction in &run.program.tile(tile).lanes[0] {
                self.wait_for_step(run, tile, instruction)?;
                tracer.step(0, tile as u32, instruction.ordinal);
                self.take_step(run, instruction, start);
            }
        }
        Ok(())
    }

    /// Several lanes: takes from each what is ready, and waits when nothing is.
    fn run_lanes(&mut self, run: &Run<'_>, tracer: &mut impl Tracer) -> Result<(), Box<Stopped>> {
        self.lanes.fill(Cursor::default());
        loop {
            let mut running = false;
            let waited = run.shared.waiter.wait_doubting(
                None,
                || {
                    let mut progress = Poll::Pending;
                    running = false;
                    for lane in 0..self.lanes.len() {
                        match self.run_ready(run, lane, tracer) {
                            Poll::Pending => {}
                            Poll::Ready => progress = Poll::Ready,
                            mismatch => return mismatch,
                        }
                        running |= self.lanes[lane].tile < run.program.tiles;
                    }
                    if running { progress } else { Poll::Ready }
                },
                || run.shared.doubt(run.call),
            );
            waited.map_err(|stop| Box::new(Stopped { stop, step: None, waiting: Waiting::Anything }))?;
            if !running {
                return Ok(());
            }
        }
    }

    /// Takes the steps of a lane that need not wait.
    fn run_ready(&mut self, run: &Run<'_>, lane: usize, tracer: &mut impl Tracer) -> Poll {
        let mut progress = Poll::Pending;
        while self.lanes[lane].tile < run.program.tiles {
            let Cursor { tile, next } = self.lanes[lane];
            let Some(instruction) = run.program.tile(tile).lanes[lane].get(next) else {
                self.lanes[lane] = Cursor { tile: tile + 1, next: 0 };
                progress = Poll::Ready;
                continue;
            };
            match self.poll_step(run, tile, instruction) {
                Poll::Ready => {}
                Poll::Pending => return progress,
                mismatch => return mismatch,
            }
            tracer.step(lane as u32, tile as u32, instruction.ordinal);
            self.take_step(run, instruction, run.program.start(tile));
            self.lanes[lane].next += 1;
            progress = Poll::Ready;
        }
        progress
    }

    /// Waits for everything a step needs, one after the other.
    #[inline]
    fn wait_for_step(
        &mut self,
        run: &Run<'_>,
        tile: usize,
        instruction: &Instruction,
    ) -> Result<(), Box<Stopped>> {
        let stopped =
            |stop, waiting| Box::new(Stopped { stop, step: Some((0, instruction.ordinal)), waiting });
        for wait in &instruction.waits {
            let (counter, waiting) = self.awaited(run, wait);
            let poll = || self.poll_wait(run, tile, wait);
            let doubt = || run.shared.doubt(run.call);
            let waited = run.shared.waiter.wait_doubting(Some(counter.line()), poll, doubt);
            waited.map_err(|stop| stopped(stop, waiting))?;
        }
        for source in &instruction.sources {
            let (Source::Slot(end) | Source::Packet(end)) = *source else { continue };
            let receiver = &mut self.receivers[end as usize];
            let (line, from) = (receiver.fifo.arrival_line(), receiver.from);
            let poll = || receiver.poll(source, run.call.signature, instruction.length);
            let waited = run.shared.waiter.wait_doubting(Some(line), poll, || run.shared.doubt(run.call));
            waited.map_err(|stop| stopped(stop, Waiting::Message { from }))?;
        }
        for target in &instruction.targets {
            let (Target::Slot(end) | Target::Packet(end)) = *target else { continue };
            let sender = &mut self.senders[end as usize];
            let (line, to) = (sender.fifo.credit_line(), sender.to);
            let poll = || if sender.fifo.has_credit() { Poll::Ready } else { Poll::Pending };
            let waited = run.shared.waiter.wait_doubting(Some(line), poll, || run.shared.doubt(run.call));
            waited.map_err(|stop| stopped(stop, Waiting::Slot { to }))?;
        }
        Ok(())
    }

    /// Whether everything a step needs is there.
    fn poll_step(&mut self, run: &Run<'_>, tile: usize, instruction: &Instruction) -> Poll {
        for wait in &instruction.waits {
            match self.poll_wait(run, tile, wait) {
                Poll::Ready => {}
                other => return other,
            }
        }
        for source in &instruction.sources {
            let (Source::Slot(end) | Source::Packet(end)) = *source else { continue };
            match self.receivers[end as usize].poll(source, run.call.signature, instruction.length) {
                Poll::Ready => {}
                other => return other,
            }
        }
        for target in &instruction.targets {
            let (Target::Slot(end) | Target::Packet(end)) = *target else { continue };
            if !self.senders[end as usize].fifo.has_credit() {
                return Poll::Pending;
            }
        }
        Poll::Ready
    }

    #[inline]
    fn poll_wait(&self, run: &Run<'_>, tile: usize, wait: &WaitFor) -> Poll {
        match *wait {
            WaitFor::Entered { rank } => {
                run.shared.headers[rank as usize].poll(run.call.number, run.call.signature, run.call.number)
            }
            WaitFor::Reached { rank, counter, count, per_tile } => {
                // Sequences wrap, and products of wrapped numbers are the wrapped products.
                let at = |tiles: usize| self.round.wrapping_add(tiles as u32).wrapping_mul(per_tile);
                let counter = self.counters[rank as usize * self.counters_per_rank + counter as usize];
                counter.poll(at(tile).wrapping_add(count), run.call.signature, at(run.program.tiles))
            }
        }
    }

    fn awaited(&self, run: &Run<'_>, wait: &WaitFor) -> (Counter<'static>, Waiting) {
        match *wait {
            WaitFor::Entered { rank } => (run.shared.headers[rank as usize], Waiting::Entered { rank }),
            WaitFor::Reached { rank, counter, .. } => {
                let position = rank as usize * self.counters_per_rank + counter as usize;
                (self.counters[position], Waiting::Reached { rank, counter })
            }
        }
    }
}

impl ReceiveEnd {
    /// Whether the next message is there; takes a packet's payload out of its lines if it is.
    #[inline]
    fn poll(&mut self, source: &Source, signature: u32, length: usize) -> Poll {
        match source {
            Source::Packet(_) => self.fifo.take_packet(signature, &mut self.packet[..words_of(length)]),
            _ => self.fifo.poll(signature),
        }
    }
}
