//! Calls whose blocks differ in length: ranks compare the lengths before any data moves.
//!
//! A rank states the lengths of its own input and output blocks. Two ranks must agree on every block that goes from one to the other, in
//! length and in type, or one of them would keep stale bytes or lose some. Such a call begins with small calls that exchange the counts
//! and the longest block:
//!
//! - *all-to-all, send-receive, neighbours*: an all-to-all. Every rank sends every other what it sends to it and expects from it. Both
//!   ranks of a pair that disagrees find that out.
//! - *gather, scatter*: a gather to the root, which compares, and a broadcast of the result. All ranks get the same error.
//! - *all-gather, reduce-scatter*: nothing. All ranks state all lengths, which are part of the call's signature.
//!
//! These calls have equal blocks of a few words, take the path of small calls, and work in any memory and between hosts. Only ranks whose
//! counts agree announce the call itself: ranks that disagree have moved nothing, and their buffers are unchanged. The communicator
//! fails, as after any mismatch.
//!
//! Groups of messages ([`group`](super::group)) have exchanged all lengths before, and do not compare them again.

use weftlink_bootstrap::{Blame, BlameKind, Failure, Reason};
use weftlink_plan::collective::{Promise, neighbour};
use weftlink_plan::{Collective, DataType};
use weftlink_recorder::header::COUNTS;
use weftlink_recorder::header::kind;
use weftlink_shm::wait::AbortCode;

use super::Communicator;
use super::check::Fitted;
use crate::compile::Lengths;
use crate::data::Elements;
use crate::engine::Silent;
use crate::error::Error;
use crate::request::CallArgs;

/// The words before the counts of a rank: the longest of its blocks, and the type of its elements.
const FIRST: usize = 2;

/// A block on whose length or type its two ranks disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disagreement {
    from: usize,
    to: usize,
    /// Elements and their type.
    sent: (u64, u64),
    expected: (u64, u64),
}

impl Communicator {
    /// Compares the lengths of a call's blocks with the other ranks, and returns the longest block of any rank.
    #[cold]
    pub(super) fn compare_counts(&mut self, request: &CallArgs<'_>) -> Result<usize, Error> {
        // Check this rank's own arguments before anything is sent.
        let (fitted, ..) = self.check_own(request)?;
        let Some(lengths) = &fitted.shape.uneven else { return Ok(fitted.shape.count) };
        let longest = match request.collective {
            Collective::AllGather | Collective::ReduceScatter => Ok(Ok(fitted.shape.count)),
            Collective::Gather { root } => self.compare_with_root(request, &fitted, lengths, *root as usize),
            Collective::Scatter { root } => self.compare_with_root(request, &fitted, lengths, *root as usize),
            _ => self.compare_with_each(request, &fitted, lengths),
        };
        longest?.map_err(|disagreement| self.disagree(request.collective, disagreement))
    }

    /// Every rank compares with every other the blocks between them.
    fn compare_with_each(
        &mut self,
        request: &CallArgs<'_>,
        fitted: &Fitted,
        lengths: &Lengths,
    ) -> Result<Result<usize, Disagreement>, Error> {
        let (rank, size) = (self.rank, self.size);
        let elements = Scale::of(request, fitted);
        let pairs = Pairs::of(request.collective, rank as u32, size as u32, lengths);
        let mut own = vec![0_u64; size * (FIRST + 2 * pairs.messages_max)];
        let mut received = own.clone();
        let words = FIRST + 2 * pairs.messages_max;
        for (other, block) in own.chunks_exact_mut(words).enumerate() {
            (block[0], block[1]) = (fitted.shape.count as u64, elements.code);
            let (sent, expected) = block[FIRST..].split_at_mut(pairs.messages_max);
            let fill = |words: &mut [u64], lengths: &[usize]| {
                words.iter_mut().zip(lengths).for_each(|(word, length)| *word = elements.count(*length));
            };
            fill(sent, &pairs.sent[other]);
            fill(expected, &pairs.expected[other]);
        }
        let call = CallArgs::new(&Collective::AllToAll, (&own[..], &mut received[..]));
        self.perform(CallArgs { tag: COUNTS | u32::from(kind(request.collective)), ..call }, &mut Silent)?;
        let mut longest = 0;
        for (other, (mine, theirs)) in own.chunks_exact(words).zip(received.chunks_exact(words)).enumerate() {
            longest = longest.max(theirs[0]);
            let (sent, expected) = mine[FIRST..].split_at(pairs.messages_max);
            let (their_sent, their_expected) = theirs[FIRST..].split_at(pairs.messages_max);
            let differs = |count: usize, sent: (&[u64], u64), expected: (&[u64], u64)| {
                let ends = (0..count).map(|at| ((sent.0[at], sent.1), (expected.0[at], expected.1)));
                ends.into_iter().find(|(sent, expected)| sent != expected)
            };
            // Both sides compare the block of the lower rank first.
            let outward = || {
                let found = differs(pairs.sent[other].len(), (sent, mine[1]), (their_expected, theirs[1]));
                found.map(|(sent, expected)| Disagreement { from: rank, to: other, sent, expected })
            };
            let inward = || {
                let found =
                    differs(pairs.expected[other].len(), (their_sent, theirs[1]), (expected, mine[1]));
                found.map(|(sent, expected)| Disagreement { from: other, to: rank, sent, expected })
            };
            let found = if rank <= other { outward().or_else(inward) } else { inward().or_else(outward) };
            if let Some(disagreement) = found {
                return Ok(Err(disagreement));
            }
        }
        Ok(Ok(longest as usize))
    }

