//! Which error a call returns that stopped early: a pure function of what its rank has seen and heard.
//!
//! A rank sees a symptom: a connection that ended, memory that cannot be read, silence, an abort word. The error names the cause:
//! a process that died, a rank that left, calls that differ, a rank that is stopped. [`Evidence`] has both as plain data;
//! [`diagnose`] decides. `fail.rs` collects the evidence, which may take a while, and `abort.rs` acts on the error.
//!
//! Deliberately absent: clocks, sockets, shared memory. The table of tests below calls the function that ships.

use std::time::Duration;

use weftlink_bootstrap::{Blame, BlameKind, Reason};
use weftlink_recorder::waiting::Waiting;
use weftlink_shm::wait::{AbortCode, Stop};

use crate::error::Error;
use crate::shared::whom;
use crate::wire::Fault;

/// What a rank knows about a call that stopped.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// This rank, the number of the call and what it is.
    pub(super) rank: u32,
    pub(super) call: u32,
    pub(super) what: String,
    /// Why the wait ended, in which lane and step, and what it waited for.
    pub(super) stop: Stop,
    pub(super) step: Option<(u32, u32)>,
    pub(super) waiting: Waiting,
    /// The abort code of this rank, and that of the first rank that aborted: the same if this rank was the first.
    pub(super) mine: AbortCode,
    pub(super) first: AbortCode,
    /// The rank that ended the communicator on purpose, and what it did.
    pub(super) ended: Option<(u32, String)>,
    /// A call in which another rank differs.
    pub(super) mismatch: Option<Difference>,
    /// A rank that left before it made the call, and one that left at any time.
    pub(super) left: Option<u32>,
    pub(super) departed: Option<u32>,
    /// Faults of connections, by rank.
    pub(super) faults: Vec<(u32, Fault)>,
    /// The connection that was lost: who noticed, the rank at its other end, and what happened to it.
    pub(super) lost: Option<(u32, u32, String)>,
    /// The ranks at the ends of the chain of waits that this call is part of.
    pub(super) roots: Vec<u32>,
    /// The error of the rank that aborted first, and whom it blames.
    pub(super) cause: Option<(String, Vec<Blame>)>,
    /// How each rank is named in messages, and its host and process.
    pub(super) names: Vec<String>,
    pub(super) identities: Vec<Blame>,
}

/// A call in which two ranks differ.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    pub(super) call: u32,
    pub(super) mine: String,
    pub(super) other: u32,
    pub(super) theirs: String,
}

/// The error of a call that stopped.
pub(super) fn diagnose(evidence: &Evidence) -> Error {
    settled(evidence).unwrap_or_else(|| aborted(evidence))
}

/// The precedence of causes, highest first. Each rule names the error if its cause explains why the call stopped; if none does, all that is
/// known is that another rank aborted, and why it says it did.
fn settled(evidence: &Evidence) -> Option<Error> {
    None.or_else(|| cancelled(evidence))
        .or_else(|| connection_lost(evidence))
        .or_else(|| died(evidence))
        .or_else(|| timed_out(evidence))
        .or_else(|| left(evidence))
        .or_else(|| connection_broken(evidence))
        .or_else(|| unreadable(evidence))
        .or_else(|| left_says_another(evidence))
        .or_else(|| differs(evidence))
}

/// The reason that this rank gives in the abort word, if it is the first to abort. `confirmed` says that the rank on which the call
/// depended has died or was lost; `left`, that a rank has left before the call.
pub(super) fn own_reason(
    stop: Stop,
    faults: &[(u32, Fault)],
    confirmed: Option<Reason>,
    left: Option<u32>,
) -> Reason {
    match stop {
        Stop::Mismatch { .. } => Reason::Mismatch,
        Stop::Left { .. } => Reason::Left,
        Stop::Unreadable { .. } => confirmed.unwrap_or(Reason::Unreadable),
        // Wrong bytes are no sign of a death.
        Stop::Broken if !only_ended(faults) => Reason::Broken,
        Stop::Broken => confirmed.or(left.map(|_| Reason::Left)).unwrap_or(Reason::Broken),
        // If another rank aborted, its reason is in the abort word already.
        Stop::Deadline { .. } | Stop::Aborted { .. } => Reason::Deadline,
    }
}

