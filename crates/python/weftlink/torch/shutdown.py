"""Leaves the groups that a program has not destroyed when it ends, so that the other ranks do not take this one for dead and still receive
what it has sent. If the program failed, the other ranks get the exception as the reason.
"""

import atexit
import os
import sys
import time
import weakref

# How long leaving all groups may take.
_TIMEOUT_S = 4.0

_open = weakref.WeakSet()


def leave_at_exit(group):
    """Registers a group to be left when the program ends."""
    group._process = os.getpid()
    _open.add(group)


def open_groups():
    """The groups of this process that were not left."""
    return [group for group in list(_open) if group._process == os.getpid()]


def _failure():
    """The exception that ended the program, as text; None without one. In an interactive session, no exception ends the program."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    try:
        return error and f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


@atexit.register
def _leave():
    failure, until = _failure(), time.monotonic() + _TIMEOUT_S
    for group in list(_open):
        # A process forked from a rank is not a rank.
        if group._process != os.getpid() or time.monotonic() > until:
            continue
        if failure:
            group._native.abort(failure)
        group._native.leave()
