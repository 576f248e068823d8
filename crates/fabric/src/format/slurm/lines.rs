//! Logical lines of a configuration of Slurm: continued, without comments, split into keys and values.

use std::borrow::Cow;

use crate::format::{ReadError, excerpt};
use crate::nearest::did_you_mean;

/// The keys of `topology.conf`.
const KEYS: [&str; 6] = ["SwitchName", "Switches", "Nodes", "LinkSpeed", "BlockName", "BlockSizes"];
/// Bytes of a line and its continuations: enough for the most names that a list may have.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Values of one line.
const VALUES_MAX: usize = 16;

/// A line's keys, in lower case, with their values.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// Where it starts.
    pub(super) number: usize,
    values: Vec<(&'static str, &'a str)>,
}

impl<'a> Line<'a> {
    /// The value of a key of [`KEYS`].
    pub(super) fn value(&self, key: &str) -> Option<&'a str> {
        self.values.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }
}

/// The logical lines of a text: without comments, and with those that end with a backslash joined.
pub(super) struct Logical<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
}

impl<'a> Logical<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { lines: text.lines().enumerate() }
    }

    /// The next line that is not empty, with the number of its first line.
    pub(super) fn next_line(&mut self) -> Result<Option<(usize, Cow<'a, str>)>, ReadError> {
        while let Some((index, line)) = self.lines.next() {
            let number = index + 1;
            let (line, mut continues) = piece(line);
            let mut joined = Cow::Borrowed(line);
            while continues && let Some((_, next)) = self.lines.next() {
                let next = piece(next);
                joined.to_mut().push_str(next.0.trim_start());
                continues = next.1;
                if joined.len() > LINE_BYTES_MAX {
                    let reason =
                        format!("the line and its continuations have more than {LINE_BYTES_MAX} bytes");
                    return Err(ReadError::at(number, reason));
                }
            }
            if !joined.trim().is_empty() {
                return Ok(Some((number, joined)));
            }
        }
        Ok(None)
    }
}

/// A line without its comment, and whether the next one continues it.
fn piece(line: &str) -> (&str, bool) {
    let line = line.split_once('#').map_or(line, |(before, _)| before).trim_end();
    match line.strip_suffix('\\') {
        Some(line) => (line, true),
        None => (line, false),
    }
}

/// Splits a logical line into keys and values.
pub(super) fn parse(number: usize, text: &str) -> Result<Line<'_>, String> {
    let mut values = Vec::new();
    for word in text.split_ascii_whitespace() {
        if word.eq_ignore_ascii_case("include") {
            return Err("included files are not read; insert the file's lines here".to_owned());
        }
        let (key, value) = word.split_once('=').ok_or_else(|| {
            format!("expected KEY=VALUE without spaces, as in Nodes=node[001-016], found `{}`", excerpt(word))
        })?;
        let known = KEYS.iter().find(|known| known.eq_ignore_ascii_case(key));
        let known = *known.ok_or_else(|| {
            let hint = did_you_mean(key, KEYS.into_iter());
            format!("unknown key `{}`.{hint} The keys are {}", excerpt(key), KEYS.join(", "))
        })?;
        if values.iter().any(|(other, _)| *other == known) || values.len() == VALUES_MAX {
            return Err(format!("`{known}` is given twice; write one switch or block per line"));
        }
        values.push((known, value.trim_matches('"')));
    }
    Ok(Line { number, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_comments_removed() {
        let mut lines =
            Logical::of("# x\nSwitchName=a \\ # no\n  Nodes=\"b,\\\n  c\" # d\n\nlinkspeed=1\n \\\n");
        let (number, first) = lines.next_line().unwrap().unwrap();
        let first = parse(number, &first).unwrap();
        assert_eq!(
            (first.number, first.value("SwitchName"), first.value("Nodes")),
            (2, Some("a"), Some("b,c"))
        );
        let (number, second) = lines.next_line().unwrap().unwrap();
        assert_eq!((number, parse(number, &second).unwrap().value("LinkSpeed")), (6, Some("1")));
        assert_eq!(lines.next_line(), Ok(None));
        let long = "a\\\n".repeat(LINE_BYTES_MAX + 1);
        assert!(Logical::of(&long).next_line().is_err());
    }

    #[test]
    fn mistakes_are_refused() {
        for (text, reason) in [
            ("SwitchName", "expected KEY=VALUE"),
            ("SwitchName = a", "without spaces"),
            ("SwitchNam=a", "Did you mean `SwitchName`"),
            ("Nodes=a nodes=b", "twice"),
            ("Include other.conf", "insert the file's lines"),
        ] {
            let error = parse(1, text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
