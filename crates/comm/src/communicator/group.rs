//! Groups of messages, as one call: `ncclGroupStart`, `ncclSend`, `ncclRecv` and `ncclGroupEnd`.
//!
//! The messages of a group go through an [endpoint](crate::Endpoint) of the communicator's own, which all ranks open in the first group.
//! From then on only the two ranks of a message have to take part. Each message is numbered among those from its sender to its receiver,
//! and a receive takes the message with its own number, whichever groups the two belong to.
//!
//! A group that fails aborts the communicator, as every call does: otherwise messages of which only one rank knows that they failed would
//! be left to the groups that follow.

// The memory of messages is known by its address.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::take;

use weftlink_bootstrap::Reason;
use weftlink_p2p::{Direction, MESSAGES_MAX};
use weftlink_plan::DataType;
use weftlink_recorder::waiting::Waiting;

use super::Communicator;
use crate::data::Data;
use crate::error::Error;
use crate::p2p::{Endpoint, GroupMessage, address};
use crate::shared::{RECORDED_POLLS, Shared};

/// The messages of a rank in one group. See [`Communicator::group`].
pub struct Group<'a> {
    rank: usize,
    size: usize,
    messages: Vec<GroupMessage>,
    memory: PhantomData<&'a mut [u8]>,
}

/// What the groups of a communicator have in common.
pub(super) struct Messages {
    endpoint: Endpoint,
    /// By rank: messages to it and from it so far.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Empty between groups; kept for its capacity.
    listed: Vec<GroupMessage>,
}

impl<'a> Group<'a> {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Sends elements to a rank, which may be this one.
    pub fn send<T: Data>(&mut self, to: usize, elements: &'a [T]) -> Result<(), Error> {
        let address = address(elements.as_ptr().cast());
        self.add::<T>(to, Direction::SendTo(to), address, size_of_val(elements))
    }

    /// Receives elements from a rank: the next ones that it sends to this rank in a group.
    pub fn receive<T: Data>(&mut self, from: usize, elements: &'a mut [T]) -> Result<(), Error> {
        let (address, bytes) = (address(elements.as_mut_ptr().cast()), size_of_val(elements));
        self.add::<T>(from, Direction::ReceiveFrom(Some(from)), address, bytes)
    }

    fn add<T: Data>(
        &mut self,
        peer: usize,
        direction: Direction,
        address: u64,
        bytes: usize,
    ) -> Result<(), Error> {
        if peer >= self.size {
            return Err(Error::Misuse(format!("there is no rank {peer}: there are {}", self.size)));
        }
        if self.messages.len() == MESSAGES_MAX {
            return Err(Error::Misuse(format!("a rank has at most {MESSAGES_MAX} messages in a group")));
        }
        let data_type = DataType::of::<T>();
        self.messages.push(GroupMessage { direction, number: 0, address, bytes, data_type });
        Ok(())
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group(rank {} of {}, {} messages)", self.rank, self.size, self.messages.len())
    }
}

impl Communicator {
    /// Sends and receives messages as one group, so that both sides may send first. It returns when all of this rank's messages have been
    /// received, or buffered by their receivers if they are short.
    ///
    /// All ranks take part in the first group, which opens connections; a rank without messages lists none. From then on only ranks that have
    /// messages call it. Messages from one rank to another are received in the order in which they were sent, also across groups.
    ///
    /// A message must have the length and type of its receive, and both ranks must list it within [`Options::deadline`](crate::Options) of
    /// each other. Otherwise the group fails on the rank that notices, and with it the communicator; the error names the other rank. A rank
    /// whose closure fails lists nothing.
    ///
    /// ```
    /// let got = weftlink_comm::on_threads(3, |mut comm| {
    ///     let (mine, mut theirs) = ([comm.rank() as u32; 2], [9_u32; 2]);
    ///     comm.group(|group| match group.rank() {
    ///         0 => group.send(2, &mine),
    ///         2 => group.receive(0, &mut theirs),
    ///         _ => Ok(()),
    ///     })?;
    ///     Ok(theirs)
    /// })?;
    /// assert_eq!(got, [[9, 9], [9, 9], [0, 0]]);
    /// # Ok::<(), weftlink_comm::Error>(())
    /// ```
    pub fn group<'a, R>(
        &mut self,
        list: impl FnOnce(&mut Group<'a>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.usable()?;
        let (rank, size) = (self.rank, self.size);
        let messages = self.messages.as_mut().map_or_else(Vec::new, |messages| take(&mut messages.listed));
        let mut group = Group { rank, size, messages, memory: PhantomData };
        let listed = list(&mut group)?;
        if self.messages.is_none() {
            let endpoint = self.endpoint_of_groups()?;
            let [sent, received] = [vec![0; size], vec![0; size]];
            self.messages = Some(Messages { endpoint, sent, received, listed: Vec::new() });
        }
        self.exchange(&mut group.messages)?;
        if let Some(messages) = &mut self.messages {
            group.messages.clear();
            messages.listed = group.messages;
        }
        Ok(listed)
    }

    /// Moves the messages of a group.
    fn exchange(&mut self, listed: &mut [GroupMessage]) -> Result<(), Error> {
        let Some(messages) = self.messages.as_mut().filter(|_| !listed.is_empty()) else { return Ok(()) };
        for message in &mut *listed {
            let number = match message.direction {
                Direction::SendTo(to) => &mut messages.sent[to],
                Direction::ReceiveFrom(from) => &mut messages.received[from.unwrap_or(0)],
            };
            *number += 1;
            message.number = *number;
        }
        let Some(Messages { endpoint, .. }) = &self.messages else { return Ok(()) };
        // SAFETY: the group borrows the memory until it is over, the receives' mutably.
        let mut in_flight = unsafe { endpoint.start_group(listed, self.options.deadline) }?;
        let Shared { stall_reporter, recorder, .. } = &self.shared;
        let (call, mut polls, mut recorded) = (self.calls.wrapping_add(1), 0_u32, None);
        let done = in_flight.wait(|waited, awaited| {
            let waiting = match awaited {
                Some(Direction::SendTo(rank)) => Waiting::Slot { to: rank as u32 },
                Some(Direction::ReceiveFrom(Some(rank))) => Waiting::Message { from: rank as u32 },
                Some(Direction::ReceiveFrom(None)) | None => Waiting::Anything,
            };
            stall_reporter.warn(call, waited, &waiting);
            polls = polls.saturating_add(1);
            // Another message may be missing than before.
            if polls >= RECORDED_POLLS && recorded != Some(awaited) {
                recorded = Some(awaited);
                recorder.wait_of_group_begins(call, waiting);
            }
        });
        if polls > 0 {
            stall_reporter.clear();
        }
        if polls >= RECORDED_POLLS && done.is_ok() {
            recorder.wait_of_group_ends();
        }
        if let Err(error) = &done {
            // Messages that have not completed end with the communicator.
            let (_, first) = self.set_abort_word(reason_of(error));
            drop(in_flight);
            self.abort(error, first, [None; 2]);
        }
        done
    }
}

/// Why a rank aborts whose group failed.
fn reason_of(error: &Error) -> Reason {
    match error {
        Error::Mismatch { .. } => Reason::Mismatch,
        Error::Left { .. } => Reason::Left,
        Error::Unreadable { .. } => Reason::Unreadable,
        Error::Broken { .. } => Reason::Broken,
        Error::Deadline { .. } => Reason::Deadline,
        // The others follow from an abort.
        _ => Reason::GaveUp,
    }
}
