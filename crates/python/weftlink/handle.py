"""Calls that were started and not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from weftlink._native import Started


class Handle:
    """A call that was started. Dropping it does not cancel the call, and its arrays live until it is over.

    It can be waited for, asked, given a function to call, and awaited in asyncio:

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
        """Waits until the call is over and returns the array with the result, or raises what went wrong.

        After ``timeout`` seconds it raises ``TimeoutError``; the call goes on, and can be waited for again.
        """
        if not self._call.wait(timeout):
            raise TimeoutError(f"the call is not over after {timeout} s; it goes on")
        return self._result

    def done(self) -> bool:
        """Whether the call is over, well or not."""
        return self._call.done()

    def exception(self) -> Exception | None:
        """What went wrong; None if nothing did, or the call is not over."""
        return self._call.exception()

    def add_done_callback(self, callback: Callable[[Handle], object]) -> None:
        """Calls a function with this handle when the call is over: on a thread for that, or at once if it is over already.

        Whatever takes long there keeps other such functions waiting.
        """
        self._call.add_done_callback(lambda: callback(self))

    def cancel(self) -> bool:
        """Cancels the call unless it is over, and says whether it did.

        A call cannot be taken back on one rank: this ends the communicator, for all ranks, which are told who did it.
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
