"""``Work`` objects of calls on a GPU."""

from datetime import timedelta

from weftlink.errors import UsageError
from weftlink.torch import accelerator
from weftlink.torch.errors import DeadlineError
from weftlink.torch.work import NO_TIMEOUT, Work, raise_recorded


class GpuWork(Work):
    """A call on a stream. Waiting for it makes the current stream wait; the host does not."""

    def __init__(self, gpu, enqueued, tensors, number):
        super().__init__(None, tensors, number)
        self._gpu = gpu
        self._enqueued = enqueued
        self._is_over = False
        self._error = None

    def wait(self, timeout=NO_TIMEOUT):
        """Makes the current stream wait for its end. A call that has failed raises its error. With a timeout, the host waits first."""
        enqueued = self._enqueued
        if not enqueued.is_captured:
            self._gpu.check()
            if timeout > NO_TIMEOUT:
                if not accelerator.wait_on_host(enqueued, timeout.total_seconds()):
                    limit_ms = timeout // timedelta(milliseconds=1)
                    text = f"Operation timed out! Timed out waiting {limit_ms}ms for a call on a GPU to complete; it continues there"
                    raise DeadlineError(text)
                self._gpu.check()
        enqueued.wait(self._gpu.device)
        return True

    def block_current_stream(self):
        self.wait()

    def is_completed(self):
        if self._enqueued.is_captured:
            raise UsageError("a captured call runs when its graph is launched: it is not known whether it has completed")
        if not self._is_over and self._enqueued.query():
            # An error that comes later is another call's.
            self._is_over, self._error = True, self._gpu.failure()
        return self._is_over

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error if self._enqueued.is_captured or self.is_completed() else None

    def source_rank(self):
        raise UsageError("only a received message has a source")

    _source_rank = source_rank

    def get_future(self):
        """A future with the tensors, complete at once. What waits for it, and its callbacks, run on streams that wait for the call."""
        if self._future is None:
            error = None if self._enqueued.is_captured else self._gpu.failure()
            over = accelerator.future(self._gpu.device)
            self._future = over if error is None else over.then(lambda _: raise_recorded(error))
            with accelerator.cuda.stream(self._gpu.stream):
                over.set_result(self._tensors)
        return self._future


class StagedReceive(Work):
    """A message that is copied to the GPU when it has arrived in CPU memory. The host waits for the message, the stream for the copy."""

    def __init__(self, call, tensors, copies, copied):
        super().__init__(call, tensors)
        self._copies = copies
        self._copied = copied

    def wait(self, timeout=NO_TIMEOUT):
        super().wait(timeout)
        self._copied.wait(self._tensors[0].device)
        return True

    def block_current_stream(self):
        self.wait()

    def is_completed(self):
        return self._call.done() and (self._call.exception() is not None or self._copied.query())

    def is_success(self):
        return self.is_completed() and self._call.exception() is None

    def get_future(self):
        if self._future is None:
            over = accelerator.future(self._tensors[0].device)
            self._future = over.then(lambda _: self._outcome())

            def complete():
                with accelerator.cuda.stream(self._copies):
                    over.set_result(None)

            self._call.add_done_callback(complete)
        return self._future
