//! The peak memory use of this process, for benchmarks.

/// Resets the kernel's record of the peak.
pub fn reset() {
    // Where /proc is not writable, the peak since the start remains, which is never too low.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The peak since the last reset in MiB; NaN where the kernel does not report it.
pub fn mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
