//! A machine in one text file, to read where the machine is not.
//!
//! ```text
//! # weft recording 1
//! proc/sys/kernel/hostname = host0
//! sys/bus/pci/devices/0000:18:00.0 -> ../../../devices/pci0000:16/0000:16:01.0/0000:18:00.0
//! sys/bus/pci/devices/0000:18:00.0/class = 0x030200
//! nvml/0/name = NVIDIA H100 80GB HBM3
//! ```
//!
//! One line a file (`path = what it says`, with `\n` and `\\` for line ends and backslashes) or a symbolic link
//! (`path -> target`); what the driver reports about GPUs is written as files below `nvml/`. Lines that start with
//! `#` are comments. A path is only ever looked up as written: links are data here and are never followed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::tree::Tree;

/// The first line of every recording; its number changes when older readers could no longer read it.
const HEADER: &str = "# weft recording 1";
/// The most bytes a recording may have; a large server's takes a hundred kilobytes.
const MAX_BYTES: usize = 16 << 20;

/// What a machine showed when it was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    pub(crate) entries: BTreeMap<String, Entry>,
}

impl Recording {
    /// How every recording starts, whatever its version.
    pub const MARK: &str = "# weft recording ";
}

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A file and what it says.
    File(String),
    /// A link and its target.
    Link(String),
}

/// A text is not a recording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the recording: {reason}")]
pub struct BadRecording {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

impl FromStr for Recording {
    type Err = BadRecording;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |line: usize, reason: &str| BadRecording { line, reason: reason.to_owned() };
        if text.len() > MAX_BYTES {
            return Err(bad(1, &format!("longer than {} MiB", MAX_BYTES >> 20)));
        }
        if text.lines().next().map(str::trim_end) != Some(HEADER) {
            return Err(bad(1, &format!("a recording starts with `{HEADER}`")));
        }
        let mut entries = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            let (path, rest) = line.split_once(' ').unwrap_or((line, ""));
            let well_formed = !path.split('/').any(|part| matches!(part, "" | "." | ".."));
            let entry = match rest.split_once(' ').unwrap_or((rest, "")) {
                _ if !well_formed => return Err(bad(number, &format!("`{path}` is not a path"))),
                ("=", value) => Entry::File(unescape(value.trim())),
                ("->", target) if !target.trim().is_empty() => Entry::Link(target.trim().to_owned()),
                _ => return Err(bad(number, "neither `path = value` nor `path -> target`")),
            };
            if entries.insert(path.to_owned(), entry).is_some() {
                return Err(bad(number, &format!("`{path}` stands here a second time")));
            }
        }
        Ok(Self { entries })
    }
}

/// The text that reads back as the same recording.
impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for (path, entry) in &self.entries {
            match entry {
                Entry::File(value) => writeln!(f, "{}", format!("{path} = {}", escape(value)).trim_end())?,
                Entry::Link(target) => writeln!(f, "{path} -> {target}")?,
            }
        }
        Ok(())
    }
}

impl Tree for Recording {
    fn read(&self, path: &str) -> Option<String> {
        match self.entries.get(path)? {
            Entry::File(value) => Some(value.clone()),
            Entry::Link(_) => None,
        }
    }

    fn list(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}/");
        let mut names: Vec<String> = self
            .entries
            .range(prefix.clone()..)
            .map_while(|(path, _)| path.strip_prefix(&prefix))
            .map(|rest| rest.split('/').next().unwrap_or(rest).to_owned())
            .collect();
        // `a/b`, `a.b`, `a/c` is the order of the map: the same name may come back after another.
        names.sort_unstable();
        names.dedup();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        match self.entries.get(path)? {
            Entry::File(_) => None,
            Entry::Link(target) => Some(target.clone()),
        }
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}

fn unescape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        let meant = match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                other => other.unwrap_or(c),
            },
            _ => c,
        };
        text.push(meant);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_reads_back_as_written() {
        let text = "# weft recording 1\na/b = two\\nlines and a \\\\\na/c =\na/d/e -> ../b\n";
        let recording: Recording = text.parse().unwrap();
        assert_eq!(recording.read("a/b").as_deref(), Some("two\nlines and a \\"));
        assert_eq!(recording.read("a/c").as_deref(), Some(""));
        assert_eq!(recording.link("a/d/e").as_deref(), Some("../b"));
        assert_eq!(recording.link("a/b"), None);
        assert_eq!(recording.list("a"), ["b", "c", "d"]);
        assert_eq!(recording.to_string(), text);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, line, reason) in [
            ("", 1, "starts with"),
            ("# weft recording 2\n", 1, "starts with"),
            ("# weft recording 1\n\n../x = 1\n", 3, "not a path"),
            ("# weft recording 1\n/x = 1\n", 2, "not a path"),
            ("# weft recording 1\nx : 1\n", 2, "neither"),
            ("# weft recording 1\nx ->\n", 2, "neither"),
            ("# weft recording 1\nx = 1\nx = 2\n", 3, "second time"),
        ] {
            let error = text.parse::<Recording>().unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.reason.contains(reason), "{text}: {error}");
        }
    }
}
