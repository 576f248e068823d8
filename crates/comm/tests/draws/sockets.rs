//! Processes and their sockets, from the kernel.

use std::collections::BTreeSet;
use std::time::Duration;

/// A TCP socket of this network namespace.
struct Tcp {
    local: u16,
    remote: u16,
    listens: bool,
    inode: u64,
}

fn tcp() -> Vec<Tcp> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let read = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = |at: usize| u16::from_str_radix(fields.get(at)?.rsplit(':').next()?, 16).ok();
        let (local, remote) = (port(1)?, port(2)?);
        Some(Tcp { local, remote, listens: *fields.get(3)? == "0A", inode: fields.get(9)?.parse().ok()? })
    };
    table.lines().skip(1).filter_map(read).collect()
}

/// The inodes of a process's sockets.
fn inodes(pid: u32) -> BTreeSet<u64> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |entry: std::fs::DirEntry| {
        let link = std::fs::read_link(entry.path()).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    links.filter_map(inode).collect()
}

/// The TCP ports on which a process listens.
pub(crate) fn listening(pid: u32) -> Vec<u16> {
    let own = inodes(pid);
    tcp().into_iter().filter(|one| one.listens && own.contains(&one.inode)).map(|one| one.local).collect()
}

/// The index of the process that owns the local end of a connection.
pub(crate) fn owner(local: u16, remote: u16, pids: &[u32]) -> Option<usize> {
    let is_it = |one: &Tcp| (one.local, one.remote) == (local, remote) && one.inode != 0;
    let inode = tcp().into_iter().find(is_it)?.inode;
    pids.iter().position(|&pid| inodes(pid).contains(&inode))
}

/// The abstract socket names on which a process listens.
pub(crate) fn abstract_names(pid: u32) -> Vec<String> {
    let own = inodes(pid);
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let read = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let inode: u64 = fields.get(6)?.parse().ok()?;
        let name = fields.get(7)?.strip_prefix('@')?;
        own.contains(&inode).then(|| name.to_owned())
    };
    let names: BTreeSet<String> = table.lines().filter_map(read).collect();
    names.into_iter().collect()
}

/// Whether a socket has this abstract name.
pub(crate) fn exists(name: &str) -> bool {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    table.lines().any(|line| line.ends_with(&format!("@{name}")))
}

/// Whether all threads of a process are stopped, or the process is gone.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let states = threads.filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        // The state follows the name, which may contain anything.
        stat.rsplit_once(") ")?.1.chars().next()
    });
    states.into_iter().all(|state| matches!(state, 'T' | 'Z' | 'X'))
}

/// The CPU time that a process has used.
pub(crate) fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // User and system time, in hundredths of a second.
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// The other processes that have `marker` in their environment.
pub(crate) fn processes_with(marker: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(marker.len()).any(|place| place == marker.as_bytes())
    };
    pids.filter(|pid| *pid != std::process::id()).filter(has).collect()
}
