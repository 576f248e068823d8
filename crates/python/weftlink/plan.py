"""Plans: choose them for a fabric, build, verify and draw them, exchange them with MSCCL.

>>> from weftlink import plan
>>> ring = plan.build("all_reduce", ranks=4, algorithm="ring")
>>> ring
<weftlink.plan.Plan: ring for 4 ranks, all-reduce>
>>> again = plan.import_msccl(ring.msccl())
>>> len(again.verify())
16
>>> plan.choose("all_reduce", "hgx-h100", "64MiB")["candidates"][0]["verdict"]
'chosen'
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from weftlink import _native
from weftlink._native import Fabric, Plan
from weftlink.errors import UsageError

__all__ = ["Plan", "build", "choose", "import_msccl", "read"]


def choose(
    collective: str,
    fabric: Fabric | str,
    size: int | str | None = None,
    *,
    root: int | None = None,
    without: list[str] | None = None,
    sharp: bool = False,
) -> dict[str, Any]:
    """Returns the algorithm with the shortest predicted time for calls of this size (default 64 MiB), and why the others lost, as
    ``weft plan COLLECTIVE FABRIC --json`` prints it. Algorithms in ``without`` are left out. ``sharp`` says that the network's switches reduce.
    """
    return json.loads(_native.choose(collective, fabric, size, root, without or [], sharp))


def build(
    collective: str,
    *,
    fabric: Fabric | str | None = None,
    ranks: int | None = None,
    algorithm: str | None = None,
    size: int | str | None = None,
    root: int = 0,
) -> Plan:
    """Builds the plan of an algorithm. With ``fabric``, the default is the fastest algorithm for ``size``. With ``ranks``, all ranks are
    equally far from each other and ``algorithm`` is required. ``weft plan --list`` prints the algorithms.
    """
    if fabric is None:
        if algorithm is None or ranks is None or size is not None:
            raise UsageError("pass fabric, or pass ranks and algorithm without size")
        return Plan.flat(algorithm, collective, ranks, root)
    if ranks is not None:
        raise UsageError("ranks are the GPUs of the fabric: leave out the argument ranks")
    return _native.build(collective, fabric, size, algorithm, root or None)


def import_msccl(text: str) -> Plan:
    """Reads a program in MSCCL's XML as a plan. Call ``verify`` to check it."""
    return Plan.from_msccl(text)


def read(file: str | os.PathLike[str]) -> Plan:
    """Reads a plan from a file: Weft's JSON or MSCCL's XML."""
    text = pathlib.Path(file).read_text()
    return Plan.from_msccl(text) if text.lstrip().startswith("<") else Plan.from_json(text)
