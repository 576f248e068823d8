"""The collectives by their names, as methods of a communicator.

Arrays are of NumPy, CPU tensors, or anything else with the buffer protocol or DLPack: contiguous, and of a type that Weft knows.
One array is read and written, in place; with ``out`` it is read, and ``out`` is written. Where one side is larger (gather and
scatter of any kind), in place means that the array is the larger one, with this rank's own block in its place.

All ranks make the same calls in the same order. Every method returns the array that has the result, or None on a rank that gets
nothing. ``dtype`` says what the elements are if the array does not (``"bfloat16"`` for NumPy's ``uint16``); ``timeout`` how many
seconds the call waits for other ranks, without getting on, before it fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weftlink.handle import Handle
from weftlink.reduction import PremultipliedSum, Reduction, operation_of

Operation = str | Reduction | PremultipliedSum


class Collectives:
    """Calls that return when they are over, and, as ``start_...``, calls that return at once."""

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
        # Without the detours that the others make: this is the one that is called most, and they take as long as a short call.
        name, factor = operation_of(op)
        self._native.call("all_reduce", array, out, True, operation=name, factor=factor, dtype=dtype, timeout=timeout)
        return array if out is None else out

    def reduce(self, array, op: Operation = "sum", root: int = 0, *, out=None, dtype=None, timeout=None):
        """Combines the arrays of all ranks into the root's; the others' are only read."""
        return self._reducing("reduce", True, array, out, op, root=root, dtype=dtype, timeout=timeout)

    def reduce_scatter(self, array, op: Operation = "sum", *, out=None, counts=None, dtype=None, timeout=None):
        """Combines the arrays of all ranks; each gets its block of the result. ``counts``: the length of each rank's block, if they
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
        """Every rank gets the combination of all ranks before itself. What rank 0 passes stays as it is."""
        return self._reducing("exclusive_scan", True, array, out, op, dtype=dtype, timeout=timeout)

    def broadcast(self, array, root: int = 0, *, out=None, timeout=None):
        """Every rank gets the root's array.

        >>> import weftlink
        >>> weftlink.on_threads(2, lambda comm: bytes(comm.broadcast(bytearray(b"weft" if comm.rank else 4), root=1)))
        [b'weft', b'weft']
        """
        return self._moving("broadcast", True, array, out, root=root, timeout=timeout)

    def all_gather(self, array, *, out=None, counts=None, timeout=None):
        """Every rank gets the arrays of all, in the order of the ranks. ``counts``: the length of each rank's, if they differ.

        Without ``out`` the array is the result, with room for all ranks' blocks, and holds this rank's own in its place.
        """
        return self._moving("all_gather", True, array, out, counts=self._counts(counts, scatters=False), timeout=timeout)

    def gather(self, array, root: int = 0, *, out=None, counts=None, timeout=None):
        """The root gets the arrays of all, in the order of the ranks. ``counts``: the length of each rank's, if they differ.

        Without ``out`` the root's array is the result, and holds its own block in its place.
        """
        counts = self._rooted_counts(counts, root, scatters=False)
        return self._moving("gather", True, array, out, root=root, counts=counts, timeout=timeout)

    def scatter(self, array, root: int = 0, *, out=None, counts=None, timeout=None):
        """Every rank gets its block of the root's array. Others than the root pass None as the array and say ``out``, or pass the
        array that is written. ``counts``: the length of each rank's block, if they differ.
        """
        counts = self._rooted_counts(counts, root, scatters=True)
        return self._moving("scatter", True, array, out, root=root, counts=counts, timeout=timeout)

    def all_to_all(self, array, *, out=None, sent=None, received=None, timeout=None):
        """Block r of every rank's array goes to rank r, which gets them in the order of the ranks. ``sent`` and ``received``: how
        many elements go to each rank and come from each, if these differ.
        """
        counts = _both(sent, received)
        return self._moving("all_to_all", True, array, out, counts=counts, timeout=timeout)

    def send_receive(self, array, messages: Sequence[tuple[int, int]], count: int, *, out=None, timeout=None):
        """Messages between ranks: ``messages`` lists who sends to whom, the same on all ranks. The array holds what a rank sends and
        ``out`` what it gets, in the order of the list, ``count`` elements each; what a rank has nothing for is None.
        """
        more = {"messages": list(messages), "count": count, "timeout": timeout}
        return self._moving("send_receive", True, array, out, **more)

    def neighbours(self, array, torus: tuple[int, int, int], *, out=None, timeout=None):
        """Every rank exchanges a block with each of its neighbours on a torus: six blocks in and out, before and behind it in each
        dimension.
        """
        return self._moving("neighbours", True, array, out, torus=torus, timeout=timeout)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Returns when all ranks have called it."""
        self._moving("barrier", True, None, None, timeout=timeout)

    def start_all_reduce(self, array, op: Operation = "sum", *, out=None, dtype=None, timeout=None) -> Handle:
        """As ``all_reduce``, without waiting for it."""
        return self._reducing("all_reduce", False, array, out, op, dtype=dtype, timeout=timeout)

    def start_reduce(self, array, op: Operation = "sum", root=0, *, out=None, dtype=None, timeout=None) -> Handle:
        """As ``reduce``, without waiting for it."""
        return self._reducing("reduce", False, array, out, op, root=root, dtype=dtype, timeout=timeout)

    def start_reduce_scatter(
        self, array, op: Operation = "sum", *, out=None, counts=None, dtype=None, timeout=None
    ) -> Handle:
        """As ``reduce_scatter``, without waiting for it."""
        more = {"counts": self._counts(counts, scatters=True), "dtype": dtype, "timeout": timeout}
        return self._reducing("reduce_scatter", False, array, out, op, **more)

    def start_scan(self, array, op: Operation = "sum", *, out=None, dtype=None, timeout=None) -> Handle:
        """As ``scan``, without waiting for it."""
        return self._reducing("scan", False, array, out, op, dtype=dtype, timeout=timeout)

    def start_exclusive_scan(self, array, op: Operation = "sum", *, out=None, dtype=None, timeout=None) -> Handle:
        """As ``exclusive_scan``, without waiting for it."""
        return self._reducing("exclusive_scan", False, array, out, op, dtype=dtype, timeout=timeout)

    def start_broadcast(self, array, root: int = 0, *, out=None, timeout=None) -> Handle:
        """As ``broadcast``, without waiting for it."""
        return self._moving("broadcast", False, array, out, root=root, timeout=timeout)

    def start_all_gather(self, array, *, out=None, counts=None, timeout=None) -> Handle:
        """As ``all_gather``, without waiting for it."""
        return self._moving("all_gather", False, array, out, counts=self._counts(counts, scatters=False), timeout=timeout)

    def start_gather(self, array, root: int = 0, *, out=None, counts=None, timeout=None) -> Handle:
        """As ``gather``, without waiting for it."""
        counts = self._rooted_counts(counts, root, scatters=False)
        return self._moving("gather", False, array, out, root=root, counts=counts, timeout=timeout)

    def start_scatter(self, array, root: int = 0, *, out=None, counts=None, timeout=None) -> Handle:
        """As ``scatter``, without waiting for it."""
        counts = self._rooted_counts(counts, root, scatters=True)
        return self._moving("scatter", False, array, out, root=root, counts=counts, timeout=timeout)

    def start_all_to_all(self, array, *, out=None, sent=None, received=None, timeout=None) -> Handle:
        """As ``all_to_all``, without waiting for it."""
        return self._moving("all_to_all", False, array, out, counts=_both(sent, received), timeout=timeout)

    def start_send_receive(
        self, array, messages: Sequence[tuple[int, int]], count: int, *, out=None, timeout=None
    ) -> Handle:
        """As ``send_receive``, without waiting for it."""
        more = {"messages": list(messages), "count": count, "timeout": timeout}
        return self._moving("send_receive", False, array, out, **more)

    def start_neighbours(self, array, torus: tuple[int, int, int], *, out=None, timeout=None) -> Handle:
        """As ``neighbours``, without waiting for it."""
        return self._moving("neighbours", False, array, out, torus=torus, timeout=timeout)

    def start_barrier(self, *, timeout: float | None = None) -> Handle:
        """As ``barrier``, without waiting for it."""
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
        """The lengths of this rank's blocks, in and out, of what each rank's are."""
        if counts is None:
            return None
        mine, all_ranks = counts[self.rank : self.rank + 1], list(counts)
        return (all_ranks, list(mine)) if scatters else (list(mine), all_ranks)

    def _rooted_counts(self, counts, root, *, scatters):
        """The same where only the root has all of them."""
        if counts is None or root == self.rank:
            return self._counts(counts, scatters=scatters)
        mine = list(counts[self.rank : self.rank + 1])
        return ([], mine) if scatters else (mine, [])


def _both(sent, received):
    if (sent is None) != (received is None):
        raise ValueError("say both, how many elements are sent to each rank and how many are received from each")
    return None if sent is None else (list(sent), list(received))
