//! Processes that tests start, free of what the test itself inherited: ignored signals, blocked signals, settings of Weft and of
//! launchers, open descriptors.
//!
//! A shell without job control, `nohup` and some CI systems start programs with SIGINT, SIGQUIT or SIGHUP ignored, and an
//! ignored signal stays ignored across fork and exec. A test that sends Ctrl-C to such a child would wait for nothing.
//! In the same way a test that runs inside an MPI or Slurm job would hand its children the rank of that job.
//!
//! Rust's tests start every process through [`command`] or [`this_program`]; Python's tests do the same in
//! `crates/python/tests/inherited.py`.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Beginnings of the names of environment variables that no process of a test inherits.
const REMOVED: [&str; 9] =
    ["WEFT_", "OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM_", "TORCHELASTIC_", "MASTER_", "LOCAL_"];
/// Whole names of others.
const REMOVED_NAMES: [&str; 4] = ["RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"];
/// The planted defect that a run of `make mutants` is about; every process of a test has it.
const KEPT: &str = "WEFT_MUTANT";

/// A program in its default state, whatever this process inherited.
///
/// Variables that a test sets on the command reach the program as usual.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_removed) {
            command.env_remove(name);
        }
    }
    // SAFETY: between fork and exec it makes system calls only, of which each is async-signal-safe.
    unsafe { command.pre_exec(forget_inherited) };
    command
}

/// The test that runs, once more: as one of its ranks.
///
/// # Panics
/// If the path of this program is unknown.
pub fn this_program() -> Command {
    command(std::env::current_exe().unwrap_or_else(|error| panic!("no path of this program: {error}")))
}

/// Whether the kernel lets a process read memory by `process_vm_readv` at all: its own it may read unless seccomp refuses the
/// system call. Tests of what reads memory are skipped where it is refused, and only there.
pub fn may_read_memory() -> bool {
    let (source, mut target) = (0x5eed_u64, 0_u64);
    let local = libc::iovec { iov_base: (&raw mut target).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: (&raw const source).cast_mut().cast(), iov_len: size_of::<u64>() };
    // SAFETY: both places are numbers on this stack, of that length.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    read == size_of::<u64>() as isize && target == source
}

fn is_removed(name: &str) -> bool {
    let begins = REMOVED.iter().any(|beginning| name.starts_with(beginning));
    (begins || REMOVED_NAMES.contains(&name)) && name != KEPT
}

/// Sets every signal to its default, unblocks all, and lets exec close every descriptor but the standard ones.
fn forget_inherited() -> std::io::Result<()> {
    for signal in 1..=libc::SIGRTMAX() {
        // Fails for SIGKILL, SIGSTOP and those of the C library, which nobody can ignore.
        // SAFETY: `SIG_DFL` is a valid disposition of every signal.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: a set of signals is plain data; both calls get a valid one.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    // Kernels before 5.11 refuse the flag; the children of tests then keep what was inherited.
    // SAFETY: only flags of descriptors change, and only until exec, which comes next.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that ignores signals, has a descriptor open and belongs to a job of MPI runs this test's other half.
    #[test]
    fn children_inherit_nothing_that_a_test_did_not_ask_for() {
        const NAME: &str = "processes::tests::children_inherit_nothing_that_a_test_did_not_ask_for";
        const ROLE: &str = "WEFT_TEST_ROLE";
        if std::env::var_os(ROLE).is_some() {
            // Those that the C library keeps for itself, 32 and 33, nobody can reset.
            let ignored = |status: &str| {
                let line = status.lines().find(|line| line.starts_with("SigIgn:")).unwrap();
                u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap() & !(3 << 31)
            };
            let inherited = ignored(&std::fs::read_to_string("/proc/self/status").unwrap());
            let interrupt = 1 << (libc::SIGINT - 1);
            assert!(inherited & interrupt != 0, "the shell was to ignore SIGINT: {inherited:x}");
            let asked = "cat /proc/self/status; ls /proc/$$/fd; echo \"[$WEFT_DEADLINE$OMPI_COMM_WORLD_RANK$RANK]\"; \
                         echo $WEFT_MUTANT $WEFT_SHM; kill -INT $$; echo survived";
            let done = command("sh").args(["-c", asked]).env("WEFT_SHM", "off").output().unwrap();
            let told = String::from_utf8(done.stdout).unwrap();
            assert!(ignored(&told) == 0 && told.contains("SigBlk:\t0000000000000000\n"), "{told}");
            assert!(told.ends_with("\n0\n1\n2\n[]\nkept off\n"), "{told}");
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&done.status), Some(libc::SIGINT));
            return;
        }
        let script = r#"trap '' INT QUIT HUP TSTP; exec "$0" --exact "$1" --nocapture 7</dev/null"#;
        let done = Command::new("sh")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .arg(NAME)
            .envs([(ROLE, "1"), ("WEFT_DEADLINE", "1s"), ("OMPI_COMM_WORLD_RANK", "3"), ("RANK", "3")])
            .env(KEPT, "kept")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && told.contains("1 passed"), "{told}\n{errors}");
    }
}
