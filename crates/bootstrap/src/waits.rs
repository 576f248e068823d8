//! Who waits for whom, and who in the end is waited for.
//!
//! Ranks wait for each other in chains: rank 0 for a message of rank 1, which waits for rank 2 to make a call, which is
//! stopped. Whoever looks only at whom it waits for itself blames rank 1. So each rank keeps a *note* of whom it waits for,
//! once that takes long, and its steward tells the note to everybody when anybody asks: what one rank says of itself is a
//! question to all others. A rank that says nothing is stopped, or behind one that is; one that says that it waits for
//! nobody does something else. These are the *roots*, and they are what people are told.
//!
//! A note that a failure ended stays: that is what the rank was at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::deadline::Deadline;
use super::error::person;
use super::group::Group;
use super::message::News;
use super::room::Room;

/// Who has said the same so recently does not say it again.
const ANSWER_PAUSE: Duration = Duration::from_millis(200);
/// How long before people are told the other ranks are asked: a rank that shares its core with others needs a while to answer.
const ASK_AHEAD: Duration = Duration::from_millis(500);
/// After how long people are told of a wait, unless the options of a communicator say otherwise.
pub(super) const WARN_AFTER: Duration = Duration::from_secs(10);
/// After how long a wait is worth a note.
pub const NOTE_AFTER: Duration = Duration::from_millis(100);

/// What one rank knows of the waits of all.
#[derive(Debug, Default)]
pub(super) struct Waits {
    own: Vec<u32>,
    turn: u32,
    told: Option<(Instant, Vec<u32>)>,
    of: BTreeMap<u32, Told>,
}

#[derive(Debug)]
struct Told {
    turn: u32,
    whom: Vec<u32>,
    neighbours: Vec<u32>,
    at: Instant,
}

/// Who is waited for in the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Roots {
    /// Say nothing.
    pub(super) silent: BTreeSet<u32>,
    /// Say that they wait for nobody.
    pub(super) busy: BTreeSet<u32>,
}

impl Roots {
    /// Those who say nothing, if there are any: whoever seems busy may just have been let go.
    pub(super) fn all(&self) -> Vec<u32> {
        let roots =
            if self.silent.is_empty() || mutant!("busy-outweigh-silent") { &self.busy } else { &self.silent };
        roots.iter().copied().collect()
    }
}

impl Waits {
    /// Takes in what a rank said of itself. Whether it is new.
    pub(super) fn hear(&mut self, rank: u32, turn: u32, whom: &[u32], neighbours: &[u32]) -> bool {
        if self.of.get(&rank).is_some_and(|told| told.turn >= turn) {
            return false;
        }
        let (whom, neighbours) = (whom.to_vec(), neighbours.to_vec());
        self.of.insert(rank, Told { turn, whom, neighbours, at: Instant::now() });
        true
    }

    /// Whether all that can be said of this rank has just been said.
    fn is_told(&self) -> bool {
        let is_recent = |(at, whom): &(Instant, Vec<u32>)| at.elapsed() < ANSWER_PAUSE && *whom == self.own;
        self.told.as_ref().is_some_and(is_recent)
    }

    /// Follows the waits that begin with these ranks to their ends, by what was said since a moment. `is_gone` tells of ranks
    /// of whom nothing is expected.
    fn roots(&self, rank: u32, begin: &[u32], asked: Instant, is_gone: impl Fn(u32) -> bool) -> Roots {
        let since = asked.checked_sub(ANSWER_PAUSE).unwrap_or(asked);
        let said =
            |rank: &u32| self.of.get(rank).filter(|told| told.at >= since || mutant!("old-waits-count"));
        let mute = self.mute(rank, said, &is_gone);
        let (mut roots, mut seen) = (Roots::default(), BTreeSet::from([rank]));
        let mut next = begin.to_vec();
        while let Some(rank) = next.pop() {
            if !seen.insert(rank) {
                continue;
            }
            // What it said before it left still holds.
            match said(&rank) {
                Some(told) if !told.whom.is_empty() => next.extend(&told.whom),
                _ if is_gone(rank) => {}
                Some(_) => drop(roots.busy.insert(rank)),
                None if mute.contains(&rank) => drop(roots.silent.insert(rank)),
                // What it says is not heard because of those between.
                None => roots.silent.extend(&mute),
            }
        }
        roots
    }

    /// Who has said nothing, of those who are next to a rank that was heard.
    fn mute<'a>(
        &'a self,
        rank: u32,
        said: impl Fn(&u32) -> Option<&'a Told>,
        is_gone: impl Fn(u32) -> bool,
    ) -> BTreeSet<u32> {
        let (mut heard, mut mute) = (BTreeSet::from([rank]), BTreeSet::new());
        let mut next = vec![rank];
        while let Some(rank) = next.pop() {
            for &neighbour in said(&rank).into_iter().flat_map(|told| &told.neighbours) {
                match said(&neighbour) {
                    Some(_) if heard.insert(neighbour) => next.push(neighbour),
                    None if !is_gone(neighbour) => drop(mute.insert(neighbour)),
                    _ => {}
                }
            }
        }
        mute
    }
}

