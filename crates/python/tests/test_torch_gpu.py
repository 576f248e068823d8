"""Calls on CUDA tensors without a GPU: the order of streams, the lifetime of tensors, captures and errors, on a stand-in for ``torch.cuda``.

`programs/torch_gpu.py` tests the same on a GPU.
"""

import sys
import unittest
import weakref
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist

import jobs
import stand_in_gpu
import torch_cases as cases
import weftlink.torch
from ranks import run
from torch_training import STEPS
from weftlink.errors import Error, UsageError
from weftlink.torch.errors import DeadlineError

sys.path.insert(0, str(jobs.HERE / "programs"))
import torch_gpu  # noqa: E402  the path was just set


def with_stand_in(rank, size, store, function):
    with stand_in_gpu.installed() as cuda:
        dist.init_process_group("weft", store=store, rank=rank, world_size=size)
        function(rank, size, cuda)
        dist.destroy_process_group()


def every_collective(rank, size, cuda):
    for case in cases.CASES:
        case(rank, size)
    used = {line.split()[0] for line in cuda.log if " on " in line}
    wanted = {"all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "reduce_scatter", "_reduce_scatter_base"}
    assert wanted | {"all_to_all", "gather", "scatter", "allreduce_coalesced"} <= used, used


def order(rank, size, cuda):
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert cuda.log == ["all_reduce on current"], cuda.log
    cuda.log.clear()
    work = dist.all_reduce(tensor, async_op=True)
    assert cuda.log == ["stream 1 waits for current", "all_reduce on stream 1"], cuda.log
    with cuda.stream(cuda.Stream()):
        work.wait()
    assert cuda.log[2:] == ["stream 2 waits for stream 1"], cuda.log
    assert work.result()[0].tolist() == [float(size**2)] * 4
    cuda.log.clear()
    # The copy of the result belongs to the call.
    matrix = torch.ones(4, 4)
    work = dist.all_reduce(matrix.t()[:2], async_op=True)
    assert matrix[0].tolist() == [size, size, 1, 1]
    work.wait()
    assert cuda.log == ["stream 1 waits for current", "all_reduce on stream 1", "current waits for stream 1"], cuda.log


def lifetime(rank, size, cuda):
    """A tensor lives until the call has ended on the GPU or a stream waits for it."""
    group = dist.group.WORLD
    cuda.is_busy = True

    def started():
        tensor = torch.ones(4)
        return dist.all_reduce(tensor, async_op=True), weakref.ref(tensor)

    work, tensor = started()
    del work
    assert tensor() is not None
    dist.all_reduce(torch.ones(2))
    assert tensor() is not None, "the GPU is busy"
    cuda.is_busy = False
    dist.all_reduce(torch.ones(2))
    assert tensor() is None
    cuda.is_busy = True
    work, tensor = started()
    work.wait()
    del work
    assert tensor() is None
    work, tensor = started()
    with cuda.stream(cuda.Stream()):
        work.wait()
    del work
    assert tensor() is not None, "the stream that may reuse its memory does not wait"
    cuda.is_busy = False
    dist.all_reduce(torch.ones(2))
    assert tensor() is None
    cuda.is_busy = True
    dist.all_reduce(torch.ones(2))
    # Blocking calls keep nothing.
    assert all(enqueued.kept is None for enqueued in group._gpu._unfinished)
    cuda.is_busy = False
    weftlink.torch.flight_record()
    assert not group._gpu._unfinished
    assert [succeeded for _, succeeded in group._gpu._group.ended] == [True] * 7


def completion(rank, size, cuda):
    cuda.is_busy = True
    work = dist.all_reduce(torch.ones(4), async_op=True)
    assert not work.is_completed() and not work.is_success() and work.exception() is None
    try:
        work.wait(timedelta(milliseconds=20))
        raise AssertionError("it has not completed")
    except DeadlineError as error:
        assert "Timed out waiting 20ms" in str(error), error
    work.wait()
    assert not work.is_completed(), "the host does not wait"
    assert work.get_future().wait()[0].tolist() == [size] * 4
    cuda.is_busy = False
    assert work.is_completed() and work.is_success()
    seen = []
    dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda future: seen.append(future.value()[0][0].item()))
    assert seen == [size], seen


