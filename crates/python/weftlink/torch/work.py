"""``Work`` objects, which asynchronous calls return."""

from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work as _TorchWork

from weftlink.errors import Error
from weftlink.torch.errors import DeadlineError
from weftlink.torch.failure import record_error

NO_TIMEOUT = timedelta(0)


class Work(_TorchWork):
    """A call in progress, or done. It completes without a ``wait``."""

    def __init__(self, call, tensors, number=0):
        super().__init__()
        self._call = call
        self._tensors = tensors
        self._number = number
        self._future = None

    def wait(self, timeout=NO_TIMEOUT):
        """Waits for its end and raises its error. A timeout that passes raises ``DeadlineError``, and the call continues."""
        if self._call is None:
            return True
        try:
            is_over = self._call.wait(timeout.total_seconds() if timeout > NO_TIMEOUT else None)
        except Error as error:
            record_error(error)
            raise
        if not is_over:
            limit_ms, operation = timeout // timedelta(milliseconds=1), self._call.operation
            text = f"Operation timed out! Timed out waiting {limit_ms}ms for {operation} to complete; it continues in the background"
            raise DeadlineError(text, operation=operation)
        return True

    def is_completed(self):
        return self._call is None or self._call.done()

    def is_success(self):
        return self._call is None or (self._call.done() and self._call.exception() is None)

    def exception(self):
        return None if self._call is None else self._call.exception()

    def synchronize(self):
        self.wait()

    def result(self):
        self.wait()
        return self._tensors

    def source_rank(self):
        """The source of a received message, as its rank in the group."""
        return self._call.source

    _source_rank = source_rank

    def _get_sequence_number(self):
        return self._number

    def get_future(self):
        """A future with the tensors. A callback thread completes it."""
        if self._future is None:
            over = torch.futures.Future()
            # Torch's C++ code, such as DDP, sees an error only if a callback raises it.
            self._future = over.then(lambda _: self._outcome())
            if self._call is None:
                over.set_result(None)
            else:
                self._call.add_done_callback(lambda: over.set_result(None))
        return self._future

    def _outcome(self):
        error = self.exception()
        if error is not None:
            raise_recorded(error)
        return self._tensors


class Works(Work):
    """Several calls as one."""

    def __init__(self, works, tensors):
        super().__init__(None, tensors)
        self._works = works

    def wait(self, timeout=NO_TIMEOUT):
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self):
        return all(work.is_completed() for work in self._works)

    def is_success(self):
        return all(work.is_success() for work in self._works)

    def exception(self):
        return next((error for error in (work.exception() for work in self._works) if error is not None), None)

    def get_future(self):
        if self._future is None:
            all_of_them = torch.futures.collect_all([work.get_future() for work in self._works])
            self._future = all_of_them.then(lambda _: self._outcome())
        return self._future


# The work of a call that was done when it returned.
DONE = Work(None, [])


def raise_recorded(error):
    record_error(error)
    raise error
