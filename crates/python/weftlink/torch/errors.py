"""Weft's errors as ``torch.distributed`` raises them: each is also a ``DistBackendError``, so a program can catch either class.

Their texts start with gloo's words where these are true, such as ``Timed out waiting 500ms`` or ``Connection closed by peer``.
``UsageError`` and ``PlanError`` report a wrong argument, not a failed backend, and stay as they are in ``weftlink.errors``.
"""

from torch.distributed import DistBackendError

from weftlink import errors as _errors
from weftlink.errors import Blame, PlanError, UsageError

__all__ = [
    "AbortedError",
    "Blame",
    "CancelledError",
    "DeadlineError",
    "DiedError",
    "Error",
    "FailedError",
    "LeftError",
    "LostError",
    "MeetingError",
    "MismatchError",
    "PanickedError",
    "PlanError",
    "QueueFullError",
    "ResourceError",
    "UsageError",
]


class Error(_errors.Error, DistBackendError):
    __doc__ = _errors.Error.__doc__


class MeetingError(_errors.MeetingError, Error):
    __doc__ = _errors.MeetingError.__doc__


class ResourceError(_errors.ResourceError, Error):
    __doc__ = _errors.ResourceError.__doc__


class MismatchError(_errors.MismatchError, Error):
    __doc__ = _errors.MismatchError.__doc__


class DeadlineError(_errors.DeadlineError, Error):
    __doc__ = _errors.DeadlineError.__doc__


class LeftError(_errors.LeftError, Error):
    __doc__ = _errors.LeftError.__doc__


class DiedError(_errors.DiedError, Error):
    __doc__ = _errors.DiedError.__doc__


class LostError(_errors.LostError, Error):
    __doc__ = _errors.LostError.__doc__


class AbortedError(_errors.AbortedError, Error):
    __doc__ = _errors.AbortedError.__doc__


class CancelledError(_errors.CancelledError, Error):
    __doc__ = _errors.CancelledError.__doc__


class PanickedError(_errors.PanickedError, Error):
    __doc__ = _errors.PanickedError.__doc__


class QueueFullError(_errors.QueueFullError, Error):
    __doc__ = _errors.QueueFullError.__doc__


class FailedError(_errors.FailedError, Error):
    __doc__ = _errors.FailedError.__doc__
