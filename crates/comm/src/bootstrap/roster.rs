//! Who has come to a meeting, and who may.

use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::channel::{Channel, Deadline, Message, VERSION};
use super::error::{BootstrapError, Refusal};
use super::leader::Leader;
use super::meeting::Meeting;

/// Rank 0's list of the others.
pub(super) struct Roster<'a> {
    meeting: &'a Meeting,
    /// Of the ranks 1, 2, ..., in this order.
    members: Vec<Option<Member>>,
    /// Whom it turned away and why: often the reason why somebody seems missing.
    turned_away: Vec<String>,
}

/// A retrying stranger must not fill the memory.
const NOTES_MAX: usize = 8;

struct Member {
    channel: Channel,
    pid: u32,
}

impl<'a> Roster<'a> {
    pub(super) fn new(meeting: &'a Meeting) -> Roster<'a> {
        Roster { meeting, members: (1..meeting.size).map(|_| None).collect(), turned_away: Vec::new() }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.members.iter().all(Option::is_some)
    }

    /// Takes in whoever is at the other end, or turns it away and tells why. One that says nothing, or nothing that
    /// makes sense, is dropped: if it is a rank of ours it will come again.
    pub(super) fn admit(&mut self, channel: Channel, deadline: Deadline) {
        let _ = channel.greet(deadline);
        let theirs = socket_peercred(&channel).map(|peer| peer.uid.as_raw());
        let Ok(theirs) = theirs else { return };
        let ours = geteuid().as_raw();
        if theirs != ours {
            return self.turn_away(&channel, None, Refusal::User { theirs, ours });
        }
        match channel.greeted(deadline) {
            Ok(Some(VERSION)) => {}
            Ok(Some(joiner)) => {
                // It has learnt our version from the greeting, and would not understand more.
                return self.note(None, &Refusal::Version { joiner, listener: VERSION });
            }
            _ => return,
        }
        let Ok((Message::Hello { rank, size, pid, token }, _)) = channel.receive(deadline) else { return };
        match self.refusal(rank, size, &token) {
            Some(reason) => self.turn_away(&channel, Some((rank, pid)), reason),
            None => {
                channel.tell(&Message::Accepted { pid: std::process::id() });
                self.members[rank - 1] = Some(Member { channel, pid });
            }
        }
    }

    /// The channels to all and every rank's process, once the roster is complete.
    pub(super) fn close(self) -> (Leader, Vec<u32>) {
        let (channels, others): (Vec<Channel>, Vec<u32>) =
            self.members.into_iter().flatten().map(|member| (member.channel, member.pid)).unzip();
        let pids = std::iter::once(std::process::id()).chain(others).collect();
        (Leader::new(channels), pids)
    }

    /// Tells those who came that the others did not.
    pub(super) fn give_up(self, limit: Duration) -> BootstrapError {
        let missing = |(index, member): (usize, &Option<Member>)| member.is_none().then_some(index + 1);
        let ranks = self.members.iter().enumerate().filter_map(missing).collect();
        let mut purpose = self.meeting.purpose();
        if !self.turned_away.is_empty() {
            purpose = format!("{purpose}. Turned away meanwhile: {}", self.turned_away.join("; "));
        }
        let error = BootstrapError::Missing { ranks, purpose, limit };
        self.close().0.fail(&error);
        error
    }

    fn turn_away(&mut self, channel: &Channel, who: Option<(usize, u32)>, reason: Refusal) {
        self.note(who, &reason);
        channel.tell(&Message::Refused(reason));
    }

    fn note(&mut self, who: Option<(usize, u32)>, reason: &Refusal) {
        if self.turned_away.len() < NOTES_MAX {
            let who = who.map_or("somebody".to_owned(), |(rank, pid)| format!("rank {rank} (pid {pid})"));
            self.turned_away.push(format!("{who}: {reason}"));
        }
    }

    fn refusal(&self, rank: usize, size: usize, token: &str) -> Option<Refusal> {
        // First the token: nobody else learns anything about this job.
        if !self.meeting.token.is(token) {
            return Some(Refusal::Token);
        }
        if size != self.meeting.size {
            return Some(Refusal::Size { joiner: size, listener: self.meeting.size });
        }
        let Some(seat) = rank.checked_sub(1).and_then(|index| self.members.get(index)) else {
            return Some(Refusal::Rank { rank, size });
        };
        let taken = seat.as_ref().filter(|member| !member.channel.has_ended());
        taken.map(|member| Refusal::Duplicate { rank, pid: member.pid })
    }
}

#[cfg(test)]
mod tests {
    use super::super::meeting::{Place, Token};
    use super::*;
    use std::os::unix::net::UnixStream;

