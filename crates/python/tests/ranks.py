"""Runs a function on several ranks, each in a process forked from this one, so that torch is imported only once.

    run(4, function)             # function(rank, size) on each, in a group of Weft
    run(2, function, backend=None)  # without a group
"""

import os
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import inherited  # noqa: F401  first: later imports see a clean environment
import torch
import torch.distributed as dist

import weftlink.torch  # noqa: F401  registers the backend

torch.set_num_threads(1)


class RanksFailed(AssertionError):
    """The tracebacks of the ranks that failed."""


def run(size, function, *args, backend="weft", seconds=120, may_die=(), timeout=60):
    """Runs it on all ranks and raises their errors. Ranks in `may_die` may end with any status."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, size, function, args, backend, folder, timeout) for rank in range(size)]
        statuses = _wait(dict(zip(children, range(size), strict=True)), seconds)
        failed = [rank for rank, status in enumerate(statuses) if status != 0 and rank not in may_die]
        reports = [f"rank {rank} ended with {statuses[rank]}\n{_traceback(folder, rank)}" for rank in failed]
        if reports:
            raise RanksFailed("\n".join(reports))


def _fork(rank, size, function, args, backend, folder, timeout):
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return child
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        store = dist.FileStore(f"{folder}/store", size)
        if backend:
            limit = timedelta(seconds=timeout)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
            function(rank, size, *args)
            dist.destroy_process_group()
        else:
            function(rank, size, store, *args)
        code = 0
    except BaseException:
        with open(f"{folder}/{rank}", "w", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(children, seconds):
    """The exit statuses by rank; a rank that does not end in time is killed."""
    statuses, end = [None] * len(children), time.monotonic() + seconds
    while None in statuses and time.monotonic() < end:
        for child, rank in children.items():
            if statuses[rank] is None:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    statuses[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    for child, rank in children.items():
        if statuses[rank] is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            statuses[rank] = "SIGKILL after the timeout"
    return statuses


def _traceback(folder, rank):
    try:
        with open(f"{folder}/{rank}", encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return "no traceback"
