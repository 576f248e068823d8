"""Exceptions. Each has the rank that raises it and, where a peer caused it, that peer.

After `UsageError` and `PlanError` the communicator can still be used: fix the call. After any other error it cannot.
"""

from typing import NamedTuple


class Blame(NamedTuple):
    """A rank that caused an error.

    `kind` is ``died``, ``late`` (it missed the deadline), ``differs`` (it made another call), ``left``, ``unreachable``,
    ``failed`` (by itself) or ``aborted`` (on purpose). `host` is None unless ranks are on several hosts; both are None if unknown.
    """

    rank: int
    kind: str
    host: str | None = None
    pid: int | None = None


class Error(RuntimeError):
    """An error of Weft.

    Attributes:
        rank: the rank that raises it, or None.
        peer: the rank that caused it, or None.
        operation: the operation that failed, such as ``all_reduce``, or None.
        call: the number of the call in its communicator, from 1, or None.
        blamed: all ranks that caused it, as `Blame` tuples; empty if none is known.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        peer: int | None = None,
        operation: str | None = None,
        call: int | None = None,
        blamed: tuple[Blame, ...] = (),
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.operation = operation
        self.call = call
        self.blamed = tuple(blamed)

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.operation}: {message}" if self.operation else message

    def __reduce__(self):
        facts = {"rank": self.rank, "peer": self.peer, "operation": self.operation, "call": self.call}
        facts["blamed"] = self.blamed
        return (_unpickled, (type(self), self.args[0], facts))


def _unpickled(kind, message, facts):
    return kind(message, **facts)


class UsageError(Error, ValueError):
    """The arguments are wrong. Nothing was sent; fix the call."""


class PlanError(Error):
    """A plan is wrong, or does not fit the call."""


class MeetingError(Error):
    """The ranks could not join the group or share memory."""


class ResourceError(Error):
    """The system denied a thread or a descriptor. Raise the limit, or use fewer ranks per host."""


class MismatchError(Error):
    """Ranks made different calls; the text shows both. All ranks must make the same calls in the same order."""


class DeadlineError(Error, TimeoutError):
    """A rank missed the deadline: it is stopped, stuck, dead or slow."""


class LeftError(Error):
    """A rank left before the call was done: its program closed or dropped the communicator."""


class DiedError(Error):
    """A rank's process ended."""


class LostError(Error):
    """The connection to a rank is lost, or its memory cannot be read."""


class AbortedError(Error):
    """Another rank failed first; its own error has the cause."""


class CancelledError(Error):
    """The program of a rank aborted the communicator."""


class PanickedError(Error):
    """The caller's own reduction or buffer failed inside a call."""


class QueueFullError(Error):
    """Too many calls are queued. Wait for some of them."""


class FailedError(Error):
    """An earlier call failed, so the communicator cannot be used."""