    /// The root compares with each rank, and broadcasts the result.
    fn compare_with_root(
        &mut self,
        request: &CallArgs<'_>,
        fitted: &Fitted,
        lengths: &Lengths,
        root: usize,
    ) -> Result<Result<usize, Disagreement>, Error> {
        let elements = Scale::of(request, fitted);
        let gathers = matches!(request.collective, Collective::Gather { .. });
        let (own, all) = match gathers {
            true => (&lengths.input, &lengths.output),
            false => (&lengths.output, &lengths.input),
        };
        let own = own.first().copied().unwrap_or(0);
        let row = [[fitted.shape.count as u64, elements.code, elements.count(own)]];
        let tag = COUNTS | u32::from(kind(request.collective));
        let root_rank = root as u32;
        // The longest block, whether a rank disagrees, which rank, and the counts and types of both.
        let mut found = [0_u64; 7];
        if self.rank == root {
            let mut received = vec![[0_u64; 3]; self.size];
            let gather = Collective::Gather { root: root_rank };
            let call = CallArgs::new(&gather, (&row[..], &mut received[..]));
            self.perform(CallArgs { tag, ..call }, &mut Silent)?;
            found[0] = received.iter().map(|received| received[0]).max().unwrap_or(0);
            let differs = |(_, (received, mine)): &(usize, (&[u64; 3], &usize))| {
                (received[1], received[2]) != (elements.code, elements.count(**mine))
            };
            if let Some((other, (theirs, mine))) = received.iter().zip(all).enumerate().find(differs) {
                found[1..].copy_from_slice(&[
                    1,
                    other as u64,
                    theirs[2],
                    theirs[1],
                    elements.count(*mine),
                    elements.code,
                ]);
            }
        } else {
            let gather = Collective::Gather { root: root_rank };
            let call = CallArgs::new(&gather, &row[..]);
            self.perform(CallArgs { tag, ..call }, &mut Silent)?;
        }
        let broadcast = Collective::Broadcast { root: root_rank };
        self.perform(CallArgs { tag, ..CallArgs::new(&broadcast, &mut found[..]) }, &mut Silent)?;
        let [longest, differs, other, its_count, its_type, count, code] = found;
        if differs == 0 {
            return Ok(Ok(longest as usize));
        }
        let (its, roots, other) = ((its_count, its_type), (count, code), other as usize);
        Ok(Err(match gathers {
            true => Disagreement { from: other, to: root, sent: its, expected: roots },
            false => Disagreement { from: root, to: other, sent: roots, expected: its },
        }))
    }

