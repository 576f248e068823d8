"""Calls on CUDA tensors: their streams, and the tensors that must live until the GPU is done with them.

A blocking call is enqueued on the current stream. An asynchronous call is enqueued on a stream of the group, which waits for the current stream
first; ``Work.wait`` makes the stream that is current then wait for the end of the call. Neither waits on the host. Weft orders the calls of
different streams, also within a graph that is captured.
"""

import collections
import contextlib
import functools
import threading

from weftlink._native import GroupOnGpu
from weftlink.errors import Error, UsageError
from weftlink.torch import accelerator
from weftlink.torch.blocks import collective
from weftlink.torch.failure import record_error
from weftlink.torch.gpu_work import GpuWork, StagedReceive
from weftlink.torch.work import DONE, Work

# How long closing waits for a copy.
_CLOSE_S = 1.0
# Calls of closed groups that were still running, with their tensors.
_still_running = []


class Enqueued:
    """Calls on a stream up to an event, and the tensors that they use. ``origin`` is the stream that was current, whose memory these have."""

    def __init__(self, end, records=(), kept=None, origin=None, is_captured=False):
        self.end = end
        self.records = records
        self.kept = kept
        self.origin = origin
        self.is_captured = is_captured

    def query(self) -> bool:
        """Whether the calls have ended."""
        try:
            return self.end.query()
        except RuntimeError:
            # The context is lost, and nothing runs any more.
            return True

    def wait(self, device) -> None:
        """Makes the current stream wait. If it is the one whose memory the tensors have, work that reuses the memory comes after the calls."""
        current = accelerator.cuda.current_stream(device)
        current.wait_event(self.end)
        if current.cuda_stream == self.origin:
            self.kept = None


class Started(Enqueued):
    """The same with an event of Weft, which may also be queried while another thread captures a graph."""

    def wait(self, device) -> None:
        current = accelerator.current_raw_stream(device.index)
        self.end.wait(current)
        if current == self.origin:
            self.kept = None


