"""What is wired to what: machines and clusters, from a catalog, from files, or this one.

>>> from weftlink import fabric
>>> cluster = fabric.parse("2x hgx-h100 + 8x ndr")
>>> len(cluster.hosts), len(cluster.gpus)
(2, 16)
>>> cluster.path("host0/gpu0", "host0/gpu1")[:3]
('NVL', 2, 18)
"""

from __future__ import annotations

import os
import pathlib

from weftlink._native import Fabric

__all__ = ["Fabric", "here", "parse", "read"]


def parse(text: str) -> Fabric:
    """A system of the catalog (``"hgx-h100"``; ``weft topo --list`` prints them) or a cluster of them."""
    return Fabric.parse(text)


def read(file: str | os.PathLike[str], gpu: str | None = None) -> Fabric:
    """What a file says: NCCL's and RCCL's XML, Weft's TOML and JSON, or the text of ``nvidia-smi topo -m``, for which ``gpu`` says the
    model.
    """
    return Fabric.read(pathlib.Path(file).read_bytes(), os.fspath(file), gpu)


def here() -> Fabric:
    """This machine."""
    return Fabric.here()