    /// Aborts a call whose counts do not match, on all ranks.
    #[cold]
    fn disagree(&mut self, collective: &Collective, disagreement: Disagreement) -> Error {
        let Disagreement { from, to, sent, expected } = disagreement;
        let name = collective.name();
        let sends = format!("{name} sending {} to rank {to}", described(sent));
        let expects = format!("{name} expecting {} from rank {from}", described(expected));
        let call = self.calls.wrapping_add(1);
        let [from, to] = [from, to].map(|rank| rank as u32);
        // The other ranks cannot know which of the two is wrong.
        let blamed = [from, to].map(|rank| self.bootstrap.blame(rank, BlameKind::Differs)).to_vec();
        let differ = |(rank, mine), (other, theirs): (&Blame, _)| Error::Mismatch {
            call,
            rank,
            mine,
            other: other.clone(),
            theirs,
        };
        let (rank, reason) = (self.rank as u32, Reason::Counts.code());
        let error = match rank == from {
            true => differ((from, sends), (&blamed[1], expects)),
            false => differ((to, expects), (&blamed[0], sends)),
        };
        let failure = Failure { blamed, ..Failure::from(&error) };
        let first = self.shared.waiter.abort(AbortCode { rank, reason });
        self.bootstrap.give_up(&failure, first.rank, first.reason.get());
        let error = match rank == from || rank == to {
            true => error,
            false => {
                let (by, reason) = (first.rank, Reason::name(first.reason));
                let Failure { why: cause, blamed, .. } = failure;
                Error::Aborted { call, rank, by, reason, cause, blamed }
            }
        };
        self.note_failure(Failure::from(&error));
        error
    }
}

/// Lengths in elements of the caller's type.
struct Scale {
    /// The type of an element.
    code: u64,
    /// Internal units per element.
    per_element: usize,
}

impl Scale {
    fn of(request: &CallArgs<'_>, fitted: &Fitted) -> Self {
        let Elements { bytes, data_type, .. } = request.buffers.elements;
        let known = data_type.map_or(0, |data_type| data_type as u64 + 1);
        Self { code: known << 48 | bytes as u64, per_element: (bytes / fitted.elements.bytes).max(1) }
    }

    fn count(&self, length: usize) -> u64 {
        (length / self.per_element) as u64
    }
}

/// A number of elements and their type, as text.
fn described((count, code): (u64, u64)) -> String {
    let (known, bytes) = (code >> 48, code & ((1 << 48) - 1));
    match DataType::ALL.get((known as usize).wrapping_sub(1)) {
        Some(data_type) => format!("{count} {}", data_type.name()),
        None => format!("{count} elements of {bytes} bytes"),
    }
}

/// The lengths of the blocks that a rank sends to each rank and expects from each, in an order that both ranks know.
struct Pairs {
    sent: Vec<Vec<usize>>,
    expected: Vec<Vec<usize>>,
    /// The most blocks between any two ranks.
    messages_max: usize,
}

impl Pairs {
    fn of(collective: &Collective, rank: u32, size: u32, lengths: &Lengths) -> Self {
        let none = || vec![Vec::new(); size as usize];
        let (mut sent, mut expected, mut messages_max) = (none(), none(), 1);
        let (mut inputs, mut outputs) = (lengths.input.iter(), lengths.output.iter());
        match collective {
            Collective::SendReceive { messages } => {
                for &(from, to) in messages {
                    if from == rank {
                        sent[to as usize].extend(inputs.next());
                    }
                    if to == rank {
                        expected[from as usize].extend(outputs.next());
                    }
                }
                let mut sorted = messages.clone();
                sorted.sort_unstable();
                messages_max = sorted.chunk_by(|one, other| one == other).map(<[_]>::len).max().unwrap_or(1);
            }
            Collective::Neighbours { torus } => {
                messages_max = lengths.output.len();
                for (block, &length) in (0..).zip(&lengths.output) {
                    expected[neighbour(*torus, rank, block) as usize].push(length);
                }
                // In the order of the receiver's blocks.
                for (other, sent) in (0..).zip(&mut sent) {
                    for block in 0..collective.gets(other, size) {
                        if let Some(Promise::Copy { rank: from, block }) =
                            collective.promise(other, size, block)
                            && from == rank
                        {
                            sent.extend(lengths.input.get(block as usize));
                        }
                    }
                }
            }
            _ => {
                sent.iter_mut().zip(inputs).for_each(|(sent, length)| sent.push(*length));
                expected.iter_mut().zip(outputs).for_each(|(expected, length)| expected.push(*length));
            }
        }
        Self { sent, expected, messages_max }
    }
}
