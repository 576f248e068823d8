//! Inputs and checks of a row on a GPU: the patterns of the CPU's rows, as bytes. The GPU repeats a pattern over a block by itself; results
//! are compared on the host.

use weftlink_cuda::Error;
use weftlink_cuda::ranks::{Call, Ranks, Side};
use weftlink_plan::Aliasing;
use weftlink_plan::collective::Promise;

use crate::bench::data::{Origin, Pattern, Unit, period};
use crate::bench::job::Case;

/// What is only written is filled with this.
const POISON: [u8; 4096] = [u8::POISON; 4096];

/// The data of a row.
pub(super) struct Data {
    period_bytes: usize,
    block_bytes: usize,
    /// By rank and block.
    inputs: Vec<Vec<Pattern<u8>>>,
    outputs: Vec<Vec<Pattern<u8>>>,
    /// Checks so far: each has other data.
    phase: usize,
}

impl Data {
    pub(super) fn new(case: &Case, count: usize, ranks: usize, salt: u64) -> Self {
        let collective = &case.collective;
        let (gives, gets) = collective.blocks(ranks as u32);
        let period = period(count, gives.max(gets) as usize);
        let origin = Origin { ranks, salt, data_type: case.data_type, op: case.op, period };
        let input = |rank: u32| {
            let blocks = 0..collective.gives(rank, ranks as u32) as usize;
            blocks.map(|block| Pattern::input(&origin, rank as usize, block)).collect()
        };
        let promised = |rank: u32, block: u32| match collective.promise(rank, ranks as u32, block)? {
            Promise::Copy { rank, block } => Some(Pattern::input(&origin, rank as usize, block as usize)),
            Promise::Reduction { block, below } => {
                Some(Pattern::reduced(&origin, case.op?, below as usize, block as usize))
            }
        };
        let output = |rank: u32| {
            let blocks = 0..collective.gets(rank, ranks as u32);
            blocks.filter_map(|block| promised(rank, block)).collect()
        };
        let element = case.data_type.bytes();
        Self {
            period_bytes: period * element,
            block_bytes: count * element,
            inputs: (0..ranks as u32).map(input).collect(),
            outputs: (0..ranks as u32).map(output).collect(),
            phase: 0,
        }
    }

    /// Writes new inputs, and poison wherever only the call writes.
    pub(super) fn fill(&mut self, ranks: &mut Ranks, call: &Call) -> Result<(), Error> {
        self.phase += 1;
        for rank in 0..self.inputs.len() {
            let (gives, gets) = (self.inputs[rank].len(), self.outputs[rank].len());
            let in_place = call.aliasing == Aliasing::InPlace;
            let written = if in_place { gives.max(gets) } else { gets };
            ranks.fill(rank, Side::Output, 0, written * self.block_bytes, &POISON)?;
            let [input_at, _] = self.starts(call, rank);
            let side = if in_place { Side::Output } else { Side::Input };
            for (block, pattern) in self.inputs[rank].iter().enumerate() {
                let mut bytes = vec![0; self.period_bytes.min(self.block_bytes)];
                pattern.fill(&mut bytes, self.phase);
                let offset = (input_at + block) * self.block_bytes;
                ranks.fill(rank, side, offset, self.block_bytes, &bytes)?;
            }
        }
        Ok(())
    }

    /// The elements of all ranks' results that are wrong.
    pub(super) fn wrong(&self, ranks: &mut Ranks, call: &Call) -> Result<u64, Error> {
        let blocks = self.outputs.iter().map(Vec::len).max().unwrap_or(0);
        let mut wrong = 0;
        for block in 0..blocks {
            let range = |(rank, outputs): (usize, &Vec<Pattern<u8>>)| {
                let start = (self.starts(call, rank)[1] + block) * self.block_bytes;
                start..start + if block < outputs.len() { self.block_bytes } else { 0 }
            };
            let ranges: Vec<_> = self.outputs.iter().enumerate().map(range).collect();
            let compare =
                |rank: usize, _: usize, part: &[u8]| self.outputs[rank][block].wrong(part, self.phase);
            wrong += ranks.read(&ranges, self.period_bytes, compare)?;
        }
        Ok(wrong)
    }

    /// The blocks at which a rank's input and output begin in their buffers.
    fn starts(&self, call: &Call, rank: usize) -> [usize; 2] {
        let has_both = !self.inputs[rank].is_empty() && !self.outputs[rank].is_empty();
        if call.aliasing == Aliasing::InPlace && has_both {
            weftlink_cuda::in_one_buffer(call.plan.collective(), rank as u32).map(|block| block as usize)
        } else {
            [0, 0]
        }
    }
}
