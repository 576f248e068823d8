//! Tables of breakpoints from a file: what `weft bench --tune` writes and the environment variable `WEFT_TUNING` names.
//!
//! ```toml
//! [[choice]]
//! collective = "all-reduce"
//! ranks = 2
//! memory = "ordinary"      # or "readable" (peers read it through the kernel), or "symmetric"
//! up_to_bytes = 448        # of a block; the last choice of a collective has no limit
//! algorithm = "linear:ll"  # messages are packets
//! ```
//!
//! Collectives that a file does not mention keep the built-in choices; rows for other numbers of ranks are parsed and ignored.
//! All ranks use rank 0's file: it sends the text to the others, so that all read the same, and all fail alike.
//!
//! Deliberately absent: whether an algorithm can work in that memory. A call skips one that cannot, as it skips one that is not
//! proved for blocks of different lengths.

use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Algorithm, Collective};
use weftlink_recorder::header::kind;

use super::{ANY, Choice, Memory, Table};
use crate::error::Error;

/// The environment variable that names a file.
const VARIABLE: &str = "WEFT_TUNING";

/// Longer files are refused.
const BYTES_MAX: usize = 64 << 10;

/// An error in a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TuningError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    choice: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    collective: Spanned<String>,
    ranks: u32,
    memory: Spanned<String>,
    up_to_bytes: Option<u64>,
    algorithm: Spanned<String>,
}

/// Whether the text of a tuning file is valid, for a number of ranks.
pub fn check(text: &str, ranks: usize) -> Result<(), TuningError> {
    Table::measured(ranks).parse(text, ranks).map(|_| ())
}

impl Table {
    /// The same table with the rows of a file in place of its own.
    pub(crate) fn parse(mut self, text: &str, ranks: usize) -> Result<Self, TuningError> {
        let at = |span: Range<usize>, what: String| TuningError { line: line(text, span.start), what };
        if text.len() > BYTES_MAX {
            return Err(at(0..0, format!("a tuning file has at most {BYTES_MAX} bytes")));
        }
        let file: File = toml::from_str(text)
            .map_err(|error| at(error.span().unwrap_or_default(), error.message().trim().to_owned()))?;
        let mut seen: Vec<((u8, Memory), u32)> = Vec::new();
        for entry in file.choice {
            let collective =
                named(entry.collective.get_ref()).map_err(|what| at(entry.collective.span(), what))?;
            let memory = match entry.memory.get_ref().as_str() {
                "ordinary" => Memory::Ordinary,
                "readable" => Memory::Readable,
                "symmetric" => Memory::Symmetric,
                other => {
                    let what =
                        format!("there is no {other:?} memory; there are ordinary, readable and symmetric");
                    return Err(at(entry.memory.span(), what));
                }
            };
            let choice = Choice::named(entry.algorithm.get_ref(), &collective)
                .map_err(|what| at(entry.algorithm.span(), what))?;
            let key = ((kind(&collective), memory), entry.ranks);
            let is_first = !seen.contains(&key);
            if is_first {
                seen.push(key);
            }
            if entry.ranks as usize != ranks {
                continue;
            }
            let row = &mut self.rows[usize::from(key.0.0)][memory as usize];
            if is_first {
                row.clear();
            }
            let up_to = entry.up_to_bytes.map_or(ANY, |bytes| usize::try_from(bytes).unwrap_or(ANY));
            if row.last().is_some_and(|(before, _)| *before >= up_to) {
                let what =
                    "choices of a collective must go up in up_to_bytes, and only the last may have none";
                return Err(at(entry.collective.span(), what.to_owned()));
            }
            row.push((up_to, choice));
        }
        Ok(self)
    }

    /// The table that all ranks use: the built-in one, overridden by the file that rank 0's environment names.
    pub(crate) fn agreed(bootstrap: &mut Bootstrap, deadline: Duration) -> Result<Self, Error> {
        let size = bootstrap.size();
        let file = (bootstrap.rank() == 0).then(|| weftlink_knobs::path(VARIABLE)).flatten();
        let text = file.map(|path| {
            let name = path.display().to_string();
            match read(&path) {
                Ok(text) => format!("{name}\n{text}"),
                Err(error) => format!("{name}\n\0{error}"),
            }
        });
        let mine = text.unwrap_or_default().into_bytes();
        let said = bootstrap.exchange("weft: tuning file", mine, deadline)?;
        let text = String::from_utf8_lossy(&said[0]);
        if text.is_empty() {
            return Ok(Self::measured(size));
        }
        let (name, text) = text.split_once('\n').unwrap_or((&text, ""));
        match text.strip_prefix('\0') {
            Some(error) => Err(Error::Misuse(format!("cannot read {VARIABLE}={name}: {error}"))),
            None => Self::measured(size)
                .parse(text, size)
                .map_err(|error| Error::Misuse(format!("{VARIABLE}={name}: {error}"))),
        }
    }
}

