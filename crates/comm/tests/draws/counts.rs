//! Uneven calls: some that match, then one in which the victim passes a count that differs from its partner's. In ordinary memory, in
//! windows and by single copy; three lengths; with more elements than the partner passes, or fewer.

use weftlink_comm::{Buffers, Communicator, Reduction, Request, Window};
use weftlink_plan::Collective;

use crate::calls::{Outcome, number};
use crate::draw::{Draw, Transport};
use crate::judge::{failure, mentions};
use crate::scenario::Evidence;

/// The bound of the number of rounds before the mismatch.
const ROUNDS_MAX: u64 = 4;
/// The elements of a block, without the mismatch. The longest is shorter in a slow, unoptimised build.
const LENGTHS: [usize; 3] = [10, 10_000, if cfg!(debug_assertions) { 30_000 } else { 300_000 }];

/// A block that one rank sends to another, or to all.
#[derive(Clone, Copy)]
struct Block {
    from: usize,
    to: usize,
    length: usize,
}

/// The uneven calls of a draw.
pub(crate) struct Uneven {
    collective: Collective,
    in_windows: bool,
    length: usize,
    /// The victim's count minus the right one.
    more: isize,
    victim: usize,
    partner: usize,
    /// Whether the victim sends.
    victim_sends: bool,
}

impl Uneven {
    pub(crate) fn new(draw: &Draw) -> Uneven {
        let Draw { way, victim, partner, size, .. } = *draw;
        let victim_sends = (way / 6).is_multiple_of(2);
        let (sender, receiver) = if victim_sends { (victim, partner) } else { (partner, victim) };
        let (sends, receives) = (sender as u32, receiver as u32);
        let collective = match way % 6 {
            0 => Collective::AllToAll,
            1 => Collective::Scatter { root: sends },
            2 => Collective::Gather { root: receives },
            3 => Collective::AllGather,
            4 => Collective::ReduceScatter,
            _ => {
                let ring = (0..size as u32).map(|rank| (rank, (rank + 1) % size as u32));
                let others = ring.filter(|message| *message != (sends, receives));
                Collective::SendReceive {
                    messages: std::iter::once((sends, receives)).chain(others).collect(),
                }
            }
        };
        let length = LENGTHS[(way / 12 % 3) as usize];
        let half = (length / 2) as isize;
        let more = [-1, 1, -half, half][(way / 36 % 4) as usize];
        Uneven { collective, in_windows: memory(draw) == 1, length, more, victim, partner, victim_sends }
    }

    /// The number of calls before the mismatch.
    pub(crate) fn rounds(draw: &Draw) -> usize {
        (draw.way / 1024 % ROUNDS_MAX) as usize
    }

    /// Whether ranks read each other's memory through the kernel.
    pub(crate) fn single_copy(draw: &Draw) -> bool {
        memory(draw) == 2
    }

    /// The victim's and the partner's count in elements, for each direction between them. In calls with both directions an error shows one
    /// of the two.
    fn both(&self) -> [(usize, usize); 2] {
        let ends = [(self.victim, self.partner), (self.partner, self.victim)];
        ends.map(|(from, to)| {
            let right = self.right(from, to);
            (right.wrapping_add_signed(self.more), right)
        })
    }

    /// Windows for input and output, if the calls use windows.
    pub(crate) fn windows(&self, comm: &mut Communicator) -> Result<Option<[Window<i32>; 2]>, Outcome> {
        let length = (comm.size() + 1) * (2 * self.length + 400);
        match self.in_windows {
            true => Ok(Some([comm.window(length)?, comm.window(length)?])),
            false => Ok(None),
        }
    }

