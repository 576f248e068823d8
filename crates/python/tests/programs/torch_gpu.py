"""The backend of torch.distributed on CUDA tensors: prints one line for each check, and fails at the first that is wrong.

    weft run -n 3 --gpus shared --mps -- python torch_gpu.py
    weft run -n 3 --gpus shared --keep-going -- python torch_gpu.py --killed
    weft run -n 2 -- python torch_gpu.py --device cpu

With `--device cpu` it checks itself: every check but those of streams and graphs means the same on CPU tensors. `crates/cuda/gpu-test.sh`
runs it on a GPU, `test_torch_gpu.py` on CPUs.
"""

import argparse
import os
import pathlib
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch_cases  # noqa: E402
import torch_training  # noqa: E402

import weftlink.torch  # noqa: E402
from weftlink.errors import Error, UsageError  # noqa: E402

# A kernel for each type and operation takes up to 2 s to compile.
FEW_TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]
# A long time for a GPU, and a short one for a test: a quarter of a second at 2 GHz.
BUSY_CYCLES = 500_000_000


class Program:
    def __init__(self, device):
        self.device, self.is_gpu = device, device.type == "cuda"
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Otherwise torch wraps the works, which then have no state and no source.
        self.has_own_works = isinstance(dist.group.WORLD, weftlink.torch.backend.Group)

    def busy(self, cycles=BUSY_CYCLES):
        """Keeps the current stream busy."""
        if self.is_gpu:
            torch.cuda._sleep(cycles)

    def synchronize(self):
        if self.is_gpu:
            torch.cuda.synchronize()

    def total(self, values):
        return float(sum(values(rank) for rank in range(self.size)))


def collectives(program):
    for case in torch_cases.CASES:
        if not program.has_own_works and case in (torch_cases.objects, torch_cases.short_forms):
            # Torch refuses a monitored barrier, and short forms, on a group of several backends.
            continue
        case(program.rank, program.size)
        yield f"{case.__name__.replace('_', ' ')}: {case.__doc__ or 'every type'}".splitlines()[0]


def streams(program):
    """Calls are ordered with the work of the current stream, whichever that is."""
    others = [torch.cuda.Stream(), torch.cuda.Stream()] if program.is_gpu else [None, None]
    for number in range(24):
        with torch.cuda.stream(others[number % 2]):
            tensor, beside = torch.zeros(1 << 18), torch.ones(1 << 18)
            program.busy(1_000_000)
            tensor += program.rank + number
            work = dist.all_reduce(tensor, async_op=number % 3 != 0)
            beside *= 3
            if work is not None:
                work.wait()
            tensor *= 2
            wanted = 2 * program.total(lambda rank: rank + number)
            assert (tensor == wanted).all() and (beside == 3).all(), f"round {number}"
    yield "asynchronous and blocking calls are ordered with the current stream"
    tensor = torch.full((1000,), float(program.rank))
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0] * 2)
    assert (future.wait() == 2 * program.total(lambda rank: rank)).all()
    yield "callbacks of a future see the result"


def waits(program):
    """The host does not wait."""
    if not program.is_gpu:
        return
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    for blocking in (True, False):
        program.synchronize()
        began = time.perf_counter()
        program.busy()
        work = dist.all_reduce(tensor, async_op=not blocking)
        if work is not None:
            work.wait()
            assert not program.has_own_works or not work.is_completed()
        took, event = time.perf_counter() - began, torch.cuda.current_stream().record_event()
        assert not event.query() and took < 0.1, f"the host waited {took} s"
        program.synchronize()
        assert work is None or not program.has_own_works or (work.is_completed() and work.is_success())
    yield "neither a call nor a wait blocks the host"


def lifetime(program):
    """Memory of tensors that the program has dropped is not used for others before the call has ended."""
    for number in range(10):
        length = (1 + number % 3) << 18
        output = torch.empty(program.size * length)
        source = torch.full((length,), float(program.rank + number))
        program.busy(20_000_000)
        work = dist.all_gather_into_tensor(output, source, async_op=True)
        if number % 2:
            source, work = None, None
        source = None
        poison = [torch.full((length,), -1.0) for _ in range(4)]
        dist.barrier() if work is None else work.wait()
        wanted = torch.arange(program.size).repeat_interleave(length) + number
        assert (output == wanted).all(), f"round {number}"
        del poison
    yield "a dropped tensor is read before its memory is used again"


def messages(program):
    rank, size = program.rank, program.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for length in (1, 1000, 1 << 19):
        sent, got = torch.full((length, 2), float(rank)).t(), torch.empty(2, length)
        program.busy(1_000_000)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)])
        [work.wait() for work in works]
        assert (got == before).all(), f"{length}"
    if size > 1 and program.has_own_works:
        for sender in range(size):
            tensor = torch.full((7,), float(rank))
            if rank == sender:
                dist.send(tensor, after, tag=5)
            elif rank == (sender + 1) % size:
                source = dist.recv(tensor, tag=5)
                assert source == sender and (tensor == sender).all()
        yield "blocking messages, and from any source"
    yield "messages in a ring"


