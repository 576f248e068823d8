"""What moves when: plans are chosen for a fabric, built, proved, drawn, and exchanged with MSCCL.

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
) -> dict[str, Any]:
    """The algorithm that is predicted to be fastest for calls of this size (64 MiB if none is given), and why the others are not: what
    ``weft plan COLLECTIVE FABRIC --json`` prints. Algorithms in ``without`` are left out.
    """
    return json.loads(_native.choose(collective, fabric, size, root, without or []))


def build(
    collective: str,
    *,
    fabric: Fabric | str | None = None,
    ranks: int | None = None,
    algorithm: str | None = None,
    size: int | str | None = None,
    root: int = 0,
) -> Plan:
    """The plan of an algorithm: for a fabric, of the fastest one for this size unless one is named; or for so many ranks that reach each
    other alike, of the one that is named. ``weft plan --list`` prints the algorithms.
    """
    if fabric is None:
        if algorithm is None or ranks is None or size is not None:
            raise UsageError("say a fabric; or ranks and an algorithm, and no size")
        return Plan.flat(algorithm, collective, ranks, root)
    if ranks is not None:
        raise UsageError("the ranks are the fabric's GPUs: leave ranks out")
    return _native.build(collective, fabric, size, algorithm, root or None)


def import_msccl(text: str) -> Plan:
    """The plan of a program in MSCCL's XML. It is not proved: ``verify`` does that."""
    return Plan.from_msccl(text)


def read(file: str | os.PathLike[str]) -> Plan:
    """A plan in a file: Weft's JSON, or MSCCL's XML."""
    text = pathlib.Path(file).read_text()
    return Plan.from_msccl(text) if text.lstrip().startswith("<") else Plan.from_json(text)
