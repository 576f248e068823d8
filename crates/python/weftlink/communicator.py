"""Communicators: how ranks join, and all calls but the collectives."""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from weftlink import _native
from weftlink._native import Window
from weftlink.collectives import Collectives

T = TypeVar("T")


class CollectiveCounters(NamedTuple):
    """Counters of one collective on this rank."""

    collective: str
    calls: int
    bytes: int
    errors: int
    waits: int
    slept: int
    waited_ns: int


class Communicator(Collectives):
    """One rank's end of a group of ranks, which are processes or threads.

    `weftlink.init` makes one in a job, `weftlink.meet` anywhere, `Communicator.threads` in one process. Calls may come from any
    thread; all ranks make the same calls in the same order. A waiting call releases the GIL. Ctrl-C ends a call and aborts the
    communicator, since one rank cannot undo a call; the errors of the other ranks name this one.

    Attributes:
        rank: this rank, from 0.
        size: the number of ranks.
        origins: the number of each rank in the communicator that this one was split or shrunk from.
    """

    def __init__(self, native: _native.Communicator) -> None:
        self._native = native
        self.rank = native.rank
        self.size = native.size
        self.origins = native.origins
        _open.add(self)

    @staticmethod
    def threads(size: int, *, deadline: float | None = None, deterministic: bool | None = None) -> list[Communicator]:
        """A group whose ranks are threads of this process: one communicator for each thread."""
        return [Communicator(native) for native in _native.threads(size, deadline, deterministic)]

    def group(self, sends: Sequence[tuple[int, Any]] = (), receives: Sequence[tuple[int, Any]] = ()) -> None:
        """Sends and receives arrays, each given as a pair of peer and array, as one group, so that two ranks may both send first. All ranks
        take part in the first group of a communicator, without arguments if they have no messages; from then on only ranks that have
        messages do. The n-th message from one rank to another matches the n-th receive there, also across groups.

        >>> import weftlink
        >>> def work(comm):
        ...     mine, theirs, other = bytes([comm.rank]), bytearray(1), 1 - comm.rank
        ...     comm.group([(other, mine)], [(other, theirs)])
        ...     return theirs[0]
        >>> weftlink.on_threads(2, work)
        [1, 0]
        """
        self._native.group(list(sends), list(receives))

    def window(self, length: int, dtype: str = "float32") -> Window:
        """Allocates symmetric memory of ``length`` elements per rank, zeroed. All ranks call it.

        ``numpy.asarray`` and ``torch.from_dlpack`` turn it into an array. If all ranks pass this array, or a contiguous part of it, a
        collective moves data from memory to memory without a staging copy.
        """
        return self._native.window(length, str(dtype))

    def split(self, part: int | None, key: int = 0) -> Communicator | None:
        """Splits the communicator: ranks with the same ``part`` form a new one, ordered by ``key``; a rank with None gets None. All ranks
        call it. The old communicator can still be used.

        >>> import weftlink
        >>> def work(comm):
        ...     half = comm.split(comm.rank % 2)
        ...     return half.rank, half.origins
        >>> weftlink.on_threads(3, work)
        [(0, [0, 2]), (0, [1]), (1, [0, 2])]
        """
        native = self._native.split(part, key)
        return None if native is None else Communicator(native)

    def shrink(self) -> Communicator:
        """After a failed call, makes a communicator of the surviving ranks, all of which call it, and closes this one."""
        return Communicator(self._native.shrink())

    def abort(self, reason: str) -> None:
        """Aborts the communicator on all ranks, from any thread. All calls raise `CancelledError` with the reason."""
        self._native.abort(reason)

    def check(self) -> None:
        """Raises the error of a call on arrays of a GPU, if one has failed: such calls return before they have run. Later calls raise it
        too.
        """
        self._native.check()

    def close(self) -> None:
        """Waits for all started calls, then leaves the group. Closing it again does nothing."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._native.closed

    def counters(self) -> list[CollectiveCounters]:
        """This rank's counters since the communicator was made, by collective."""
        return [CollectiveCounters(*row) for row in self._native.counters()]

    def record(self) -> dict[str, Any]:
        """The flight recorder's record: the last calls, and what a call waits for. It can be read while a call hangs."""
        return json.loads(self._native.record())

    def dump(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Writes the record into a folder, for ``weft why``, and returns the path."""
        return pathlib.Path(self._native.dump(folder))

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            # The other ranks would wait for calls that this rank will not make.
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"<weftlink.Communicator: rank {self.rank} of {self.size}>"


_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """Leaves all communicators when the program ends, so that the other ranks do not take this one for dead."""
    for communicator in list(_open):
        communicator._native.leave()
    _native.stop_callbacks()


def init(*, deadline: float | None = None, deterministic: bool | None = None) -> Communicator:
    """Joins the job of this process, as described by its launcher: ``weft run``, torchrun, mpirun, srun, or any program that sets
    ``WEFT_RENDEZVOUS``, ``RANK`` and ``WORLD_SIZE``. Settings come from the environment too (``weft knobs``).

    Args:
        deadline: how many seconds a call waits for other ranks without progress before it fails.
        deterministic: whether results depend bit by bit on the inputs and the order of the ranks alone.
    """
    return Communicator(_native.init(deadline, deterministic))


def meet(
    address: str,
    rank: int,
    size: int,
    secret: str,
    *,
    deadline: float | None = None,
    deterministic: bool | None = None,
) -> Communicator:
    """Joins a group that meets at an address such as ``"127.0.0.1:29500"``, where rank 0 listens. All ranks pass the same secret, by
    which they authenticate each other.
    """
    return Communicator(_native.meet(address, rank, size, secret, deadline, deterministic))


def on_threads(size: int, work: Callable[[Communicator], T]) -> list[T]:
    """Runs a function on ``size`` ranks, each a thread of this process, and returns the results by rank. For experiments and tests.

    If a rank fails, the others are aborted and its error is raised.

    >>> import weftlink
    >>> weftlink.on_threads(3, lambda comm: (comm.rank, comm.size))
    [(0, 3), (1, 3), (2, 3)]
    """
    communicators = Communicator.threads(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(communicator: Communicator) -> None:
        with communicator:
            try:
                results[communicator.rank] = work(communicator)
            except BaseException as error:  # noqa: BLE001 (raised by the thread that joins)
                # Stored before the abort, so that the cause comes before the errors of the other ranks.
                errors.append(error)
                communicator.abort(f"{type(error).__name__}: {error}")

    ranks = [threading.Thread(target=run, args=(communicator,), daemon=True) for communicator in communicators]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    except BaseException as interrupt:
        communicators[0].abort(f"{type(interrupt).__name__} while joining the ranks")
        # The threads must end before Python does.
        for rank in ranks:
            if rank.is_alive():
                rank.join(timeout=1)
        raise
    if errors:
        raise errors[0]
    return results
