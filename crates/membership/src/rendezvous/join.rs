//! The part of every other rank: it finds rank 0, is admitted, and takes its slot in the tree.
//!
//! A rank whose connection ends before rank 0 has answered retries until its deadline: the listener may have belonged to another
//! job, or may have been about to close.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Connection, Message, Settings, Slot, Stall};
use crate::durations::{
    ATTEMPT_MIN, CHILDREN, HELLO, JOIN_RETRY_MAX, OTHER_USER, PLACE, RETRY_MIN, ROOT_ERROR, VERDICT,
};

/// What happened.
#[derive(Debug, Clone)]
pub enum JoinInput<C, R, E> {
    /// A [`JoinAction::Dial`] has a result.
    Dialed(Result<Connection, Undialed<R, E>>),
    /// Rank 0 sent a message.
    Message(Connection, Message<C, R, E>),
    /// A connection to rank 0 has ended.
    Closed(Connection, Ended<E>),
    /// A [`JoinAction::Link`] has a result.
    Linked(Result<(), Unlinked<E>>),
    /// A child has connected.
    Child(u32),
    /// A [`JoinAction::Settle`] has a result.
    Settled(Result<(), E>),
    /// The time that [`Join::next_timeout`] named has come.
    Timeout,
}

/// Why a place where rank 0 may listen gave no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undialed<R, E> {
    /// Nobody listens there, or does not answer. Worth another attempt.
    Failed(String),
    /// The process there refused the handshake.
    Refused {
        /// Why.
        reason: R,
        /// Whether that is because it runs as another user.
        is_other_user: bool,
    },
    /// All places have been tried.
    Exhausted,
    /// The address cannot be used at all.
    Unusable(E),
}

/// How a connection to rank 0 ended: as a reason to retry, and as an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended<E> {
    /// The reason.
    pub why: String,
    /// The error.
    pub error: E,
}

/// Why this rank is not connected to its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unlinked<E> {
    /// The parent did not answer within the limit of the attempt. The error is for the last attempt.
    Late(E),
    /// The parent cannot be reached.
    Failed(E),
}

/// What the driver has to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinAction<C, R, E> {
    /// Connect to the next place where rank 0 may listen, within the limit, and send the hello. Report [`JoinInput::Dialed`].
    Dial {
        /// Whether to begin with the first place.
        is_first: bool,
        /// How long it may take.
        limit: Duration,
    },
    /// Close a connection.
    Close(Connection),
    /// Log that this rank waits for these.
    Warn(Vec<u32>),
    /// Connect to the parent within the limit, and report [`JoinInput::Linked`].
    Link {
        /// The parent.
        rank: u32,
        /// Where it is found.
        contact: C,
        /// How long it may take.
        limit: Duration,
    },
    /// The connection to rank 0 is the link to the parent.
    KeepLink(Connection),
    /// Parent and children are connected: form the group, pass the members on, and run the barrier. Report [`JoinInput::Settled`].
    Settle,
    /// It is over.
    Done(Result<(), JoinError<R, E>>),
}

/// Why a rank has not joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinError<R, E> {
    /// Rank 0 was not there in time; what the last attempt showed.
    NobodyListens(String),
    /// Rank 0 refused this rank.
    Refused(R),
    /// Rank 0 admitted this rank, and said nothing more in time.
    NoAnswer,
    /// These children did not connect in time.
    Missing(Vec<u32>),
    /// Rank 0 sent something that it must not send.
    Protocol(String),
    /// Rank 0 reported an error, or the driver did.
    Failed(E),
}

type Actions<C, R, E> = Vec<JoinAction<C, R, E>>;

#[derive(Debug)]
enum Phase<C, R, E> {
    Dialing,
    Pausing(Instant),
    /// The hello was sent.
    Asking(Connection),
    /// Admitted. Rank 0 should have said something by the time.
    Waiting(Connection, Option<Instant>),
    Linking(Place<C>),
    Gathering(Place<C>),
    Settling(Option<Connection>),
    /// Rank 0 may know a better error.
    Failing(Connection, Instant, JoinError<R, E>),
    Done,
}

