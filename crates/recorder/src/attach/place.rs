//! Recorders, and reports of kernels, in the mappings of a process, and how to read them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use weftlink_shm::clock::now_ns;

use crate::gpu::{self, KernelReports};
use crate::recorder::{self, Record};

/// A recorder, or the reports of a rank's kernels, that can be read.
#[derive(Debug)]
pub(super) struct Ring {
    /// The number of its communicator.
    pub(super) job: u64,
    pub(super) contents: Contents,
    file: File,
    at: u64,
    bytes: usize,
}

/// What is in a mapping, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// A recorder.
    Calls,
    /// Reports of kernels.
    Reports,
}

impl Contents {
    fn magic(self) -> u64 {
        match self {
            Contents::Calls => recorder::MAGIC,
            Contents::Reports => gpu::MAGIC,
        }
    }

    /// The bytes of memory with this many calls or reports, if that many are possible.
    fn bytes_of(self, capacity: usize) -> Option<usize> {
        match self {
            Contents::Calls => (capacity <= recorder::CAPACITY_MAX).then(|| recorder::bytes_of(capacity)),
            Contents::Reports => (capacity <= gpu::REPORTS_MAX).then(|| gpu::bytes_of(capacity)),
        }
    }

    fn bytes_max(self) -> usize {
        let most = match self {
            Contents::Calls => recorder::bytes_of(recorder::CAPACITY_MAX),
            Contents::Reports => gpu::bytes_of(gpu::REPORTS_MAX),
        };
        most.next_multiple_of(1 << 16)
    }
}

/// A mapping with the name of a recorder, or of reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    contents: Contents,
    pub(super) start: u64,
    bytes: usize,
    inode: u64,
    /// The file, if it can be opened by name.
    path: Option<String>,
}

/// A copy may be useless if the recorder changed during it.
const TRIES_MAX: usize = 5;
/// Words at the start of both: magic, version, capacity, rank, size, process, job.
const HEAD_WORDS: usize = 7;
const JOB_WORD: usize = 6;

/// The recorders and reports among the mappings of `/proc/PID/maps`.
pub(super) fn mappings(maps: &str) -> Vec<Mapping> {
    maps.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<Mapping> {
    // Addresses, permissions, offset, device, inode; then spaces and a name that may contain spaces.
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let [_, offset, _, inode] = [fields.next()?, fields.next()?, fields.next()?, fields.next()?];
    let name = fields.next()?.trim_start();
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let bytes = usize::try_from(end.checked_sub(start)?).ok()?;
    let deleted = name.strip_suffix(" (deleted)");
    let memory = deleted.and_then(|name| name.strip_prefix("/memfd:"));
    let contents = if memory == Some(gpu::NAME) { Contents::Reports } else { Contents::Calls };
    let is_memory = memory.is_some_and(|name| [recorder::NAME, gpu::NAME].contains(&name));
    let path = Path::new(deleted.unwrap_or(name));
    let is_file = path.is_absolute()
        && path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(recorder::PREFIX) && name.ends_with(".ring"));
    let is_ring = (is_memory || is_file) && number(offset)? == 0 && bytes <= contents.bytes_max();
    is_ring.then(|| Mapping {
        contents,
        start,
        bytes,
        inode: inode.parse().unwrap_or(0),
        path: (is_file && deleted.is_none()).then(|| name.to_owned()),
    })
}

