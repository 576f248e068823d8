"""The flight record: the last calls of all groups of this process, in the format of PyTorch's ``fr_trace``."""

import os
import pickle
import warnings

import torch.distributed as dist

from weftlink._native import flight_record as _flight_record
from weftlink.torch.shutdown import open_groups


def flight_record() -> dict:
    """The current record: ``entries``, oldest first, and the groups."""
    for group in open_groups():
        group._gpu.look_for_ends()
    return _flight_record()


def dump_flight_record(path: str | None = None) -> str:
    """Writes the record for ``fr_trace`` and returns the path.

    The default path is that of PyTorch's own records: ``TORCH_FR_DUMP_TEMP_FILE`` followed by the rank. ``torchfrtrace --prefix ...
    folder`` then reads the folder.
    """
    if path is None:
        rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
        path = f"{_prefix()}{rank}"
    with open(path, "wb") as file:
        pickle.dump(flight_record(), file)
    return path


def dump_after_failure() -> None:
    """Writes the record after a failed call, if ``TORCH_FR_DUMP_ON_TIMEOUT`` is set."""
    wanted = os.environ.get("TORCH_FR_DUMP_ON_TIMEOUT", os.environ.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "0"))
    if wanted.lower() not in {"1", "true", "y", "yes", "t"}:
        return
    try:
        dump_flight_record()
    except OSError as error:
        # The error of the call must reach the program.
        warnings.warn(f"cannot write the flight record: {error}", stacklevel=2)


def _prefix() -> str:
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    return next((os.environ[name] for name in names if os.environ.get(name)), "/tmp/comm_lib_trace_rank_")