    /// Makes a call and checks every value of the result. If `disagrees`, the victim passes the wrong count.
    pub(crate) fn check(
        &self,
        comm: &mut Communicator,
        windows: &mut Option<[Window<i32>; 2]>,
        round: usize,
        disagrees: bool,
    ) -> Result<(), Outcome> {
        let me = comm.rank();
        let more = if disagrees && me == self.victim { self.more } else { 0 };
        let (gives, gets) = (self.gives(me, comm.size(), more), self.gets(me, comm.size(), more));
        let lengths = |blocks: &[Block]| blocks.iter().map(|block| block.length).collect::<Vec<_>>();
        let (sent, received) = (lengths(&gives), lengths(&gets));
        let given: Vec<i32> =
            gives.iter().flat_map(|block| self.values(*block, comm.size(), round)).collect();
        let mut got = vec![-1; received.iter().sum()];
        let reduces = self.collective == Collective::ReduceScatter;
        let run = |comm: &mut Communicator, buffers: Buffers<'_>| {
            let request = Request::new(&self.collective, buffers).counts(&sent, &received);
            comm.run(if reduces { request.operation(Reduction::Sum) } else { request })
        };
        match windows {
            Some([input, output]) => {
                input[..given.len()].copy_from_slice(&given);
                output[..got.len()].fill(-1);
                let buffers = (input.part(0..given.len()), output.part_mut(0..got.len()));
                run(comm, buffers.into())?;
                let length = got.len();
                got.copy_from_slice(&output[..length]);
            }
            None => run(comm, (&given[..], &mut got[..]).into())?,
        }
        let expected: Vec<i32> =
            gets.iter().flat_map(|block| self.expected(*block, comm.size(), round)).collect();
        match got.iter().zip(&expected).position(|(got, expected)| got != expected) {
            Some(place) => {
                let (got, expected, collective) = (got[place], expected[place], &self.collective);
                let what =
                    format!("{collective:?}, round {round}: value {place} is {got} and should be {expected}");
                Err(Outcome::Wrong(what))
            }
            // The receiver of the block with two counts cannot have received all values.
            None if disagrees && me == self.receiver() => {
                Err(Outcome::Wrong(format!("{:?} returned Ok with counts that differ", self.collective)))
            }
            None => Ok(()),
        }
    }

    /// The receiver of the block for which victim and partner pass different counts.
    fn receiver(&self) -> usize {
        match self.collective {
            Collective::AllGather => self.victim,
            Collective::ReduceScatter => self.partner,
            _ if self.victim_sends => self.partner,
            _ => self.victim,
        }
    }

    fn right(&self, from: usize, to: usize) -> usize {
        self.length + (from * 37 + to * 11) % 101
    }

    /// The blocks that a rank passes, in order.
    fn gives(&self, me: usize, size: usize, more: isize) -> Vec<Block> {
        let block = |from: usize, to: usize| {
            let is_wrong = match self.collective {
                Collective::AllGather => false,
                Collective::ReduceScatter => to == self.partner,
                _ => (from, to) == (self.victim, self.partner),
            };
            let more = if is_wrong { more } else { 0 };
            Block { from, to, length: self.right(from, to).wrapping_add_signed(more) }
        };
        match &self.collective {
            Collective::AllToAll => (0..size).map(|to| block(me, to)).collect(),
            Collective::ReduceScatter => (0..size).map(|to| Block { from: me, ..block(0, to) }).collect(),
            Collective::AllGather => vec![block(me, 0)],
            Collective::Scatter { root } if *root as usize == me => {
                (0..size).map(|to| block(me, to)).collect()
            }
            Collective::Gather { root } => vec![block(me, *root as usize)],
            Collective::SendReceive { messages } => {
                let own = messages.iter().filter(|(from, _)| *from as usize == me);
                own.map(|(from, to)| block(*from as usize, *to as usize)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The blocks that a rank receives.
    fn gets(&self, me: usize, size: usize, more: isize) -> Vec<Block> {
        let block = |from: usize, to: usize| {
            let is_wrong = match self.collective {
                Collective::AllGather => from == self.partner,
                Collective::ReduceScatter => false,
                _ => (from, to) == (self.partner, self.victim),
            };
            let more = if is_wrong { more } else { 0 };
            Block { from, to, length: self.right(from, to).wrapping_add_signed(more) }
        };
        match &self.collective {
            Collective::AllToAll => (0..size).map(|from| block(from, me)).collect(),
            Collective::AllGather => (0..size).map(|from| block(from, 0)).collect(),
            Collective::ReduceScatter => vec![block(0, me)],
            Collective::Scatter { root } => vec![block(*root as usize, me)],
            Collective::Gather { root } if *root as usize == me => {
                (0..size).map(|from| block(from, me)).collect()
            }
            Collective::SendReceive { messages } => {
                let own = messages.iter().filter(|(_, to)| *to as usize == me);
                own.map(|(from, to)| block(*from as usize, *to as usize)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The input of a block.
    fn values(&self, Block { from, to, length }: Block, size: usize, round: usize) -> Vec<i32> {
        (0..length).map(|index| number(from * size + to, index, round)).collect()
    }

    /// The right output of a block.
    fn expected(&self, block: Block, size: usize, round: usize) -> Vec<i32> {
        if self.collective != Collective::ReduceScatter {
            return self.values(block, size, round);
        }
        let all: Vec<Vec<i32>> =
            (0..size).map(|from| self.values(Block { from, ..block }, size, round)).collect();
        (0..block.length).map(|index| all.iter().map(|values| values[index]).sum()).collect()
    }
}

/// The memory of the calls: 0 ordinary, 1 windows, 2 ordinary memory that peers read. Between hosts always 0.
fn memory(draw: &Draw) -> u64 {
    if draw.transport == Transport::Shared { draw.way / 144 % 3 } else { 0 }
}

/// All errors name the two ranks, and one of them shows both counts.
pub(crate) fn judge(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let Draw { victim, partner, size, .. } = *draw;
    for rank in 0..size {
        let (text, variant, ..) = failure(&evidence.logs[rank], rank)?;
        // A rank that is loading a plan fails there.
        let aborted_by_peer = matches!(variant, "Aborted" | "Bootstrap")
            && (text.contains("differ") || text.contains("does not match"));
        let is_right = variant == "Mismatch" || aborted_by_peer;
        if !is_right || !mentions(text, victim) && rank != victim {
            return Err(format!("rank {rank} does not show the counts of rank {victim}: {variant}: {text}"));
        }
    }
    let uneven = Uneven::new(draw);
    // Every rank passes all counts of these calls, and ranks compare a hash of them: the error shows the longest of each side.
    if matches!(uneven.collective, Collective::AllGather | Collective::ReduceScatter) {
        return Ok(Vec::new());
    }
    let both = uneven.both();
    let shows = |rank: &usize| {
        let text = evidence.logs[*rank].failure().map_or("", |(text, ..)| text);
        let has = |count: usize| {
            text.split(|letter: char| !letter.is_ascii_digit()).any(|word| word == count.to_string())
        };
        // Calls that only move data count bytes.
        let units = [1, size_of::<i32>()];
        both.iter().any(|(wrong, right)| units.iter().any(|unit| has(wrong * unit) && has(right * unit)))
    };
    match [victim, partner].iter().any(shows) {
        true => Ok(Vec::new()),
        false => Err(format!("neither rank {victim} nor rank {partner} shows both counts of {both:?}")),
    }
}