def captures(rank, size, cuda):
    cuda.is_capturing = True
    try:
        dist.all_reduce(torch.ones(4))
        raise AssertionError("the ranks have not joined")
    except UsageError as error:
        assert "before the capture" in str(error), error
    cuda.is_capturing = False
    dist.all_reduce(torch.ones(4))
    cuda.log.clear()
    # No event is queried.
    cuda.is_capturing = True
    dist.all_reduce(torch.ones(4))
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.get_future().wait()
    work.wait()
    fork = ["stream 1 waits for current", "all_reduce on stream 1", "current waits for stream 1"]
    assert cuda.log == ["all_reduce on current", *fork], cuda.log
    for refused in (lambda: dist.send(torch.ones(1), 1 - rank), lambda: dist.irecv(torch.ones(1), 1 - rank), dist.barrier, work.is_completed):
        try:
            refused()
            raise AssertionError("it cannot be captured")
        except UsageError as error:
            assert "captured" in str(error), error
    weftlink.torch.flight_record()
    cuda.is_capturing = False
    assert work.exception() is None
    dist.all_reduce(torch.ones(4))
    assert not dist.group.WORLD._gpu._unfinished


def messages(rank, size, cuda):
    matrix = torch.arange(12.0).view(3, 4) + rank
    got = torch.zeros(4, 3)
    sends = dist.P2POp(dist.isend, matrix.t(), (rank + 1) % size, tag=3)
    receives = dist.P2POp(dist.irecv, got, (rank - 1) % size, tag=3)
    works = dist.batch_isend_irecv([sends, receives])
    [work.wait() for work in works]
    before = (rank - 1) % size
    assert torch.equal(got, (torch.arange(12.0).view(3, 4) + before).t()), got
    assert "stream 1 waits for current" in cuda.log and "current waits for stream 1" in cuda.log, cuda.log
    dist.isend(torch.tensor([rank]), (rank + 1) % size)
    work = dist.group.WORLD.recv_anysource([number := torch.zeros(1, dtype=torch.int64)], 0)
    assert work.get_future().wait()[0] is number and work.is_completed() and work.source_rank() == before
    assert number.item() == before


def mismatches(rank, size, cuda):
    """An all-to-all whose lengths do not fit fails on all ranks; padding must not hide it."""
    counts = [1] * size if rank else [2] * size
    try:
        dist.all_to_all_single(torch.empty(size), torch.empty(sum(counts)), [1] * size, counts)
        raise AssertionError("rank 0 sends too much")
    except UsageError as error:
        assert "rank 0 sends 2 elements to rank 0, and rank 0 expects 1" in str(error), error
    dist.all_reduce(torch.ones(1))


def failures(rank, size, cuda):
    dist.all_reduce(torch.ones(4))
    work = dist.all_reduce(torch.ones(4), async_op=True)
    dist.group.WORLD._gpu._group.error = Error("rank 1 died")
    for call in (work.wait, lambda: dist.all_reduce(torch.ones(4)), dist.barrier):
        try:
            call()
            raise AssertionError("the GPU has failed")
        except Error as error:
            assert "rank 1 died" in str(error), error
    # Where the context is lost, torch's own error says less.
    with mock.patch.object(stand_in_gpu.Stream, "record_event", side_effect=RuntimeError("an illegal memory access")):
        outputs = [torch.empty(4) for _ in range(size)]
        for call in (lambda: dist.all_gather(outputs, torch.ones(4), async_op=True), dist.barrier):
            try:
                call()
                raise AssertionError("the GPU has failed")
            except Error as error:
                assert "rank 1 died" in str(error) and "illegal" in str(error.__cause__), error
    assert work.is_completed() and not work.is_success() and "rank 1" in str(work.exception())
    assert "rank 1" in str(weftlink.torch.last_error())
    try:
        work.get_future().wait()
        raise AssertionError("the GPU has failed")
    except Exception as error:
        assert "rank 1 died" in str(error), error


def program_on_stand_in(rank, size, cuda):
    """Training and the checks of tensors and streams in the program, on the path for GPUs."""
    program = torch_gpu.Program(torch.device("cpu"))
    for check in (torch_gpu.streams, torch_gpu.lifetime, torch_gpu.messages, torch_gpu.training):
        assert list(check(program))
    asynchronous = [line for line in cuda.log if line.endswith("on stream 1")]
    assert len(asynchronous) > 2 * STEPS, "DDP reduces its buckets beside the current stream"


