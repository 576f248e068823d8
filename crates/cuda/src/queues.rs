//! Hardware queues: a kernel that waits, with work queued behind it, blocks every stream on its queue. A process whose ranks share a GPU
//! needs a queue for each of their streams.

// Sets a variable of the environment.
#![allow(unsafe_code)]

/// The variable that sets how many queues a process has.
pub const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// The most that CUDA gives to a process. One process uses them all: the pool that processes share exists under MPS only, and has about
/// 120.
pub const QUEUES_MAX: usize = 32;
/// CUDA's default without MPS.
pub const QUEUES_BY_DEFAULT: usize = 8;

/// Gives this process as many queues as CUDA has, unless the user has set their number. To be called before the driver is loaded, while
/// the process has one thread; returns whether it did something.
pub fn use_all() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if std::env::var_os(VARIABLE).is_some() || threads != 1 {
        return false;
    }
    // SAFETY: no other thread exists that could read the environment, and only this one could start some.
    unsafe { std::env::set_var(VARIABLE, QUEUES_MAX.to_string()) };
    true
}

/// Logs a warning if ranks of this process have fewer queues than streams.
pub(crate) fn warn_if_few(ranks: usize) {
    let set = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
    let queues = set.unwrap_or(QUEUES_BY_DEFAULT);
    // With as many ranks as queues, the program's own streams share one with a rank.
    if ranks > queues || ranks == queues && queues < QUEUES_MAX {
        tracing::warn!(
            target: "weft::fault",
            "{ranks} ranks share {queues} hardware queues, so calls launched one after the other may stall: set {VARIABLE} to {} before CUDA starts",
            (2 * ranks).min(QUEUES_MAX)
        );
    }
}

/// The most ranks of a process whose streams have a queue each.
pub const RANKS_MAX: usize = QUEUES_MAX;
