//! Calls whose blocks differ in length: ranks compare the lengths before anything moves.
//!
//! A rank states how long its own blocks are, those it gives and those it gets. Two ranks must agree about every block that
//! goes from one to the other, in length and in type, or one of them would keep bytes of an earlier call or lose some. Nobody
//! sees the other's counts, so such a call begins with calls that move them, which also tell all ranks the longest block:
//!
//! - *all-to-all, send-receive, neighbours*: an all-to-all. Every rank tells every other what it sends there and what it
//!   expects from there. Both sides of a pair that disagrees find it, or hear of it from the other.
//! - *gather, scatter*: a gather to the root, which compares, and a broadcast of what it found. All ranks say the same.
//! - *all-gather, reduce-scatter*: nothing. All ranks state all lengths, which are part of the call and are compared with it.
//!
//! These calls have equal blocks of a few words, take the path of small calls, and work in any memory and between hosts. The
//! call itself is announced only by ranks whose counts agree with those of the others: ranks that disagree have moved nothing, and their
//! buffers are as they were. The communicator fails, as by any call that differs.
//!
//! Groups of messages ([`group`](super::group)) have told each other all lengths before, and are not compared again.

use weftlink_bootstrap::{Blame, BlameKind, Failure, Reason};
use weftlink_plan::collective::{Promise, neighbour};
use weftlink_plan::{Collective, DataType};
use weftlink_recorder::header::kind;
use weftlink_recorder::header::{COUNTS, GROUP};
use weftlink_shm::wait::AbortCode;

use super::Communicator;
use super::check::Fitted;
use crate::compile::Lengths;
use crate::data::Elements;
use crate::engine::Silent;
use crate::error::Error;
use crate::request::CallArgs;

/// Words of what a rank tells, before its counts: the longest of its blocks, and the type of its elements.
const FIRST: usize = 2;

/// A block whose ends disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disagreement {
    from: usize,
    to: usize,
    /// Elements and their type.
    sent: (u64, u64),
    expected: (u64, u64),
}

impl Communicator {
    /// Compares the lengths of a call's blocks with those of the other ranks, and gives the longest block of any rank.
    #[cold]
    pub(super) fn compare_counts(&mut self, request: &CallArgs<'_>) -> Result<usize, Error> {
        // What is wrong with this rank's call alone is found before anything is sent.
        let (fitted, ..) = self.check_own(request)?;
        let Some(lengths) = &fitted.shape.uneven else { return Ok(fitted.shape.count) };
        let longest = match request.collective {
            Collective::AllGather | Collective::ReduceScatter => Ok(Ok(fitted.shape.count)),
            _ if request.tag == GROUP => Ok(Ok(fitted.shape.count.max(request.count.unwrap_or(0)))),
            Collective::Gather { root } => self.compare_with_root(request, &fitted, lengths, *root as usize),
            Collective::Scatter { root } => self.compare_with_root(request, &fitted, lengths, *root as usize),
            _ => self.compare_with_each(request, &fitted, lengths),
        };
        longest?.map_err(|disagreement| self.disagree(request.collective, disagreement))
    }