class OnAStandIn(unittest.TestCase):
    def check(self, function, ranks=2):
        run(ranks, with_stand_in, function, backend=None)

    def test_every_collective(self):
        for ranks in 1, 2, 3:
            with self.subTest(ranks=ranks):
                self.check(every_collective, ranks)

    def test_blocking_calls_run_on_the_current_stream_and_others_beside_it(self):
        self.check(order)

    def test_tensors_live_until_the_gpu_is_done(self):
        self.check(lifetime)

    def test_works_complete_on_the_gpu(self):
        self.check(completion)

    def test_captured_calls_fork_and_join(self):
        self.check(captures)

    def test_messages_go_through_cpu_memory(self):
        self.check(messages, 3)

    def test_training(self):
        self.check(program_on_stand_in)

    def test_lengths_that_do_not_fit(self):
        self.check(mismatches)

    def test_a_failure_reaches_works_and_later_calls(self):
        self.check(failures)


class FakeTensor:
    """What Weft reads of a CUDA tensor."""

    dtype, is_cuda, device = torch.float32, True, torch.device("cuda", 0)
    get_device, numel, data_ptr, is_contiguous = lambda _: 0, lambda _: 4, lambda _: 1 << 32, lambda _: True


def without_driver(rank, size):
    native, tensor = dist.group.WORLD._gpu._group, FakeTensor()
    place = {"device": 0, "stream": 0}
    refused = {
        "unknown collective": lambda: native.enqueue("nothing", tensor, tensor, **place),
        "a tensor is on cpu": lambda: native.enqueue("all_reduce", torch.ones(4), tensor, **place),
        "another on cuda:1": lambda: native.enqueue("all_reduce", tensor, tensor, device=1, stream=0),
        "before the capture": lambda: native.enqueue("all_reduce", tensor, tensor, captures=True, **place),
        "single number": lambda: native.enqueue("all_reduce", tensor, tensor, op=8, **place),
    }
    for text, call in refused.items():
        try:
            call()
            raise AssertionError(text)
        except UsageError as error:
            assert text in str(error), error
    entries = len(weftlink.torch.flight_record()["entries"])
    try:
        native.enqueue("all_reduce", tensor, tensor, **place)
        raise AssertionError("there is no GPU")
    except dist.DistBackendError as error:
        assert error.operation == "all_reduce" and "libcuda" in str(error), error
    assert native.failure() is None
    last = weftlink.torch.flight_record()["entries"][entries:]
    assert [(entry["profiling_name"], entry["state"], entry["retired"]) for entry in last] == [("weft:all_reduce", "started", True)], last
    dist.all_reduce(ones := torch.ones(2))
    assert ones.tolist() == [size] * 2


@unittest.skipIf(torch.cuda.is_available(), "there is a GPU")
class WithoutDriver(unittest.TestCase):
    def test_errors_say_what_is_missing_and_cpu_tensors_still_work(self):
        run(2, without_driver)


class Program(unittest.TestCase):
    """`programs/torch_gpu.py` itself, on CPU tensors."""

    def run_program(self, *arguments, ranks=2, options=()):
        command = jobs.command("torch_gpu.py", ranks, "--device", "cpu", *arguments)
        command[2:2] = options
        return jobs.run(command)

    def test_every_check(self):
        done = self.run_program()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("all checks passed: 2 ranks on cpu", done.stdout)

    def test_a_killed_rank(self):
        done = self.run_program("--killed", ranks=3, options=["--keep-going"])
        self.assertIn("rank 2 died, and the error names it", done.stdout, done.stderr)


class Registration(unittest.TestCase):
    def test_groups_are_for_both_kinds_of_devices(self):
        self.assertEqual(dist.Backend.backend_capability["weft"], ["cpu", "cuda"])
        run(2, devices)
        run(2, devices, backend="cpu:weft,cuda:weft")

    def test_beside_another_backend(self):
        run(2, beside, backend="cpu:gloo,cuda:weft")


def beside(rank, size):
    group = dist.group.WORLD
    assert isinstance(group._get_backend(torch.device("cuda")), weftlink.torch.backend.Backend)
    assert not isinstance(group._get_backend(torch.device("cpu")), weftlink.torch.backend.Backend)
    dist.all_reduce(tensor := torch.ones(2))
    assert tensor.tolist() == [size] * 2


def devices(rank, size):
    group = dist.group.WORLD
    assert {device.type for device in group._device_types} == {"cpu", "cuda"}, group._device_types
    # Objects stay in CPU memory.
    assert dist.distributed_c10d._get_object_coll_device(group) == "cpu"
    both = [group._get_backend(torch.device(device)) for device in ("cpu", "cuda")]
    assert both[0] is both[1]
    cases.objects(rank, size) if isinstance(group, weftlink.torch.backend.Group) else dist.barrier()
    dist.all_reduce(tensor := torch.ones(2))
    assert tensor.tolist() == [size] * 2


if __name__ == "__main__":
    unittest.main()