/// As much of a file as is allowed, and one byte more.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

impl Choice {
    /// `ring`, or `ring:ll`.
    fn named(name: &str, collective: &Collective) -> Result<Self, String> {
        let (algorithm, packets) = match name.split_once(':') {
            None => (name, false),
            Some((algorithm, "ll")) => (algorithm, true),
            Some((_, other)) => return Err(format!("after the colon may be ll, not {other:?}")),
        };
        let algorithm: Algorithm = algorithm.parse()?;
        if !algorithm.does(collective) {
            return Err(format!("{algorithm} cannot do {}", collective.name()));
        }
        Ok(Choice { algorithm, packets })
    }
}

/// The collective of a name, with any root.
fn named(name: &str) -> Result<Collective, String> {
    let others = [Collective::SendReceive { messages: Vec::new() }, Collective::Neighbours { torus: [1; 3] }];
    let all: Vec<Collective> = Collective::KINDS.into_iter().chain(others).collect();
    all.iter().find(|collective| collective.name() == name).cloned().ok_or_else(|| {
        let names: Vec<_> = all.iter().map(Collective::name).collect();
        format!("there is no collective called {name:?}; there are {}", names.join(", "))
    })
}

fn line(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
[[choice]]
collective = \"all-reduce\"
ranks = 2
memory = \"ordinary\"
up_to_bytes = 100
algorithm = \"exchange-ll\"

[[choice]]
collective = \"all-reduce\"
ranks = 2
memory = \"ordinary\"
algorithm = \"ring:ll\"

[[choice]]
collective = \"all-reduce\"
ranks = 3
memory = \"ordinary\"
algorithm = \"ring\"
";

    fn choice(table: &Table, memory: Memory, bytes: usize) -> (Algorithm, bool) {
        let Choice { algorithm, packets } = table.choice(kind(&Collective::AllReduce), memory, bytes);
        (algorithm, packets)
    }

    #[test]
    fn tuning_files_override_listed_collectives() {
        let table = Table::measured(2).parse(FILE, 2).unwrap();
        assert_eq!(choice(&table, Memory::Ordinary, 100), (Algorithm::ExchangeLl, false));
        assert_eq!(choice(&table, Memory::Ordinary, 101), (Algorithm::Ring, true));
        assert_eq!(choice(&table, Memory::Ordinary, 1 << 30), (Algorithm::Ring, true));
        let built_in = Table::measured(2);
        for bytes in [8, 1 << 20] {
            let [file, elsewhere] = [&table, &built_in].map(|table| choice(table, Memory::Symmetric, bytes));
            assert_eq!(file, elsewhere);
        }
        let table = Table::measured(4).parse(FILE, 4).unwrap();
        assert_eq!(choice(&table, Memory::Ordinary, 8), choice(&Table::measured(4), Memory::Ordinary, 8));
    }

    #[test]
    fn errors_have_line_numbers() {
        for (from, to, line, told) in [
            ("\"exchange-ll\"", "\"rign\"", 6, "unknown algorithm `rign`. Did you mean `ring`?"),
            ("\"ring:ll\"", "\"ring:simple\"", 12, "may be ll, not \"simple\""),
            ("\"exchange-ll\"", "\"bruck\"", 6, "bruck cannot do all-reduce"),
            ("\"all-reduce\"", "\"all-redcue\"", 2, "no collective called \"all-redcue\""),
            ("\"ordinary\"", "\"cold\"", 4, "no \"cold\" memory"),
            ("up_to_bytes = 100", "up_to_bytes = -1", 5, "-1"),
            ("up_to_bytes = 100\n", "", 8, "only the last may have none"),
            ("ranks = 2", "rank = 2", 3, "unknown field"),
            ("ranks = 2", "ranks = ", 3, ""),
        ] {
            let error = check(&FILE.replacen(from, to, 1), 2).unwrap_err();
            assert_eq!(error.line, line, "{to}: {error}");
            assert!(error.what.contains(told), "{to}: {error}");
        }
        assert!(check(&"#".repeat(BYTES_MAX + 1), 2).unwrap_err().what.contains("at most"));
        assert_eq!(check("", 2), Ok(()));
    }
}
