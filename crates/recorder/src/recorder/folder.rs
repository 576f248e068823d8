//! Records in files: writing those of this rank, and reading all records of a folder.
//!
//! Other users may write to the folder, such as `/tmp`. So every file is created anew (`O_EXCL`, which follows no link) with access for
//! its owner only, and an existing file is removed only if this user owns it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use weftlink_bootstrap::random_number;
use weftlink_shm::clock::now_ns;
use weftlink_shm::limits;
use weftlink_shm::memory::SharedMemory;

use super::Owner;
use super::record::{Process, Record, RecordError};

pub(crate) const PREFIX: &str = "weft-record-";
/// The largest possible record has a quarter of this.
const BYTES_MAX: u64 = 64 << 20;
/// Files beyond this number are ignored.
const FILES_MAX: usize = 100_000;

/// The files of a rank.
pub(super) struct Files {
    pub(super) folder: PathBuf,
    pub(super) ring: PathBuf,
    /// Whether the record has been written as JSON.
    pub(super) is_dumped: bool,
}

fn name(job: u64, rank: u64, ending: &str) -> String {
    format!("{PREFIX}{job:012x}-rank{rank}.{ending}")
}

/// Creates the file of a ring with all its bytes, so that a full disk cannot fail later writes.
pub(super) fn create(folder: &Path, owner: Owner, bytes: usize) -> io::Result<(SharedMemory, Files)> {
    fs::create_dir_all(folder)?;
    let ring = folder.join(name(owner.job, owner.rank as u64, "ring"));
    limits::fits_a_file(bytes as u64)?;
    let mut file = create_new(&ring, OWNER_ONLY).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists if is_ours(&ring)? => {
            fs::remove_file(&ring)?;
            create_new(&ring, OWNER_ONLY)
        }
        _ => Err(error),
    })?;
    let written = file.write_all(&vec![0; bytes]).and_then(|()| {
        SharedMemory::of_file(&file, bytes).map_err(|error| io::Error::other(error.to_string()))
    });
    let memory = written.inspect_err(|_| {
        let _ = fs::remove_file(&ring);
    })?;
    Ok((memory, Files { folder: folder.to_owned(), ring, is_dumped: false }))
}

/// Writes a record as JSON, atomically.
pub(super) fn dump(record: &Record, folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let job = u64::from_str_radix(&record.job, 16).unwrap_or(0);
    let path = folder.join(name(job, u64::from(record.rank), "json"));
    replace(&path, &record.to_json(), OWNER_ONLY)?;
    Ok(path)
}

/// Readable and writable by its owner.
const OWNER_ONLY: u32 = 0o600;

/// Replaces a file atomically. The temporary file has a random name, so that no other user can create it first.
pub(super) fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    limits::fits_a_file(text.len() as u64)?;
    let number = random_number().map_err(|error| io::Error::other(error.to_string()))?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}-{number:016x}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    let mut file = create_new(&beside, mode)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&beside, path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}

/// Creates a file; fails if the path exists, even as a link.
fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW;
    OpenOptions::new().read(true).write(true).create_new(true).mode(mode).custom_flags(flags).open(path)
}

/// Whether a path is a file of this user.
fn is_ours(path: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    Ok(found.is_file() && found.uid() == rustix::process::geteuid().as_raw())
}

/// Opens a file that another user may have created; does not block on a pipe.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// The records of a folder.
#[derive(Debug, Default)]
pub struct FolderRecords {
    /// The records, one for each job and rank.
    pub records: Vec<Record>,
    /// Files with the name of a record that could not be read, and why.
    pub passed_over: Vec<(String, String)>,
}

/// Reads all records of a folder. If a rank has both a `.ring` and a `.json` file, the one with more calls counts.
pub fn read_folder(folder: &Path) -> io::Result<FolderRecords> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)?.take(FILES_MAX) {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(PREFIX) && (name.ends_with(".json") || name.ends_with(".ring")) {
            names.push(name);
        }
    }
    // `.json` sorts before `.ring`, and stays if both have the same calls.
    names.sort();
    let mut found = FolderRecords::default();
    for name in names {
        match read_file(&folder.join(&name)) {
            Ok(mut record) => {
                // The state of a process on another host is known only from its record.
                record.process = process_of(&record).or(record.process);
                // The memory of a running process is current.
                if record.process.is_some_and(|process| process != Process::Gone) && record.taken_ns.is_none()
                {
                    record.taken_ns = Some(now_ns());
                }
                let known =
                    found.records.iter_mut().find(|one| (&one.job, one.rank) == (&record.job, record.rank));
                match known {
                    Some(known) if known.last_number() < record.last_number() => *known = record,
                    Some(_) => {}
                    None => found.records.push(record),
                }
            }
            Err(why) => found.passed_over.push((name, why)),
        }
    }
    Ok(found)
}

fn read_file(path: &Path) -> Result<Record, String> {
    let mut bytes = Vec::new();
    let read = open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("it has more than {BYTES_MAX} bytes"));
    }
    Record::read(&bytes).map_err(|error: RecordError| error.to_string())
}

/// When this process started, in the kernel's ticks since boot, and the number of its PID namespace; 0 is unknown.
pub(super) fn process() -> (u64, u64) {
    (stat_of("self").map_or(0, |(_, start)| start), namespace().unwrap_or(0))
}

/// The state of a record's process, if it is visible from here.
pub(crate) fn process_of(record: &Record) -> Option<Process> {
    let from_here = record.host == weftlink_knobs::host()
        && record.pid_namespace != 0
        && record.process_start != 0
        && namespace() == Some(record.pid_namespace);
    from_here.then(|| match stat_of(&record.pid.to_string()) {
        // A process that reuses the number has another start time.
        Some((process, start)) if start == record.process_start => process,
        _ => Process::Gone,
    })
}

fn namespace() -> Option<u64> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// The state of a process, and when it started.
pub(crate) fn stat_of(pid: &str) -> Option<(Process, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The state follows the name, which may contain anything; the start time is field 22.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let process = match fields.next()? {
        "Z" | "X" => Process::Gone,
        "T" | "t" => Process::Stopped,
        _ => Process::Runs,
    };
    Some((process, fields.nth(18)?.parse().ok()?))
}
