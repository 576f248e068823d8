"""Predicted times of collectives on any fabric.

>>> from weftlink import sim
>>> predicted = sim.predict("all_reduce", "hgx-h100", ["1MiB", "1GiB"])
>>> [row.bytes for row in predicted]
[1048576, 1073741824]
>>> predicted[1].busbw_gb_per_s > predicted[0].busbw_gb_per_s
True
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from weftlink import _native
from weftlink._native import Fabric

__all__ = ["Prediction", "predict"]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one call.

    Attributes:
        bytes: the size of the call, as in nccl-tests.
        time_us: the predicted time.
        algbw_gb_per_s: bytes over time.
        busbw_gb_per_s: the bus bandwidth, as in nccl-tests.
        algorithm, protocol: the library's choice.
        limited_by: the bottleneck.
        intervals_us: the bounds of two intervals: half of all machines like this are expected between ``low50`` and ``high50``, nine of
            ten between ``low90`` and ``high90``. None if there are no published measurements of the library.
        outside_the_evidence: how the call differs from all that was measured; empty if it does not.
        evidence: the measurements that predictions of this library were compared with.
        details: the row of ``weft sim --json``.
    """

    bytes: int
    time_us: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    algorithm: str
    protocol: str
    limited_by: str
    intervals_us: dict[str, float] | None
    outside_the_evidence: list[str]
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
    calibration: str | os.PathLike[str] | None = None,
) -> list[Prediction]:
    """Predicts a call of each size with a library: ``"nccl:2.18"``, ``"rccl"``, ``"weft"``; by default the newest known NCCL or RCCL.
    ``algorithm`` and ``protocol`` restrict the library's choice, as ``NCCL_ALGO`` and ``NCCL_PROTO`` do.
    ``calibration`` is a file that ``weft sim calibrate`` wrote.
    """
    sizes = [sizes] if isinstance(sizes, (int, str)) else list(sizes)
    file = None if calibration is None else os.fspath(calibration)
    predicted = json.loads(_native.predict(collective, fabric, sizes, library, algorithm, protocol, file))
    return [_prediction(predicted["evidence"], row) for row in predicted["rows"]]


def _prediction(evidence: str, row: dict[str, Any]) -> Prediction:
    named = {name: row[name] for name in Prediction.__dataclass_fields__ if name in row}
    return Prediction(**named, evidence=evidence, details=row)
