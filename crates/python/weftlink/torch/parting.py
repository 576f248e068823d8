"""What becomes of groups that a program has not destroyed when it ends: they are left, so that their rank is not taken for dead, and what it
has sent can still be received. If the program failed, the others are told why.
"""

import atexit
import os
import sys
import weakref

_living = weakref.WeakSet()


def lives(group):
    """Notes a group that is to be left when the program ends."""
    group._process = os.getpid()
    _living.add(group)


@atexit.register
def _leave():
    error = getattr(sys, "last_value", None)
    for group in list(_living):
        # A process that was forked from a rank is none.
        if group._process != os.getpid():
            continue
        if error is not None:
            group._native.abort(f"{type(error).__name__}: {error}")
        group._native.leave()
