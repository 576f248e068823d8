//! Rendezvous: the ranks of a job find rank 0, which admits them and gives each a slot in a tree.
//!
//! ```text
//! rank -> rank 0   Hello      rank, size, contact and terms; sent again until rank 0 answers
//! rank 0 -> rank   Accepted   or Refused, with the reason
//! rank 0 -> rank   Waiting    these ranks are missing; from time to time
//! rank 0 -> rank   Slot       all ranks have joined: the group, the parent and the children of the receiver
//!                  (each rank connects to its parent and waits for its children)
//!                  (members go down the tree; a barrier shows that all ranks are in place)
//! ```
//!
//! [`Admit`] is rank 0's part, [`Join`] that of every other rank. A rank that joined and closed its connection before all had
//! joined has given its slot back: another process may come as that rank, and if none does, the rank is missing. A process that
//! comes again lost its connection without rank 0 noticing; the new connection replaces the old one. Once all have joined, the
//! end of a connection ends the rendezvous for all ranks.
//!
//! Rank 0 decides at its deadline, and reports the missing ranks to those that joined, which is why they wait [`PLACE`] longer.
//! While ranks connect to each other, a parent times out before its children and rank 0 do, because it knows which rank is missing.
//!
//! Deliberately absent: sockets, threads and clocks; the handshake, which proves the secret and compares protocol versions and
//! users before a machine hears of a connection; and the barrier at the end, which the group itself runs.
//!
//! [`PLACE`]: crate::durations::PLACE

mod admit;
mod join;
mod terms;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::tree::Shape;

pub use admit::{Admit, AdmitAction, AdmitError, AdmitInput, Placed, Plan};
pub use join::{Ended, Join, JoinAction, JoinError, JoinInput, Undialed, Unlinked};
pub use terms::difference;

/// A connection between rank 0 and another process, as the driver numbers them.
pub type Connection = u64;

/// How a process is found, as far as the machines look at it.
pub trait Contact: Clone {
    /// Whether the processes can share memory.
    fn is_on_host_of(&self, other: &Self) -> bool;
    /// Whether this is the same process.
    fn is_process_of(&self, other: &Self) -> bool;
    /// The number of the process, for messages.
    fn pid(&self) -> u32;
}

/// A rank that joins, and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello<C> {
    /// The rank.
    pub rank: u32,
    /// The number of ranks that it expects.
    pub size: u32,
    /// Where the others find it.
    pub contact: C,
    /// What must be the same for all, by name: settings, the order of bytes, versions.
    pub terms: Vec<(String, String)>,
}

/// A rank's place in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot<C> {
    /// The number of the group.
    pub group: u64,
    /// The shape of its tree.
    pub shape: Shape,
    /// The parent to connect to; none if that is rank 0 and this connection becomes the link to it.
    pub parent: Option<(u32, C)>,
    /// The children that will connect.
    pub children: Vec<u32>,
}

/// What rank 0 sends to a rank that joins. `R` is the reason of a refusal, `E` an error that ends the rendezvous for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<C, R, E> {
    /// Admitted; wait for the rest.
    Accepted,
    /// Not admitted.
    Refused(R),
    /// These ranks are missing.
    Waiting(Vec<u32>),
    /// All ranks have joined.
    Slot(Slot<C>),
    /// The rendezvous has failed.
    Failed(E),
    /// Anything else, as text.
    Other(String),
}

/// Why rank 0 refuses a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Set up differently: the name of the setting, the value of the process and that of rank 0.
    Terms(String, String, String),
    /// It expects this number of ranks.
    Size(u32),
    /// There is no such rank.
    Rank(u32),
    /// This process is that rank already.
    Duplicate(u32),
}

/// What a rank is given before it starts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This rank.
    pub rank: u32,
    /// The number of ranks, rank 0 included.
    pub size: u32,
    /// When all ranks must have joined.
    pub deadline: Instant,
    /// How often a wait is logged.
    pub warn_after: Duration,
}

/// Decides when a wait is logged.
#[derive(Debug)]
struct Stall {
    warn_after: Duration,
    /// Nothing if that is beyond what the clock can say.
    next: Option<Instant>,
}

impl Stall {
    fn new(warn_after: Duration, now: Instant) -> Stall {
        Stall { warn_after, next: now.checked_add(warn_after) }
    }

    /// Whether a warning is due; then the next one is due later.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next.is_some_and(|next| now >= next);
        if is_due {
            self.next = now.checked_add(self.warn_after);
        }
        is_due
    }
}
