"""Measures collectives between processes on this machine, as ``weft bench`` does.

>>> from weftlink import bench
>>> measured = bench.run("all_reduce", ranks=2, minbytes=8, maxbytes=64, iters=10)
>>> [row["bytes"] for row in measured["rows"]]
[8, 64]
"""

from __future__ import annotations

from typing import Any

from weftlink import _command

__all__ = ["run"]


def run(
    collective: str,
    *,
    ranks: int = 2,
    minbytes: int | str = 8,
    maxbytes: int | str = "128MiB",
    stepfactor: int | None = None,
    datatype: str | None = None,
    op: str | None = None,
    iters: int | None = None,
    warmup_iters: int | None = None,
    algorithm: str | None = None,
    symmetric: bool = False,
    check: bool = True,
) -> dict[str, Any]:
    """Starts ``ranks`` processes, measures calls of each size, and returns the output of ``weft bench --json``: times, bandwidths and
    wrong elements of every size, and the machine.
    """
    words = _command.options(
        ranks=ranks,
        minbytes=minbytes,
        maxbytes=maxbytes,
        stepfactor=stepfactor,
        datatype=datatype,
        op=op,
        iters=iters,
        warmup_iters=warmup_iters,
        algorithm=algorithm,
        local_register=2 if symmetric else None,
        check=int(check),
    )
    return _command.ask_json("bench", _command.name_of(collective), *words)