def graphs(program):
    if not program.is_gpu:
        return
    tensor, gathered = torch.zeros(1 << 16), torch.empty(program.size << 16)
    for _ in range(2):
        dist.all_reduce(tensor)
        dist.all_gather_into_tensor(gathered, tensor)
    program.synchronize()
    graph, refused = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        tensor.fill_(program.rank + 1)
        dist.all_reduce(tensor)
        work = dist.all_gather_into_tensor(gathered, tensor, async_op=True)
        tensor2 = tensor * 2
        work.wait()
        gathered += 1
        try:
            dist.all_reduce(torch.zeros(12345))
        except UsageError as error:
            refused = str(error)
    assert refused and "before the capture" in refused, refused
    total = program.total(lambda rank: rank + 1)
    for _ in range(5):
        gathered.zero_()
        graph.replay()
        assert (gathered == total + 1).all() and (tensor2 == 2 * total).all()
    yield "a captured graph replays; a call that was not prepared is refused"


def symmetric(program):
    tensor = weftlink.torch.empty(1000, 3, dtype=torch.float32, symmetric=True, device=program.device)
    assert tensor.device.type == program.device.type and (tensor == 0).all()
    for number in range(3):
        tensor.fill_(program.rank + number)
        dist.all_reduce(tensor)
        assert (tensor == program.total(lambda rank: rank + number)).all()
    assert weftlink.torch.is_symmetric(tensor[3:5])
    yield "symmetric tensors"


def records(program):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(4))
    assert any(event.key == "weft:all_reduce" for event in profile.key_averages())
    program.synchronize()
    last = [entry for entry in weftlink.torch.flight_record()["entries"] if entry["profiling_name"] == "weft:all_reduce"][-1]
    assert (last["state"], last["input_sizes"], last["input_dtypes"]) == ("completed", [[4]], ["Float"]), last
    yield "the profiler and the flight record show calls"


def refusals(program):
    """Wrong calls fail on all ranks, and the group can still be used."""
    counts = [1] * program.size if program.rank else [2] * program.size
    calls = [lambda: dist.all_gather([torch.empty(3)] * program.size, torch.empty(2))]
    if program.is_gpu:
        calls.append(lambda: dist.all_to_all_single(torch.empty(program.size), torch.empty(sum(counts)), [1] * program.size, counts))
        calls.append(lambda: dist.all_gather_into_tensor(torch.empty(program.size, device="cpu"), torch.empty(1)))
        calls.append(lambda: dist.all_reduce(torch.zeros(3, dtype=torch.complex64), op=dist.ReduceOp.MAX))
    for call in calls:
        try:
            call()
            raise AssertionError("a wrong call succeeded")
        except (UsageError, ValueError):
            # Some, torch refuses before Weft does.
            pass
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert (tensor == program.size).all()
    yield "wrong calls are refused"


def failures(program):
    if program.size == 1:
        return
    for what in ("timeout", "abort"):
        # The first call on a GPU joins the ranks and loads a plan within it.
        limit_s = 60 if what == "abort" else 5 if program.is_gpu else 1
        group = dist.new_group(timeout=timedelta(seconds=limit_s))
        dist.all_reduce(torch.ones(9), group=group)
        program.synchronize()
        dist.barrier()
        if program.rank == 0:
            began = time.monotonic()
            error = failure_of(program, group)
            assert error is not None and "rank" in str(error), error
            assert time.monotonic() - began < 20
        elif what == "abort":
            threading.Event().wait(0.5)
            group.abort()
        # The others make no call in the group.
        dist.barrier()
        dist.destroy_process_group(group)
    yield "timeouts and aborts end calls, and the group can be destroyed"


def failure_of(program, group):
    """The error of calls that other ranks do not make, or no longer."""
    try:
        for _ in range(2):
            work = dist.all_reduce(torch.ones(9), group=group, async_op=True)
            work.wait()
            program.synchronize()
    except (Error, RuntimeError) as error:
        return error
    return None


def training(program):
    for line, _ in torch_training.check(program.device):
        yield line


def killed(program):
    """The last rank dies between two calls; the others name it."""
    tensor, last = torch.ones(100), program.size - 1
    dist.all_reduce(tensor)
    program.synchronize()
    dist.barrier()
    if program.rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    error = failure_of(program, dist.group.WORLD)
    assert error is not None and f"rank {last}" in str(error), error
    yield f"rank {last} died, and the error names it"


CHECKS = [collectives, streams, waits, lifetime, messages, graphs, symmetric, records, refusals, training, failures]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--backend", default="weft")
    parser.add_argument("--all-types", action="store_true", help="reduce all types on a GPU, which takes minutes at first")
    parser.add_argument("--killed", action="store_true", help="only let the last rank die")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", torch.cuda.current_device())
        if not options.all_types:
            torch_cases.TYPES = FEW_TYPES
    torch.set_num_threads(1)
    torch.set_default_device(device)
    dist.init_process_group(options.backend, timeout=timedelta(seconds=60))
    program = Program(device)
    for check in [killed] if options.killed else CHECKS:
        for line in check(program):
            if program.rank == 0:
                print(f"{check.__name__}: {line}", flush=True)
    if options.killed:
        # Nothing to leave: the group has failed.
        os._exit(0)
    dist.destroy_process_group()
    if program.rank == 0:
        print(f"all checks passed: {program.size} ranks on {options.device}", flush=True)


if __name__ == "__main__":
    main()