/// Whether all faults of connections are that they ended.
pub(super) fn only_ended(faults: &[(u32, Fault)]) -> bool {
    faults.iter().all(|(_, fault)| *fault == Fault::Ended)
}

/// The connection that explains a call best, and what is wrong with it. Wrong bytes say more than an end, because other ranks may have left
/// in good order; among equals, the connection to the rank that the call waits for.
pub(super) fn broken(faults: &[(u32, Fault)], awaited: Option<u32>) -> (Option<u32>, String) {
    match faults.iter().max_by_key(|(rank, fault)| (*fault != Fault::Ended, Some(*rank) == awaited)) {
        Some((rank, Fault::Corrupt(what))) => (Some(*rank), what.clone()),
        Some((rank, Fault::Ended)) => (Some(*rank), "it has ended".to_owned()),
        None => (None, "it has ended".to_owned()),
    }
}

/// What `fail.rs` has to ask other ranks before the evidence is complete. A question may take long, so it is asked only if its answer can
/// change the error.
impl Evidence {
    /// Whether ranks on other hosts have to show what they call.
    pub(super) fn asks_for_calls(&self) -> bool {
        self.is_first(Reason::Mismatch)
    }

    /// Which connection was lost.
    pub(super) fn asks_for_lost(&self) -> bool {
        self.is_first(Reason::Lost) && self.is_consequence() && only_ended(&self.faults)
    }

    /// Whom all wait for in the end.
    pub(super) fn asks_for_roots(&self) -> bool {
        self.ended.is_none() && self.timeout().is_some()
    }

    /// Why the rank aborted that was the first.
    pub(super) fn asks_for_cause(&self) -> bool {
        settled(self).is_none()
    }

    /// Why the wait ended, once it is known who aborted first. A rank that aborted is soon gone, and its peers may miss it before they see
    /// its abort: its reason counts, not that it left.
    fn effective(&self) -> Stop {
        let aborted = Stop::Aborted { code: self.first, waited: Duration::ZERO };
        let is_ours = self.first == self.mine;
        match (self.stop, self.left) {
            (Stop::Broken, Some(rank)) if is_ours && self.is_first(Reason::Left) => Stop::Left { rank },
            (Stop::Left { .. }, _) if !is_ours && !mutant!("departure-outweighs-abort") => aborted,
            (Stop::Broken, _) if !is_ours && only_ended(&self.faults) => aborted,
            (stop, _) => stop,
        }
    }

    /// Whether the call stopped by something that follows from the end of another rank.
    fn is_consequence(&self) -> bool {
        matches!(self.effective(), Stop::Unreadable { .. } | Stop::Aborted { .. } | Stop::Broken)
    }

    /// How long this rank had waited when a timeout ended the call, its own or that of another rank.
    fn timeout(&self) -> Option<Duration> {
        match self.effective() {
            Stop::Deadline { waited } | Stop::Aborted { waited, .. } if self.is_first(Reason::Deadline) => {
                Some(waited)
            }
            _ => None,
        }
    }

    fn is_first(&self, reason: Reason) -> bool {
        Reason::is(self.first, reason)
    }

    fn name(&self, rank: u32) -> String {
        self.names.get(rank as usize).cloned().unwrap_or_else(|| format!("rank {rank}"))
    }

    fn blame(&self, rank: u32, kind: BlameKind) -> Blame {
        let known = self.identities.get(rank as usize);
        let mut blame = known.cloned().unwrap_or_else(|| Blame::new(rank, kind));
        blame.kind = kind;
        blame
    }

