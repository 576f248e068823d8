"""Weft as a backend of ``torch.distributed``.

    import torch.distributed as dist
    import weftlink.torch  # registers the backend "weft"

    dist.init_process_group("weft")

``cpu:weft,cuda:nccl`` works where torch lets a ``Backend`` be subclassed (:func:`can_be_mixed`).
"""

import torch.distributed as _dist

from weftlink.torch.backend import can_be_mixed, create
from weftlink.torch.failure import last_error
from weftlink.torch.hooks import SymmetricState, symmetric_allreduce_hook
from weftlink.torch.launched import translate as _translate
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

_translate()
if not hasattr(_dist.Backend, "WEFT"):
    _dist.Backend.register_backend("weft", create, extended_api=True, devices=["cpu"])
