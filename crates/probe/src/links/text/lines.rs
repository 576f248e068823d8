//! Lines with their numbers, without colours, and the errors of readers.

use super::{BYTES_MAX, GPUS_MAX, LINKS_MAX, LinesError};
use crate::links::Links;

/// The lines of an input within the limit.
pub(super) struct Lines<'t> {
    lines: std::iter::Enumerate<std::str::Lines<'t>>,
}

/// One line.
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: usize,
    /// Without escape sequences and white space at the end.
    pub(super) text: String,
}

impl<'t> Lines<'t> {
    pub(super) fn of(text: &'t str) -> Result<Self, LinesError> {
        if text.len() > BYTES_MAX {
            return Err(LinesError::TooLarge { what: "bytes", limit: BYTES_MAX });
        }
        Ok(Self { lines: text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() })
    }
}

impl Iterator for Lines<'_> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        let (index, line) = self.lines.next()?;
        Some(Line { number: index + 1, text: plain(line) })
    }
}

impl Line {
    /// An error on this line.
    pub(super) fn expected(&self, expected: impl Into<String>) -> LinesError {
        LinesError::Line { line: self.number, found: excerpt(self.text.trim()), expected: expected.into() }
    }
}

/// At most 60 characters, without control characters.
fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut shown: String =
        text.chars().take(CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

/// A line without escape sequences of colours.
fn plain(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        text.push_str(&part[end..]);
    }
    text.truncate(text.trim_end().len());
    text
}

/// Refuses more links or GPUs than any machine has.
pub(super) fn check_size(links: &Links) -> Result<(), LinesError> {
    if links.links.len() > LINKS_MAX {
        return Err(LinesError::TooLarge { what: "links", limit: LINKS_MAX });
    }
    if links.gpus.len() > GPUS_MAX {
        return Err(LinesError::TooLarge { what: "GPUs", limit: GPUS_MAX });
    }
    Ok(())
}

/// A PCI address in lower case with a domain of four digits or more: `00000000:18:00.0` becomes `0000:18:00.0`. None if it is none.
pub(super) fn bus(text: &str) -> Option<String> {
    let text = text.trim();
    let (rest, function) = text.rsplit_once('.')?;
    let parts: Vec<&str> = rest.split(':').collect();
    let is_hexadecimal = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_hexdigit());
    let fits = match parts[..] {
        [domain, bus, device] => domain.len() <= 8 && bus.len() == 2 && device.len() == 2,
        // `amd-smi` of ROCm 5 and 6.0 leaves the domain out.
        [bus, device] => bus.len() == 2 && device.len() == 2,
        _ => false,
    };
    if !fits
        || function.len() != 1
        || !parts.iter().all(|part| is_hexadecimal(part))
        || !is_hexadecimal(function)
    {
        return None;
    }
    let text = if parts.len() == 2 { format!("0000:{text}") } else { text.to_owned() };
    Some(text.parse::<weftlink_fabric::device::BusId>().ok()?.to_string())
}

/// A name in snake case: `Malformed packet Errors` becomes `malformed_packet_errors`.
pub(super) fn snake(name: &str) -> String {
    let mut snake = String::new();
    for c in name.trim().chars() {
        match c {
            _ if c.is_ascii_alphanumeric() => snake.push(c.to_ascii_lowercase()),
            _ if !snake.ends_with('_') && !snake.is_empty() => snake.push('_'),
            _ => {}
        }
    }
    snake.truncate(snake.trim_end_matches('_').len());
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_names_and_colours_are_normalized() {
        assert_eq!(bus("00000000:D5:00.0").as_deref(), Some("0000:d5:00.0"));
        assert_eq!(bus("0000000A:00:00.0").as_deref(), Some("000a:00:00.0"));
        assert_eq!(bus("05:00.0").as_deref(), Some("0000:05:00.0"));
        for other in ["", "GPU0", "1.5", "0000:05", "0000:05:00", "zzzz:05:00.0", "0000:05:00.0.0"] {
            assert_eq!(bus(other), None, "{other}");
        }
        assert_eq!(snake("FEC Errors - 0"), "fec_errors_0");
        assert_eq!(snake(" P2P atomics "), "p2p_atomics");
        assert_eq!(plain("\u{1b}[4m\tGPU0\u{1b}[0m \r"), "\tGPU0");
    }
}
