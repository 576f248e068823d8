"""Programs with a fault, which the first argument chooses. Each rank prints the errors that it gets."""

import os
import pathlib
import signal
import sys
import time

import numpy as np

import weftlink


def interrupted():
    """Rank 0 waits for a call that rank 1 makes only after rank 0 has been interrupted."""
    comm = weftlink.init()
    how, mark = sys.argv[2], pathlib.Path(sys.argv[3])
    if comm.rank == 1:
        for _ in range(2000):
            if mark.exists():
                break
            time.sleep(0.01)
        try:
            comm.all_reduce(np.ones(4))
        except weftlink.errors.CancelledError as error:
            print(f"rank 1: rank {error.peer} cancelled it", flush=True)
        return
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    began = time.monotonic()
    try:
        comm.all_reduce(np.ones(4)) if how == "run" else comm.start_all_reduce(np.ones(4)).wait()
    except KeyboardInterrupt:
        print(f"rank 0: interrupted within 2 s: {time.monotonic() - began < 2.3}", flush=True)
    mark.touch()


def aborted():
    """Rank 0 waits in a call that rank 1 makes only after the handler of a signal has aborted the communicator."""
    comm = weftlink.init()
    how, mark = sys.argv[2], pathlib.Path(sys.argv[3])
    if how == "later":
        comm.all_reduce(np.ones(4))
    if comm.rank == 1:
        for _ in range(2000):
            if mark.exists():
                break
            time.sleep(0.01)
        try:
            comm.all_reduce(np.ones(4))
        except weftlink.errors.CancelledError as error:
            print(f"rank 1: rank {error.peer} cancelled it", flush=True)
        return

    def handle(*_):
        refused = []
        # These would wait for the call that the handler runs in. A started call runs on another thread.
        attempts = (comm.close, lambda: comm.window(4), comm.barrier, comm.shrink)
        for attempt in attempts if how != "start" else ():
            try:
                attempt()
            except weftlink.errors.UsageError:
                refused.append("refused")
        comm.abort("asked to end")
        print(f"rank 0: {' '.join(refused)}", flush=True)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        comm.start_all_reduce(np.ones(4)).wait() if how == "start" else comm.all_reduce(np.ones(4))
    except weftlink.errors.CancelledError as error:
        print(f"rank 0: {'asked to end' in str(error)}", flush=True)
    mark.touch()


def killed():
    """Rank 1 is killed while the others wait for it, and they shrink."""
    comm = weftlink.init()
    pid = int(comm.broadcast(np.array([os.getpid()]), root=1)[0])
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            comm.all_reduce(np.ones(4))
    except (weftlink.errors.DiedError, weftlink.errors.LostError) as error:
        smaller = comm.shrink()
        (blamed,) = error.blamed
        left = f"{smaller.all_reduce(np.ones(1))[0]:.0f} left"
        print(f"rank {comm.rank}: {error.peer} died, pid {blamed.pid == pid}, {left}", flush=True)


def forked():
    """A forked process can use neither communicator nor calls, and does not disturb the group."""
    comm = weftlink.init()
    call = comm.start_barrier()
    call.wait()
    child = os.fork()
    if child == 0:
        refused = []
        for attempt in (lambda: comm.all_reduce(np.ones(4)), call.wait, comm.start_barrier):
            try:
                attempt()
            except weftlink.errors.UsageError as error:
                refused.append("forked" in str(error))
        del comm, call
        os._exit(0 if refused == [True, True] or refused == [True] * 3 else 1)
    _, status = os.waitpid(child, 0)
    print(f"rank {comm.rank}: {status} {comm.all_reduce(np.ones(1))[0]:.0f}", flush=True)


{"interrupted": interrupted, "aborted": aborted, "killed": killed, "forked": forked}[sys.argv[1]]()
