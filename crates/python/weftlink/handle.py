"""Asynchronous calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from weftlink._native import Started


class Handle:
    """A started call. Dropping the handle does not cancel the call, which keeps its arrays alive until it is done.

    It can be waited for, polled, given a callback, and awaited in asyncio:

    >>> import weftlink
    >>> def work(comm):
    ...     values = bytearray([1, 2, comm.rank])
    ...     call = comm.start_all_reduce(values)
    ...     meanwhile = sum(range(10))
    ...     return list(call.wait()), meanwhile
    >>> weftlink.on_threads(2, work)
    [([2, 4, 1], 45), ([2, 4, 1], 45)]
    """

    def __init__(self, call: Started, result: Any) -> None:
        self._call = call
        self._result = result

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the call is done and returns the array with the result, or raises the call's error.

        After ``timeout`` seconds it raises ``TimeoutError``; the call continues, and can be waited for again.
        """
        if not self._call.wait(timeout):
            raise TimeoutError(f"timed out after {timeout} s; the call continues")
        return self._result

    def done(self) -> bool:
        """Whether the call is done, with or without an error."""
        return self._call.done()

    def exception(self) -> Exception | None:
        """The call's error; None if it has none, or is not done."""
        return self._call.exception()

    def add_done_callback(self, callback: Callable[[Handle], object]) -> None:
        """Calls a function with this handle when the call is done: on a callback thread, or at once if it is done already."""
        self._call.add_done_callback(lambda: callback(self))

    def cancel(self) -> bool:
        """Cancels the call unless it is done, and returns whether it did.

        One rank cannot undo a call, so this aborts the communicator on all ranks; their errors name this one.
        """
        return self._call.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def settle() -> None:
            if not over.done():
                over.set_result(None)

        self._call.add_done_callback(lambda: loop.call_soon_threadsafe(settle))
        yield from over
        return self.wait()