    /// Every rank compares with every other what they send each other.
    fn compare_with_each(
        &mut self,
        request: &CallArgs<'_>,
        fitted: &Fitted,
        lengths: &Lengths,
    ) -> Result<Result<usize, Disagreement>, Error> {
        let (rank, size) = (self.rank, self.size);
        let elements = Scale::of(request, fitted);
        let pairs = Pairs::of(request.collective, rank as u32, size as u32, lengths);
        let mut told = vec![0_u64; size * (FIRST + 2 * pairs.messages_max)];
        let mut heard = told.clone();
        let words = FIRST + 2 * pairs.messages_max;
        for (other, block) in told.chunks_exact_mut(words).enumerate() {
            (block[0], block[1]) = (fitted.shape.count as u64, elements.code);
            let (sent, expected) = block[FIRST..].split_at_mut(pairs.messages_max);
            let fill = |words: &mut [u64], lengths: &[usize]| {
                words.iter_mut().zip(lengths).for_each(|(word, length)| *word = elements.count(*length));
            };
            fill(sent, &pairs.sent[other]);
            fill(expected, &pairs.expected[other]);
        }
        let call = CallArgs::new(&Collective::AllToAll, (&told[..], &mut heard[..]));
        self.perform(CallArgs { tag: COUNTS | u32::from(kind(request.collective)), ..call }, &mut Silent)?;
        let mut longest = 0;
        for (other, (mine, theirs)) in told.chunks_exact(words).zip(heard.chunks_exact(words)).enumerate() {
            longest = longest.max(theirs[0]);
            let (sent, expected) = mine[FIRST..].split_at(pairs.messages_max);
            let (their_sent, their_expected) = theirs[FIRST..].split_at(pairs.messages_max);
            let differs = |count: usize, sent: (&[u64], u64), expected: (&[u64], u64)| {
                let ends = (0..count).map(|at| ((sent.0[at], sent.1), (expected.0[at], expected.1)));
                ends.into_iter().find(|(sent, expected)| sent != expected)
            };
            // The same block is looked at first on both sides: that of the lower rank.
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

    /// The root compares with each rank, and all hear what it found.
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
        let told = [[fitted.shape.count as u64, elements.code, elements.count(own)]];
        let tag = COUNTS | u32::from(kind(request.collective));
        let root_rank = root as u32;
        // The longest block, whether a rank disagrees, which, and what both say.
        let mut found = [0_u64; 7];
        if self.rank == root {
            let mut heard = vec![[0_u64; 3]; self.size];
            let gather = Collective::Gather { root: root_rank };
            let call = CallArgs::new(&gather, (&told[..], &mut heard[..]));
            self.perform(CallArgs { tag, ..call }, &mut Silent)?;
            found[0] = heard.iter().map(|heard| heard[0]).max().unwrap_or(0);
            let differs = |(_, (heard, mine)): &(usize, (&[u64; 3], &usize))| {
                (heard[1], heard[2]) != (elements.code, elements.count(**mine))
            };
            if let Some((other, (theirs, mine))) = heard.iter().zip(all).enumerate().find(differs) {
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
            let call = CallArgs::new(&gather, &told[..]);
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

    /// Gives up a call whose counts do not match, for all ranks.
    #[cold]
    fn disagree(&mut self, collective: &Collective, disagreement: Disagreement) -> Error {
        let Disagreement { from, to, sent, expected } = disagreement;
        let name = collective.name();
        let sends = format!("{name} sending {} to rank {to}", described(sent));
        let expects = format!("{name} expecting {} from rank {from}", described(expected));
        let call = self.calls.wrapping_add(1);
        let [from, to] = [from, to].map(|rank| rank as u32);
        let differ = |(rank, mine), (other, theirs)| Error::Mismatch { call, rank, mine, other, theirs };
        let (rank, reason) = (self.rank as u32, Reason::Counts.code());
        let error = match rank == from {
            true => differ((from, sends), (to, expects)),
            false => differ((to, expects), (from, sends)),
        };
        // To the others, either of the two may be wrong.
        let blamed = [from, to].map(|rank| Blame::new(rank, BlameKind::Differs)).to_vec();
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

/// How lengths of a call are told: in elements of the caller's.
struct Scale {
    /// The type of an element.
    code: u64,
    /// How many of those in which lengths are kept make one.
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

/// A number of elements of a type, as people say it.
fn described((count, code): (u64, u64)) -> String {
    let (known, bytes) = (code >> 48, code & ((1 << 48) - 1));
    match DataType::ALL.get((known as usize).wrapping_sub(1)) {
        Some(data_type) => format!("{count} {}", data_type.name()),
        None => format!("{count} elements of {bytes} bytes"),
    }
}

/// The lengths of the blocks that a rank sends to each rank and expects from each, in the order in which both know them.
struct Pairs {
    sent: Vec<Vec<usize>>,
    expected: Vec<Vec<usize>>,
    /// The most blocks that any rank sends to any other.
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
                // In the order of the blocks of whoever gets them.
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
