"""Fabrics: machines and clusters, from the catalog, from files, or this machine.

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
    """Returns a system of the catalog (``"hgx-h100"``; ``weft topo --list`` prints them) or a cluster of them."""
    return Fabric.parse(text)


def read(file: str | os.PathLike[str], gpu: str | None = None) -> Fabric:
    """Reads a file: NCCL's or RCCL's XML, Weft's TOML or JSON, or the text of ``nvidia-smi topo -m``, for which ``gpu`` names the
    model.
    """
    return Fabric.read(pathlib.Path(file).read_bytes(), os.fspath(file), gpu)


def here() -> Fabric:
    """Returns this machine."""
    return Fabric.here()
