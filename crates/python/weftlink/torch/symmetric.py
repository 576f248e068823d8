"""Symmetric tensors: memory that all ranks of a group allocate together, so that calls on it need no staging copy."""

import ctypes
import math

import torch
import torch.distributed as dist

from weftlink.errors import UsageError
from weftlink.torch.calls import Calls


def empty(
    *size, dtype: torch.dtype | None = None, symmetric: bool = False, group=None, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Returns a CPU tensor as ``torch.empty`` does; with ``symmetric=True``, in memory that the ranks of the group share.

    All ranks of the group call it with the same size and type, in the order of their other calls. A symmetric tensor is zeroed. Its
    memory is freed when the group is destroyed and the tensor is gone.
    """
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    dtype = dtype or torch.get_default_dtype()
    if torch.device(device).type != "cpu":
        raise UsageError(f"Weft allocates CPU memory only, not memory of {device}")
    if not symmetric:
        return torch.empty(shape, dtype=dtype)
    calls = calls_of(group)
    length = math.prod(shape)
    if length == 0:
        return torch.empty(shape, dtype=dtype)
    memory = calls._native.window(length * dtype.itemsize)
    address = memory.__array_interface__["data"][0]
    array = (ctypes.c_uint8 * len(memory)).from_address(address)
    # The tensor keeps the array alive, and the array the memory.
    array.memory = memory
    calls._windows.append((address, len(memory)))
    return torch.frombuffer(array, dtype=dtype, count=length).view(shape)


def is_symmetric(tensor: torch.Tensor, group=None) -> bool:
    """Whether a tensor lies in symmetric memory of a group."""
    start = tensor.data_ptr()
    end = start + tensor.numel() * tensor.element_size()
    return any(base <= start and end <= base + length for base, length in calls_of(group)._windows)


def calls_of(group=None):
    """The object that implements the calls of a group."""
    if group is None and not dist.is_initialized():
        raise UsageError('no process group: call init_process_group("weft") first')
    group = group or dist.group.WORLD
    if isinstance(group, Calls):
        return group
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        backend = None
    if not isinstance(backend, Calls):
        raise UsageError('this group does not use Weft for CPU tensors: create it with the backend "weft"')
    return backend