impl Group {
    /// Notes whom this rank waits for; nobody if it no longer does.
    pub(super) fn waits_for(&self, whom: &[u32]) {
        let mut state = self.state();
        if state.waits.own != whom {
            state.waits.own = whom.to_vec();
        }
    }

    /// Says whom this rank waits for, so that all others do.
    pub(super) fn tell_waits(&self) {
        if let Some(news) = self.own_waits(false) {
            self.learn(news, None);
        }
    }

    /// What this rank says when others do.
    pub(super) fn answer_waits(&self) -> Option<News> {
        self.own_waits(true)
    }

    fn own_waits(&self, unless_told: bool) -> Option<News> {
        let neighbours = self.links().iter().map(|link| link.rank).collect();
        let mut state = self.state();
        let waits = &mut state.waits;
        if unless_told && waits.is_told() {
            return None;
        }
        waits.turn += 1;
        waits.told = Some((Instant::now(), waits.own.clone()));
        Some(News::Waits { rank: self.rank, turn: waits.turn, whom: waits.own.clone(), neighbours })
    }

    /// Who is waited for in the end, by what is known now. Follows this rank's waits, or those of `other` if it has none.
    pub(super) fn roots(&self, other: Option<u32>, asked: Instant) -> Roots {
        let state = self.state();
        let other: Vec<u32> = other.into_iter().collect();
        let begin = if state.waits.own.is_empty() { &other } else { &state.waits.own };
        state.waits.roots(self.rank, begin, asked, |rank| state.is_gone(rank))
    }

    /// The same, asked of all others, who have so much time to answer.
    pub(super) fn ask_for_roots(&self, other: Option<u32>, patience: Deadline) -> Vec<u32> {
        let asked = Instant::now();
        self.tell_waits();
        loop {
            let roots = self.roots(other, asked);
            if roots.silent.is_empty() || patience.left().is_none() {
                return roots.all();
            }
            drop(self.wait(self.state(), patience));
        }
    }

    /// The group that this one is made of, until it is, and what its ranks are called there.
    fn elder(&self) -> Option<(Arc<Group>, Vec<u32>)> {
        let state = self.state();
        let (elder, called) = state.elder.as_ref()?;
        Some((elder.upgrade()?, called.clone()))
    }

    pub(super) fn set_elder(&self, elder: Option<(Weak<Group>, Vec<u32>)>) {
        self.state().elder = elder;
    }

    /// How people call a rank.
    pub(super) fn name(&self, rank: u32) -> String {
        let members = self.members.get().map_or(&[][..], Vec::as_slice);
        let spans_hosts = members.iter().any(|member| member.host > 0);
        let contact = members.get(rank as usize).map(|member| &member.contact);
        let host = contact.filter(|_| spans_hosts).map_or(String::new(), |contact| contact.host.to_string());
        person(rank as usize, &host, contact.map_or(0, |contact| contact.pid))
    }
}

/// A wait outside of calls: noted, and told to people when it takes long.
pub(super) struct Watch<'a> {
    group: &'a Group,
    /// The group that this one is made of, where all its ranks hear each other already, and what they are called there.
    elder: Option<(Arc<Group>, Vec<u32>)>,
    purpose: &'a str,
    began: Instant,
    /// When to look next, and when to tell people.
    due: Duration,
    next: Duration,
    asked: Option<Instant>,
    is_noted: bool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(group: &'a Group, purpose: &'a str) -> Watch<'a> {
        let elder = group.elder();
        let next = elder.as_ref().map_or(group, |(elder, _)| elder).warn_after();
        let (began, due) = (Instant::now(), NOTE_AFTER.min(next / 4));
        Watch { group, elder, purpose, began, due, next, asked: None, is_noted: false }
    }

    /// Whether there is something to do.
    pub(super) fn is_due(&self) -> bool {
        self.began.elapsed() >= self.due
    }

    /// Notes that these are waited for, once that is due, and tells people.
    pub(super) fn look(&mut self, whom: &[u32]) {
        let waited = self.began.elapsed();
        if waited < self.due {
            return;
        }
        self.due = waited + NOTE_AFTER / 2;
        let whom = self.note(whom);
        let group = self.elder.as_ref().map_or(self.group, |(elder, _)| elder);
        if waited >= self.next {
            // A caller that looks rarely has not asked yet. Ask now, and give the other ranks time to answer.
            let roots = match self.asked {
                Some(asked) if asked.elapsed() < ASK_AHEAD.min(group.warn_after() / 2) => return,
                Some(asked) => group.roots(None, asked).all(),
                None => group.ask_for_roots(None, Deadline::new(ASK_AHEAD)),
            };
            let roots = if roots.is_empty() { whom } else { roots };
            let names: Vec<String> = roots.iter().map(|rank| group.name(*rank)).collect();
            let (what, names) = (self.purpose.trim_start_matches("weft: "), names.join(" and "));
            let seconds = waited.as_secs_f64();
            tracing::warn!(target: "weft::fault", rank = group.rank as usize, "{what} has waited {seconds:.1} s for {names}");
            (self.next, self.asked) = (waited + group.warn_after(), None);
        } else if waited + ASK_AHEAD.min(self.next / 2) >= self.next && self.asked.is_none() {
            self.asked = Some(Instant::now());
            group.tell_waits();
        }
    }

    /// Notes that these are waited for, however long that takes, and how they are called where it is noted.
    pub(super) fn note(&mut self, whom: &[u32]) -> Vec<u32> {
        let called = |rank: &u32| {
            self.elder
                .as_ref()
                .map_or(*rank, |(_, called)| called.get(*rank as usize).copied().unwrap_or(*rank))
        };
        let whom: Vec<u32> = whom.iter().map(called).collect();
        self.elder.as_ref().map_or(self.group, |(elder, _)| elder).waits_for(&whom);
        self.is_noted = true;
        whom
    }

    /// What was waited for came.
    pub(super) fn over(self) {
        if self.is_noted {
            self.elder.as_ref().map_or(self.group, |(elder, _)| elder).waits_for(&[]);
        }
    }
}

