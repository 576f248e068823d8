"""A barrier whose error names the missing ranks. It runs over the store, so that a timeout does not break the group.

Errors use the words of gloo's ``monitoredBarrier``, which programs and PyTorch's tests look for.
"""

import time
from datetime import timedelta

from weftlink.errors import Blame
from weftlink.torch.errors import DeadlineError

# How much longer than rank 0 the other ranks wait: rank 0 reports the missing ranks when its own timeout has passed.
_GRACE = timedelta(seconds=1)


def monitored_barrier(store, rank: int, size: int, timeout: timedelta, wait_all_ranks: bool) -> None:
    """Waits until all ranks have written to a store of their own; raises ``DeadlineError`` with the ranks that have not."""
    end = time.monotonic() + timeout.total_seconds()
    left = lambda: timedelta(seconds=max(end - time.monotonic(), 0.001))
    limit = f"{timeout // timedelta(milliseconds=1)} ms"
    reached = f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
    store.set(str(rank), b"1")
    if rank == 0:
        missing = _missing(store, size, left, wait_all_ranks)
        names = ", ".join(map(str, missing))
        store.set("done", names)
        before = f"Rank 0 timed out in monitoredBarrier after {limit}: " if timeout <= timedelta(0) else ""
    else:
        try:
            store.wait(["done"], left() + _GRACE)
        except Exception as error:
            raise _late(f"{reached}: rank 0 did not reach it in {limit}", rank, [0]) from error
        names, before = store.get("done").decode(), f"{reached}: "
    if names:
        # Gloo says "Ranks" whenever it waits for all of them.
        what = f"{before}Rank{'s' if wait_all_ranks else ''} {names} failed to pass monitoredBarrier in {limit}"
        raise _late(what, rank, [int(name) for name in names.split(",")])


def _late(what, rank, missing):
    blamed = tuple(Blame(other, "late") for other in missing)
    return DeadlineError(what, rank=rank, peer=missing[0], operation="monitored_barrier", blamed=blamed)


def _missing(store, size, left, all_of_them):
    """The ranks that have not come; without ``all_of_them``, the first of these."""
    missing = []
    for other in range(1, size):
        try:
            store.wait([str(other)], left())
        except Exception:
            missing.append(other)
            if not all_of_them:
                break
    return missing
