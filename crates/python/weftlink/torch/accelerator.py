"""What Weft uses of ``torch.cuda``, in one place. Tests without a GPU replace it."""

import time

import torch
from torch import cuda

# How long the host sleeps between two looks at an event, at most.
_POLL_S = 0.001


def is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


# These take a tenth of the time of their namesakes in ``torch.cuda``, which look whether CUDA is initialised.


def current_device() -> int:
    return torch._C._cuda_getDevice()


def current_raw_stream(device: int) -> int:
    return torch._C._cuda_getCurrentRawStream(device)


def is_capturing() -> bool:
    return torch._C._cuda_isCurrentStreamCapturing()


def future(device: torch.device) -> torch.futures.Future:
    """A future whose callbacks run on streams that wait for the stream on which it completes."""
    return torch.futures.Future(devices=[device])


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """CPU memory that the GPU copies to and from without a staging copy."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)


def as_tensor(memory, device: torch.device) -> torch.Tensor:
    """The bytes of an object with ``__cuda_array_interface__``, which the tensor keeps alive."""
    return torch.as_tensor(memory, device=device)


def wait_on_host(event, seconds: float | None) -> bool:
    """Waits until ``event.query()`` is true, or for some seconds: whether it is. Signals are handled meanwhile."""
    end, pause = None if seconds is None else time.monotonic() + seconds, 1e-5
    while not event.query():
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _POLL_S)
    return True


__all__ = [
    "as_tensor",
    "cuda",
    "current_device",
    "current_raw_stream",
    "future",
    "is_capturing",
    "is_on_gpu",
    "pinned_like",
    "wait_on_host",
]