    /// What the call waited for.
    fn awaited(&self) -> String {
        match self.waiting {
            Waiting::Entered { rank } => format!("{} to make the call", self.name(rank)),
            Waiting::Reached { rank, counter } => {
                format!("{} to signal counter {counter}", self.name(rank))
            }
            Waiting::Message { from } => format!("a message from {}", self.name(from)),
            Waiting::Slot { to } => format!("{} to receive", self.name(to)),
            Waiting::Sent { to } => format!("messages to {} to be on their way", self.name(to)),
            Waiting::Anything => "other ranks".to_owned(),
        }
    }

    fn mismatch(&self) -> Option<Error> {
        let Difference { call, mine, other, theirs } = self.mismatch.clone()?;
        Some(Error::Mismatch { call, rank: self.rank, mine, other, theirs })
    }
}

/// A rank ended the communicator on purpose. Whatever this rank noticed follows from that.
fn cancelled(evidence: &Evidence) -> Option<Error> {
    let (by, what) = evidence.ended.clone()?;
    Some(Error::Cancelled { call: evidence.call, rank: evidence.rank, by, what })
}

/// Two ranks lost the connection between them; both may live.
fn connection_lost(evidence: &Evidence) -> Option<Error> {
    let (by, to, what) = evidence.lost.as_ref().filter(|_| evidence.asks_for_lost())?;
    let ends = [*to, *by].into_iter().filter(|end| *end != evidence.rank);
    let blamed = ends.map(|end| evidence.blame(end, BlameKind::Unreachable)).collect();
    let (peer, what) = (evidence.name(*to), format!("it {what}"));
    Some(Error::Broken { call: evidence.call, rank: *by, peer, what, blamed })
}

/// A process ended. One whose calls differed is soon gone, and the others may hear of its end before they hear why.
fn died(evidence: &Evidence) -> Option<Error> {
    if !evidence.is_first(Reason::Died) || !evidence.is_consequence() {
        return None;
    }
    let (rank, call, what) = (evidence.rank, evidence.call, evidence.what.clone());
    let (died, name) = (evidence.first.rank, evidence.name(evidence.first.rank));
    let waited =
        if let Stop::Aborted { waited, .. } = evidence.effective() { waited } else { Duration::ZERO };
    Some(evidence.mismatch().unwrap_or(Error::Died { call, what, rank, died, name, waited }))
}

/// A timeout, named by the ranks that all others wait for if those are known, and else by the rank that this one waited for. If another
/// rank timed out and nobody is known to be late, what it said is better.
fn timed_out(evidence: &Evidence) -> Option<Error> {
    let (rank, call) = (evidence.rank, evidence.call);
    let step = match evidence.step {
        Some((lane, ordinal)) => format!("lane {lane}, step {ordinal}"),
        None => "no lane could go on".to_owned(),
    };
    let (direct, roots) = (evidence.waiting.rank(), &evidence.roots);
    let is_chain = evidence.timeout().is_some()
        && !roots.is_empty()
        && !direct.is_some_and(|rank| roots.contains(&rank));
    let what = if is_chain { whom(&evidence.names, direct, roots) } else { evidence.awaited() };
    let (waited, late) = match (evidence.timeout(), evidence.effective()) {
        (Some(waited), _) if is_chain => (waited, roots.clone()),
        (Some(waited), Stop::Aborted { .. }) => (waited, vec![direct?]),
        (_, Stop::Deadline { waited }) => (waited, direct.into_iter().collect()),
        _ => return None,
    };
    let blamed = late.into_iter().map(|rank| evidence.blame(rank, BlameKind::Late)).collect();
    Some(Error::Deadline { call, rank, what, step, waited, blamed })
}

/// This rank saw that another left before the call was over.
fn left(evidence: &Evidence) -> Option<Error> {
    let Stop::Left { rank: left } = evidence.effective() else { return None };
    let (rank, call) = (evidence.rank, evidence.call);
    Some(evidence.mismatch().unwrap_or(Error::Left { call, rank, left }))
}

