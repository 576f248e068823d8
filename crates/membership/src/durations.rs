//! Every duration of the protocol, in one table. Durations race each other, so the order that the protocol needs is asserted
//! below; a change that breaks it does not compile.

use std::time::Duration;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// How often a blocked caller polls what may have changed besides what it waits for.
pub const POLL: Duration = ms(100);
/// The same for a rank that waits for connections.
pub const ACCEPT_POLL: Duration = ms(20);
/// How long a peer may take to say who it is after it has connected, and any step that needs no call of another rank.
pub const HELLO: Duration = ms(5000);
/// The same where no thread can be started to wait for it.
pub const HELLO_WITHOUT_THREAD: Duration = ms(500);
/// How long a peer may take to accept one message.
pub const SEND: Duration = ms(1000);
/// How long a rank that leaves waits for its last events to be written.
pub const DRAIN: Duration = ms(1000);
/// How long a rank that leaves waits for the others to confirm that they know.
pub const DEPARTURE: Duration = ms(1000);
/// How long it may take to find out whether the process behind a failed connection has ended.
pub const INQUIRY: Duration = ms(500);
/// The pause between two attempts to find that out.
pub const INQUIRY_RETRY: Duration = ms(10);
/// How long a process that exits may take to end after its connections have ended: the driver of a GPU destroys its context first,
/// which took up to 1.6 s.
pub const EXIT: Duration = ms(10_000);
/// How long a caller that cannot write to a peer waits for the result of the inquiry.
pub const INQUIRY_RESULT: Duration = ms(2000);
/// How long after its parent left a rank connects to another one. Ranks mostly leave together.
pub const REPARENT_AFTER: Duration = ms(100);
/// How long one attempt to reparent may take.
pub const REPARENT: Duration = ms(1000);
/// How long after a rank left its children that have not reconnected are probed.
pub const PROBE_CHILDREN_AFTER: Duration = ms(800);
/// How much longer than its parent a rank waits for the result of an exchange, per level of the tree: the parent knows better
/// who is missing.
pub const VERDICT: Duration = ms(500);
/// The pause between two probes of ranks that have not come to regroup, and the limit of one probe.
pub const PROBE: Duration = ms(250);
/// The pauses between attempts to regroup, or to find rank 0.
pub const RETRY_MIN: Duration = ms(1);
/// See [`RETRY_MIN`].
pub const REGROUP_RETRY_MAX: Duration = ms(100);
/// See [`RETRY_MIN`].
pub const JOIN_RETRY_MAX: Duration = ms(50);
/// How long the ranks of a proposed group may take to connect to each other, as the leader sees it.
pub const FORM: Duration = ms(10_000);
/// The same for a follower.
pub const FOLLOW_FORM: Duration = ms(15_000);
/// How long a side that is too small to continue looks for the others again.
pub const MINORITY: Duration = HELLO;
/// The same after the deadline: ranks that wait for another leader need a moment to come.
pub const LATE_MINORITY: Duration = ms(1000);
/// How long after the deadline of a rendezvous the ranks that joined wait for rank 0's decision, connect to each other and run
/// their barrier.
pub const PLACE: Duration = HELLO;
/// How long after that deadline a rank waits for its children to connect.
pub const CHILDREN: Duration = ms(2500);
/// The least time for one attempt to reach a rank, however often waits are logged: a rank on a busy machine must have time to
/// answer.
pub const ATTEMPT_MIN: Duration = ms(1000);
/// How long a rank that cannot take its slot waits for rank 0's error, which may name the cause.
pub const ROOT_ERROR: Duration = ms(500);
/// How long a rank retries at an address where a process of another user listens.
pub const OTHER_USER: Duration = ms(5000);
/// A wait is recorded after this long.
pub const NOTE_AFTER: Duration = ms(100);
/// A rank that has just announced its waits does not repeat that for this long.
pub const ANSWER_PAUSE: Duration = ms(200);
/// How long before a stall warning the other ranks are asked for their waits. A rank that shares its core with others needs a
/// while to answer.
pub const ASK_AHEAD: Duration = ms(500);
/// How long ranks may take to announce their waits after a timeout.
pub const ROOTS: Duration = ms(2000);
/// A stall warning is logged after this long, unless the options of a communicator say otherwise.
pub const WARN_AFTER: Duration = ms(10_000);
/// How long a thread of the same process may take to say why it aborted: it does so right after it set the abort word.
pub const THREAD_CAUSE: Duration = ms(300);

/// Asserts that the first duration is shorter than the second.
macro_rules! before {
    ($($first:ident < $second:ident : $why:literal;)*) => {
        $(const _: () = assert!($first.as_nanos() < $second.as_nanos(), $why);)*
    };
}

before! {
    INQUIRY_RETRY < INQUIRY: "an inquiry makes more than one attempt";
    INQUIRY < EXIT: "a process that exits has more time than one that may live";
    INQUIRY < INQUIRY_RESULT: "a caller waits until the inquiry has a result, unless the process takes longer to exit";
    INQUIRY < REPARENT: "a parent that has died is found out before a rank gives it up as its new parent";
    REPARENT_AFTER < PROBE_CHILDREN_AFTER: "children reconnect before they are missed";
    PROBE < INQUIRY: "a probe fits into an inquiry";
    PROBE < HELLO: "a rank that regroups is probed more than once before its step times out";
    HELLO < FORM: "a follower that cannot connect to its parent reports it before the leader gives the proposal up";
    FORM < FOLLOW_FORM: "the leader, which knows who is missing, ends a proposal before its followers do";
    PROBE < LATE_MINORITY: "a leader that was stopped finds the others before it gives up";
    REGROUP_RETRY_MAX < PROBE: "a follower comes back before the leader probes it";
    PROBE_CHILDREN_AFTER < DEPARTURE: "a rank that hands its departure over answers a probe that misses it";
    DEPARTURE < HELLO: "a rank that leaves does not hold up a handshake";
    DRAIN < HELLO: "a rank that leaves does not hold up a handshake";
    NOTE_AFTER < ASK_AHEAD: "a wait is recorded before anybody asks for it";
    ANSWER_PAUSE < ASK_AHEAD: "an answer that was held back still arrives before the warning";
    ASK_AHEAD < ROOTS: "an error waits at least as long for answers as a warning";
    ASK_AHEAD < WARN_AFTER: "ranks are asked before the warning";
    VERDICT < HELLO: "a missing rank is named before its peers give the step up";
    RETRY_MIN < JOIN_RETRY_MAX: "a rank that waits for rank 0 to listen retries less and less often";
    JOIN_RETRY_MAX < ATTEMPT_MIN: "a rank that waits for rank 0 to listen mostly finds it within the time of one attempt";
    JOIN_RETRY_MAX < OTHER_USER: "a rank retries more than once where another user listens";
    ATTEMPT_MIN < HELLO: "a stall warning shortens an attempt, and never lengthens it";
    CHILDREN < PLACE: "a parent, which knows which child is missing, times out before the others";
    INQUIRY < CHILDREN: "rank 0 finds out what became of a rank before the parent of that rank times out";
    ROOT_ERROR < CHILDREN: "a rank that waits for rank 0's error still reports its own in time";
    HELLO_WITHOUT_THREAD < HELLO: "a monitor thread that reads by itself gives a peer less time";
}
