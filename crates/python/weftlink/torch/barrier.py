"""A barrier after which rank 0 knows who stayed away. It goes through the store, so that a group is none the worse for it."""

import time
from datetime import timedelta

from weftlink.errors import Blame, DeadlineError

# Rank 0 gives up when the others do; so much longer they wait for its word on who stayed away.
_GRACE = timedelta(seconds=1)


def monitored_barrier(store, rank: int, size: int, timeout: timedelta, wait_all_ranks: bool) -> None:
    """All ranks meet in a store of their own. Who waits in vain says whom for."""
    end = time.monotonic() + timeout.total_seconds()
    left = lambda: timedelta(seconds=max(end - time.monotonic(), 0.001))
    store.set(str(rank), b"1")
    if rank == 0:
        missing = _missing(store, size, left, wait_all_ranks)
        names = ", ".join(map(str, missing))
        store.set("done", names)
    else:
        try:
            store.wait(["done"], left() + _GRACE)
        except Exception as error:
            what = f"rank {rank}: rank 0 did not reach the monitored barrier within {timeout}"
            raise _late(what, rank, [0]) from error
        names = store.get("done").decode()
    if names:
        what = f"rank{'s' if ',' in names else ''} {names} did not reach the monitored barrier within {timeout}"
        raise _late(what, rank, [int(name) for name in names.split(",")])


def _late(what, rank, missing):
    blamed = tuple(Blame(other, "late") for other in missing)
    return DeadlineError(what, rank=rank, peer=missing[0], operation="monitored_barrier", blamed=blamed)


def _missing(store, size, left, all_of_them):
    """Who does not come; without ``all_of_them``, the first of these."""
    missing = []
    for other in range(1, size):
        try:
            store.wait([str(other)], left())
        except Exception:
            missing.append(other)
            if not all_of_them:
                break
    return missing