/// A connection of this rank ended or brought wrong bytes, and nobody knows more.
fn connection_broken(evidence: &Evidence) -> Option<Error> {
    let Stop::Broken = evidence.effective() else { return None };
    let (peer, what) = broken(&evidence.faults, evidence.waiting.rank());
    let blamed = peer.into_iter().map(|peer| evidence.blame(peer, BlameKind::Unreachable)).collect();
    let peer = peer.map_or("another host".to_owned(), |peer| evidence.name(peer));
    Some(Error::Broken { call: evidence.call, rank: evidence.rank, peer, what, blamed })
}

/// The kernel does not read the memory of a peer, and nobody knows more.
fn unreadable(evidence: &Evidence) -> Option<Error> {
    let Stop::Unreadable { rank: peer, error } = evidence.effective() else { return None };
    let error = std::io::Error::from_raw_os_error(error).to_string();
    Some(Error::Unreadable { call: evidence.call, rank: evidence.rank, peer, error })
}

/// Another rank aborted because a rank has left, and this rank sees which.
fn left_says_another(evidence: &Evidence) -> Option<Error> {
    let Stop::Aborted { .. } = evidence.effective() else { return None };
    let left = evidence.left.filter(|_| evidence.is_first(Reason::Left))?;
    Some(Error::Left { call: evidence.call, rank: evidence.rank, left })
}

/// Ranks make different calls.
fn differs(evidence: &Evidence) -> Option<Error> {
    match evidence.effective() {
        Stop::Mismatch { .. } | Stop::Aborted { .. } => evidence.mismatch(),
        _ => None,
    }
}