/// Taking the slot.
#[derive(Debug)]
struct Place<C> {
    parent: Option<(u32, C)>,
    /// The connection to rank 0, unless it is the link to the parent.
    root: Option<Connection>,
    missing: BTreeSet<u32>,
}

/// The part of a rank that joins.
#[derive(Debug)]
pub struct Join<C, R, E> {
    settings: Settings,
    /// Whether rank 0 can be at one place only. Another job may have one of several.
    is_only_place: bool,
    began: Instant,
    /// What the last attempt to find rank 0 showed.
    last: String,
    pause: Duration,
    stall: Stall,
    slot: Option<Slot<C>>,
    phase: Phase<C, R, E>,
}

impl<C: Clone, R: ToString, E> Join<C, R, E> {
    /// Begins to look for rank 0. The actions are the first ones.
    pub fn new(settings: Settings, is_only_place: bool, now: Instant) -> (Join<C, R, E>, Actions<C, R, E>) {
        let join = Join {
            is_only_place,
            began: now,
            last: "nothing was tried".to_owned(),
            pause: RETRY_MIN,
            stall: Stall::new(settings.warn_after, now),
            settings,
            slot: None,
            phase: Phase::Dialing,
        };
        let dial = join.dial(true, now);
        (join, vec![dial])
    }

    /// Takes in what happened. The actions are to be carried out in order.
    pub fn handle(&mut self, input: JoinInput<C, R, E>, now: Instant) -> Actions<C, R, E> {
        let mut actions = Vec::new();
        match input {
            JoinInput::Dialed(dialed) => self.dialed(dialed, now, &mut actions),
            JoinInput::Message(connection, message) => self.hear(connection, message, now, &mut actions),
            JoinInput::Closed(connection, ended) => self.closed(connection, ended, now, &mut actions),
            JoinInput::Linked(linked) => self.linked(linked, now, &mut actions),
            JoinInput::Child(rank) => {
                if let Phase::Linking(place) | Phase::Gathering(place) = &mut self.phase {
                    place.missing.remove(&rank);
                }
            }
            JoinInput::Settled(settled) => {
                if let Phase::Settling(root) = self.phase {
                    match (settled, root) {
                        (Ok(()), _) => self.done(Ok(()), &mut actions),
                        (Err(error), root) => self.fail(JoinError::Failed(error), root, now, &mut actions),
                    }
                }
            }
            JoinInput::Timeout => self.time_out(now, &mut actions),
        }
        self.gather(&mut actions);
        actions
    }

