"""Weft as a backend of ``torch.distributed``.

    import torch.distributed as dist
    import weftlink.torch  # registers the backend "weft"

    dist.init_process_group("weft")

It takes CPU and CUDA tensors. ``cpu:weft,cuda:nccl`` works if the installed torch supports subclasses of ``Backend`` (:func:`can_be_mixed`).
"""

import os as _os
import warnings as _warnings

import torch.distributed as _dist

from weftlink import _native
from weftlink.errors import Error as _Error
from weftlink.torch.backend import can_be_mixed, create
from weftlink.torch.failure import last_error
from weftlink.torch.hooks import SymmetricState, symmetric_allreduce_hook
from weftlink.torch.record import dump_flight_record, flight_record
from weftlink.torch.symmetric import empty, is_symmetric

__all__ = [
    "SymmetricState",
    "can_be_mixed",
    "dump_flight_record",
    "empty",
    "flight_record",
    "is_symmetric",
    "last_error",
    "symmetric_allreduce_hook",
]


def _set_variables():
    """Sets torch's variables (``RANK`` and so on) from those of mpirun or srun."""
    if "RANK" not in _os.environ:
        try:
            _os.environ.update(_native.launcher_variables())
        except _Error as error:
            _warnings.warn(f"cannot set RANK and WORLD_SIZE for torch: {error}", RuntimeWarning, stacklevel=3)


_set_variables()
if not hasattr(_dist.Backend, "WEFT"):
    _dist.Backend.register_backend("weft", create, extended_api=True, devices=["cpu", "cuda"])
