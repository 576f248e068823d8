//! Amounts of data: `64MiB`, `1GB`, `80 GB`. KB, MB, GB are powers of 1000; KiB, MiB, GiB are powers of 1024, and so
//! are K, M, G, as in nccl-tests.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// From GB, 1e9 bytes.
    pub const fn from_gb(gigabytes: u64) -> Self {
        Self(gigabytes * 1_000_000_000)
    }
}

/// The largest size that is read, 1 PB: larger than any GPU memory, and small enough for times in picoseconds to fit
/// 64 bits.
const BYTES_MAX: u64 = 1_000_000_000_000_000;

const UNITS: [(&str, u64); 14] = [
    ("tib", 1 << 40),
    ("gib", 1 << 30),
    ("mib", 1 << 20),
    ("kib", 1 << 10),
    ("t", 1 << 40),
    ("g", 1 << 30),
    ("m", 1 << 20),
    ("k", 1 << 10),
    ("tb", 1_000_000_000_000),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("b", 1),
    ("", 1),
];

/// A text is not an amount of data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseSizeError {
    /// The number or the unit cannot be read.
    #[error("`{0}` is not a size; write 8, 64K, 64KiB, 25MB or 1G")]
    Unreadable(String),
    /// The size exceeds the limit.
    #[error("`{0}` is too large; the largest size is 1 PB")]
    TooLarge(String),
}

impl FromStr for Bytes {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(40).collect();
        let unreadable = || ParseSizeError::Unreadable(shown());
        // `Gb` usually means gigabit.
        if text.trim().ends_with('b') && text.contains(['K', 'M', 'G', 'T']) {
            return Err(unreadable());
        }
        let lower = text.trim().to_ascii_lowercase();
        let split = lower.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(lower.len());
        let (number, unit) = lower.split_at(split);
        // A malformed range such as `8...9` leaves `.9` here.
        if !number.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(unreadable());
        }
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(unreadable)?;
        let value = number.parse::<f64>().map_err(|_| unreadable())? * *factor as f64;
        if *factor == 1 && value.fract() != 0.0 {
            return Err(unreadable());
        }
        // Whole numbers stay exact; a double is not, above 2^53.
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(*factor),
            Err(_) => (value <= BYTES_MAX as f64).then_some(value as u64),
        };
        bytes.filter(|bytes| *bytes <= BYTES_MAX).map(Self).ok_or_else(|| ParseSizeError::TooLarge(shown()))
    }
}

/// In the largest power of 1000 that gives at least one: `80 GB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, size) in [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)] {
            let value = self.0 as f64 / size;
            if value >= 1.0 {
                let text = format!("{value:.1}");
                return f.pad(&format!("{} {unit}", text.trim_end_matches(".0")));
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in [
            ("8", 8),
            ("64MiB", 64 << 20),
            ("1GB", 1_000_000_000),
            ("1.5 gb", 1_500_000_000),
            ("25mb", 25_000_000),
            ("64K", 64 << 10),
            ("128m", 128 << 20),
            ("1G", 1 << 30),
            ("1.5g", 3 << 29),
            ("1000TB", BYTES_MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
        assert_eq!(Bytes::from_gb(80).to_string(), "80 GB");
        assert_eq!(Bytes(12).to_string(), "12 B");
    }

    #[test]
    fn too_large_and_unreadable_are_different_errors() {
        for text in
            ["99999999TB", "99999999999999999999", "18446744073709551615", "1001 TB", "9999999999.5 TB"]
        {
            assert!(matches!(text.parse::<Bytes>(), Err(ParseSizeError::TooLarge(_))), "{text}");
        }
        for text in
            ["", "lots", "G", "GB", "1Gb", "1KG", "1.2.3", "-1", "-1G", "1 parsec", ".", ".9", "1.5", "0.5b"]
        {
            assert!(matches!(text.parse::<Bytes>(), Err(ParseSizeError::Unreadable(_))), "{text}");
        }
    }
}
