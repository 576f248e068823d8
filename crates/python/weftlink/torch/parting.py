"""What becomes of groups that a program has not destroyed when it ends: they are left, so that their rank is not taken for dead, and what it
has sent can still be received. If the program failed, the others are told why.
"""

import atexit
import os
import sys
import time
import weakref

# Groups that are stuck have so long together.
_LIMIT_S = 4.0

_living = weakref.WeakSet()


def lives(group):
    """Notes a group that is to be left when the program ends."""
    group._process = os.getpid()
    _living.add(group)


def _failure():
    """The exception that ended the program, if one did, in words. What people have tried by hand has not ended anything."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    try:
        return error and f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


@atexit.register
def _leave():
    failure, until = _failure(), time.monotonic() + _LIMIT_S
    for group in list(_living):
        # A process that was forked from a rank is none.
        if group._process != os.getpid() or time.monotonic() > until:
            continue
        if failure:
            group._native.abort(failure)
        group._native.leave()
