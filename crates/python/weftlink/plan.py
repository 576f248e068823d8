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

import os
import pathlib
from typing import Any

from weftlink import _command
from weftlink._native import Fabric, Plan
from weftlink.errors import UsageError

__all__ = ["Plan", "build", "choose", "import_msccl", "read"]


def choose(
    collective: str,
    fabric: Fabric | str,
    size: int | str = "64MiB",
    *,
    root: int | None = None,
    without: list[str] | None = None,
) -> dict[str, Any]:
    """Which algorithm is predicted to be fastest for calls of so many bytes, and why the others are not, as
    ``weft plan COLLECTIVE FABRIC --json`` tells. Algorithms in ``without`` are left out.
    """
    words = _command.options(size=size, root=root, without=without)
    with _command.target(fabric) as target:
        return _command.ask_json("plan", _command.name_of(collective), target, *words)


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
    words = _command.options(algorithm=algorithm, size=size, root=root or None)
    with _command.target(fabric) as target:
        return Plan.from_json(_command.ask("plan", _command.name_of(collective), target, "--emit", "json", *words))


def import_msccl(text: str) -> Plan:
    """The plan of a program in MSCCL's XML. It is not proved: ``verify`` does that."""
    return Plan.from_msccl(text)


def read(file: str | os.PathLike[str]) -> Plan:
    """A plan in a file: Weft's JSON, or MSCCL's XML."""
    text = pathlib.Path(file).read_text()
    return Plan.from_msccl(text) if text.lstrip().startswith("<") else Plan.from_json(text)
