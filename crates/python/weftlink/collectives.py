"""The collectives, as methods of a communicator.

An array is a NumPy array, a tensor, or another object with the buffer protocol, DLPack or ``__cuda_array_interface__``: contiguous, and
of a supported type.
With one array a call works in place; with ``out`` it reads the array and writes ``out``. Where one side is larger (gather and
scatter of any kind), an in-place call takes the larger array, which holds this rank's block at its position.

All ranks make the same calls in the same order. Every method returns the array with the result, or None on a rank without one.
``dtype`` overrides the type of the elements (``"bfloat16"`` for NumPy's ``uint16``). ``timeout`` is how many seconds the call waits for
other ranks without progress before it fails.

With arrays on an NVIDIA GPU, a call is enqueued on the current stream of the array's library (PyTorch, CuPy, or the ``stream`` that the
array names) and returns; `Communicator.check` raises the error of one that failed. The first call of a kind waits for the other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weftlink.handle import Handle
from weftlink.reduction import PremultipliedSum, Reduction, operation_of

Operation = str | Reduction | PremultipliedSum


class Collectives:
    """Blocking calls, and asynchronous calls as ``start_...``."""

    rank: int
    size: int
    _native: Any

    def all_reduce(self, array, op: Operation = "sum", *, out=None, dtype=None, timeout=None):
        """Combines the arrays of all ranks; every rank ends with the same bits.

        >>> import array, weftlink
        >>> def work(comm):
        ...     return list(comm.all_reduce(array.array("f", [1, comm.rank])))
        >>> weftlink.on_threads(4, work)[3]
        [4.0, 6.0]
        """
        # Calls the native method directly: the helpers below take as long as a short call, and this is the most frequent one.
        name, factor = operation_of(op)
        self._native.call("all_reduce", array, out, True, operation=name, factor=factor, dtype=dtype, timeout=timeout)
        return array if out is None else out

    def reduce(self, array, op: Operation = "sum", root: int = 0, *, out=None, dtype=None, timeout=None):
        """Combines the arrays of all ranks into the root's; those of the other ranks stay unchanged."""
        return self._reducing("reduce", True, array, out, op, root=root, dtype=dtype, timeout=timeout)

    def reduce_scatter(self, array, op: Operation = "sum", *, out=None, counts=None, dtype=None, timeout=None):
        """Combines the arrays of all ranks; each rank gets its block of the result. ``counts``: the length of each rank's block, if they
        differ.
        """
        more = {"counts": self._counts(counts, scatters=True), "dtype": dtype, "timeout": timeout}
        return self._reducing("reduce_scatter", True, array, out, op, **more)

    def scan(self, array, op: Operation = "sum", *, out=None, dtype=None, timeout=None):
        """Every rank gets the combination of all ranks up to itself.

        >>> import weftlink
        >>> weftlink.on_threads(3, lambda comm: comm.scan(bytearray([comm.rank + 1]))[0])
        [1, 3, 6]
        """
        return self._reducing("scan", True, array, out, op, dtype=dtype, timeout=timeout)

    def exclusive_scan(self, array, op: Operation = "sum", *, out=None, dtype=None, timeout=None):
        """Every rank gets the combination of all ranks before itself. The array of rank 0 stays unchanged."""
        return self._reducing("exclusive_scan", True, array, out, op, dtype=dtype, timeout=timeout)

    def broadcast(self, array, root: int = 0, *, out=None, timeout=None):
        """Every rank gets the root's array.

        >>> import weftlink
        >>> weftlink.on_threads(2, lambda comm: bytes(comm.broadcast(bytearray(b"weft" if comm.rank else 4), root=1)))
        [b'weft', b'weft']
        """
        return self._moving("broadcast", True, array, out, root=root, timeout=timeout)

    def all_gather(self, array, *, out=None, counts=None, timeout=None):
        """Every rank gets the arrays of all ranks, in rank order. ``counts``: the length of each rank's array, if they differ.

        Without ``out``, the array holds the blocks of all ranks, and this rank's own block is its input.
        """
        return self._moving("all_gather", True, array, out, counts=self._counts(counts, scatters=False), timeout=timeout)

    def gather(self, array, root: int = 0, *, out=None, counts=None, timeout=None):
        """The root gets the arrays of all ranks, in rank order. ``counts``: the length of each rank's array, if they differ.

        Without ``out``, the root's array holds the blocks of all ranks, and its own block is its input.
        """
        counts = self._rooted_counts(counts, root, scatters=False)
        return self._moving("gather", True, array, out, root=root, counts=counts, timeout=timeout)

    def scatter(self, array, root: int = 0, *, out=None, counts=None, timeout=None):
        """Every rank gets its block of the root's array. The other ranks pass the array to write, or None and ``out``.
        ``counts``: the length of each rank's block, if they differ.
        """
        counts = self._rooted_counts(counts, root, scatters=True)
        return self._moving("scatter", True, array, out, root=root, counts=counts, timeout=timeout)

    def all_to_all(self, array, *, out=None, sent=None, received=None, timeout=None):
        """Block r of every rank's array goes to rank r, which stores the blocks in rank order. ``sent`` and ``received``: how many
        elements go to and come from each rank, if blocks differ in length.
        """
        counts = _both(sent, received)
        return self._moving("all_to_all", True, array, out, counts=counts, timeout=timeout)

    def send_receive(self, array, messages: Sequence[tuple[int, int]], count: int, *, out=None, timeout=None):
        """Sends messages between ranks. ``messages`` lists pairs of sender and receiver, the same on all ranks. The array holds the
        messages that this rank sends and ``out`` those that it receives, in the order of the list, ``count`` elements each. A rank that
        sends or receives nothing passes None there.
        """
        more = {"messages": list(messages), "count": count, "timeout": timeout}
        return self._moving("send_receive", True, array, out, **more)

    def neighbours(self, array, torus: tuple[int, int, int], *, out=None, timeout=None):
        """Every rank exchanges a block with each neighbour on a torus: six blocks in and out, the previous and the next rank in each
        dimension.
        """
        return self._moving("neighbours", True, array, out, torus=torus, timeout=timeout)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Returns when all ranks have called it."""
        self._moving("barrier", True, None, None, timeout=timeout)

    def start_all_reduce(self, array, op: Operation = "sum", *, out=None, dtype=None, timeout=None) -> Handle:
        """Starts ``all_reduce`` and returns at once."""
        return self._reducing("all_reduce", False, array, out, op, dtype=dtype, timeout=timeout)

    def start_reduce(self, array, op: Operation = "sum", root=0, *, out=None, dtype=None, timeout=None) -> Handle:
        """Starts ``reduce`` and returns at once."""
        return self._reducing("reduce", False, array, out, op, root=root, dtype=dtype, timeout=timeout)

    def start_reduce_scatter(
        self, array, op: Operation = "sum", *, out=None, counts=None, dtype=None, timeout=None
    ) -> Handle:
        """Starts ``reduce_scatter`` and returns at once."""
        more = {"counts": self._counts(counts, scatters=True), "dtype": dtype, "timeout": timeout}
        return self._reducing("reduce_scatter", False, array, out, op, **more)

    def start_scan(self, array, op: Operation = "sum", *, out=None, dtype=None, timeout=None) -> Handle:
        """Starts ``scan`` and returns at once."""
        return self._reducing("scan", False, array, out, op, dtype=dtype, timeout=timeout)

    def start_exclusive_scan(self, array, op: Operation = "sum", *, out=None, dtype=None, timeout=None) -> Handle:
        """Starts ``exclusive_scan`` and returns at once."""
        return self._reducing("exclusive_scan", False, array, out, op, dtype=dtype, timeout=timeout)

    def start_broadcast(self, array, root: int = 0, *, out=None, timeout=None) -> Handle:
        """Starts ``broadcast`` and returns at once."""
        return self._moving("broadcast", False, array, out, root=root, timeout=timeout)

    def start_all_gather(self, array, *, out=None, counts=None, timeout=None) -> Handle:
        """Starts ``all_gather`` and returns at once."""
        return self._moving("all_gather", False, array, out, counts=self._counts(counts, scatters=False), timeout=timeout)

    def start_gather(self, array, root: int = 0, *, out=None, counts=None, timeout=None) -> Handle:
        """Starts ``gather`` and returns at once."""
        counts = self._rooted_counts(counts, root, scatters=False)
        return self._moving("gather", False, array, out, root=root, counts=counts, timeout=timeout)

    def start_scatter(self, array, root: int = 0, *, out=None, counts=None, timeout=None) -> Handle:
        """Starts ``scatter`` and returns at once."""
        counts = self._rooted_counts(counts, root, scatters=True)
        return self._moving("scatter", False, array, out, root=root, counts=counts, timeout=timeout)

    def start_all_to_all(self, array, *, out=None, sent=None, received=None, timeout=None) -> Handle:
        """Starts ``all_to_all`` and returns at once."""
        return self._moving("all_to_all", False, array, out, counts=_both(sent, received), timeout=timeout)

    def start_send_receive(
        self, array, messages: Sequence[tuple[int, int]], count: int, *, out=None, timeout=None
    ) -> Handle:
        """Starts ``send_receive`` and returns at once."""
        more = {"messages": list(messages), "count": count, "timeout": timeout}
        return self._moving("send_receive", False, array, out, **more)

    def start_neighbours(self, array, torus: tuple[int, int, int], *, out=None, timeout=None) -> Handle:
        """Starts ``neighbours`` and returns at once."""
        return self._moving("neighbours", False, array, out, torus=torus, timeout=timeout)

    def start_barrier(self, *, timeout: float | None = None) -> Handle:
        """Starts ``barrier`` and returns at once."""
        return self._moving("barrier", False, None, None, timeout=timeout)

    def _reducing(self, name, wait, array, out, op, **more):
        operation, factor = operation_of(op)
        return self._moving(name, wait, array, out, operation=operation, factor=factor, **more)

    def _moving(self, name, wait, array, out, **more):
        call = self._native.call(name, array, out, wait, **more)
        gets = name not in ("reduce", "gather") or more["root"] == self.rank
        result = (array if out is None and name != "send_receive" else out) if gets else None
        return result if wait else Handle(call, result)

    def _counts(self, counts, *, scatters):
        """The lengths of this rank's input and output blocks, from those of all ranks."""
        if counts is None:
            return None
        mine, all_ranks = counts[self.rank : self.rank + 1], list(counts)
        return (all_ranks, list(mine)) if scatters else (list(mine), all_ranks)

    def _rooted_counts(self, counts, root, *, scatters):
        """The same for a collective in which only the root has the blocks of all ranks."""
        if counts is None or root == self.rank:
            return self._counts(counts, scatters=scatters)
        mine = list(counts[self.rank : self.rank + 1])
        return ([], mine) if scatters else (mine, [])


def _both(sent, received):
    if (sent is None) != (received is None):
        raise ValueError("pass both sent and received, the number of elements to and from each rank")
    return None if sent is None else (list(sent), list(received))
