//! Time for the recorder: a counter of the processor that is read in a few nanoseconds, and its conversion to nanoseconds.
//!
//! Reading the system's clock takes 20 ns or more, too much for a call of 300 ns. Reading the processor's own counter takes
//! a third of that. Its rate is constant but unknown; so pairs of both clocks, *anchors*, are taken now and then, off the hot
//! path, and readers compute times from two of them.
//!
//! Where the counter is not known to be steady, ticks are nanoseconds of the system's clock.

#![allow(unsafe_code)] // Instructions that read a counter, and the C library's clock.

/// Nanoseconds of the monotonic clock, which all processes of a host share.
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC) as u64
}

/// The offset from the monotonic clock to the time of day.
pub fn realtime_offset_ns() -> i64 {
    read(libc::CLOCK_REALTIME) - read(libc::CLOCK_MONOTONIC)
}

/// By the C library: rustix's own access to the clock fails under valgrind, which counts instructions.
fn read(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result is ours; both clocks exist everywhere, so it cannot fail.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Where ticks come from.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    is_steady: bool,
}

impl Clock {
    /// The processor's counter if it is steady, or else the monotonic clock.
    pub fn detect() -> Self {
        Self { is_steady: is_steady() }
    }

    /// The count now.
    #[inline]
    pub fn ticks(self) -> u64 {
        if self.is_steady { counter() } else { now_ns() }
    }
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The counter.
    pub ticks: u64,
    /// The monotonic clock.
    pub ns: u64,
}

/// The conversion from ticks, by two anchors.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    last: Anchor,
    ns_per_tick: f64,
}

impl Scale {
    /// The scale between two anchors.
    pub fn between(first: Anchor, last: Anchor) -> Self {
        let (ticks, ns) = (last.ticks.wrapping_sub(first.ticks), last.ns.wrapping_sub(first.ns));
        // Equal anchors, or those of a broken file, give no rate.
        let ns_per_tick = if ticks == 0 { 1.0 } else { ns as f64 / ticks as f64 };
        Self { last, ns_per_tick }
    }

    /// The time of a tick, near the last anchor exact to its distance times the error of the rate.
    pub fn ns(&self, ticks: u64) -> u64 {
        let distance = ticks.wrapping_sub(self.last.ticks) as i64 as f64 * self.ns_per_tick;
        (self.last.ns as f64 + distance).max(0.0) as u64
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn is_steady() -> bool {
    use std::arch::x86_64::__cpuid;
    // Bit 8 of the leaf for power management: the counter runs at one rate in all states.
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every 64-bit x86 has the instruction; a system that forbids it (PR_SET_TSC) also kills processes that read the clock.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn is_steady() -> bool {
    true
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets programs read the virtual counter; nothing else happens.
    unsafe {
        std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
    };
    ticks
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn is_steady() -> bool {
    false
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn counter() -> u64 {
    now_ns()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn ticks_convert_to_times_in_order() {
        let clock = Clock::detect();
        let anchor = || Anchor { ticks: clock.ticks(), ns: now_ns() };
        let first = anchor();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (before, ticks, after) = (now_ns(), clock.ticks(), now_ns());
        let scale = Scale::between(first, anchor());
        let ns = scale.ns(ticks);
        // A thread that is preempted between the two clocks of an anchor shifts it; a millisecond is ample.
        assert!(ns + 1_000_000 > before && ns < after + 1_000_000, "{before} {ns} {after}");
    }

    #[test]
    fn invalid_anchors_do_not_panic() {
        let anchor = |ticks, ns| Anchor { ticks, ns };
        for (first, last) in
            [(anchor(5, 5), anchor(5, 5)), (anchor(9, 9), anchor(0, 0)), (anchor(0, 0), anchor(1, u64::MAX))]
        {
            let _ = Scale::between(first, last).ns(u64::MAX);
        }
    }
}
