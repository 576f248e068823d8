//! Amounts of data: `64MiB`, `1GB`, `80 GB`. KB, MB, GB are powers of 1000; KiB, MiB, GiB of 1024.

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

const UNITS: [(&str, u64); 10] = [
    ("tib", 1 << 40),
    ("gib", 1 << 30),
    ("mib", 1 << 20),
    ("kib", 1 << 10),
    ("tb", 1_000_000_000_000),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("b", 1),
    ("", 1),
];

/// Not an amount of data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size; write 8, 64KiB, 25MB or 1GB")]
pub struct BadSize(String);

impl FromStr for Bytes {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadSize(text.chars().take(40).collect());
        // `Gb` is a gigabit to those who write `GB` for a gigabyte.
        if text.trim().ends_with('b') && text.contains(['K', 'M', 'G', 'T']) {
            return Err(bad());
        }
        let lower = text.trim().to_ascii_lowercase();
        let split = lower.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(lower.len());
        let (number, unit) = lower.split_at(split);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(bad)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(*factor).map(Self).ok_or_else(bad);
        }
        let value = number.parse::<f64>().map_err(|_| bad())? * *factor as f64;
        if value < 1e18 { Ok(Self(value as u64)) } else { Err(bad()) }
    }
}

/// The largest unit of 1000 that leaves a number of at least one: `80 GB`.
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
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
        for text in ["", "GB", "1Gb", "1.2.3", "1 parsec", "99999999999999999999", "9999999999 TB", "-1"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(Bytes::from_gb(80).to_string(), "80 GB");
        assert_eq!(Bytes(12).to_string(), "12 B");
    }
}
