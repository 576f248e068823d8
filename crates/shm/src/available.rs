//! How much memory is still available, so that a larger request is refused before it does harm.
//!
//! The kernel grants shared memory page by page and, when it has none left, kills a process instead of returning an
//! error. `/proc/meminfo` and the limits of this process's control groups and their parents (below `/sys/fs/cgroup`: version 2
//! there, version 1 in `memory`) tell beforehand. Pages of files count as available, since the kernel reclaims those first.
//! Where the files cannot be read, nothing is refused.

use std::fs::read_to_string;
use std::path::Path;

/// The available bytes, if the system reports them.
pub fn memory_bytes() -> Option<u64> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| machine_bytes(&text));
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups_bytes(&groups, Path::new("/sys/fs/cgroup"));
    machine.into_iter().chain(group).min()
}

/// The memory that the control groups of a process leave, from its list of groups.
fn groups_bytes(groups: &str, mounted: &Path) -> Option<u64> {
    let least = |root: &Path, path: Option<&str>, bytes: fn(&Path) -> Option<u64>| {
        // In a container the path may be written as seen from outside; the mounted root is then our own group.
        let ours = root.join(path?);
        ours.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(bytes).min()
    };
    let two = least(mounted, group_path(groups), group_bytes);
    let one = least(&mounted.join("memory"), group_path_of_version_one(groups), group_bytes_of_version_one);
    two.into_iter().chain(one).min()
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| value(meminfo, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok();
    Some(kib("MemAvailable:")?.saturating_add(kib("SwapFree:").unwrap_or(0)).saturating_mul(1024))
}

fn group_path(cgroup: &str) -> Option<&str> {
    value(cgroup, "0::").map(|path| path.trim_start_matches('/'))
}

/// Lines of version 1 have the names of their controllers: `5:cpu,memory:/path`.
fn group_path_of_version_one(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then(|| path.trim_start_matches('/'))
    })
}

/// Without a limit the file has a number that is larger than any memory.
fn group_bytes_of_version_one(folder: &Path) -> Option<u64> {
    let read = |name: &str| read_to_string(folder.join(name)).ok();
    let max = read("memory.limit_in_bytes")?.trim().parse::<u64>().ok()?;
    let current = read("memory.usage_in_bytes")?.trim().parse::<u64>().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let files = |name: &str| value(&stat, name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let given_up = files("total_inactive_file ").saturating_add(files("total_active_file "));
    Some(max.saturating_sub(current.saturating_sub(given_up)))
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
    fn unused_memory_of_a_group_is_available() {
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
    fn cgroup_v1_and_parent_limits_apply() {
        let mounted = std::env::temp_dir().join(format!("weft-group-one-{}", std::process::id()));
        let folder = mounted.join("memory/outer/inner");
        std::fs::create_dir_all(&folder).unwrap();
        let write = |folder: &Path, name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let groups = "11:cpu,cpuacct:/\n9:memory:/outer/inner\n0::/\n";
        assert_eq!(groups_bytes(groups, &mounted), None);
        write(&folder, "memory.limit_in_bytes", "9223372036854771712\n");
        write(&folder, "memory.usage_in_bytes", "4096\n");
        assert!(groups_bytes(groups, &mounted).unwrap() > 1 << 60);
        write(&mounted.join("memory/outer"), "memory.limit_in_bytes", "10000\n");
        write(&mounted.join("memory/outer"), "memory.usage_in_bytes", "9000\n");
        write(
            &mounted.join("memory/outer"),
            "memory.stat",
            "cache 7\ntotal_inactive_file 500\ntotal_active_file 20\n",
        );
        assert_eq!(groups_bytes(groups, &mounted), Some(1520));
        assert_eq!(groups_bytes("9:memory:/elsewhere\n", &mounted), None);
        std::fs::remove_dir_all(&mounted).unwrap();
    }

    #[test]
    fn cgroup_v2_groups_are_found() {
        assert_eq!(group_path("5:cpu:/x\n0::/user.slice/a\n"), Some("user.slice/a"));
        assert_eq!(group_path("0::/\n"), Some(""));
        assert_eq!(group_path("5:memory:/x\n"), None);
    }
}
