//! Prepares a plan for a run: unrolls loops, evaluates indices, and assigns addresses in one flat memory.

use std::collections::HashMap;

use weftlink_plan::plan::{Agreement, Buffer, Input, Lane, Node, Op, Output, Step, Wait};
use weftlink_plan::{Affine, Aliasing, Collective, Plan};

use super::Shape;
use super::flat::{CHUNK, Chaos, End, FlatFifo, FlatLane, FlatStep, FlatWait, Malformed, Span, UserBuffers};
use crate::promise::blocks;

/// The largest size of anything; larger plans are refused.
const LIMIT: usize = 100_000;

impl Chaos {
    /// Prepares a plan, proved or not, for a run in a shape.
    pub fn prepare(plan: &Plan, shape: Shape) -> Result<Chaos, Malformed> {
        let ranks = plan.ranks as usize;
        if ranks == 0 || plan.programs.len() != ranks {
            return Err(Malformed::Sizes("the plan does not have one program per rank"));
        }
        let collective = &plan.collective;
        // The root has the most blocks. If the root is not a rank, all ranks have none.
        let most = |of: fn((usize, usize)) -> usize| {
            (0..ranks).map(|rank| of(blocks(collective, ranks, rank))).max()
        };
        let (inputs, mut outputs) =
            (most(|blocks| blocks.0).unwrap_or(0), most(|blocks| blocks.1).unwrap_or(0));
        if *collective == Collective::ExclusiveScan {
            // A single rank gets no result, but its buffer has the usual length.
            outputs = 1;
        }
        let (input, output) = (plan.chunks.input as usize, plan.chunks.output as usize);
        // A barrier has no chunks.
        let chunks = input.checked_div(inputs).or_else(|| output.checked_div(outputs)).unwrap_or(1);
        if chunks == 0 || input != inputs * chunks || output != outputs * chunks {
            return Err(Malformed::Sizes("the number of chunks is not a multiple of the number of blocks"));
        }
        let scratch = plan.chunks.scratch as usize;
        let tiles = shape.tiles as usize;
        let counters = plan.counters as usize;
        if [input, output, scratch, tiles, counters, shape.calls as usize]
            .iter()
            .any(|&size| size > LIMIT / 10)
        {
            return Err(Malformed::Sizes("the plan is too large for this test"));
        }
        let in_place = shape.aliasing == Aliasing::InPlace;
        let mut words = 0;
        let mut take = |size: usize| {
            words += size;
            words - size
        };
        let buffers = (0..ranks).map(|rank| {
            let (inputs, outputs) = blocks(collective, ranks, rank);
            let mut span = |blocks: usize| {
                let numbers = blocks * chunks * CHUNK;
                Span { base: take(tiles * numbers), stride: numbers, numbers }
            };
            // The smaller buffer is the rank's own block of the larger. Messages have no own block: both buffers begin at the same
            // address.
            let messages = matches!(collective, Collective::SendReceive { .. });
            let within = |larger: Span, blocks: usize, own: usize| {
                let is_start = messages || blocks * chunks * CHUNK == larger.numbers;
                let first = if is_start { 0 } else { own * chunks * CHUNK };
                Span { base: larger.base + first, stride: larger.stride, numbers: blocks * chunks * CHUNK }
            };
            let (input, output) = match (in_place && inputs > 0 && outputs > 0, inputs > outputs) {
                (false, _) => (span(inputs), span(outputs)),
                (true, true) => {
                    let input = span(inputs);
                    (input, within(input, outputs, rank))
                }
                (true, false) => {
                    let output = span(outputs);
                    (within(output, inputs, rank), output)
                }
            };
            UserBuffers { input, output, scratch: take(scratch * CHUNK) }
        });
        let buffers = buffers.collect();
        let signals_per_round = vec![0; ranks * counters];
        let mut chaos = Chaos {
            shape,
            ranks,
            collective: collective.clone(),
            same_bits: plan.agreement == Agreement::SameBits,
            chunks,
            counters,
            signals_per_round,
            lanes: vec![],
            fifos: vec![],
            words,
            buffers,
        };
        let mut fifos = HashMap::new();
        for (rank, program) in plan.programs.iter().enumerate() {
            for (lane, written) in program.lanes.iter().enumerate() {
                let mut site =
                    Site { plan, chaos: &mut chaos, fifos: &mut fifos, rank, lane, written, step: 0 };
                let steps = site.unroll()?;
                chaos.lanes.push(FlatLane { rank, lane, steps });
            }
        }
        Ok(chaos)
    }
}

