//! Limits of the operating system that communication runs into: shared memory, locked memory, access to the memory of other processes.

use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[
    Check {
        id: "shm-size",
        finds: "A small /dev/shm",
        reads: "`df -B1 /dev/shm`, /proc/mounts",
        run: shared_memory,
    },
    Check {
        id: "memlock",
        finds: "A low limit of locked memory",
        reads: "/proc/self/limits",
        run: locked_memory,
    },
    Check {
        id: "ptrace",
        finds: "Ranks that may not read each other's memory (process_vm_readv)",
        reads: "/proc/sys/kernel/yama/ptrace_scope, /proc/self/status",
        run: ptrace,
    },
];

/// Bytes of /dev/shm that a job wants: NCCL's buffers take some MB per pair of ranks, and loaders of data far more.
const SHM_WANTED: u64 = 1 << 30;
/// Free bytes below which the first communicator fails.
const SHM_FREE_MIN: u64 = 64 << 20;
/// Locked memory below which registration for RDMA fails in practice; the default of many systems is 8 MiB or less.
const MEMLOCK_MIN: u64 = 1 << 30;

fn mib(bytes: u64) -> String {
    match bytes >> 20 {
        mib if mib >= 4096 => format!("{} GiB", mib >> 10),
        mib => format!("{mib} MiB"),
    }
}

