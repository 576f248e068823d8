//! How much memory can still be had, so that a request for more can be refused before it does harm.
//!
//! The kernel grants shared memory page by page and, when it has none left, kills a process instead of returning an
//! error. What it reports as available (`/proc/meminfo`) and what the limits of this process's control group and its
//! parents leave (version 2, below `/sys/fs/cgroup`) tell beforehand. Both count pages of files as available, since
//! those are given up first.
//!
//! Deliberately absent: control groups of version 1, which no current distribution sets up. Under them, and wherever
//! the files cannot be read, nothing is known and nothing is refused.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes that can be had now, if anything says so.
pub fn memory_bytes() -> Option<u64> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| machine_bytes(&text));
    let group = read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let root = Path::new("/sys/fs/cgroup");
        // In a container the path may be written as seen from outside; the mounted root is then our own group.
        let ours = root.join(group_path(&text)?);
        ours.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(group_bytes).min()
    });
    machine.into_iter().chain(group).min()
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| value(meminfo, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok();
    Some(kib("MemAvailable:")?.saturating_add(kib("SwapFree:").unwrap_or(0)).saturating_mul(1024))
}

fn group_path(cgroup: &str) -> Option<&str> {
    value(cgroup, "0::").map(|path| path.trim_start_matches('/'))
}

fn group_bytes(folder: &Path) -> Option<u64> {
    let read = |name: &str| read_to_string(folder.join(name)).ok();
    let max = read("memory.max")?.trim().parse::<u64>().ok()?; // "max" is no limit
    let current = read("memory.current")?.trim().parse::<u64>().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let files = |name: &str| value(&stat, name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let given_up = files("inactive_file ").saturating_add(files("active_file "));
    Some(max.saturating_sub(current.saturating_sub(given_up)))
}

fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo() {
        let text = "MemTotal:       24000 kB\nMemAvailable:   1000 kB\nSwapFree:   24 kB\n";
        assert_eq!(machine_bytes(text), Some(1024 * 1024));
        assert_eq!(machine_bytes("MemTotal: 1 kB\n"), None);
        assert_eq!(machine_bytes(""), None);
    }

    #[test]
    fn a_group_leaves_what_it_does_not_need() {
        let folder = std::env::temp_dir().join(format!("weft-group-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        assert_eq!(group_bytes(&folder), None);
        write("memory.max", "1000\n");
        write("memory.current", "900\n");
        assert_eq!(group_bytes(&folder), Some(100));
        write("memory.stat", "anon 700\nfile 200\ninactive_file 150\nactive_file 50\n");
        assert_eq!(group_bytes(&folder), Some(300));
        write("memory.max", "max\n");
        assert_eq!(group_bytes(&folder), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_group_of_version_two_is_found() {
        assert_eq!(group_path("5:cpu:/x\n0::/user.slice/a\n"), Some("user.slice/a"));
        assert_eq!(group_path("0::/\n"), Some(""));
        assert_eq!(group_path("5:memory:/x\n"), None);
    }
}
