//! The users, one per rank: they call, look at what came back, and between calls spoil their buffers.
//!
//! Inputs are random numbers in [1, 2) with full mantissas, different in every place of every call: a contribution
//! that is missing, doubled, stale or from elsewhere shows in the sum, and another order of addition shows in the last
//! bit.

use weftlink_plan::Aliasing;

use super::flat::{CHUNK, Chaos};
use super::outcome::Wrong;
use super::random::mix;

/// What rounding may do to a sum of numbers in [1, 2), relative to it, on as many ranks as tests have.
const TOLERANCE: f64 = 4e-6;

pub(super) struct Users {
    seed: u64,
    users: Vec<User>,
    /// The bits of each number of output, from the first rank that returned it.
    agreed: Vec<Option<u32>>,
}

struct User {
    /// How many calls were entered, and how many have returned.
    entered: u32,
    returned: u32,
    /// How many lanes have finished the call.
    lanes_done: usize,
    lanes: usize,
}

impl Users {
    /// Users before their first call; all memory is garbage.
    pub(super) fn new(chaos: &Chaos, seed: u64, memory: &mut [u32]) -> Self {
        for (address, word) in memory.iter_mut().enumerate() {
            *word = garbage(address, 0);
        }
        let user = |rank| User {
            entered: 0,
            returned: 0,
            lanes_done: 0,
            lanes: chaos.lanes.iter().filter(|lane| lane.rank == rank).count(),
        };
        let shape = chaos.shape;
        let numbers = shape.calls as usize * shape.tiles as usize * chaos.chunks * CHUNK;
        Self { seed, users: (0..chaos.ranks).map(user).collect(), agreed: vec![None; numbers] }
    }

    /// How many calls a rank has entered.
    pub(super) fn entered(&self, rank: usize) -> u32 {
        self.users[rank].entered
    }

    /// A lane of the rank has finished its call.
    pub(super) fn lane_returned(&mut self, rank: usize) {
        self.users[rank].lanes_done += 1;
    }

    pub(super) fn can_run(&self, chaos: &Chaos, rank: usize) -> bool {
        let user = &self.users[rank];
        let inside = user.entered > user.returned;
        if inside { user.lanes_done == user.lanes } else { user.entered < chaos.shape.calls }
    }

    /// Returns from a call if inside one, else enters the next.
    pub(super) fn advance(&mut self, chaos: &Chaos, rank: usize, memory: &mut [u32]) -> Result<(), Wrong> {
        if self.users[rank].entered > self.users[rank].returned {
            self.check(chaos, rank, memory)?;
            self.users[rank].returned += 1;
            self.users[rank].lanes_done = 0;
            for address in self.addresses(chaos, rank) {
                memory[address] = garbage(address, self.users[rank].returned);
            }
        } else {
            self.check_garbage(chaos, rank, memory)?;
            let call = self.users[rank].entered;
            for (index, word) in memory[chaos.buffers[rank].input..][..numbers(chaos)].iter_mut().enumerate()
            {
                *word = self.input(call, rank, index).to_bits();
            }
            self.users[rank].entered += 1;
        }
        Ok(())
    }

    /// Whether the buffers are still as the users left them after the last call.
    pub(super) fn look_again(&self, chaos: &Chaos, memory: &[u32]) -> Result<(), Wrong> {
        (0..chaos.ranks).try_for_each(|rank| self.check_garbage(chaos, rank, memory))
    }

    fn check_garbage(&self, chaos: &Chaos, rank: usize, memory: &[u32]) -> Result<(), Wrong> {
        let returned = self.users[rank].returned;
        let intact = self.addresses(chaos, rank).all(|address| memory[address] == garbage(address, returned));
        if intact { Ok(()) } else { Err(Wrong::BetweenCalls { rank, returned }) }
    }

    fn check(&mut self, chaos: &Chaos, rank: usize, memory: &[u32]) -> Result<(), Wrong> {
        let (buffers, call, numbers) = (chaos.buffers[rank], self.users[rank].returned, numbers(chaos));
        let per_tile = chaos.chunks * CHUNK;
        for index in 0..numbers {
            let bits = memory[buffers.output + index];
            let (tile, within) = ((index / per_tile) as u32, index % per_tile);
            let expected: f64 = (0..chaos.ranks).map(|rank| f64::from(self.input(call, rank, index))).sum();
            let found = f32::from_bits(bits);
            let close = (f64::from(found) - expected).abs() <= expected * TOLERANCE;
            if !close {
                return Err(Wrong::Sum { rank, call, tile, index: within, expected, found });
            }
            let agreed = self.agreed[call as usize * numbers + index].get_or_insert(bits);
            if *agreed != bits {
                return Err(Wrong::Bits { rank, call, tile, index: within });
            }
        }
        if chaos.shape.aliasing == Aliasing::OutOfPlace {
            let mut inputs = memory[buffers.input..][..numbers].iter().enumerate();
            if inputs.any(|(index, &bits)| bits != self.input(call, rank, index).to_bits()) {
                return Err(Wrong::Input { rank, call });
            }
        }
        Ok(())
    }

    /// All of a rank's numbers that belong to the user.
    fn addresses(&self, chaos: &Chaos, rank: usize) -> impl Iterator<Item = usize> + use<> {
        let (buffers, numbers) = (chaos.buffers[rank], numbers(chaos));
        let input = buffers.input..buffers.input + numbers;
        input.chain(buffers.output..buffers.output + numbers)
    }

    fn input(&self, call: u32, rank: usize, index: usize) -> f32 {
        let place = (u64::from(call) << 48) ^ ((rank as u64) << 32) ^ index as u64;
        let mantissa = (mix(mix(self.seed) ^ place) >> 41) as u32;
        f32::from_bits(0x3f80_0000 | mantissa)
    }
}

/// How many numbers each of a rank's user buffers has, over all tiles.
fn numbers(chaos: &Chaos) -> usize {
    chaos.shape.tiles as usize * chaos.chunks * CHUNK
}

/// Not a number, and a different one in every place after every call.
fn garbage(address: usize, returned: u32) -> u32 {
    0x7fc0_0000 | (mix((address as u64) << 32 | u64::from(returned)) >> 42) as u32
}
