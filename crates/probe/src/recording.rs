//! A machine in one text file, which can be probed on any other machine.
//!
//! ```text
//! # weft recording 1
//! proc/sys/kernel/hostname = host0
//! sys/bus/pci/devices/0000:18:00.0 -> ../../../devices/pci0000:16/0000:16:01.0/0000:18:00.0
//! sys/bus/pci/devices/0000:18:00.0/class = 0x030200
//! nvml/0/name = NVIDIA H100 80GB HBM3
//! ```
//!
//! Each line is a file (`path = content`, with `\n`, `\0` and `\\` for line ends, zero bytes and backslashes) or a symbolic link
//! (`path -> target`). The driver's reports on GPUs are files below `nvml/`; `list/PATH` has the names in a folder of which no file is
//! recorded. Lines that start with `#` are comments. Links are data and are never followed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::tree::Tree;

/// The first line of every recording; the version changes when older readers cannot read the format.
const HEADER: &str = "# weft recording 1";
/// Below it are the names in folders.
pub(crate) const LISTS: &str = "list";
/// Bytes of a recording; that of a large server has a hundred kilobytes.
const BYTES_MAX: usize = 16 << 20;

/// A recorded machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    pub(crate) entries: BTreeMap<String, Entry>,
}

impl Recording {
    /// The start of every recording, in any version.
    pub const MAGIC: &str = "# weft recording ";
}

/// The entry of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A file and its content.
    File(String),
    /// A link and its target.
    Link(String),
}

/// A recording is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the recording: {reason}")]
pub struct RecordingError {
    /// The line, counted from 1.
    pub line: usize,
    /// The mistake.
    pub reason: String,
}

impl FromStr for Recording {
    type Err = RecordingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |line: usize, reason: &str| RecordingError { line, reason: reason.to_owned() };
        if text.len() > BYTES_MAX {
            return Err(bad(
                1,
                &format!("the recording is longer than {} MiB, which is the limit", BYTES_MAX >> 20),
            ));
        }
        if text.lines().next().map(str::trim_end) != Some(HEADER) {
            return Err(bad(1, &format!("expected `{HEADER}`; record the machine again with this version")));
        }
        let mut entries = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            let Some((path, entry)) = split(line) else {
                return Err(bad(number, "expected `path = value` or `path -> target`"));
            };
            if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
                return Err(bad(number, &format!("`{path}` is not a relative path")));
            }
            if entries.insert(path.to_owned(), entry).is_some() {
                return Err(bad(number, &format!("duplicate path `{path}`")));
            }
        }
        Ok(Self { entries })
    }
}

/// The path and the entry of a line. A path may contain spaces: the words of a command.
fn split(line: &str) -> Option<(&str, Entry)> {
    line.match_indices(' ').find_map(|(at, _)| {
        let rest = &line[at + 1..];
        let (mark, value) = rest.split_once(' ').unwrap_or((rest, ""));
        let entry = match (mark, value.trim()) {
            ("=", value) => Entry::File(unescape(value)),
            ("->", target) if !target.is_empty() => Entry::Link(target.to_owned()),
            _ => return None,
        };
        Some((&line[..at], entry))
    })
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
        if let Some(listed) = self.read(&format!("{LISTS}/{path}")) {
            names.extend(listed.lines().map(str::to_owned));
        }
        // In the map's order, entries of the same folder need not be adjacent.
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
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r").replace('\0', "\\0")
}

fn unescape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        let unescaped = match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                Some('0') => '\0',
                other => other.unwrap_or(c),
            },
            _ => c,
        };
        text.push(unescaped);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_round_trip() {
        let text = "# weft recording 1\na/b = two\\nlines and a \\\\\na/c =\na/d/e -> ../b\nlist/a/f = 0\\n1\nrun/x -y z = p = 1\\0 -> q\n";
        let recording: Recording = text.parse().unwrap();
        assert_eq!(recording.read("a/b").as_deref(), Some("two\nlines and a \\"));
        assert_eq!(recording.read("a/c").as_deref(), Some(""));
        assert_eq!(recording.link("a/d/e").as_deref(), Some("../b"));
        assert_eq!(recording.link("a/b"), None);
        assert_eq!(recording.list("a"), ["b", "c", "d"]);
        assert_eq!(recording.list("a/f"), ["0", "1"]);
        assert_eq!(recording.read("run/x -y z").as_deref(), Some("p = 1\0 -> q"));
        assert_eq!(recording.to_string(), text);
    }

    #[test]
    fn errors_have_a_line() {
        for (text, line, reason) in [
            ("", 1, "expected `# weft recording 1`"),
            ("# weft recording 2\n", 1, "expected `# weft recording 1`"),
            ("# weft recording 1\n\n../x = 1\n", 3, "not a relative path"),
            ("# weft recording 1\n/x = 1\n", 2, "not a relative path"),
            ("# weft recording 1\nx : 1\n", 2, "expected `path = value`"),
            ("# weft recording 1\nx ->\n", 2, "expected `path = value`"),
            ("# weft recording 1\nx = 1\nx = 2\n", 3, "duplicate path `x`"),
        ] {
            let error = text.parse::<Recording>().unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.reason.contains(reason), "{text}: {error}");
        }
    }
}
