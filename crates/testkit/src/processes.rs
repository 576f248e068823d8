//! Starts processes without the state that the test inherited: ignored and blocked signals, settings of Weft and of launchers, open
//! descriptors.
//!
//! A shell without job control, `nohup` and some CI systems start programs with SIGINT, SIGQUIT or SIGHUP ignored, and an
//! ignored signal stays ignored across fork and exec. A test that sends SIGINT to such a child would hang.
//! Likewise, a test that runs inside an MPI or Slurm job would pass the rank of that job to its children.
//!
//! Rust's tests start every process through [`command`] or [`this_program`]; Python's tests do the same in
//! `crates/python/tests/inherited.py`.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Prefixes of environment variables that no process of a test inherits.
const REMOVED: [&str; 9] =
    ["WEFT_", "OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM_", "TORCHELASTIC_", "MASTER_", "LOCAL_"];
/// Other variables that no process of a test inherits.
const REMOVED_NAMES: [&str; 4] = ["RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"];
/// The planted defect of a `make mutants` run, which every process of a test inherits.
const KEPT: &str = "WEFT_MUTANT";

/// A command that runs a program in the default state.
///
/// Variables that a test sets on the command reach the program as usual.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_removed) {
            command.env_remove(name);
        }
    }
    // SAFETY: `forget_inherited` makes async-signal-safe system calls only.
    unsafe { command.pre_exec(forget_inherited) };
    command
}

/// A command that runs this test binary again, as one of its ranks.
///
/// # Panics
/// If the path of this program is unknown.
pub fn this_program() -> Command {
    command(std::env::current_exe().unwrap_or_else(|error| panic!("no path of this program: {error}")))
}

/// Whether `process_vm_readv` works: a process may always read its own memory, unless seccomp refuses the system call. Tests of single-copy
/// reads are skipped only where it does not.
pub fn may_read_memory() -> bool {
    let (source, mut target) = (0x5eed_u64, 0_u64);
    let local = libc::iovec { iov_base: (&raw mut target).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: (&raw const source).cast_mut().cast(), iov_len: size_of::<u64>() };
    // SAFETY: both ranges are live variables of this function.
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
        // Fails for SIGKILL, SIGSTOP and the signals of the C library, which cannot be ignored.
        // SAFETY: `SIG_DFL` is a valid disposition of every signal.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: a set of signals is plain data; both calls get a valid one.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    // Kernels before 5.11 refuse the flag; children of tests then inherit descriptors.
    // SAFETY: only flags of descriptors change, in a child that is about to exec.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that ignores signals, has an open descriptor and belongs to an MPI job runs the second half of this test.
    #[test]
    fn children_inherit_nothing_from_the_shell() {
        const NAME: &str = "processes::tests::children_inherit_nothing_from_the_shell";
        const ROLE: &str = "WEFT_TEST_ROLE";
        if std::env::var_os(ROLE).is_some() {
            // Signals 32 and 33 belong to the C library and cannot be reset.
            let ignored = |status: &str| {
                let line = status.lines().find(|line| line.starts_with("SigIgn:")).unwrap();
                u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap() & !(3 << 31)
            };
            let inherited = ignored(&std::fs::read_to_string("/proc/self/status").unwrap());
            let interrupt = 1 << (libc::SIGINT - 1);
            assert!(inherited & interrupt != 0, "the shell does not ignore SIGINT: {inherited:x}");
            let asked = "cat /proc/self/status; ls /proc/$$/fd; echo \"[$WEFT_DEADLINE$OMPI_COMM_WORLD_RANK$RANK]\"; \
                         echo $WEFT_MUTANT $WEFT_SHM; kill -INT $$; echo survived";
            let done = command("sh").args(["-c", asked]).env("WEFT_SHM", "off").output().unwrap();
            let output = String::from_utf8(done.stdout).unwrap();
            assert!(ignored(&output) == 0 && output.contains("SigBlk:\t0000000000000000\n"), "{output}");
            assert!(output.ends_with("\n0\n1\n2\n[]\nkept off\n"), "{output}");
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
        let output = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && output.contains("1 passed"), "{output}\n{errors}");
    }
}
