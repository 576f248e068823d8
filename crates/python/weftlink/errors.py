"""What can go wrong: every error says which rank saw it and, where one is to blame, which peer.

`UsageError` and `PlanError` leave a communicator as it was: mend the call and go on. After the others it cannot be used again.
"""

from typing import NamedTuple


class Blame(NamedTuple):
    """A rank that is the reason for an error.

    `kind` is ``died``, ``late`` (it did not do its part in time), ``differs`` (it made another call), ``left``, ``unreachable``,
    ``failed`` (by itself) or ``aborted`` (on purpose). `host` and `pid` are None where they are not known.
    """

    rank: int
    kind: str
    host: str | None = None
    pid: int | None = None


class Error(RuntimeError):
    """An error of Weft.

    Attributes:
        rank: the rank that raises it, or None.
        peer: the rank that is the reason, or None.
        operation: the operation it was in, such as ``all_reduce``, or None.
        call: the number of the call in its communicator, from 1, or None.
        blamed: all ranks that are the reason, as `Blame` tuples; empty where none is known to be.
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
        return (_again, (type(self), self.args[0], facts))


def _again(kind, message, facts):
    return kind(message, **facts)


class UsageError(Error, ValueError):
    """The call cannot be made like this. Mend it; nothing has been sent."""


class PlanError(Error):
    """A plan is not right, or cannot carry the call."""


class MeetingError(Error):
    """The ranks could not meet or share memory."""


class ResourceError(Error):
    """The system refused a thread or a descriptor that Weft needs: raise the limit, or use fewer ranks per host."""


class MismatchError(Error):
    """Ranks make different calls: both are named. All ranks make the same calls in the same order."""


class DeadlineError(Error, TimeoutError):
    """A rank did not do its part in time: it is stopped, stuck, dead or slow."""


class LeftError(Error):
    """A rank left before the call was over: it returned, failed or was destroyed there."""


class DiedError(Error):
    """A rank's process ended."""


class LostError(Error):
    """A rank cannot be reached any more."""


class AbortedError(Error):
    """Another rank gave up first, and says why itself."""


class CancelledError(Error):
    """A rank ended the communicator on purpose."""


class PanickedError(Error):
    """A function of the caller's failed inside a call."""


class QueueFullError(Error):
    """Too many calls wait to be made. Wait for some of them."""


class FailedError(Error):
    """An earlier call failed, so this communicator is of no more use."""
