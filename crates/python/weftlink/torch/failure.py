"""What has failed in this process: torch does not let everything through that an error says."""

import threading

from weftlink.errors import Error, FailedError, UsageError
from weftlink.torch.record import dump_after_failure

_lock = threading.Lock()
_last: Error | None = None
_dumped = False


def last_error() -> Error | None:
    """The last error of a call, on any group of this process; None if there was none. Those that only follow from it do not count.

    Where a call is made by torch's own threads, as for a bucket of DistributedDataParallel, torch raises a ``RuntimeError`` that has only
    the text. This is the error itself, with ``rank`` and ``peer``.
    """
    return _last


def note(error: BaseException) -> None:
    """Keeps an error, and writes the flight record for the first one that is more than a wrong argument."""
    global _last, _dumped
    if not isinstance(error, Error) or isinstance(error, FailedError):
        return
    with _lock:
        _last = error
        if _dumped or isinstance(error, UsageError):
            return
        _dumped = True
    dump_after_failure()
