"""Communicators: how ranks meet, and what they do besides collectives."""

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


class Counted(NamedTuple):
    """What a rank has counted of one kind of call."""

    collective: str
    calls: int
    bytes: int
    errors: int
    waits: int
    slept: int
    waited_ns: int


class Communicator(Collectives):
    """One rank's end of a group of ranks, which are processes or threads.

    Made by `weftlink.init` in a job, by `weftlink.meet` anywhere, by `Communicator.threads` in one process. Calls may come from any
    thread; all ranks make the same calls in the same order. A call that waits lets other threads run, and Ctrl-C ends it: since a call
    cannot be taken back on one rank, that ends the communicator, and the others are told who did it.

    Attributes:
        rank: this rank, from 0.
        size: how many ranks there are.
        origins: what each rank was in the communicator that this one was split or shrunk from.
    """

    def __init__(self, native: _native.Communicator) -> None:
        self._native = native
        self.rank = native.rank
        self.size = native.size
        self.origins = native.origins
        _living.add(self)

    @staticmethod
    def threads(size: int, *, deadline: float | None = None, deterministic: bool | None = None) -> list[Communicator]:
        """A group whose ranks are threads of this process: one end each, to be handed to its thread."""
        return [Communicator(native) for native in _native.threads(size, deadline, deterministic)]

    def group(self, sends: Sequence[tuple[int, Any]] = (), receives: Sequence[tuple[int, Any]] = ()) -> None:
        """Sends arrays to ranks and receives arrays from ranks, each a pair of a rank and an array, as one group, so that both sides
        may send first. Every rank calls it, with nothing to say if it takes no part. The n-th message from a rank to another is the
        n-th that the other receives from it.

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
        """Symmetric memory of so many elements per rank, zeroed. All ranks call it.

        It becomes an array by ``numpy.asarray`` or ``torch.from_dlpack``. Calls that are passed that array, or a contiguous part of it,
        on all ranks go straight from memory to memory, without a copy between.
        """
        return self._native.window(length, str(dtype))

    def split(self, part: int | None, key: int = 0) -> Communicator | None:
        """Ranks that say the same part get a communicator of their own, in the order of their keys; whoever says None gets none. All
        ranks call it. Both can be used from then on.

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
        """A communicator of the ranks that are left, after a call failed: all that call this and live. This one is closed."""
        return Communicator(self._native.shrink())

    def abort(self, reason: str) -> None:
        """Ends the communicator, for all ranks and from any thread. All calls end with `CancelledError`, which tells the reason."""
        self._native.abort(reason)

    def close(self) -> None:
        """Waits for all calls that were started, and leaves. Closing again does nothing."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._native.closed

    def counters(self) -> list[Counted]:
        """What this rank has counted since the communicator was made, by what was called."""
        return [Counted(*row) for row in self._native.counters()]

    def record(self) -> dict[str, Any]:
        """The flight recorder's record: the last calls, and what is waited for. It can be read while a call is stuck."""
        return json.loads(self._native.record())

    def dump(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Writes the record into a folder, for ``weft why``, and says where."""
        return pathlib.Path(self._native.dump(folder))

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            # Others would wait for what this rank does not do any more.
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"<weftlink.Communicator: rank {self.rank} of {self.size}>"


_living: weakref.WeakSet[Communicator] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """A rank whose program ends has left, and is not taken for dead."""
    for communicator in list(_living):
        communicator._native.leave()
    _native.stop_telling()


def init(*, deadline: float | None = None, deterministic: bool | None = None) -> Communicator:
    """This rank's end of the job that the process is part of, as its launcher tells: ``weft run``, torchrun, mpirun, srun, or whoever
    sets ``WEFT_RENDEZVOUS``, ``RANK`` and ``WORLD_SIZE``. Settings are read from the environment too (``weft knobs``).

    Args:
        deadline: how many seconds a call waits for other ranks, without getting on, before it fails.
        deterministic: whether the bits of results depend on the inputs and the order of the ranks alone.
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
    """One rank's end of a group that meets at an address such as ``"127.0.0.1:29500"``, where rank 0 listens. All ranks say the same
    secret, which nobody else should know.
    """
    return Communicator(_native.meet(address, rank, size, secret, deadline, deterministic))


def on_threads(size: int, work: Callable[[Communicator], T]) -> list[T]:
    """Runs a function on so many ranks, each a thread of this process, and returns what each gave, by rank. For trying things out.

    If one fails, the communicator is ended for the others, and that error is raised.

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
            except BaseException as error:  # noqa: BLE001 (it is raised by whoever waits)
                # Noted before the others are told, so that the reason comes first.
                errors.append(error)
                communicator.abort(f"{type(error).__name__}: {error}")

    ranks = [threading.Thread(target=run, args=(communicator,), daemon=True) for communicator in communicators]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    except BaseException as interrupt:
        communicators[0].abort(f"{type(interrupt).__name__} where the ranks are waited for")
        raise
    if errors:
        raise errors[0]
    return results
