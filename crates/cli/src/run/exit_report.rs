//! The errors that the communicators of a host's ranks reported.
//!
//! When one rank fails, others fail because of it and often exit before it: a program that panics notifies its peers at once and
//! exits later. So the order of exits does not show which rank failed first; their reports do. Each rank writes why its
//! communicator failed and which ranks it blames ([`Words`], a line of JSON) to a memory file that only the helper's descriptor
//! names (`WEFT_LAST_WORDS`). The file disappears with the helper.
//!
//! A process into which `--nccl` has loaded a library says in the same file that it uses it.
//!
//! Deliberately absent: the output of ranks, which may contain anything.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};
use weftlink_comm::bootstrap::launcher::ExitReport as Words;

/// The variable that names the file.
pub(super) const VARIABLE: &str = "WEFT_LAST_WORDS";
/// The helper reads no further than this.
const BYTES_MAX: u64 = 32 << 20;

/// The file, and what was read so far.
pub(super) struct ExitReport {
    file: File,
    bytes: u64,
    begun: Vec<u8>,
    of: HashMap<usize, Words>,
    /// A process has reported that it uses Weft's NCCL since this was last asked.
    uses_nccl: bool,
}

/// A process reports that it uses a library that was loaded into it.
#[derive(serde::Deserialize)]
struct Use {
    uses: String,
}

impl ExitReport {
    pub(super) fn new() -> io::Result<ExitReport> {
        let file = memfd_create("weft-last-words", MemfdFlags::CLOEXEC)?;
        Ok(ExitReport {
            file: file.into(),
            bytes: 0,
            begun: Vec::new(),
            of: HashMap::new(),
            uses_nccl: false,
        })
    }

    /// The path for the ranks.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The report of a rank, if it wrote one.
    pub(super) fn of(&mut self, rank: usize) -> Option<Words> {
        let mut new = Vec::new();
        // A file that cannot be read has no report.
        let read = (&self.file).take(BYTES_MAX.saturating_sub(self.bytes)).read_to_end(&mut new);
        self.bytes += read.map_or(0, |read| read as u64);
        self.begun.append(&mut new);
        let whole = self.begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.begun.drain(..whole).collect();
        for line in String::from_utf8_lossy(&lines).lines() {
            let Ok(words) = serde_json::from_str::<Words>(line) else {
                self.uses_nccl |= serde_json::from_str::<Use>(line).is_ok_and(|one| one.uses == "nccl");
                continue;
            };
            // The first communicator that failed counts, except that a rank may retry after it failed to join.
            let known = self.of.get(&words.rank);
            if known.is_none_or(|known| known.is_starting && !words.is_starting) {
                self.of.insert(words.rank, words);
            }
        }
        self.of.get(&rank).cloned()
    }

    /// Whether a process has reported, among the lines that [`Self::of`] has read since this was last asked, that it uses Weft's NCCL.
    pub(super) fn take_nccl(&mut self) -> bool {
        std::mem::take(&mut self.uses_nccl)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use weftlink_comm::{Blame, BlameKind};

    use super::*;

    #[test]
    fn lines_are_read_as_they_come() {
        let mut words = ExitReport::new().unwrap();
        let mut rank = OpenOptions::new().append(true).open(words.path()).unwrap();
        assert!(words.of(0).is_none());
        let line = |rank: usize, why: &str, is_starting| {
            let blamed = vec![Blame::new(1, BlameKind::Died)];
            let words = Words { rank, why: why.to_owned(), blamed, is_starting };
            (serde_json::to_string(&words).unwrap() + "\n").into_bytes()
        };
        let why = |words: &mut ExitReport, rank| words.of(rank).map(|words| words.why);
        let (begun, rest) = (line(0, "rank 1 left", false), line(2, "rank 1 died", false));
        rank.write_all(&[&rest[..], &begun[..9]].concat()).unwrap();
        assert_eq!(words.of(2).unwrap().blamed, [Blame::new(1, BlameKind::Died)]);
        assert_eq!(why(&mut words, 0), None, "it has not ended its line");
        rank.write_all(&[&begun[9..], &line(2, "again", false), b"nonsense\n"].concat()).unwrap();
        assert_eq!(why(&mut words, 0).as_deref(), Some("rank 1 left"));
        assert_eq!(why(&mut words, 2).as_deref(), Some("rank 1 died"), "the first counts");
        rank.write_all(&[line(3, "refused", true), line(3, "rank 1 died", false)].concat()).unwrap();
        assert_eq!(why(&mut words, 3).as_deref(), Some("rank 1 died"), "it had tried again");
        assert!(!words.take_nccl());
        rank.write_all(b"{\"uses\":\"nccl\"}\n").unwrap();
        assert_eq!(why(&mut words, 3).as_deref(), Some("rank 1 died"), "as before");
        assert!(words.take_nccl());
    }
}
