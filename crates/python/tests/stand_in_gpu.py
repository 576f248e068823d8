"""A stand-in for ``torch.cuda`` on CPU tensors: Weft takes its path for GPUs, and work runs on the CPU at once.

Streams only log what they are asked to do, so that tests see the order. Calls of Weft run on the CPU ranks of the same group.
"""

import contextlib
import threading
from unittest import mock

import torch

from weftlink.torch import accelerator, gpu


class Stream:
    def __init__(self, cuda, name):
        self.cuda, self.name, self.cuda_stream = cuda, name, name

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def record_event(self):
        event = Event(self.cuda)
        event.record(self)
        return event

    def wait_event(self, event):
        self.cuda.log.append(f"{self.name} waits for {event.stream}")


class Event:
    def __init__(self, cuda):
        self.cuda, self.stream = cuda, None

    def record(self, stream):
        self.stream = stream.name
        self.is_captured = self.cuda.is_capturing

    def query(self):
        assert not self.cuda.is_capturing and not self.is_captured, "CUDA refuses this during and after a capture"
        return not self.cuda.is_busy


class Cuda:
    """The functions of ``torch.cuda`` that Weft calls, for one device."""

    def __init__(self):
        self.log, self.is_capturing, self.is_busy = [], False, False
        self._names = (f"stream {number}" for number in range(1, 100))
        self._default, self._thread = Stream(self, "current"), threading.local()

    def Stream(self, device=None):  # noqa: N802 torch's name
        return Stream(self, next(self._names))

    def Event(self):  # noqa: N802 torch's name
        return Event(self)

    def current_stream(self, device=None):
        return getattr(self._thread, "stream", self._default)

    @contextlib.contextmanager
    def stream(self, stream):
        before, self._thread.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._thread.stream = before

    @contextlib.contextmanager
    def device(self, device):
        yield

    def current_device(self):
        # The number of a CPU tensor's device.
        return None

    def is_current_stream_capturing(self):
        return self.is_capturing

    def synchronize(self, device=None):
        pass


class End(Event):
    """The end of a call."""

    def __init__(self, cuda, stream, record):
        super().__init__(cuda)
        self.stream, self.record, self.is_captured = stream, record, cuda.is_capturing

    def wait(self, stream):
        self.cuda.log.append(f"{stream} waits for {self.stream}")


class Group:
    """Weft's calls on a GPU, as calls of the CPU ranks."""

    cuda = None

    def __init__(self, native):
        self.native, self.error, self.ended, self.enqueued = native, None, [], 0

    def start(self, what, source, target, *, device, stream, beside=None, captures=False, **options):
        assert stream == self.cuda.current_stream().name and captures == self.cuda.is_capturing
        if beside is not None:
            self.cuda.log.append(f"{beside} waits for {stream}")
        return End(self.cuda, beside or stream, self._run(what, source, target, beside or stream, captures, options))

    def end(self, device, stream, captures):
        assert captures == self.cuda.is_capturing
        return End(self.cuda, stream, None)

    def enqueue(self, what, source, target, *, device, stream, captures=False, **options):
        assert stream == self.cuda.current_stream().name, "copies around the call would run on another stream"
        return self._run(what, source, target, stream, captures, options)

    def _run(self, what, source, target, stream, captures, options):
        if self.error is not None:
            raise self.error
        self.cuda.log.append(f"{what} on {stream}")
        for tensor in (source, target):
            assert tensor is None or (isinstance(tensor, torch.Tensor) and tensor.is_contiguous())
        assert not (what == "all_to_all" and source.data_ptr() == target.data_ptr()), "GPUs cannot do this"
        call = self.native.call(what, source, target, now=True, **options)
        if call is not None:
            call.wait()
        self.enqueued += 1
        return None if captures else self.enqueued

    def mark_ended(self, record, succeeded):
        self.ended.append((record, succeeded))

    def failure(self):
        return self.error


@contextlib.contextmanager
def installed():
    """Lets Weft take CPU tensors for tensors of a GPU."""
    cuda = Cuda()
    Group.cuda = cuda
    replaced = {
        "cuda": cuda,
        "current_device": lambda: -1,
        "current_raw_stream": lambda device: cuda.current_stream().name,
        "is_capturing": lambda: cuda.is_capturing,
        "is_on_gpu": lambda tensor: tensor.is_cpu,
        "future": lambda device: torch.futures.Future(),
        "pinned_like": lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype),
    }
    with mock.patch.multiple(accelerator, **replaced), mock.patch.object(gpu, "GroupOnGpu", Group):
        yield cuda
