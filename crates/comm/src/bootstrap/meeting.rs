//! How processes of one host become a group: rank 0 listens at a place, the others come.
//!
//! A rank that comes greets (see `channel.rs`), is greeted, and says [`Message::Hello`]. Rank 0 answers at once:
//! accepted, or refused and why; a refused one disturbs nobody, rank 0 goes on waiting for the right ones. When all
//! are there it welcomes them, with the list of processes, and stops listening. If the deadline passes first, those
//! who did come are told who did not.
//!
//! Who may come: processes of the same user (the kernel tells, both ways) that know the job's [`Token`]. A rank that
//! came and ended may come again until the meeting is complete.
//!
//! A rank whose connection ends before it was answered tries again until its deadline: the listener may have been
//! somebody else's, left over or just closing.

use std::fmt;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

use super::channel::{Broken, Channel, Deadline, Message, VERSION};
use super::error::{BootstrapError, Refusal};
use super::leader::Leader;
use super::roster::Roster;

/// What the ranks of a job agree on before they meet.
#[derive(Debug, Clone)]
pub struct Meeting {
    /// Where.
    pub place: Place,
    /// How the ranks of this job know each other.
    pub token: Token,
    /// How many ranks there are, rank 0 included.
    pub size: usize,
    /// How long to wait for all to come.
    pub deadline: Duration,
}

impl Meeting {
    pub(super) fn purpose(&self) -> String {
        format!("the meeting at {}", self.place)
    }
}

