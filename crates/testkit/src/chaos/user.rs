//! The users, one per rank: they make calls, check the results, and overwrite their buffers between calls.
//!
//! Inputs are random numbers in [1, 2) with full mantissas, different in every place of every call: a contribution
//! that is missing, doubled, stale or from elsewhere shows in the sum, and another order of addition shows in the last
//! bit.

use std::collections::HashMap;

use weftlink_plan::{Aliasing, Collective};

use super::flat::{CHUNK, Chaos};
use super::outcome::Wrong;
use crate::promise::parts;
use crate::random::mix;

/// The largest relative rounding error of a sum of numbers in [1, 2), on as many ranks as tests have.
const TOLERANCE: f64 = 4e-6;

pub(super) struct Users {
    seed: u64,
    users: Vec<User>,
    /// The bits of each result on the first rank that returned it, by call, tile and position. All ranks must agree.
    agreed: HashMap<(u32, u32, usize), u32>,
}

struct User {
    /// Calls entered, and calls returned.
    entered: u32,
    returned: u32,
    /// Lanes that have finished the call.
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
        Self { seed, users: (0..chaos.ranks).map(user).collect(), agreed: HashMap::new() }
    }

    /// The number of calls that a rank has entered.
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
            for (tile, at, address) in chaos.buffers[rank].input.addresses(chaos.shape.tiles) {
                memory[address] = self.input(call, rank, tile, at).to_bits();
            }
            self.users[rank].entered += 1;
        }
        Ok(())
    }

    /// Checks that nothing has written to the buffers since the last call.
    pub(super) fn check_after_calls(&self, chaos: &Chaos, memory: &[u32]) -> Result<(), Wrong> {
        (0..chaos.ranks).try_for_each(|rank| self.check_garbage(chaos, rank, memory))
    }

    fn check_garbage(&self, chaos: &Chaos, rank: usize, memory: &[u32]) -> Result<(), Wrong> {
        let returned = self.users[rank].returned;
        let intact = self.addresses(chaos, rank).all(|address| memory[address] == garbage(address, returned));
        if intact { Ok(()) } else { Err(Wrong::BetweenCalls { rank, returned }) }
    }

    fn check(&mut self, chaos: &Chaos, rank: usize, memory: &[u32]) -> Result<(), Wrong> {
        let (buffers, call, tiles) = (chaos.buffers[rank], self.users[rank].returned, chaos.shape.tiles);
        let is_missing = |other: &usize| self.users[*other].entered <= call;
        if chaos.collective == Collective::Barrier
            && let Some(other) = (0..chaos.ranks).find(is_missing)
        {
            return Err(Wrong::Early { rank, call, other });
        }
        let block = chaos.chunks * CHUNK;
        for (tile, index, address) in buffers.output.addresses(tiles) {
            let bits = memory[address];
            let parts = parts(&chaos.collective, chaos.ranks, rank, index / block);
            let value =
                |&(from, of): &(usize, usize)| self.input(call, from, tile, of * block + index % block);
            let expected: f64 = parts.iter().map(|part| f64::from(value(part))).sum();
            let found = f32::from_bits(bits);
            let close = match parts.as_slice() {
                [copy] => value(copy).to_bits() == bits,
                _ => (f64::from(found) - expected).abs() <= expected * TOLERANCE,
            };
            if !close {
                return Err(Wrong::Sum { rank, call, tile, index, expected, found });
            }
            if chaos.same_bits
                && chaos.collective == Collective::AllReduce
                && *self.agreed.entry((call, tile, index)).or_insert(bits) != bits
            {
                return Err(Wrong::Bits { rank, call, tile, index });
            }
        }
        if chaos.shape.aliasing == Aliasing::OutOfPlace {
            let changed = |(tile, at, address): (u32, usize, usize)| {
                memory[address] != self.input(call, rank, tile, at).to_bits()
            };
            if buffers.input.addresses(tiles).any(changed) {
                return Err(Wrong::Input { rank, call });
            }
        }
        Ok(())
    }

    /// The addresses of a rank's user buffers.
    fn addresses(&self, chaos: &Chaos, rank: usize) -> impl Iterator<Item = usize> + use<> {
        let (buffers, tiles) = (chaos.buffers[rank], chaos.shape.tiles);
        buffers.input.addresses(tiles).chain(buffers.output.addresses(tiles)).map(|(_, _, address)| address)
    }

    fn input(&self, call: u32, rank: usize, tile: u32, at: usize) -> f32 {
        let place = (u64::from(call) << 48) ^ ((rank as u64) << 32) ^ (u64::from(tile) << 20) ^ at as u64;
        let mantissa = (mix(mix(self.seed) ^ place) >> 41) as u32;
        f32::from_bits(0x3f80_0000 | mantissa)
    }
}

/// A NaN that differs by address and call.
fn garbage(address: usize, returned: u32) -> u32 {
    0x7fc0_0000 | (mix((address as u64) << 32 | u64::from(returned)) >> 42) as u32
}
