//! Where the chunks of a plan lie in the buffers of a call, and how long they are. Executors share these rules.

use crate::collective::Promise;
use crate::domain::chunks::Origin;
use crate::plan::{Aliasing, Buffer, Plan};
use crate::{Collective, Cut};

/// The lengths of the blocks of a call, in elements, and the size of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Whether input and output are one buffer.
    pub aliasing: Aliasing,
    /// The bytes of an element.
    pub element_bytes: usize,
    /// Of every block; of the longest block of any rank if they are uneven.
    pub count: usize,
    /// Of each block of this rank's input and output, if they are uneven.
    pub uneven: Option<Box<Lengths>>,
}

/// The lengths of blocks that one rank knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of each block of its input.
    pub input: Vec<usize>,
    /// Of each block of its output.
    pub output: Vec<usize>,
}

impl Lengths {
    /// The elements of a rank's block, as far as the rank that has these lengths can know.
    pub fn of(
        &self,
        collective: &Collective,
        ranks: u32,
        me: u32,
        (rank, buffer, block): (u32, Buffer, u32),
    ) -> Option<usize> {
        // What lies in an output came from an input.
        let (rank, block) = match buffer {
            Buffer::Input | Buffer::Scratch => (rank, block),
            Buffer::Output => match collective.promise(rank, ranks, block)? {
                Promise::Copy { rank, block } => (rank, block),
                Promise::Reduction { block, .. } => (me, block),
            },
        };
        let is_mine = rank == me || collective.reduces();
        let own = self.input.get(block as usize).filter(|_| is_mine).copied();
        let got = || {
            let is_it = |number: &u32| match collective.promise(me, ranks, *number) {
                Some(Promise::Copy { rank: from, block: of }) => (from, of) == (rank, block),
                Some(Promise::Reduction { block: of, .. }) => of == block,
                None => false,
            };
            let number = (0..collective.gets(me, ranks)).find(is_it)?;
            self.output.get(number as usize).copied()
        };
        own.or_else(got)
    }
}

/// The chunks of a plan in the buffers of one call, as one rank knows them.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The rank.
    pub rank: u32,
    /// The lengths of its blocks.
    pub shape: &'a Shape,
    /// Chunks begin at multiples of this many elements of their block.
    pub granule: usize,
    /// The most elements of a chunk in a tile; nothing for a call in a single tile.
    pub chunk_max: Option<usize>,
}

impl Blocks<'_> {
    /// How a block of `count` elements is cut.
    pub fn cut(&self, count: usize) -> Cut {
        let chunks = self.plan.chunks_per_block();
        match self.chunk_max {
            Some(chunk_max) => Cut::new(count, chunks, self.granule, chunk_max),
            None => Cut::whole(count, chunks, self.granule),
        }
    }

    /// How the longest block is cut.
    pub fn longest(&self) -> Cut {
        self.cut(self.shape.count)
    }

    /// The elements from the start of a rank's buffer, at the start of a tile, to a chunk; nothing if only other ranks know. Not for
    /// scratch, whose chunks the executor places.
    pub fn start(&self, tile: usize, rank: u32, buffer: Buffer, chunk: u32) -> Option<usize> {
        let per_block = self.plan.chunks_per_block();
        let (block, index) = (chunk / per_block, (chunk % per_block) as usize);
        let before = (0..block).map(|earlier| self.block(rank, buffer, earlier)).sum::<Option<usize>>()?;
        let cut = self.cut(self.block(rank, buffer, block)?);
        // A block may have ended before the tile starts; nothing of it is touched then.
        let within = cut.range(tile, index).start.saturating_sub(tile * self.longest().tile_max());
        Some(before + within)
    }

    /// The elements of an input chunk in a tile; nothing if only other ranks know.
    pub fn length(&self, tile: usize, Origin { rank, chunk }: Origin) -> Option<usize> {
        let per_block = self.plan.chunks_per_block();
        let block = self.block(rank, Buffer::Input, chunk / per_block)?;
        Some(self.cut(block).range(tile, (chunk % per_block) as usize).len())
    }

    fn block(&self, rank: u32, buffer: Buffer, block: u32) -> Option<usize> {
        let Some(lengths) = &self.shape.uneven else { return Some(self.shape.count) };
        lengths.of(&self.plan.collective, self.plan.ranks, self.rank, (rank, buffer, block))
    }
}