/// The chain of waits, for those who wait in calls; nothing once the bootstrap is dropped.
pub struct Chain(pub(super) Kind);

pub(super) enum Kind {
    Tree(Weak<Group>),
    Room(Weak<Room>, u32),
}

impl Chain {
    /// Notes whom this rank waits for; nobody if it no longer does.
    pub fn note(&self, whom: Option<u32>) {
        match &self.0 {
            Kind::Tree(group) => {
                group.upgrade().into_iter().for_each(|group| group.waits_for(whom.as_slice()))
            }
            Kind::Room(room, rank) => {
                room.upgrade().into_iter().for_each(|room| room.waits_for(*rank, whom.as_slice()));
            }
        }
    }

    /// Asks all others for whom they wait. What they say is there a little later.
    pub fn ask(&self) {
        if let Kind::Tree(group) = &self.0
            && let Some(group) = group.upgrade()
        {
            group.tell_waits();
        }
    }

    /// Who is waited for in the end, as far as that has been said since all were asked.
    pub fn roots(&self, asked: Instant) -> Vec<u32> {
        match &self.0 {
            Kind::Tree(group) => group.upgrade().map_or(Vec::new(), |group| group.roots(None, asked).all()),
            Kind::Room(room, rank) => room.upgrade().map_or(Vec::new(), |room| room.roots(*rank, None)),
        }
    }

    /// When others are to be asked, of a wait of which people are told after so long.
    pub fn asks_at(told_at: Duration) -> Duration {
        told_at.saturating_sub(ASK_AHEAD.min(told_at / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ranks 0, 1, ... say; those with nothing say nothing. All are in a row.
    fn waits(said: &[Option<&[u32]>]) -> Waits {
        let mut waits = Waits::default();
        for (rank, whom) in (0_u32..).zip(said) {
            let neighbours: Vec<u32> = rank.checked_sub(1).into_iter().chain([rank + 1]).collect();
            let neighbours: Vec<u32> =
                neighbours.into_iter().filter(|&at| (at as usize) < said.len()).collect();
            if let Some(whom) = whom {
                assert!(waits.hear(rank, 1, whom, &neighbours));
            }
        }
        waits
    }

    fn roots(said: &[Option<&[u32]>], rank: u32, begin: &[u32]) -> Vec<u32> {
        waits(said).roots(rank, begin, Instant::now(), |_| false).all()
    }

    #[test]
    fn chains_are_followed_to_their_ends() {
        // Rank 3 says nothing; rank 4 is behind it.
        assert_eq!(roots(&[Some(&[1]), Some(&[2]), Some(&[3]), None], 0, &[1]), [3]);
        assert_eq!(roots(&[Some(&[2]), Some(&[2]), Some(&[4]), None, None], 0, &[2]), [3]);
        // Rank 2 does something else, which counts for less than silence.
        assert_eq!(roots(&[Some(&[1]), Some(&[2]), Some(&[])], 0, &[1]), [2]);
        assert_eq!(roots(&[Some(&[1]), Some(&[2, 3]), Some(&[]), None], 0, &[1]), [3]);
        // Nobody is the root of a circle.
        assert_eq!(roots(&[Some(&[1]), Some(&[0])], 0, &[1]), [0; 0]);
    }

    #[test]
    fn what_was_said_before_does_not_count() {
        let mut waits = waits(&[Some(&[1]), Some(&[])]);
        assert!(!waits.hear(1, 1, &[0], &[0]), "it was said before");
        let later = Instant::now() + Duration::from_secs(5);
        assert_eq!(
            waits.roots(0, &[1], later, |_| false).all(),
            [0; 0],
            "nobody can be asked who is next to it"
        );
        assert!(waits.hear(1, 2, &[0], &[0]));
    }
}
