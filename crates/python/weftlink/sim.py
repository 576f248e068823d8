"""How long calls take on machines that need not be at hand.

>>> from weftlink import sim
>>> predicted = sim.predict("all_reduce", "hgx-h100", ["1MiB", "1GiB"])
>>> [row.bytes for row in predicted]
[1048576, 1073741824]
>>> predicted[1].busbw_gb_per_s > predicted[0].busbw_gb_per_s
True
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from weftlink import _native
from weftlink._native import Fabric

__all__ = ["Prediction", "predict"]


@dataclass(frozen=True)
class Prediction:
    """A call, predicted.

    Attributes:
        bytes: what it moves, as nccl-tests count.
        time_us: how long it takes.
        algbw_gb_per_s: bytes over time.
        busbw_gb_per_s: the same, corrected for the collective, as nccl-tests do.
        algorithm, protocol: what the library takes.
        limited_by: what keeps it from being faster.
        expected_error: what predictions of its kind were off by against measurements (``median``, ``ninetieth_percentile``), or None
            where there were none.
        evidence: the measurements that this library's predictions were checked against.
        details: everything that ``weft sim --json`` tells of it.
    """

    bytes: int
    time_us: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    algorithm: str
    protocol: str
    limited_by: str
    expected_error: dict[str, float] | None
    evidence: str
    details: dict[str, Any] = field(repr=False)


def predict(
    collective: str,
    fabric: Fabric | str,
    sizes: Iterable[int | str] | int | str,
    *,
    library: str | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> list[Prediction]:
    """How long a call of each size takes as a library would make it: ``"nccl:2.18"``, ``"rccl"``, ``"weft"``; the newest known NCCL or RCCL
    if none is named. ``algorithm`` and ``protocol``: what the library is told to take, as by ``NCCL_ALGO`` and ``NCCL_PROTO``.
    """
    sizes = [sizes] if isinstance(sizes, (int, str)) else list(sizes)
    told = json.loads(_native.predict(collective, fabric, sizes, library, algorithm, protocol))
    return [_prediction(told["evidence"], row) for row in told["rows"]]


def _prediction(evidence: str, row: dict[str, Any]) -> Prediction:
    named = {name: row[name] for name in Prediction.__dataclass_fields__ if name in row}
    return Prediction(**named, evidence=evidence, details=row)
