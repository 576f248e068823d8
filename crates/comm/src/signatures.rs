//! The calls that a communicator has made, by number: what makes the signatures of different calls differ.
//!
//! Every flag of a call (a message, a counter, a header) carries a 32-bit signature, and a rank that waits compares it with its
//! own. A hash of 32 bits is not enough: two calls with the same hash would take each other's data. So a signature is a number
//! and a hash:
//!
//! ```text
//! bits   31 .. 20              19 .. 0
//!        number of the call    hash of the call
//! ```
//!
//! Each rank numbers the calls that it makes in the order in which they first occur, without communication: all ranks make
//! the same calls in the same order, so all give the same numbers. A call that is not in the table is *new*. Before a new call
//! moves anything, its rank waits until all ranks of its host have announced theirs, and compares the whole calls
//! ([`Header::key`]), not their hashes.
//!
//! **Guarantee.** If a rank finds the signature of its call in a flag of another rank of its host, written for the call of the
//! same number in the communicator, both make the same call. By induction over the calls, with equal tables before each:
//!
//! - Both know their calls: the tables are equal, so the numbers are equal only if the calls are.
//! - One knows its call and the other does not: the new call has a number that no entry of the table has.
//! - Both calls are new: each rank has compared the other's whole call before it reads or writes anything else.
//!
//! The tables stay equal: a call enters a rank's table only after that rank has seen the same call announced by all others, for
//! all of which it was new too; calls leave the table in the order in which they came. A rank whose call was not in the table of
//! another finds the difference itself, and aborts all ranks.
//!
//! Numbers come again after [`NUMBERS`] new calls, when the entries that had them are long gone. Calls that move no data
//! (windows, plans, splits) have the number 0, which no entry has, and are compared whole by the bootstrap.
//!
//! **Between hosts** no rank sees the headers of the others in time. A message there carries 64 bits of hash instead
//! ([`Header::hash`]), mixed with the number of the call, and its length.
//!
//! A key itself contains hashes: of lists of messages, tori and lengths that all ranks know, 63 bits; of plans, 64.

use weftlink_recorder::header::{Header, Key};

/// The number of calls in the table. A training job has as many as gradient buckets.
const TABLE_MAX: usize = 256;
/// Numbers that calls have: from 1 to this.
const NUMBERS: u32 = (1 << NUMBER_BITS) - 1;
const NUMBER_BITS: u32 = 12;
const HASH_BITS: u32 = 32 - NUMBER_BITS;

/// The calls that a rank has compared whole with the other ranks of its host.
#[derive(Debug)]
pub(crate) struct SignatureTable {
    /// Their hashes, which are looked through first, and the calls with their numbers, at the same places.
    hashes: Vec<u64>,
    calls: Vec<(Key, u32)>,
    /// How many calls have been new.
    new: u64,
}

impl SignatureTable {
    pub(crate) fn new() -> Self {
        Self { hashes: Vec::with_capacity(TABLE_MAX), calls: Vec::with_capacity(TABLE_MAX), new: 0 }
    }

    /// The signature of a call, and whether it is new.
    pub(crate) fn signature(&self, header: &Header, hash: u64) -> (u32, bool) {
        let key = header.key();
        let places = (0..).zip(&self.hashes).filter(|(_, known)| **known == hash);
        let found = places.map(|(place, _): (usize, _)| self.calls[place]).find(|(known, _)| *known == key);
        let number = found.map_or(self.next(), |(_, number)| number);
        (number << HASH_BITS | hashed(header), found.is_none())
    }

    /// Adds a new call, which all ranks of the host have announced.
    pub(crate) fn add(&mut self, header: &Header, hash: u64) {
        let call = (header.key(), self.next());
        if self.calls.len() < TABLE_MAX {
            self.hashes.push(hash);
            self.calls.push(call);
        } else {
            let place = (self.new % TABLE_MAX as u64) as usize;
            (self.hashes[place], self.calls[place]) = (hash, call);
        }
        self.new += 1;
    }

    /// The number of the next call that is new.
    fn next(&self) -> u32 {
        1 + (self.new % u64::from(NUMBERS)) as u32
    }
}

/// The signature of a call that moves no data.
pub(crate) fn unnumbered(header: &Header) -> u32 {
    hashed(header)
}

fn hashed(header: &Header) -> u32 {
    header.signature() & ((1 << HASH_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Elements;
    use weftlink_recorder::header::CallKind;

    fn call(count: usize) -> Header {
        Header::allocating(CallKind::Collective(0), 0, count, Elements::of::<f32>().announced())
    }

    /// Makes a call, and gives its signature and whether it was new.
    fn make(known: &mut SignatureTable, header: &Header) -> (u32, bool) {
        let (signature, is_new) = known.signature(header, header.hash());
        if is_new {
            known.add(header, header.hash());
        }
        (signature, is_new)
    }

    #[test]
    fn known_calls_have_distinct_signatures() {
        let mut known = SignatureTable::new();
        // Counts that are 2^20 apart have the same hash in a signature.
        let calls: Vec<Header> = (0..TABLE_MAX).map(|number| call(number << HASH_BITS)).collect();
        let first: Vec<_> = calls.iter().map(|header| make(&mut known, header)).collect();
        assert!(first.iter().all(|(_, is_new)| *is_new));
        let again: Vec<_> = calls.iter().map(|header| make(&mut known, header)).collect();
        assert!(again.iter().zip(&first).all(|(again, first)| *again == (first.0, false)));
        let mut signatures: Vec<u32> = first.into_iter().map(|(signature, _)| signature).collect();
        signatures.extend([make(&mut known, &call(7 << 40)).0, unnumbered(&calls[0])]);
        signatures.sort_unstable();
        signatures.dedup();
        assert_eq!(signatures.len(), TABLE_MAX + 2);
    }

    #[test]
    fn the_oldest_call_is_evicted_first() {
        let mut known = SignatureTable::new();
        for round in 0..3 {
            for count in 0..=TABLE_MAX {
                assert!(make(&mut known, &call(count)).1, "count {count} of round {round}");
            }
            assert!(!make(&mut known, &call(1)).1 && !make(&mut known, &call(TABLE_MAX)).1);
        }
    }

    #[test]
    fn hash_collisions_are_distinguished() {
        let mut known = SignatureTable::new();
        known.add(&call(1), 5);
        known.add(&call(2), 5);
        let [one, two] = [1, 2].map(|count| known.signature(&call(count), 5));
        assert!(!one.1 && !two.1 && one.0 >> HASH_BITS != two.0 >> HASH_BITS);
        assert!(known.signature(&call(3), 5).1);
    }
}
