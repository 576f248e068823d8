"""Symmetric tensors: memory that all ranks of a group allocate together, so that calls on it need no staging copy."""

import contextlib
import ctypes
import math

import torch
import torch.distributed as dist

from weftlink.errors import UsageError
from weftlink.torch import accelerator
from weftlink.torch.calls import Calls


def empty(
    *size, dtype: torch.dtype | None = None, symmetric: bool = False, group=None, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Returns a tensor as ``torch.empty`` does; with ``symmetric=True``, in memory that the ranks of the group share.

    All ranks of the group call it with the same size and type, in the order of their other calls. A symmetric tensor is zeroed. Its
    memory is freed when the group is destroyed and the tensor is gone.
    """
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    dtype = dtype or torch.get_default_dtype()
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"Weft allocates memory of CPUs and of CUDA, not of {device}")
    length = math.prod(shape)
    if not symmetric or length == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    calls = calls_of(group)
    if device.type == "cuda":
        return _on_gpu(calls, length, dtype, device).view(shape)
    memory = calls._native.window(length * dtype.itemsize)
    address = memory.__array_interface__["data"][0]
    array = (ctypes.c_uint8 * len(memory)).from_address(address)
    # The tensor keeps the array alive, and the array the memory.
    array.memory = memory
    calls._windows.append((address, len(memory)))
    return torch.frombuffer(array, dtype=dtype, count=length).view(shape)


def _on_gpu(calls, length, dtype, device):
    memory = _GpuMemory(calls._gpu.window(length * dtype.itemsize, device), device)
    tensor = accelerator.as_tensor(memory, device).view(dtype)
    calls._windows.append((tensor.data_ptr(), length * dtype.itemsize))
    return tensor


class _GpuMemory:
    """Memory that torch's allocator does not know."""

    def __init__(self, window, device):
        self._window = window
        self._device = device
        self.__cuda_array_interface__ = window.__cuda_array_interface__

    def __del__(self):
        # Streams may still use it, and if the group was destroyed, this unmaps it.
        with contextlib.suppress(Exception):
            accelerator.cuda.synchronize(self._device)


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
    for device in ("cpu", "cuda"):
        with contextlib.suppress(RuntimeError):
            backend = group._get_backend(torch.device(device))
            if isinstance(backend, Calls):
                return backend
    raise UsageError('this group does not use Weft: create it with the backend "weft"')
