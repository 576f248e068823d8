//! What the communicators of a host's ranks said when they failed.
//!
//! When one rank fails, others fail because of it, and often end before it does: a program that panics tells the others at once
//! and takes its time to end. So the order in which ranks end does not tell who was the first, but they do. Ranks
//! write why their communicator failed, a line each, to a file that has no name but the helper's descriptor
//! (`WEFT_LAST_WORDS`), so nothing is left of it when the helper is gone.
//!
//! Deliberately absent: what ranks print. That is theirs, and may say anything.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};

/// Tells ranks where to write.
pub(super) const VARIABLE: &str = "WEFT_LAST_WORDS";
/// Whoever writes more than this is not read any further.
const BYTES_MAX: u64 = 32 << 20;

/// The file, and what was read so far.
pub(super) struct LastWords {
    file: File,
    bytes: u64,
    begun: Vec<u8>,
    of: HashMap<usize, String>,
}

impl LastWords {
    pub(super) fn new() -> io::Result<LastWords> {
        let file = memfd_create("weft-last-words", MemfdFlags::CLOEXEC)?;
        Ok(LastWords { file: file.into(), bytes: 0, begun: Vec::new(), of: HashMap::new() })
    }

    /// Where ranks find it.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// What a rank said, if it did.
    pub(super) fn of(&mut self, rank: usize) -> Option<String> {
        let mut new = Vec::new();
        // What cannot be read was not said.
        let read = (&self.file).take(BYTES_MAX.saturating_sub(self.bytes)).read_to_end(&mut new);
        self.bytes += read.map_or(0, |read| read as u64);
        self.begun.append(&mut new);
        let whole = self.begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.begun.drain(..whole).collect();
        for line in String::from_utf8_lossy(&lines).lines() {
            if let Some((rank, text)) = line.split_once(' ')
                && let Ok(rank) = rank.parse()
            {
                // The first communicator to fail is the one to ask.
                self.of.entry(rank).or_insert_with(|| text.to_owned());
            }
        }
        self.of.get(&rank).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_read_as_they_come() {
        let mut words = LastWords::new().unwrap();
        let mut rank = OpenOptions::new().append(true).open(words.path()).unwrap();
        assert_eq!(words.of(0), None);
        rank.write_all(b"2 rank 1 died\n0 rank").unwrap();
        assert_eq!(words.of(2).as_deref(), Some("rank 1 died"));
        assert_eq!(words.of(0), None, "it has not ended its line");
        rank.write_all(b" 1 left\n2 again\nnonsense\n").unwrap();
        assert_eq!(words.of(0).as_deref(), Some("rank 1 left"));
        assert_eq!(words.of(2).as_deref(), Some("rank 1 died"), "the first counts");
    }
}
