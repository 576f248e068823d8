"""The last error of this process. Torch's C++ code keeps only the text of an exception."""

import threading

from weftlink.errors import Error, FailedError, UsageError
from weftlink.torch.record import dump_after_failure

_lock = threading.Lock()
_last: Error | None = None
_dumped = False


def last_error() -> Error | None:
    """The last error of a call, on any group of this process; None without one. A ``FailedError``, which only repeats an earlier error,
    does not count.

    If torch's own threads make a call, as for a bucket of DistributedDataParallel, torch raises a ``RuntimeError`` with the text alone.
    This is the error itself, with ``rank`` and ``peer``.
    """
    return _last


def record_error(error: BaseException) -> None:
    """Stores an error for ``last_error``, and dumps the flight record for the first one that is no ``UsageError``."""
    global _last, _dumped
    if not isinstance(error, Error) or isinstance(error, FailedError):
        return
    with _lock:
        _last = error
        if _dumped or isinstance(error, UsageError):
            return
        _dumped = True
    dump_after_failure()