/// Another rank aborted first: what it said, or else that a rank has left, or else that it aborted.
fn aborted(evidence: &Evidence) -> Error {
    let Evidence { rank, call, first, .. } = *evidence;
    let left = evidence.departed.filter(|_| evidence.is_first(Reason::Left));
    let (cause, blamed) = match (evidence.cause.clone(), left) {
        (Some(cause), _) => cause,
        (None, Some(left)) => (format!("rank {left} has left"), vec![evidence.blame(left, BlameKind::Left)]),
        (None, None) => (String::new(), vec![evidence.blame(first.rank, BlameKind::Failed)]),
    };
    Error::Aborted { call, rank, by: first.rank, reason: Reason::name(first.reason), cause, blamed }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a call stops, in the order of the columns below. Rank 0 waits for a message from rank 1.
    fn stops() -> [(Stop, Vec<(u32, Fault)>); 7] {
        let waited = Duration::from_secs(1);
        let aborted = Stop::Aborted { code: code(2, Reason::GaveUp), waited };
        let ended = vec![(1, Fault::Ended), (3, Fault::Ended)];
        let corrupt = vec![(1, Fault::Corrupt("a frame".to_owned())), (3, Fault::Ended)];
        [
            (aborted, Vec::new()),
            (Stop::Deadline { waited }, Vec::new()),
            (Stop::Left { rank: 1 }, Vec::new()),
            (Stop::Unreadable { rank: 1, error: libc::ESRCH }, Vec::new()),
            (Stop::Broken, ended),
            (Stop::Broken, corrupt),
            (Stop::Mismatch { found: 7 }, Vec::new()),
        ]
    }

    fn code(rank: u32, reason: Reason) -> AbortCode {
        AbortCode { rank, reason: reason.code() }
    }

    /// What rank 0 knows of a call that stopped when another rank had aborted it, or nobody had.
    fn evidence((stop, faults): (Stop, Vec<(u32, Fault)>), reason: Reason, by: u32) -> Evidence {
        let waiting = Waiting::Message { from: 1 };
        let is_ours = by == 0;
        let mine = if is_ours { code(0, reason) } else { code(0, own_reason(stop, &faults, None, None)) };
        let is_on_purpose = matches!(reason, Reason::Cancelled | Reason::Ended);
        Evidence {
            rank: 0,
            call: 41,
            what: "all-reduce".to_owned(),
            stop,
            step: None,
            waiting,
            mine,
            first: code(by, reason),
            ended: is_on_purpose.then(|| (by, "aborted".to_owned())),
            mismatch: None,
            left: None,
            departed: None,
            faults,
            lost: None,
            roots: Vec::new(),
            cause: None,
            names: (0..5).map(|rank| format!("rank {rank} (pid 10{rank})")).collect(),
            identities: (0..5)
                .map(|rank| Blame::of(rank, BlameKind::Failed, "", 100 + rank as u32))
                .collect(),
        }
    }

    /// An error as a letter of the tables and the ranks that it blames.
    fn kind(error: &Error) -> (char, Vec<u32>) {
        let letter = match error {
            Error::Aborted { .. } => 'A',
            Error::Broken { .. } => 'B',
            Error::Cancelled { .. } => 'C',
            Error::Deadline { .. } => 'D',
            Error::Left { .. } => 'L',
            Error::Mismatch { .. } => 'M',
            Error::Unreadable { .. } => 'U',
            Error::Died { .. } => 'X',
            other => panic!("no call stops with {other}"),
        };
        (letter, error.blamed().into_iter().map(|blame| blame.rank).collect())
    }

    /// What else is known, and the errors that follow: a row for each reason of rank 2, which aborted first, and a column for each of
    /// [`stops`]. The last row is for all other reasons.
    type Table = (&'static str, fn(&mut Evidence), [(&'static [Reason], &'static str); 6]);

    fn differs(evidence: &mut Evidence) {
        let [mine, theirs] = ["all-reduce", "barrier"].map(str::to_owned);
        evidence.mismatch = Some(Difference { call: 40, mine, other: 4, theirs });
    }

    const OTHERS: &[Reason] = &[
        Reason::Mismatch,
        Reason::Memory,
        Reason::Panicked,
        Reason::Unreadable,
        Reason::Unfit,
        Reason::LeftOpen,
        Reason::Broken,
        Reason::Counts,
        Reason::GaveUp,
        Reason::Protocol,
        Reason::Setup,
        Reason::System,
    ];
    const ON_PURPOSE: &[Reason] = &[Reason::Cancelled, Reason::Ended];

    /// Stops are: aborted, deadline, left, unreadable, connection ended, connection corrupt, mismatch.
    const TABLES: [Table; 7] = [
        (
            "nothing",
            |_| (),
            [
                (ON_PURPOSE, "CCCCCCC"),
                (&[Reason::Lost], "ADAUABA"),
                (&[Reason::Died], "XDXXXXA"),
                (&[Reason::Deadline], "DDDUDBA"),
                (&[Reason::Left], "ADAUABA"),
                (OTHERS, "ADAUABA"),
            ],
        ),
        (
            "a call that differs",
            differs,
            [
                (ON_PURPOSE, "CCCCCCC"),
                (&[Reason::Lost], "MDMUMBM"),
                (&[Reason::Died], "MDMMMMM"),
                (&[Reason::Deadline], "DDDUDBM"),
                (&[Reason::Left], "MDMUMBM"),
                (OTHERS, "MDMUMBM"),
            ],
        ),
        (
            "a rank that left before the call",
            |it| (it.left, it.departed) = (Some(3), Some(3)),
            [
                (ON_PURPOSE, "CCCCCCC"),
                (&[Reason::Lost], "ADAUABA"),
                (&[Reason::Died], "XDXXXXA"),
                (&[Reason::Deadline], "DDDUDBA"),
                (&[Reason::Left], "LDLULBA"),
                (OTHERS, "ADAUABA"),
            ],
        ),
        (
            "the connection that was lost",
            |it| it.lost = Some((2, 4, "ended".to_owned())),
            [
                (ON_PURPOSE, "CCCCCCC"),
                (&[Reason::Lost], "BDBBBBA"),
                (&[Reason::Died], "XDXXXXA"),
                (&[Reason::Deadline], "DDDUDBA"),
                (&[Reason::Left], "ADAUABA"),
                (OTHERS, "ADAUABA"),
            ],
        ),
        (
            "the rank that all wait for",
            |it| it.roots = vec![3],
            [
                (ON_PURPOSE, "CCCCCCC"),
                (&[Reason::Lost], "ADAUABA"),
                (&[Reason::Died], "XDXXXXA"),
                (&[Reason::Deadline], "DDDUDBA"),
                (&[Reason::Left], "ADAUABA"),
                (OTHERS, "ADAUABA"),
            ],
        ),
        (
            "not even whom it waits for",
            |it| it.waiting = Waiting::Anything,
            [
                (ON_PURPOSE, "CCCCCCC"),
                (&[Reason::Lost], "ADAUABA"),
                (&[Reason::Died], "XDXXXXA"),
                (&[Reason::Deadline], "ADAUABA"),
                (&[Reason::Left], "ADAUABA"),
                (OTHERS, "ADAUABA"),
            ],
        ),
        (
            "what the first rank said",
            |it| it.cause = Some(("no memory".to_owned(), Vec::new())),
            [
                (ON_PURPOSE, "CCCCCCC"),
                (&[Reason::Lost], "ADAUABA"),
                (&[Reason::Died], "XDXXXXA"),
                (&[Reason::Deadline], "DDDUDBA"),
                (&[Reason::Left], "ADAUABA"),
                (OTHERS, "ADAUABA"),
            ],
        ),
    ];

    /// Whom each error blames in the tables: the rank that aborted, the one that is waited for, the one that differs.
    fn blamed(letter: char, known: &str, stop: Stop, reason: Reason) -> Vec<u32> {
        let is_late = matches!(reason, Reason::Deadline);
        match letter {
            'A' if known == "what the first rank said" => Vec::new(),
            'A' if known == "a rank that left before the call" && matches!(reason, Reason::Left) => vec![3],
            'A' | 'C' | 'X' => vec![2],
            'B' if known == "the connection that was lost" && !matches!(stop, Stop::Broken) => vec![4, 2],
            'D' if known == "the rank that all wait for" && is_late => vec![3],
            'D' if known == "not even whom it waits for" => Vec::new(),
            'L' => vec![3],
            'M' => vec![4],
            _ => vec![1],
        }
    }

    #[test]
    fn every_stop_and_reason_has_its_error() {
        let mut seen = 0;
        for (known, add, rows) in TABLES {
            for (&reason, letters) in
                rows.iter().flat_map(|(reasons, row)| reasons.iter().map(move |it| (it, row)))
            {
                for (column, (stop, letter)) in stops().into_iter().zip(letters.chars()).enumerate() {
                    let mut evidence = evidence(stop.clone(), reason, 2);
                    add(&mut evidence);
                    let error = diagnose(&evidence);
                    let (found, ranks) = kind(&error);
                    let name = Reason::name(reason.code());
                    let place = format!("{known}, {:?}, {name}: {error}", stop.0);
                    assert_eq!(found, letter, "{place}");
                    // A connection that ended and was lost is reported by both ends, one with wrong bytes by this rank.
                    let lost = evidence.lost.is_some() && letter == 'B' && column == 4;
                    let expected = if lost { vec![4, 2] } else { blamed(letter, known, stop.0, reason) };
                    assert_eq!(ranks, expected, "{place}");
                    assert_eq!(evidence.asks_for_cause(), letter == 'A', "{place}");
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, TABLES.len() * 7 * 18, "a reason is missing");
    }

    #[test]
    fn a_rank_that_aborts_first_says_what_it_saw() {
        let [_, deadline, left, unreadable, ended, corrupt, mismatch] = stops();
        let gone: fn(&mut Evidence) = |it| it.left = Some(3);
        let nothing: fn(&mut Evidence) = |_| ();
        for (stop, reason, add, letter, rank) in [
            (deadline, Reason::Deadline, nothing, 'D', 1),
            (left.clone(), Reason::Left, nothing, 'L', 1),
            (left, Reason::Left, differs, 'M', 4),
            (unreadable, Reason::Unreadable, nothing, 'U', 1),
            (ended.clone(), Reason::Broken, nothing, 'B', 1),
            (ended.clone(), Reason::Broken, gone, 'B', 1),
            (ended.clone(), Reason::Left, gone, 'L', 3),
            (ended, Reason::Left, nothing, 'B', 1),
            (corrupt, Reason::Broken, gone, 'B', 1),
            (mismatch.clone(), Reason::Mismatch, differs, 'M', 4),
            // Nobody shows a call that differs: something is left over from an earlier one.
            (mismatch, Reason::Mismatch, nothing, 'A', 0),
        ] {
            let mut evidence = evidence(stop, reason, 0);
            add(&mut evidence);
            let error = diagnose(&evidence);
            assert_eq!(kind(&error), (letter, vec![rank]), "{:?}: {error}", evidence.stop);
        }
    }

    #[test]
    fn ranks_are_asked_only_what_can_change_the_error() {
        let every = TABLES[0].2.iter().flat_map(|(reasons, _)| *reasons);
        for (reason, (column, stop)) in
            every.flat_map(|reason| stops().into_iter().enumerate().map(move |stop| (*reason, stop)))
        {
            let evidence = evidence(stop, reason, 2);
            let is = |wanted: Reason| reason.code() == wanted.code();
            // Of a death, a departure and the end of a connection another rank's abort is the cause; wrong bytes are a cause themselves.
            let follows = [0, 2, 4].contains(&column);
            assert_eq!(evidence.asks_for_calls(), is(Reason::Mismatch));
            assert_eq!(evidence.asks_for_lost(), is(Reason::Lost) && (follows || column == 3));
            assert_eq!(evidence.asks_for_roots(), is(Reason::Deadline) && (follows || column == 1));
        }
    }

    #[test]
    fn a_rank_gives_the_reason_that_it_saw() {
        let [aborted, deadline, left, unreadable, ended, corrupt, mismatch] = stops();
        for ((stop, faults), confirmed, gone, reason) in [
            (aborted, None, None, Reason::Deadline),
            (deadline, None, None, Reason::Deadline),
            (left, None, None, Reason::Left),
            (unreadable.clone(), None, None, Reason::Unreadable),
            (unreadable, Some(Reason::Died), None, Reason::Died),
            (ended.clone(), None, None, Reason::Broken),
            (ended.clone(), Some(Reason::Lost), Some(3), Reason::Lost),
            (ended, None, Some(3), Reason::Left),
            (corrupt, Some(Reason::Died), Some(3), Reason::Broken),
            (mismatch, None, None, Reason::Mismatch),
        ] {
            let found = own_reason(stop, &faults, confirmed, gone);
            assert_eq!(Reason::name(found.code()), Reason::name(reason.code()), "{stop:?}");
        }
    }

    #[test]
    fn messages_name_what_was_waited_for() {
        let text = |add: fn(&mut Evidence), reason| {
            let mut evidence = evidence(stops()[0].clone(), reason, 2);
            add(&mut evidence);
            diagnose(&evidence).to_string()
        };
        assert_eq!(
            text(|_| (), Reason::Deadline),
            "call #41: rank 0 waited 1.0 s for a message from rank 1 (pid 101) (no lane could go on)"
        );
        assert_eq!(
            text(|it| it.roots = vec![3], Reason::Deadline),
            "call #41: rank 0 waited 1.0 s for rank 3 (pid 103), for whom rank 1 waits (no lane could go on)"
        );
        assert_eq!(
            text(|_| (), Reason::Died),
            "rank 2 (pid 102) died; rank 0 had waited 1.0 s in call #41, all-reduce"
        );
        assert_eq!(
            text(|it| it.departed = Some(3), Reason::Left),
            "call #41: rank 2 gave up (a rank has left), so rank 0 does. It said: rank 3 has left"
        );
    }
}
