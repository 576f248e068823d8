//! Every duration of this crate, in one table. Durations race each other, so the order that the code needs is asserted below; a
//! change that breaks it does not compile. Deadlines of single calls are options; those of joining and membership are in
//! `weftlink_membership::durations`, those of messages between two ranks in `weftlink_p2p::durations`.

use std::time::Duration;

use weftlink_membership::durations::ROOTS;
pub(crate) use weftlink_membership::durations::WARN_AFTER;
use weftlink_p2p::durations::{DEATH_VERDICT, LAST_FRAMES};

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

/// The deadline of a call, unless the options say otherwise.
pub(crate) const CALL: Duration = ms(300_000);
/// Stall warnings come no sooner and no closer together than this, whatever the options say.
pub(crate) const WARN_AFTER_MIN: Duration = ms(10);
/// How long a call that failed waits for the report that a rank has died whose memory or connection is gone, for the calls of ranks on
/// other hosts, and for the error of the rank that aborted first.
pub(crate) const REPORT: Duration = ms(2000);
/// How long it waits for that error where something can be said without it.
pub(crate) const ABORT_CAUSE_BRIEF: Duration = ms(300);
/// How long a message that failed waits for the rank that aborted to say why: that rank first asks the others what they wait for.
pub(crate) const ABORT_CAUSE: Duration = ROOTS.saturating_add(ms(250));
/// How often a failed call or message polls for those.
pub(crate) const CAUSE_POLL: Duration = ms(1);
/// How long a rank waits for other calls that use a window's memory, however short the deadline of its own call is. All of them are
/// aborted, so only one that computes, or a program that keeps the window open, takes long.
pub(crate) const WINDOW_CALLS: Duration = ms(30_000);
/// How often it polls for them.
pub(crate) const WINDOW_POLL: Duration = us(100);
/// How long a dropped transport or endpoint keeps sending data that its callers consider sent.
pub(crate) const LAST_FLUSH: Duration = ms(2000);
/// How often it polls meanwhile.
pub(crate) const LAST_FLUSH_POLL: Duration = us(100);
/// How much later than the end of one connection the bytes of another between the same ranks may arrive: a proxy need not
/// keep them in step.
pub(crate) const LAST_BYTES: Duration = ms(200);
/// A rank that waits shows its call to other hosts after this long: ranks whose calls differ may be waiting for each other.
pub(crate) const SHOW_CALL: Duration = ms(100);
/// How often a waiting thread checks messages for timeouts and for peers that are gone.
pub(crate) const MESSAGE_CHECK: Duration = ms(1);
/// How long an endpoint's thread that was not needed naps between two polls.
pub(crate) const NAP: Duration = us(250);

/// Asserts that the first duration is shorter than the second.
macro_rules! before {
    ($($first:ident < $second:ident : $why:literal;)*) => {
        $(const _: () = assert!($first.as_nanos() < $second.as_nanos(), $why);)*
    };
}

before! {
    WARN_AFTER_MIN < WARN_AFTER: "the default warning is one that the options allow";
    WARN_AFTER < CALL: "a stall warning precedes the timeout";
    CAUSE_POLL < ABORT_CAUSE_BRIEF: "a cause is polled for more than once";
    ABORT_CAUSE_BRIEF < REPORT: "a call that can do without the cause waits less for it";
    ROOTS < ABORT_CAUSE: "the rank that aborts finds the ranks to blame before its peers stop waiting for that";
    WINDOW_POLL < WINDOW_CALLS: "calls in a window are polled for more than once";
    LAST_FLUSH_POLL < LAST_FLUSH: "a last flush makes more than one attempt";
    LAST_BYTES < LAST_FLUSH: "a rank that leaves sends for longer than its peers wait for its last bytes to arrive";
    LAST_FRAMES < LAST_FLUSH: "the same for messages between two ranks";
    MESSAGE_CHECK < LAST_FRAMES: "the last frames of a rank are looked for before it counts as gone";
    MESSAGE_CHECK < DEATH_VERDICT: "an abort is seen before a symptom of it is reported";
    NAP < MESSAGE_CHECK: "a napping thread wakes in time to check messages";
    SHOW_CALL < REPORT: "a call that differs is shown before its peers stop waiting for it";
    SHOW_CALL < WARN_AFTER: "calls are compared before a stall is reported";
}