/// A lane in preparation.
struct Site<'a> {
    plan: &'a Plan,
    chaos: &'a mut Chaos,
    /// The FIFO of (from, to, channel).
    fifos: &'a mut HashMap<(usize, usize, usize), usize>,
    rank: usize,
    lane: usize,
    written: &'a Lane,
    step: usize,
}

impl Site<'_> {
    fn unroll(&mut self) -> Result<Vec<FlatStep>, Malformed> {
        let mut steps = Vec::new();
        self.nodes(&self.written.nodes, &mut Vec::new(), &mut steps)?;
        Ok(steps)
    }

    fn nodes(
        &mut self,
        nodes: &[Node],
        at: &mut Vec<i64>,
        steps: &mut Vec<FlatStep>,
    ) -> Result<(), Malformed> {
        for node in nodes {
            match node {
                Node::Step(step) => {
                    if self.step == LIMIT {
                        return Err(Malformed::Sizes("a lane has too many steps for this test"));
                    }
                    steps.push(self.flat(step, at)?);
                    self.step += 1;
                }
                Node::Loop(repeated) if repeated.times as usize > LIMIT => {
                    return Err(Malformed::Sizes("a loop has too many iterations for this test"));
                }
                Node::Loop(repeated) => {
                    for iteration in 0..repeated.times {
                        at.push(i64::from(iteration));
                        self.nodes(&repeated.body, at, steps)?;
                        at.pop();
                    }
                }
            }
        }
        Ok(())
    }

    fn flat(&mut self, step: &Step, at: &[i64]) -> Result<FlatStep, Malformed> {
        let fits = match step.op {
            Op::Sync => step.inputs.is_empty() && step.outputs.is_empty(),
            Op::Copy => step.inputs.len() == 1,
            Op::Reduce => !step.inputs.is_empty(),
        };
        if !fits {
            return Err(Malformed::Arity { rank: self.rank, lane: self.lane, step: self.step });
        }
        Ok(FlatStep {
            waits: step.waits.iter().map(|wait| self.wait(wait, at)).collect::<Result<_, _>>()?,
            inputs: step.inputs.iter().map(|input| self.input(input, at)).collect::<Result<_, _>>()?,
            outputs: step.outputs.iter().map(|output| self.output(output, at)).collect::<Result<_, _>>()?,
            signals: step.signals.iter().map(|&counter| self.signal(counter)).collect::<Result<_, _>>()?,
        })
    }

    fn wait(&self, wait: &Wait, at: &[i64]) -> Result<FlatWait, Malformed> {
        Ok(match wait {
            Wait::Entered { rank } => FlatWait::Entered { rank: self.rank_of(rank, at)? },
            Wait::Reached { rank, counter, count } => {
                let counter = self.counter(self.rank_of(rank, at)?, *counter)?;
                FlatWait::Reached { counter, count: self.index(count, at, LIMIT, "a threshold")? as u64 }
            }
        })
    }

    fn signal(&mut self, counter: u32) -> Result<usize, Malformed> {
        let counter = self.counter(self.rank, counter)?;
        self.chaos.signals_per_round[counter] += 1;
        Ok(counter)
    }

    fn input(&mut self, input: &Input, at: &[i64]) -> Result<End, Malformed> {
        match input {
            Input::Local(place) => self.memory(self.rank, place.buffer, &place.chunk, at),
            Input::Peer(remote) => {
                self.memory(self.peer(&remote.rank, at)?, remote.buffer, &remote.chunk, at)
            }
            Input::Switch(_) => Err(Malformed::Sizes("lower the plan first: chaos has no switch")),
            Input::Received { from } => self.fifo(self.peer(from, at)?, self.rank),
        }
    }

    fn output(&mut self, output: &Output, at: &[i64]) -> Result<End, Malformed> {
        match output {
            Output::Local(place) => self.memory(self.rank, place.buffer, &place.chunk, at),
            Output::Peer(remote) => {
                self.memory(self.peer(&remote.rank, at)?, remote.buffer, &remote.chunk, at)
            }
            Output::Multicast(_) => Err(Malformed::Sizes("lower the plan first: chaos has no switch")),
            Output::Sent { to } => self.fifo(self.rank, self.peer(to, at)?),
        }
    }

    fn memory(&self, rank: usize, buffer: Buffer, chunk: &Affine, at: &[i64]) -> Result<End, Malformed> {
        let buffers = self.chaos.buffers[rank];
        let user = |span: Span| (span.base, span.numbers / CHUNK, span.stride);
        let (start, chunks, stride) = match buffer {
            Buffer::Input => user(buffers.input),
            Buffer::Output => user(buffers.output),
            Buffer::Scratch => (buffers.scratch, self.plan.chunks.scratch as usize, 0),
        };
        let chunk = self.index(chunk, at, chunks, "a chunk")?;
        Ok(End::Memory { base: start + chunk * CHUNK, stride })
    }

    fn fifo(&mut self, from: usize, to: usize) -> Result<End, Malformed> {
        let number = self.written.channel as usize;
        let Some(channel) = self.plan.channels.get(number) else {
            return Err(self.out_of_range("the lane's channel"));
        };
        let depth = channel.depth as usize;
        if depth > LIMIT / 10 {
            return Err(Malformed::Sizes("a channel is too deep for this test"));
        }
        let Chaos { fifos, words, .. } = &mut *self.chaos;
        let fifo = *self.fifos.entry((from, to, number)).or_insert_with(|| {
            fifos.push(FlatFifo { from, to, base: *words, depth });
            *words += depth * CHUNK;
            fifos.len() - 1
        });
        Ok(End::Fifo(fifo))
    }

    fn counter(&self, rank: usize, counter: u32) -> Result<usize, Malformed> {
        let (counter, counters) = (counter as usize, self.chaos.counters);
        if counter < counters { Ok(rank * counters + counter) } else { Err(self.out_of_range("a counter")) }
    }

    fn peer(&self, rank: &Affine, at: &[i64]) -> Result<usize, Malformed> {
        match self.rank_of(rank, at)? {
            own if own == self.rank => {
                Err(Malformed::OwnPeer { rank: self.rank, lane: self.lane, step: self.step })
            }
            peer => Ok(peer),
        }
    }

    fn rank_of(&self, rank: &Affine, at: &[i64]) -> Result<usize, Malformed> {
        self.index(rank, at, self.chaos.ranks, "a rank")
    }

    /// `offset + ((base + Σ by·i) mod modulo)`, if that is below `limit`.
    fn index(
        &self,
        affine: &Affine,
        at: &[i64],
        limit: usize,
        what: &'static str,
    ) -> Result<usize, Malformed> {
        let mut value = i128::from(affine.base);
        for (depth, &iteration) in at.iter().enumerate() {
            let stride = affine.by.get(depth).copied().unwrap_or(0);
            value += i128::from(stride) * i128::from(iteration);
        }
        if let Some(modulo) = affine.modulo.map(i128::from) {
            if modulo == 0 {
                return Err(self.out_of_range(what));
            }
            value = ((value % modulo) + modulo) % modulo;
        }
        value += i128::from(affine.offset);
        if (0..limit as i128).contains(&value) { Ok(value as usize) } else { Err(self.out_of_range(what)) }
    }

    fn out_of_range(&self, what: &'static str) -> Malformed {
        Malformed::OutOfRange { rank: self.rank, lane: self.lane, step: self.step, what }
    }
}