/// Where ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A name in the kernel's table: nothing is left behind, however the ranks end. Seen by all processes of one
    /// network namespace, so not across containers.
    Abstract(String),
    /// A socket in the file system, which containers can share. A stale one is replaced.
    Path(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Abstract(name) => write!(f, "@{name}"),
            Place::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// What only the ranks of one job know. It never shows in messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token of at most 256 bytes; the same for all ranks of a job, another for every job.
    pub fn new(text: impl Into<String>) -> Result<Token, BootstrapError> {
        let text = text.into();
        if text.len() > TOKEN_BYTES_MAX {
            return Err(bad_call(format!(
                "a token may have {TOKEN_BYTES_MAX} bytes, this has {}",
                text.len()
            )));
        }
        Ok(Token(text))
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.0 == text
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

const TOKEN_BYTES_MAX: usize = 256;
const RANKS_MAX: usize = 4096;

/// How long one that came may take to say who it is, while the others wait behind it.
const HELLO_LIMIT: Duration = Duration::from_secs(2);

/// The pause between two tries to find the listener: short at first, since ranks are mostly started together.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Rank 0: waits for all others. Also returns every rank's process.
pub(super) fn listen(meeting: &Meeting) -> Result<(Leader, Vec<u32>), BootstrapError> {
    check(meeting, 0)?;
    let deadline = Deadline::new(meeting.deadline);
    let mut roster = Roster::new(meeting);
    if meeting.size > 1 {
        let listening = Listening::at(&meeting.place)?;
        while !roster.is_complete() {
            let Some(stream) = listening.accept(deadline)? else {
                return Err(roster.give_up(deadline.limit()));
            };
            roster.admit(Channel::new(stream), deadline.or_within(HELLO_LIMIT));
        }
    }
    let (leader, pids) = roster.close();
    let welcome = Message::Welcome { pids: pids.clone() };
    let said = leader.say_all(&welcome, &meeting.purpose(), deadline.later(HELLO_LIMIT), &pids);
    said.inspect_err(|error| leader.fail(error))?;
    Ok((leader, pids))
}

/// Any other rank: finds rank 0 and waits until all are there. Also returns every rank's process.
pub(super) fn join(meeting: &Meeting, rank: usize) -> Result<(Channel, Vec<u32>), BootstrapError> {
    check(meeting, rank)?;
    if rank == 0 {
        return Err(bad_call("rank 0 listens, only the others join".to_owned()));
    }
    let deadline = Deadline::new(meeting.deadline);
    let mut pause = PAUSE_MIN;
    let (channel, leader_pid) = loop {
        let last = match introduce(meeting, rank, deadline)? {
            Ok(accepted) => break accepted,
            Err(last) => last,
        };
        // One that would only be late is not tried: its error would hide this one.
        let Some(left) = deadline.left().filter(|left| *left > pause) else {
            let (place, limit) = (meeting.place.to_string(), deadline.limit());
            return Err(BootstrapError::NobodyListens { place, last, limit });
        };
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(PAUSE_MAX);
    };
    // As in `share`: rank 0 knows who is missing, and says so a little after its deadline.
    let answer = channel.receive(deadline.later(HELLO_LIMIT));
    match answer.map_err(|broken| broken.of(0, leader_pid, &meeting.purpose(), deadline))?.0 {
        Message::Welcome { pids } if pids.len() == meeting.size => Ok((channel, pids)),
        Message::Failed(error) => Err(error),
        other => Err(other.unexpected(0)),
    }
}

/// One try: the channel on which rank 0 has accepted us, or why it is worth trying again.
fn introduce(
    meeting: &Meeting,
    rank: usize,
    deadline: Deadline,
) -> Result<Result<(Channel, u32), String>, BootstrapError> {
    let refused = |reason| BootstrapError::Refused { rank, place: meeting.place.to_string(), reason };
    let stream = match reach(&meeting.place, deadline) {
        Ok(stream) => stream,
        Err(error @ (Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR | Errno::INPROGRESS)) => {
            return Ok(Err(error.to_string()));
        }
        Err(error) => return Err(unusable(&meeting.place, error)),
    };
    let peer = socket_peercred(&stream).map_err(|error| unusable(&meeting.place, error))?;
    let (theirs, ours) = (peer.uid.as_raw(), geteuid().as_raw());
    if theirs != ours {
        // The token is for our own listener only.
        return Err(refused(Refusal::User { theirs, ours }));
    }
    let channel = Channel::new(stream);
    let hello =
        Message::Hello { rank, size: meeting.size, pid: std::process::id(), token: meeting.token.0.clone() };
    let answer = || -> Result<Result<u32, Refusal>, Broken> {
        // Whoever turned us away already no longer reads, but what it said last can still be read.
        let _ = channel.greet(deadline);
        match channel.greeted(deadline)? {
            None => return Ok(Err(Refusal::NotWeft)),
            Some(VERSION) => {}
            Some(listener) => return Ok(Err(Refusal::Version { joiner: VERSION, listener })),
        }
        let _ = channel.send(&hello, None, deadline);
        match channel.receive(deadline)?.0 {
            Message::Accepted { pid } => Ok(Ok(pid)),
            Message::Refused(reason) => Ok(Err(reason)),
            other => Err(Broken::Strange(format!("it said {other:?}"))),
        }
    };
    match answer() {
        Ok(Ok(pid)) => Ok(Ok((channel, pid))),
        Ok(Err(reason)) => Err(refused(reason)),
        Err(Broken::Ended) => Ok(Err("whoever listened went away without an answer".to_owned())),
        Err(Broken::Late) => Ok(Err("it did not answer".to_owned())),
        Err(Broken::Strange(what)) => Err(BootstrapError::Protocol { rank: 0, what }),
    }
}

/// A connection, made here because the standard library's waits for a busy listener without a bound.
fn reach(place: &Place, deadline: Deadline) -> Result<UnixStream, Errno> {
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(deadline.left().ok_or(Errno::AGAIN)?))?;
    let address = match place {
        Place::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        Place::Path(path) => SocketAddrUnix::new(path)?,
    };
    connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

fn check(meeting: &Meeting, rank: usize) -> Result<(), BootstrapError> {
    match meeting.size {
        0 => Err(bad_call("a group has at least one rank".to_owned())),
        size if size > RANKS_MAX => {
            Err(bad_call(format!("{size} ranks on one host are more than {RANKS_MAX}")))
        }
        size if rank >= size => Err(bad_call(format!("rank {rank} is not one of {size} ranks"))),
        _ => Ok(()),
    }
}

fn bad_call(what: String) -> BootstrapError {
    BootstrapError::BadCall { what }
}

fn unusable(place: &Place, reason: impl fmt::Display) -> BootstrapError {
    BootstrapError::Place { place: place.to_string(), reason: reason.to_string() }
}

/// A listening socket, whose path, if it has one, goes when it does.
struct Listening<'a> {
    listener: UnixListener,
    place: &'a Place,
}

impl Listening<'_> {
    fn at(place: &Place) -> Result<Listening<'_>, BootstrapError> {
        let bind = || match place {
            Place::Abstract(name) => UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?),
            Place::Path(path) => UnixListener::bind(path),
        };
        let mut listener = bind();
        if let (Err(error), Place::Path(path)) = (&listener, place) {
            if error.kind() == ErrorKind::AddrInUse && !is_socket(path) {
                return Err(unusable(place, "there is something else than a socket; choose another name"));
            }
            let soon = Deadline::new(HELLO_LIMIT);
            if error.kind() == ErrorKind::AddrInUse && reach(place, soon).err() == Some(Errno::CONNREFUSED) {
                // A socket on which nobody listens: left over from a process that was killed.
                let _ = std::fs::remove_file(path);
                listener = bind();
            }
        }
        let listener = listener.map_err(|error| unusable(place, error))?;
        Ok(Listening { listener, place })
    }

    /// The next to come; `None` when the deadline has passed.
    fn accept(&self, deadline: Deadline) -> Result<Option<UnixStream>, BootstrapError> {
        while let Some(left) = deadline.left() {
            // On Linux the timeout for receiving holds for accepting too.
            let accepted = set_socket_timeout(&self.listener, Timeout::Recv, Some(left))
                .map_err(std::io::Error::from)
                .and_then(|()| self.listener.accept());
            match accepted {
                Ok((stream, _)) => return Ok(Some(stream)),
                Err(error) if is_passing(error.kind()) => {}
                Err(error) => return Err(unusable(self.place, error)),
            }
        }
        Ok(None)
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        if let Place::Path(path) = self.place {
            let _ = std::fs::remove_file(path);
        }
    }
}
