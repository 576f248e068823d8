//! Counters of traffic and of errors, with the unit and the width in which the hardware counts.

use serde::Serialize;

/// A counter of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// What the counter shows.
    pub count: u64,
    /// Bytes of one count: 4 for `port_xmit_data`, 1024 for NVLinks.
    pub unit_bytes: u64,
    /// The width at which it starts again at 0.
    pub bits: u32,
}

impl Counter {
    /// A 64-bit counter.
    pub const fn of(count: u64, unit_bytes: u64) -> Self {
        Self { count, unit_bytes, bits: 64 }
    }

    /// A counter of 32 bits.
    pub const fn of_32_bits(count: u64, unit_bytes: u64) -> Self {
        Self { count, unit_bytes, bits: 32 }
    }

    /// Bytes counted.
    pub const fn bytes(self) -> u64 {
        self.count.saturating_mul(self.unit_bytes)
    }

    /// The counts from `before` to this, modulo the width.
    pub(super) const fn wrapped_since(self, before: Self) -> u64 {
        let counts = self.count.wrapping_sub(before.count);
        if self.bits >= 64 { counts } else { counts & ((1 << self.bits) - 1) }
    }

    /// True if the counter shows its largest value. The 32-bit counters of InfiniBand stop there.
    pub const fn is_at_limit(self) -> bool {
        self.bits < 64 && self.count == (1 << self.bits) - 1
    }
}

/// A counter of errors or events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorCounter {
    /// Its name, as in sysfs where it comes from there: `symbol_error`, `replay_errors`, `aer_correctable`.
    pub name: String,
    /// How often it happened.
    pub count: u64,
}

/// Counters that also rise on healthy links: waits for credit, congestion notifications, bits before and at the first level of error
/// correction, frames of protocols that the host does not speak, and changes of the carrier, one of which is the start of the interface.
const NORMAL: [&str; 13] = [
    "port_xmit_wait",
    "np_cnp_sent",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
    "rx_dropped",
    "duplicate_request",
    "fec_errors_0",
    "raw_ber_lane_0",
    "raw_ber_lane_1",
    "raw_ber_total",
    "raw_errors_lane_0",
    "raw_errors_lane_1",
    "carrier_changes",
];

impl ErrorCounter {
    /// True if the counter also rises on a healthy link.
    pub fn is_normal(&self) -> bool {
        NORMAL.contains(&self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_modulo_the_width() {
        let words = |count| Counter::of_32_bits(count, 4);
        assert_eq!(words(100).wrapped_since(words(u64::from(u32::MAX) - 99)), 200);
        assert_eq!(Counter::of(5, 1).wrapped_since(Counter::of(u64::MAX, 1)), 6);
        assert_eq!(words(10).bytes(), 40);
        assert_eq!(Counter::of(u64::MAX, 1024).bytes(), u64::MAX);
        assert!(words(u64::from(u32::MAX)).is_at_limit());
        assert!(!Counter::of(u64::from(u32::MAX), 4).is_at_limit());
    }
}