class Gpu:
    """The calls of a group on CUDA tensors. Process group and backend share it."""

    def __init__(self, native):
        self.device = None
        self.stream = None
        self._native = native
        self._group = GroupOnGpu(native)
        self._copies = None
        self._unfinished = collections.deque()
        self._releases = threading.Lock()

    # Collectives.

    def call(self, what, source, target, tensors, now, finish=None, counts=None, **options):
        """Enqueues a collective and returns its work. ``finish`` enqueues what follows it, such as a copy of the result."""
        is_single = finish is None and counts is None and not isinstance(source, list) and not isinstance(target, list)
        if is_single and (what != "all_to_all" or source.data_ptr() != target.data_ptr()):
            first = source if source is not None else target
            if first.get_device() == accelerator.current_device() and first.numel() > 0:
                return self._start(what, source, target, tensors, now, first.device, options)

        def body(stream, captures, records):
            enqueue = functools.partial(self._enqueue, stream, captures, records, **options)
            collective(self._native, enqueue, what, source, target, counts)
            if finish is not None:
                finish()

        first = source if source is not None else target
        device = (first[0] if isinstance(first, list) else first).device
        return self._run(device, body, (source, target, tensors, finish), tensors, now)

    def _start(self, what, source, target, tensors, now, device, options):
        """Enqueues a collective that is one call on whole tensors of the current device."""
        captures = accelerator.is_capturing()
        self._open(device, captures)
        if device != self.device:
            raise UsageError(f"the group is on {self.device}, and the tensor on {device}")
        current, beside = accelerator.current_raw_stream(device.index), None if now else self.stream.cuda_stream
        place = {"device": device.index, "stream": current, "beside": beside, "captures": captures}
        try:
            end = self._group.start(what, source, target, **place, **options)
        except BaseException as error:
            if beside is not None:
                self._join(accelerator.cuda.current_stream())
            self._raise(error, captures)
        kept = None if now else (source, target, tensors)
        enqueued = Started(end, () if captures else (end.record,), kept, current, is_captured=captures)
        self._unfinished.append(enqueued)
        self._forget_ended(succeeded=True, captures=captures)
        return DONE if now else GpuWork(self, enqueued, tensors, self._native.sequence)

    def _run(self, device, body, kept, tensors, now):
        if accelerator.cuda.current_device() != device.index:
            with accelerator.cuda.device(device):
                return self._run(device, body, kept, tensors, now)
        captures = accelerator.cuda.is_current_stream_capturing()
        self._open(device, captures)
        current, records = accelerator.cuda.current_stream(), []
        try:
            if now:
                body(current.cuda_stream, captures, records)
                end = self._group.end(device.index, current.cuda_stream, captures)
                self._unfinished.append(Started(end, records, is_captured=captures))
                self._forget_ended(succeeded=True, captures=captures)
                return DONE
            self.stream.wait_stream(current)
            with accelerator.cuda.stream(self.stream):
                body(self.stream.cuda_stream, captures, records)
            end = self._group.end(device.index, self.stream.cuda_stream, captures)
        except BaseException as error:
            if not now:
                self._join(current)
            self._raise(error, captures)
        enqueued = Started(end, records, kept, current.cuda_stream, is_captured=captures)
        self._unfinished.append(enqueued)
        self._forget_ended(succeeded=True, captures=captures)
        return GpuWork(self, enqueued, tensors, self._native.sequence)

    def _join(self, current):
        """After an error: a part of the call may run, on tensors that the program frees next; and a capture that goes on needs all streams
        joined. If the context is lost, nothing runs."""
        with contextlib.suppress(RuntimeError):
            current.wait_stream(self.stream)

    def _raise(self, error, captures):
        """Raises an error of this call, or the reason for it: if the context of the GPU is lost, torch does not know which rank died."""
        if not isinstance(error, Exception):
            # A signal.
            raise error
        failure = None if captures else self.failure()
        self._forget_ended(succeeded=failure is None, captures=captures)
        error, cause = (error, None) if failure is None or isinstance(error, Error) else (failure, error)
        record_error(error)
        raise error from cause

    def _open(self, device, captures):
        """Makes the stream in the first call."""
        if self.stream is not None:
            return
        if captures:
            raise UsageError("the first call of a group on a GPU cannot be captured: make it once before the capture")
        self.device, self.stream = device, accelerator.cuda.Stream(device)

    def _enqueue(self, stream, captures, records, what, source, target, **options):
        tensor = source if source is not None else target
        if tensor.numel() == 0:
            return
        place = {"device": tensor.device.index, "stream": stream, "captures": captures}
        record = self._group.enqueue(what, source, target, **place, **options)
        if record is not None:
            records.append(record)

    def _forget_ended(self, succeeded, captures):
        """Drops the calls that have ended. Events cannot be queried during a capture."""
        if captures or not self._releases.acquire(blocking=False):
            return
        try:
            while self._unfinished and (self._unfinished[0].is_captured or self._unfinished[0].query()):
                ended = self._unfinished.popleft()
                for record in ended.records:
                    self._group.mark_ended(record, succeeded)
        finally:
            self._releases.release()

    # Messages: they go through CPU memory.

    def send(self, tensor, to, tag):
        """Copies a tensor to CPU memory, for which the host waits, and starts sending it."""
        with accelerator.cuda.device(tensor.device):
            self._refuse_capture("send")
            self._forget_ended(succeeded=True, captures=False)
            host = accelerator.pinned_like(tensor)
            host.copy_(tensor)
            return Work(self._native.send(host, to, tag), [tensor])

    def receive(self, tensor, source, tag):
        """Starts receiving a tensor in CPU memory. It is copied to the GPU when it has arrived."""
        with accelerator.cuda.device(tensor.device):
            self._refuse_capture("recv")
            self._forget_ended(succeeded=True, captures=False)
            if self._copies is None:
                self._copies = accelerator.cuda.Stream(tensor.device)
            copies, current, host = self._copies, accelerator.cuda.current_stream(), accelerator.pinned_like(tensor)
            ready, copied = current.record_event(), Enqueued(accelerator.cuda.Event(), kept=tensor, origin=current.cuda_stream)

            def finish():
                with accelerator.cuda.stream(copies):
                    # Earlier work may still use the tensor.
                    copies.wait_event(ready)
                    tensor.copy_(host, non_blocking=True)
                    copied.end.record(copies)
                self._unfinished.append(copied)

            call = self._native.receive(host, source, tag, finish=finish)
            return StagedReceive(call, [tensor], copies, copied)

    @staticmethod
    def _refuse_capture(what):
        if accelerator.cuda.is_current_stream_capturing():
            raise UsageError(f"{what} on a GPU needs the host and cannot be captured in a graph")

    # Errors and ends.

    def failure(self):
        """The error of a call that has failed; None without one."""
        return self._group.failure()

    def check(self):
        error = self.failure()
        if error is not None:
            record_error(error)
            raise error

    def synchronize(self):
        """Waits on the host for the current stream and for all calls, and raises the error of one that has failed."""
        if self.stream is None:
            return
        with accelerator.cuda.device(self.device):
            self._refuse_capture("barrier")
            try:
                ends = [stream.record_event() for stream in (accelerator.cuda.current_stream(), self.stream)]
                # Blocking calls may be on other streams, and so are copies of messages.
                ends += [call for call in list(self._unfinished) if not call.is_captured]
                for end in ends:
                    accelerator.wait_on_host(end, None)
            except RuntimeError as error:
                self._raise(error, captures=False)
        self.check()

    def window(self, length, device):
        """Symmetric memory of this many bytes, as an object with ``__cuda_array_interface__``. All ranks call it."""
        with accelerator.cuda.device(device):
            self._refuse_capture("allocating symmetric memory")
            return self._group.window(length, accelerator.cuda.current_device())

    def look_for_ends(self):
        """Marks calls that have ended since the last call in the flight record."""
        if self._unfinished and not accelerator.cuda.is_current_stream_capturing():
            self._forget_ended(succeeded=self.failure() is None, captures=False)

    def close(self):
        """Drops everything. Calls have ended, and copies of messages end soon."""
        self.look_for_ends()
        # The callback thread may still append the copy of a message.
        while True:
            with self._releases:
                # Another thread may have taken the last one.
                if not self._unfinished:
                    return
                enqueued = self._unfinished.popleft()
            if not enqueued.is_captured and not accelerator.wait_on_host(enqueued, _CLOSE_S):
                # Its tensors must not be freed while it runs.
                _still_running.append(enqueued)
