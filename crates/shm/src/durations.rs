//! Every duration of this crate, with the order that the code needs asserted.

use std::time::Duration;

/// The shortest and the longest slice of a sleep. A lost wake costs one.
pub(crate) const SLICE_MIN: Duration = Duration::from_micros(50);
/// See [`SLICE_MIN`].
pub(crate) const SLICE_MAX: Duration = Duration::from_millis(1);
/// A wait whose sleeps end by time only uses the shortest slice for this long.
pub(crate) const BRISK: Duration = Duration::from_millis(20);
/// The pause between two calls of a poll hook.
pub(crate) const POLL_HOOK: Duration = Duration::from_millis(50);

const _: () = assert!(SLICE_MIN.as_nanos() < SLICE_MAX.as_nanos(), "slices grow");
const _: () =
    assert!(SLICE_MAX.as_nanos() < POLL_HOOK.as_nanos(), "a sleeping thread wakes in time for its hook");
const _: () = assert!(SLICE_MAX.as_nanos() < BRISK.as_nanos(), "a wait is brisk for more than one slice");
