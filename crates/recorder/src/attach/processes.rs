//! The processes of this host, as far as the kernel shows them to this user.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use super::error::{AttachError, Denied};
use super::place::{self, Ring};
use crate::recorder::{self, Process, Record};

/// More processes than this are not looked at.
const PROCESSES_MAX: usize = 1 << 22;
/// Nor more recorders of one.
const RINGS_MAX: usize = 1 << 16;

/// A process.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) pid: u32,
    pub(super) parent: u32,
    pub(super) process: Process,
    /// When it started, in the kernel's ticks since boot.
    pub(super) start: u64,
    /// What it calls itself, which differs from here in a container.
    pub(super) inner_pid: u32,
    /// What its launcher told it.
    pub(super) told: Option<Told>,
    pub(super) rings: Vec<Ring>,
    /// Why there may be more.
    pub(super) denied: Option<Denied>,
}

/// What a rank's environment says of its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) job: String,
    /// Where it meets, in which jobs of one name differ.
    pub(super) place: String,
    pub(super) rank: Option<u32>,
}

impl Seen {
    /// Whether a record is of this very process, and not of one that it was forked off.
    pub(super) fn is_its_own(&self, record: &Record) -> bool {
        record.pid == self.inner_pid && (record.process_start == 0 || record.process_start == self.start)
    }
}

/// All processes but this one, by their numbers.
pub(super) fn all() -> Result<Vec<Seen>, AttachError> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .map_err(AttachError::NoProcesses)?
        .take(PROCESSES_MAX)
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .collect();
    pids.sort_unstable();
    // Some may have ended since.
    Ok(pids.into_iter().filter_map(look).collect())
}

fn look(pid: u32) -> Option<Seen> {
    let (process, start) = recorder::stat_of(&pid.to_string())?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let parent = field("PPid:")?.trim().parse().ok()?;
    let inner_pid =
        field("NSpid:").and_then(|pids| pids.split_whitespace().last()?.parse().ok()).unwrap_or(pid);
    let mut seen =
        Seen { pid, parent, process, start, inner_pid, told: None, rings: Vec::new(), denied: None };
    match fs::read_to_string(format!("/proc/{pid}/maps")) {
        Ok(maps) => seen.look_into(&maps),
        // Any other error is that of a process which has just ended.
        Err(error) if is_refused(&error) => seen.denied = Some(denied(pid, false)),
        Err(_) => return None,
    }
    Some(seen)
}

impl Seen {
    fn look_into(&mut self, maps: &str) {
        let pid = self.pid;
        self.told = fs::read(format!("/proc/{pid}/environ")).ok().and_then(|bytes| told(&bytes));
        let mappings = place::mappings(maps);
        if mappings.is_empty() {
            return;
        }
        let descriptors = descriptors(pid);
        for mapping in mappings.iter().take(RINGS_MAX) {
            match mapping.open(pid, &descriptors) {
                Ok(found) => self.rings.extend(found),
                Err(error) if is_refused(&error) => self.denied = Some(denied(pid, true)),
                // A communicator that has just ended.
                Err(_) => {}
            }
        }
    }
}

fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Why a process was refused, of which more or less was to be seen.
fn denied(pid: u32, is_known: bool) -> Denied {
    let ours = rustix::process::geteuid().as_raw();
    match fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid()) {
        Ok(theirs) if theirs != ours => Denied::User { theirs, ours },
        _ if is_known => {
            let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
            Denied::Debugger { scope: scope.ok().and_then(|text| text.trim().parse().ok()) }
        }
        _ => Denied::Protected,
    }
}

/// The descriptors of a process that are recorders: inodes and numbers.
fn descriptors(pid: u32) -> Vec<(u64, String)> {
    let folder = format!("/proc/{pid}/fd");
    let wanted = format!("/memfd:{} ", recorder::NAME);
    let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
    let inode_of = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let is_ring = fs::read_link(entry.path()).ok()?.to_str()?.starts_with(&wanted);
        let inode = is_ring.then(|| fs::metadata(entry.path()))?.ok()?.ino();
        Some((inode, entry.file_name().to_str()?.to_owned()))
    };
    entries.filter_map(inode_of).collect()
}

/// What an environment says of a job, if anything.
fn told(environment: &[u8]) -> Option<Told> {
    let value = |name: &str| {
        let is_it =
            |pair: &[u8]| Some(String::from_utf8_lossy(pair.strip_prefix(name.as_bytes())?).into_owned());
        environment.split(|byte| *byte == 0).find_map(is_it).filter(|value| !value.is_empty())
    };
    Some(Told {
        job: value("WEFT_JOB=")?,
        place: value("WEFT_RENDEZVOUS=").unwrap_or_default(),
        rank: value("RANK=").and_then(|rank| rank.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_tell_the_job() {
        let of = |text: &str| told(text.replace(' ', "\0").as_bytes());
        assert_eq!(of("PATH=/bin RANK=1"), None);
        assert_eq!(of("WEFT_JOB= RANK=1"), None);
        let job = |rank| Told { job: "mine".to_owned(), place: "a:1".to_owned(), rank };
        assert_eq!(of("XRANK=7 WEFT_JOB=mine RANK=12 WEFT_RENDEZVOUS=a:1"), Some(job(Some(12))));
        assert_eq!(of("WEFT_JOB=mine RANK=one WEFT_RENDEZVOUS=a:1"), Some(job(None)));
    }
}