impl Mapping {
    /// Opens the mapped memory in the way that needs the fewest privileges. `descriptors` are the inodes and numbers of the process's
    /// descriptors of such memory.
    pub(super) fn open(&self, pid: u32, descriptors: &[(u64, String)]) -> io::Result<Option<Ring>> {
        let descriptor = descriptors.iter().find(|(inode, _)| *inode == self.inode);
        let by_descriptor = descriptor.map(|(_, number)| (format!("/proc/{pid}/fd/{number}"), 0));
        // As the process sees its files; here another file may have that name.
        let by_name = self.path.as_ref().map(|path| (format!("/proc/{pid}/root{path}"), 0));
        let memory = (format!("/proc/{pid}/mem"), self.start);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for (path, at) in by_descriptor.into_iter().chain(by_name).chain([memory]) {
            match self.read_head(&path, at) {
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The memory, if it is a recorder or has reports: it may not be initialized yet.
    fn read_head(&self, path: &str, at: u64) -> io::Result<Option<Ring>> {
        let file = File::open(path)?;
        let mut head = [0; 8 * HEAD_WORDS];
        file.read_exact_at(&mut head, at)?;
        let word = |index: usize| {
            head[8 * index..8 * index + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        let contents = self.contents;
        let capacity = usize::try_from(word(2)).ok();
        let bytes =
            capacity.and_then(|capacity| contents.bytes_of(capacity)).filter(|bytes| *bytes <= self.bytes);
        let is_ring = word(0) == contents.magic();
        Ok(bytes.filter(|_| is_ring).map(|bytes| Ring { job: word(JOB_WORD), contents, file, at, bytes }))
    }
}

impl Ring {
    /// Three copies, made one after the other.
    fn copies(&self) -> Result<[Vec<u8>; 3], String> {
        let mut copies = [vec![0; self.bytes], vec![0; self.bytes], vec![0; self.bytes]];
        for copy in &mut copies {
            let read = self.file.read_exact_at(copy, self.at);
            read.map_err(|error| format!("cannot read its recorder: {error}"))?;
        }
        Ok(copies)
    }

    /// The current reports of kernels.
    pub(super) fn reports(&self) -> Result<KernelReports, String> {
        let [before, copy, after] = &self.copies()?;
        let unreadable =
            || "cannot read the reports of its kernels: another version of Weft wrote them".to_owned();
        KernelReports::of_copies([before, copy, after]).ok_or_else(unreadable)
    }

    /// The current record.
    pub(super) fn record(&self) -> Result<Record, String> {
        let mut found: Option<Record> = None;
        for _ in 0..TRIES_MAX {
            let [before, copy, after] = &self.copies()?;
            let record = Record::of_copies([before, copy, after], now_ns())
                .map_err(|error| format!("cannot read its record: {error}"))?;
            let calls = record.calls.len();
            if found.as_ref().is_none_or(|found| found.calls.len() <= calls) {
                found = Some(record);
            }
            if calls > 0 {
                break;
            }
        }
        found.ok_or_else(|| "cannot read its record".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{CallKind, Header};
    use crate::recorder::{Outputs, Owner, Recorder};

    #[test]
    fn memory_is_read_without_a_descriptor() {
        let owner = Owner { rank: 0, size: 1, job: 0x77 };
        let mut recorder = Recorder::new(owner, 64, 1, &Outputs::default());
        recorder.describe(1, &Header::allocating(CallKind::Collective(0), 0, 3, (None, 4)), 12, Some((0, 0)));
        recorder.begin(1);
        recorder.end_timed();
        let wanted = recorder.reader().record();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let found = mappings(&maps).into_iter().find_map(|mapping| {
            let ring = mapping.open(std::process::id(), &[]).ok()??;
            ring.record().ok().filter(|record| record.job == wanted.job)
        });
        let found = found.expect("a process may read its own memory");
        assert_eq!(found.calls, wanted.calls);
        assert!(!found.calls.is_empty());
    }

    #[test]
    fn mappings_of_recorders_are_found_by_name() {
        let maps = "\
55d0c8a00000-55d0c8a01000 r--p 00000000 fe:00 11894833                   /usr/bin/weft: record
7f1000000000-7f1000020000 rw-s 00000000 00:01 427850                     /memfd:weft: record (deleted)
7f1000020000-7f1000040000 rw-s 00000000 00:01 427851                     /memfd:weft: headers (deleted)
7f1000040000-7f1000060000 rw-s 00001000 00:01 427850                     /memfd:weft: record (deleted)
7f1000060000-7f1000080000 rw-s 00000000 fe:00 77                         /tmp/a b/weft-record-00000000002a-rank1.ring
7f1000080000-7f10000a0000 rw-s 00000000 fe:00 78                         /tmp/weft-record-00000000002a-rank2.ring (deleted)
7f10000a0000-7f1100000000 rw-s 00000000 00:01 9                          /memfd:weft: record (deleted)
7f1100000000-7f1100011000 rw-s 00000000 00:01 427852                     /memfd:weft: gpu waits (deleted)
7f1100020000-7f1100021000 rw-p 00000000 00:00 0
nonsense
7ffe9d000000-7ffe9d021000 rw-p 00000000 00:00 0                          [stack]
";
        let mapping = |start, inode, path: Option<&str>| Mapping {
            contents: Contents::Calls,
            start,
            bytes: 0x20000,
            inode,
            path: path.map(str::to_owned),
        };
        assert_eq!(
            mappings(maps),
            [
                mapping(0x7f10_0000_0000, 427_850, None),
                mapping(0x7f10_0006_0000, 77, Some("/tmp/a b/weft-record-00000000002a-rank1.ring")),
                mapping(0x7f10_0008_0000, 78, None),
                Mapping {
                    contents: Contents::Reports,
                    bytes: 0x11000,
                    ..mapping(0x7f11_0000_0000, 427_852, None)
                },
            ]
        );
    }
}
