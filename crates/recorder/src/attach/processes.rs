//! The processes of this host that this user can see.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use super::error::{AccessDenied, AttachError};
use super::place::{self, Ring};
use crate::gpu;
use crate::recorder::{self, Process, Record};

/// Processes beyond this number are ignored.
const PROCESSES_MAX: usize = 1 << 22;
/// Recorders of a process beyond this number are ignored.
const RINGS_MAX: usize = 1 << 16;

/// A process.
#[derive(Debug)]
pub(super) struct ProcessInfo {
    pub(super) pid: u32,
    pub(super) parent: u32,
    pub(super) process: Process,
    /// When it started, in the kernel's ticks since boot.
    pub(super) start: u64,
    /// Its number in its own namespace, which differs in a container.
    pub(super) inner_pid: u32,
    /// The variables of its launcher.
    pub(super) variables: Option<JobVariables>,
    pub(super) rings: Vec<Ring>,
    /// Why some recorders could not be read.
    pub(super) denied: Option<AccessDenied>,
}

/// The job of a process, from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobVariables {
    pub(super) job: String,
    /// The rendezvous address, which differs between jobs of the same name.
    pub(super) place: String,
    pub(super) rank: Option<u32>,
}

impl ProcessInfo {
    /// Whether a record belongs to this process, and not to the one that it was forked from.
    pub(super) fn is_its_own(&self, record: &Record) -> bool {
        record.pid == self.inner_pid && (record.process_start == 0 || record.process_start == self.start)
    }
}

/// All processes but this one, sorted by number.
pub(super) fn all() -> Result<Vec<ProcessInfo>, AttachError> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .map_err(AttachError::NoProcesses)?
        .take(PROCESSES_MAX)
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .collect();
    pids.sort_unstable();
    // Some may have ended in the meantime.
    Ok(pids.into_iter().filter_map(look).collect())
}

fn look(pid: u32) -> Option<ProcessInfo> {
    let (process, start) = recorder::stat_of(&pid.to_string())?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let parent = field("PPid:")?.trim().parse().ok()?;
    let inner_pid =
        field("NSpid:").and_then(|pids| pids.split_whitespace().last()?.parse().ok()).unwrap_or(pid);
    let mut seen = ProcessInfo {
        pid,
        parent,
        process,
        start,
        inner_pid,
        variables: None,
        rings: Vec::new(),
        denied: None,
    };
    match fs::read_to_string(format!("/proc/{pid}/maps")) {
        Ok(maps) => seen.look_into(&maps),
        // Any other error means that the process has just ended.
        Err(error) if is_refused(&error) => seen.denied = Some(denied(pid, false)),
        Err(_) => return None,
    }
    Some(seen)
}

impl ProcessInfo {
    fn look_into(&mut self, maps: &str) {
        let pid = self.pid;
        self.variables =
            fs::read(format!("/proc/{pid}/environ")).ok().and_then(|bytes| job_variables(&bytes));
        let mappings = place::mappings(maps);
        if mappings.is_empty() {
            return;
        }
        let descriptors = descriptors(pid);
        for mapping in mappings.iter().take(RINGS_MAX) {
            match mapping.open(pid, &descriptors) {
                Ok(found) => self.rings.extend(found),
                Err(error) if is_refused(&error) => self.denied = Some(denied(pid, true)),
                // The communicator has just ended.
                Err(_) => {}
            }
        }
    }
}

fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Why access was denied. `has_recorder`: its mappings could be read, and have a recorder.
fn denied(pid: u32, has_recorder: bool) -> AccessDenied {
    let ours = rustix::process::geteuid().as_raw();
    match fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid()) {
        Ok(theirs) if theirs != ours => AccessDenied::User { theirs, ours },
        _ if has_recorder => {
            let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
            AccessDenied::Debugger { scope: scope.ok().and_then(|text| text.trim().parse().ok()) }
        }
        _ => AccessDenied::Protected,
    }
}

/// The descriptors of recorders and reports in a process: inodes and numbers.
fn descriptors(pid: u32) -> Vec<(u64, String)> {
    let folder = format!("/proc/{pid}/fd");
    let wanted = [recorder::NAME, gpu::NAME].map(|name| format!("/memfd:{name} "));
    let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
    let inode_of = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let link = fs::read_link(entry.path()).ok()?;
        let link = link.to_str()?;
        let is_ring = wanted.iter().any(|wanted| link.starts_with(wanted));
        let inode = is_ring.then(|| fs::metadata(entry.path()))?.ok()?.ino();
        Some((inode, entry.file_name().to_str()?.to_owned()))
    };
    entries.filter_map(inode_of).collect()
}

/// The job in an environment, if any.
fn job_variables(environment: &[u8]) -> Option<JobVariables> {
    let value = |name: &str| {
        let is_it =
            |pair: &[u8]| Some(String::from_utf8_lossy(pair.strip_prefix(name.as_bytes())?).into_owned());
        environment.split(|byte| *byte == 0).find_map(is_it).filter(|value| !value.is_empty())
    };
    Some(JobVariables {
        job: value("WEFT_JOB=")?,
        place: value("WEFT_RENDEZVOUS=").unwrap_or_default(),
        rank: value("RANK=").and_then(|rank| rank.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_is_read_from_the_environment() {
        let of = |text: &str| job_variables(text.replace(' ', "\0").as_bytes());
        assert_eq!(of("PATH=/bin RANK=1"), None);
        assert_eq!(of("WEFT_JOB= RANK=1"), None);
        let job = |rank| JobVariables { job: "mine".to_owned(), place: "a:1".to_owned(), rank };
        assert_eq!(of("XRANK=7 WEFT_JOB=mine RANK=12 WEFT_RENDEZVOUS=a:1"), Some(job(Some(12))));
        assert_eq!(of("WEFT_JOB=mine RANK=one WEFT_RENDEZVOUS=a:1"), Some(job(None)));
    }
}