/// Size and free bytes of /dev/shm, and where they were read.
fn shm(machine: &Machine<'_>) -> Option<(u64, Option<u64>, String, String)> {
    if let Some(text) = machine.tree.read("run/df -B1 /dev/shm") {
        // Filesystem, 1B-blocks, Used, Available, Use%, Mounted on.
        let line = text.lines().rev().find(|line| line.split_whitespace().last() == Some("/dev/shm"))?;
        let number = |at: usize| line.split_whitespace().nth(at)?.parse().ok();
        return Some((number(1)?, number(3), "df -B1 /dev/shm".to_owned(), reads::shown(line)));
    }
    let mounts = machine.tree.read("proc/mounts")?;
    let line = mounts.lines().rev().find(|line| line.split_whitespace().nth(1) == Some("/dev/shm"))?;
    let options = line.split_whitespace().nth(3)?;
    let size = options.split(',').find_map(|option| option.strip_prefix("size="))?;
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &size[digits.len()..] {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    Some((bytes, None, "/proc/mounts".to_owned(), reads::shown(line)))
}

fn shared_memory(machine: &Machine<'_>) -> Vec<Outcome> {
    let Some((size, free, source, text)) = shm(machine) else {
        return vec![Outcome::Unknown {
            what: "the size of /dev/shm".to_owned(),
            needs: "`df -B1 /dev/shm`; without a size option in /proc/mounts it is half of the memory"
                .to_owned(),
        }];
    };
    let severity = match free {
        Some(free) if free < SHM_FREE_MIN => Severity::Critical,
        _ if size < SHM_WANTED => Severity::Warning,
        _ => return vec![Outcome::Fine(format!("/dev/shm has {}", mib(size)))],
    };
    let what = match free {
        Some(free) if severity == Severity::Critical => format!(
            "/dev/shm has {} free of {}: communicators fail with a bus error or `no space left`",
            mib(free),
            mib(size)
        ),
        _ => format!("/dev/shm has {}: large jobs fail with a bus error or `no space left`", mib(size)),
    };
    vec![Outcome::Found(
        Finding::new("shm-size", severity, what)
            .shown_by(source, text)
            .fixed_by("in Docker: `--shm-size=16g` or `--ipc=host`; in Kubernetes: an emptyDir with `medium: Memory` at /dev/shm")
            .fixed_by("on a host: `sudo mount -o remount,size=16G /dev/shm`")
            .fixed_by("remove what dead jobs left: `ls -l /dev/shm`"),
    )]
}

fn locked_memory(machine: &Machine<'_>) -> Vec<Outcome> {
    if reads::rdma_ports(machine.tree).is_empty() {
        return Vec::new();
    }
    let limits = machine.tree.read("proc/self/limits").unwrap_or_default();
    let Some(line) = limits.lines().find(|line| line.starts_with("Max locked memory")) else {
        return vec![Outcome::Unknown {
            what: "the limit of locked memory".to_owned(),
            needs: "/proc/self/limits".to_owned(),
        }];
    };
    let soft = line.trim_start_matches("Max locked memory").split_whitespace().next().unwrap_or_default();
    let bytes = match (soft, soft.parse::<u64>()) {
        ("unlimited", _) => return vec![Outcome::Fine("locked memory is unlimited".to_owned())],
        (_, Ok(bytes)) => bytes,
        _ => {
            return vec![Outcome::Unknown {
                what: "the limit of locked memory".to_owned(),
                needs: "a number in /proc/self/limits".to_owned(),
            }];
        }
    };
    let severity = if bytes < MEMLOCK_MIN { Severity::Warning } else { Severity::Note };
    let what = format!(
        "the limit of locked memory is {}: registering buffers for RDMA fails above it (`Cannot allocate memory`)",
        mib(bytes)
    );
    vec![Outcome::Found(
        Finding::new("memlock", severity, what)
            .shown_by("/proc/self/limits", reads::shown(line))
            .fixed_by("in Docker: `--ulimit memlock=-1`")
            .fixed_by("on a host: `* - memlock unlimited` in /etc/security/limits.conf, then log in again; for services `LimitMEMLOCK=infinity`")
            .fixed_by("under Slurm: `LimitMEMLOCK=infinity` for slurmd, and `PropagateResourceLimitsExcept=MEMLOCK` in slurm.conf"),
    )]
}

fn ptrace(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let status = tree.read("proc/self/status");
    let has_filter = status
        .as_deref()
        .is_some_and(|status| status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])));
    let severity = match tree.read("proc/sys/kernel/yama/ptrace_scope").as_deref() {
        // A kernel without Yama has no such file.
        None if status.is_none() => {
            return vec![Outcome::Unknown {
                what: "whether ranks may read each other's memory".to_owned(),
                needs: "/proc/sys/kernel/yama/ptrace_scope and /proc/self/status".to_owned(),
            }];
        }
        None | Some("0") if has_filter => {
            return vec![Outcome::Unknown {
                what: "whether the container's seccomp filter lets ranks read each other's memory".to_owned(),
                needs: "a call: run `weft bench`, whose log names the transport".to_owned(),
            }];
        }
        None | Some("0") => {
            return vec![Outcome::Fine(
                "ranks of one user may read each other's memory (process_vm_readv)".to_owned(),
            )];
        }
        Some("1") => Severity::Note,
        Some(_) => Severity::Warning,
    };
    let scope = tree.read("proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let what = format!(
        "ranks may not read each other's memory (ptrace_scope is {}): Weft, MPI and UCX copy large messages on CPUs twice, through shared memory",
        reads::shown(&scope)
    );
    vec![Outcome::Found(
        Finding::new("ptrace", severity, what)
            .shown_by("/proc/sys/kernel/yama/ptrace_scope", reads::shown(&scope))
            .fixed_by("sudo sysctl kernel.yama.ptrace_scope=0 (not from 3, which needs a boot; any process of a user may then read the user's others)")
            .fixed_by("in Docker: `--cap-add SYS_PTRACE`"),
    )]
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{bare, healthy, is_fine, is_unknown};
    use super::*;

    #[test]
    fn small_shared_memory_is_found() {
        let df = |size: u64, free: u64| {
            format!(
                "run/df -B1 /dev/shm = Filesystem 1B-blocks Used Available Use% Mounted on\\nshm {size} 0 {free} 0% /dev/shm"
            )
        };
        let docker = healthy(&[&df(64 << 20, 64 << 20)]).finding(&CHECKS[0]);
        assert_eq!(
            (docker.severity, docker.what.split(':').next()),
            (Severity::Warning, Some("/dev/shm has 64 MiB"))
        );
        assert_eq!(healthy(&[&df(8 << 30, 1 << 20)]).finding(&CHECKS[0]).severity, Severity::Critical);
        let mounts = "proc/mounts = shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0";
        assert!(healthy(&["run/df -B1 /dev/shm -", mounts]).finding(&CHECKS[0]).what.contains("64 MiB"));
        assert!(is_fine(&healthy(&[]).run(&CHECKS[0])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
    }

    #[test]
    fn a_low_limit_of_locked_memory_is_found() {
        let limit = |limit: &str| {
            format!(
                "proc/self/limits = Limit Soft Hard Units\\nMax locked memory         {limit}              {limit}              bytes"
            )
        };
        assert_eq!(healthy(&[&limit("8388608")]).finding(&CHECKS[1]).severity, Severity::Warning);
        assert_eq!(healthy(&[&limit("68719476736")]).finding(&CHECKS[1]).severity, Severity::Note);
        assert!(is_fine(&healthy(&[&limit("unlimited")]).run(&CHECKS[1])));
        assert!(is_unknown(&healthy(&[&limit("many")]).run(&CHECKS[1])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[1])));
    }

    #[test]
    fn ptrace_scopes_are_judged() {
        let scope = |scope: u32| format!("proc/sys/kernel/yama/ptrace_scope = {scope}");
        assert_eq!(healthy(&[&scope(1)]).finding(&CHECKS[2]).severity, Severity::Note);
        assert_eq!(healthy(&[&scope(3)]).finding(&CHECKS[2]).severity, Severity::Warning);
        assert!(is_fine(&healthy(&[&scope(0)]).run(&CHECKS[2])));
        assert!(is_unknown(&healthy(&["proc/self/status = Name: weft\\nSeccomp:\\t2"]).run(&CHECKS[2])));
        assert!(is_unknown(&bare(&[]).run(&CHECKS[2])));
    }
}