    /// When to call [`Join::handle`] with [`JoinInput::Timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        let warns_at = self.stall.next;
        let (until, sooner) = match &self.phase {
            Phase::Pausing(until) => (*until, None),
            Phase::Asking(_) => (self.settings.deadline, warns_at),
            Phase::Waiting(_, silent) => (self.settings.deadline + PLACE, *silent),
            Phase::Gathering(_) => (self.settings.deadline + CHILDREN, warns_at),
            Phase::Failing(_, until, _) => (*until, None),
            Phase::Dialing | Phase::Linking(_) | Phase::Settling(_) | Phase::Done => return None,
        };
        Some(sooner.map_or(until, |sooner| sooner.min(until)))
    }

    /// The slot of this rank, once it has one.
    pub fn slot(&self) -> Option<&Slot<C>> {
        self.slot.as_ref()
    }

    /// Whether this rank waits for a child to connect.
    pub fn awaits(&self, child: u32) -> bool {
        match &self.phase {
            Phase::Linking(place) | Phase::Gathering(place) => place.missing.contains(&child),
            _ => false,
        }
    }

    /// How long one attempt to reach a rank may take, so that a warning is not late by more than that.
    fn limit(&self, until: Instant, now: Instant) -> Duration {
        let slice = self.settings.warn_after.clamp(ATTEMPT_MIN, HELLO);
        slice.min(until.saturating_duration_since(now))
    }

    fn dial(&self, is_first: bool, now: Instant) -> JoinAction<C, R, E> {
        JoinAction::Dial { is_first, limit: self.limit(self.settings.deadline, now) }
    }

    fn warn(&mut self, ranks: Vec<u32>, now: Instant, actions: &mut Actions<C, R, E>) {
        if !ranks.is_empty() && self.stall.is_due(now) {
            actions.push(JoinAction::Warn(ranks));
        }
    }

    fn dialed(
        &mut self,
        dialed: Result<Connection, Undialed<R, E>>,
        now: Instant,
        actions: &mut Actions<C, R, E>,
    ) {
        if !matches!(self.phase, Phase::Dialing) {
            return;
        }
        match dialed {
            Ok(connection) => self.phase = Phase::Asking(connection),
            Err(Undialed::Unusable(error)) => self.done(Err(JoinError::Failed(error)), actions),
            Err(Undialed::Failed(why)) => self.next_place(why, now, actions),
            Err(Undialed::Refused { reason, is_other_user }) => {
                // Another job may be at one of several places, and another user at any until rank 0 is there.
                let may_go = is_other_user && now < self.began + OTHER_USER && now < self.settings.deadline;
                match may_go || !self.is_only_place {
                    true => self.next_place(reason.to_string(), now, actions),
                    false => self.done(Err(JoinError::Refused(reason)), actions),
                }
            }
            Err(Undialed::Exhausted) => {
                self.warn(vec![0], now, actions);
                // An attempt that would only be late is not made: its error would hide the last one.
                if now + self.pause >= self.settings.deadline || mutant!("rank-0-not-awaited") {
                    let last = std::mem::take(&mut self.last);
                    return self.done(Err(JoinError::NobodyListens(last)), actions);
                }
                self.phase = Phase::Pausing(now + self.pause);
                self.pause = (self.pause * 2).min(JOIN_RETRY_MAX);
            }
        }
    }

    fn next_place(&mut self, why: String, now: Instant, actions: &mut Actions<C, R, E>) {
        self.last = why;
        self.phase = Phase::Dialing;
        actions.push(self.dial(false, now));
    }

    fn hear(
        &mut self,
        connection: Connection,
        message: Message<C, R, E>,
        now: Instant,
        actions: &mut Actions<C, R, E>,
    ) {
        match (&self.phase, message) {
            (Phase::Asking(own), message) if *own == connection => match message {
                Message::Accepted => self.phase = Phase::Waiting(connection, self.silent_at(now)),
                Message::Refused(reason) => self.done(Err(JoinError::Refused(reason)), actions),
                _ => {
                    actions.push(JoinAction::Close(connection));
                    self.next_place("it sent something else than an answer".to_owned(), now, actions);
                }
            },
            (Phase::Waiting(own, _), message) if *own == connection => match message {
                Message::Waiting(ranks) => {
                    self.phase = Phase::Waiting(connection, self.silent_at(now));
                    self.warn(ranks, now, actions);
                }
                Message::Slot(slot) => self.take(connection, slot, now, actions),
                Message::Failed(error) => self.done(Err(JoinError::Failed(error)), actions),
                Message::Other(what) => self.done(Err(JoinError::Protocol(what)), actions),
                Message::Accepted | Message::Refused(_) => {
                    self.done(Err(JoinError::Protocol("a second answer".to_owned())), actions);
                }
            },
            // From the slot on, rank 0 has nothing to say but an error.
            (Phase::Linking(_) | Phase::Gathering(_) | Phase::Failing(..), Message::Failed(error)) => {
                self.done(Err(JoinError::Failed(error)), actions)
            }
            _ => {}
        }
    }

    fn silent_at(&self, now: Instant) -> Option<Instant> {
        // Rank 0 says from time to time which ranks are missing. If it does not, this rank waits for rank 0.
        now.checked_add(self.settings.warn_after.saturating_mul(2).saturating_add(VERDICT))
    }

    fn closed(
        &mut self,
        connection: Connection,
        ended: Ended<E>,
        now: Instant,
        actions: &mut Actions<C, R, E>,
    ) {
        match &self.phase {
            Phase::Asking(own) if *own == connection => self.next_place(ended.why, now, actions),
            Phase::Waiting(own, _) if *own == connection => {
                self.done(Err(JoinError::Failed(ended.error)), actions);
            }
            Phase::Linking(Place { root: Some(own), .. })
            | Phase::Gathering(Place { root: Some(own), .. })
                if *own == connection =>
            {
                self.done(Err(JoinError::Failed(ended.error)), actions);
            }
            Phase::Failing(own, ..) if *own == connection => self.report(actions),
            _ => {}
        }
    }

    /// Goes to the parent.
    fn take(&mut self, root: Connection, slot: Slot<C>, now: Instant, actions: &mut Actions<C, R, E>) {
        let missing = slot.children.iter().copied().collect();
        let parent = slot.parent.clone();
        self.slot = Some(slot);
        match &parent {
            None => {
                actions.push(JoinAction::KeepLink(root));
                self.phase = Phase::Gathering(Place { parent, root: None, missing });
            }
            Some((rank, contact)) => {
                let limit = self.limit(self.settings.deadline + PLACE, now);
                actions.push(JoinAction::Link { rank: *rank, contact: contact.clone(), limit });
                self.phase = Phase::Linking(Place { parent, root: Some(root), missing });
            }
        }
    }

    fn linked(&mut self, linked: Result<(), Unlinked<E>>, now: Instant, actions: &mut Actions<C, R, E>) {
        let place = match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Linking(place) => place,
            phase => return self.phase = phase,
        };
        let until = self.settings.deadline + PLACE;
        match (linked, &place.parent) {
            (Ok(()), _) => self.phase = Phase::Gathering(place),
            (Err(Unlinked::Late(_)), Some((rank, contact))) if now < until => {
                let link =
                    JoinAction::Link { rank: *rank, contact: contact.clone(), limit: self.limit(until, now) };
                self.warn(vec![*rank], now, actions);
                actions.push(link);
                self.phase = Phase::Linking(place);
            }
            (Err(Unlinked::Failed(error) | Unlinked::Late(error)), _) => {
                self.fail(JoinError::Failed(error), place.root, now, actions);
            }
        }
    }

    /// Settles when all children are connected.
    fn gather(&mut self, actions: &mut Actions<C, R, E>) {
        if let Phase::Gathering(place) = &self.phase
            && (place.missing.is_empty() || mutant!("children-not-awaited"))
        {
            self.phase = Phase::Settling(place.root);
            actions.push(JoinAction::Settle);
        }
    }

    fn time_out(&mut self, now: Instant, actions: &mut Actions<C, R, E>) {
        match &self.phase {
            Phase::Pausing(until) if now >= *until => {
                self.phase = Phase::Dialing;
                actions.push(self.dial(true, now));
            }
            Phase::Asking(_) if now >= self.settings.deadline => {
                self.done(Err(JoinError::NobodyListens("it did not answer".to_owned())), actions);
            }
            Phase::Asking(_) => self.warn(vec![0], now, actions),
            Phase::Waiting(..) if now >= self.settings.deadline + PLACE => {
                self.done(Err(JoinError::NoAnswer), actions);
            }
            Phase::Waiting(connection, Some(silent)) if now >= *silent => {
                self.phase = Phase::Waiting(*connection, self.silent_at(now));
                self.warn(vec![0], now, actions);
            }
            Phase::Gathering(place) => {
                let missing = place.missing.iter().copied().collect();
                match now >= self.settings.deadline + CHILDREN {
                    true => self.done(Err(JoinError::Missing(missing)), actions),
                    false => self.warn(missing, now, actions),
                }
            }
            Phase::Failing(_, until, _) if now >= *until => self.report(actions),
            _ => {}
        }
    }

    /// Fails with this error, unless rank 0 has a better one.
    fn fail(
        &mut self,
        error: JoinError<R, E>,
        root: Option<Connection>,
        now: Instant,
        actions: &mut Actions<C, R, E>,
    ) {
        match root {
            Some(root) => self.phase = Phase::Failing(root, now + ROOT_ERROR, error),
            None => self.done(Err(error), actions),
        }
    }

    fn report(&mut self, actions: &mut Actions<C, R, E>) {
        if let Phase::Failing(_, _, error) = std::mem::replace(&mut self.phase, Phase::Done) {
            self.done(Err(error), actions);
        }
    }

    fn done(&mut self, result: Result<(), JoinError<R, E>>, actions: &mut Actions<C, R, E>) {
        self.phase = Phase::Done;
        actions.push(JoinAction::Done(result));
    }
}
