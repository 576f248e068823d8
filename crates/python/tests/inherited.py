"""Resets signals and environment variables that the tests inherit from a shell or a job, in this process and so in all that it starts.

A shell without job control, `nohup` and some CI systems start programs with SIGINT, SIGQUIT or SIGHUP ignored; Python then raises
no KeyboardInterrupt, nor do the ranks that a test starts. A test inside an MPI or Slurm job would use that job's rank. `crates/testkit/src/processes.rs` does the same for Rust's tests.

Imported first by `jobs.py` and `ranks.py`.
"""

import os
import signal
import socket

# Prefixes and names of environment variables that no test inherits.
REMOVED = ("WEFT_", "OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM_", "TORCHELASTIC_", "MASTER_", "LOCAL_")
REMOVED_NAMES = ("RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
KEPT = ("WEFT_MUTANT",)
# Signals that Python itself ignores.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)

_reserved = []


def _reset():
    for number in signal.valid_signals():
        if number not in IGNORED and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name in list(os.environ):
        if (name.startswith(REMOVED) or name in REMOVED_NAMES) and name not in KEPT:
            del os.environ[name]


def reserved_port():
    """A port of 127.0.0.1 that no other process gets while this one lives, but where a listener can bind.

    The kernel does not assign the port of a bound socket to a process that asks for any port; a listener that names the port and sets
    SO_REUSEADDR, as this socket does, gets it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _reserved.append(held)
    return held.getsockname()[1]


_reset()
