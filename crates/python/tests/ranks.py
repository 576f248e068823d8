"""Runs a function on several ranks, each in a process that is forked from this one: torch is imported once for all.

    run(4, function)             # function(rank, size) on each, in a group of Weft's
    run(2, function, backend=None)  # without a group
"""

import os
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import inherited  # noqa: F401  first: what is imported after it sees a clean environment
import torch
import torch.distributed as dist

import weftlink.torch  # noqa: F401  registers the backend

torch.set_num_threads(1)


class RanksFailed(AssertionError):
    """What the ranks said that failed."""


def run(size, function, *args, backend="weft", seconds=120, may_die=(), timeout=60):
    """Runs it on all ranks and raises what they raised. Ranks in `may_die` may end as they like."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, size, function, args, backend, folder, timeout) for rank in range(size)]
        statuses = _wait(dict(zip(children, range(size), strict=True)), seconds)
        failed = [rank for rank, status in enumerate(statuses) if status != 0 and rank not in may_die]
        said = [f"rank {rank} ended with {statuses[rank]}\n{_said(folder, rank)}" for rank in failed]
        if said:
            raise RanksFailed("\n".join(said))


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
    """The exit statuses by rank; whoever is not over in time is killed."""
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
            statuses[rank] = "a kill after the time was up"
    return statuses


def _said(folder, rank):
    try:
        with open(f"{folder}/{rank}", encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return "it said nothing"
