//! The highest memory use of this process, as the kernel counts it, for benchmarks.

/// Makes the kernel forget the highest memory use so far.
pub fn reset() {
    // Where /proc is not writable, the peaks are those since the start: never too low.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The highest memory use since, in MiB; no number where the kernel does not tell.
pub fn mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