    fn meeting(size: usize) -> Meeting {
        let token = Token::new("secret").unwrap();
        Meeting { place: Place::Abstract("x".into()), token, size, deadline: Duration::from_secs(60) }
    }

    /// What a rank hears that says `hello` after the greeting.
    fn heard(roster: &mut Roster<'_>, hello: &Message) -> (Message, Channel) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (Channel::new(ours), Channel::new(theirs));
        let soon = Deadline::new(Duration::from_secs(60));
        theirs.greet(soon).unwrap();
        theirs.send(hello, None, soon).unwrap();
        roster.admit(ours, soon);
        assert_eq!(theirs.greeted(soon), Ok(Some(VERSION)));
        (theirs.receive(soon).unwrap().0, theirs)
    }

    fn hello(rank: usize, size: usize, token: &str) -> Message {
        Message::Hello { rank, size, pid: 1000 + rank as u32, token: token.to_owned() }
    }

    #[test]
    fn the_wrong_ones_are_refused_and_the_right_ones_still_admitted() {
        let meeting = meeting(3);
        let mut roster = Roster::new(&meeting);
        let refused = |roster: &mut Roster<'_>, hello| match heard(roster, &hello).0 {
            Message::Refused(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&mut roster, hello(1, 3, "guess")), Refusal::Token);
        assert_eq!(refused(&mut roster, hello(1, 4, "secret")), Refusal::Size { joiner: 4, listener: 3 });
        assert_eq!(refused(&mut roster, hello(0, 3, "secret")), Refusal::Rank { rank: 0, size: 3 });
        assert_eq!(refused(&mut roster, hello(3, 3, "secret")), Refusal::Rank { rank: 3, size: 3 });
        let (answer, _one) = heard(&mut roster, &hello(1, 3, "secret"));
        assert_eq!(answer, Message::Accepted { pid: std::process::id() });
        assert_eq!(refused(&mut roster, hello(1, 3, "secret")), Refusal::Duplicate { rank: 1, pid: 1001 });
        assert!(!roster.is_complete());
        let (_, _two) = heard(&mut roster, &hello(2, 3, "secret"));
        assert!(roster.is_complete());
        assert_eq!(roster.close().1, [std::process::id(), 1001, 1002]);
    }

    #[test]
    fn a_rank_that_ended_may_come_again() {
        let meeting = meeting(3);
        let mut roster = Roster::new(&meeting);
        drop(heard(&mut roster, &hello(2, 3, "secret")));
        let (answer, _again) = heard(&mut roster, &hello(2, 3, "secret"));
        assert_eq!(answer, Message::Accepted { pid: std::process::id() });
    }

    #[test]
    fn those_who_came_hear_who_did_not() {
        let meeting = meeting(4);
        let mut roster = Roster::new(&meeting);
        let (_, there) = heard(&mut roster, &hello(2, 4, "secret"));
        heard(&mut roster, &hello(1, 2, "secret"));
        let error = roster.give_up(Duration::from_secs(30));
        assert_eq!(
            error.to_string(),
            "ranks 1 and 3 did not come within 30 s, for the meeting at @x. Turned away meanwhile: rank 1 (pid 1001): \
             it expects 2 ranks, rank 0 expects 4"
        );
        let told = there.receive(Deadline::new(Duration::from_secs(60))).unwrap().0;
        assert_eq!(told, Message::Failed(error));
    }
}
