"""Every rank gets the errors of a group soon, and they name the rank that caused them."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from datetime import timedelta

import torch
import torch._dynamo  # otherwise every rank imports it lazily
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import weftlink.torch
from ranks import run
from weftlink import errors

SECONDS = 30
SOON = 2.0


def store():
    return dist.distributed_c10d._get_default_store()


@contextlib.contextmanager
def raises(kind, *texts, late=()):
    try:
        yield
    except kind as error:
        if late:
            named = [blame.rank for blame in error.blamed if blame.kind == "late"]
            assert named == list(late), f"{error!r} blames {error.blamed}"
        missing = [text for text in texts if not re.search(text, str(error))]
        assert not missing, f"{error!r} does not say {missing}"
    else:
        raise AssertionError(f"{kind} was not raised")


def timeout_of_zero(rank, size):
    """A timeout of zero has passed: a rank that is not there is reported at once."""
    group = dist.new_group()
    if rank == 0:
        with raises(errors.DeadlineError, "Rank 0 timed out in monitoredBarrier after 0 ms", "Rank 1 failed to pass monitoredBarrier"):
            dist.monitored_barrier(group=group, timeout=timedelta(0))
        with raises(dist.DistBackendError, "Ranks 1 failed to pass monitoredBarrier in 0 ms", late=[1]):
            dist.monitored_barrier(group=group, timeout=timedelta(0), wait_all_ranks=True)
        options = dist.BarrierOptions()
        options.timeout = timedelta(0)
        with raises(errors.DeadlineError):
            group.barrier(options).wait()
        store().set("timeout of zero", "1")
    else:
        store().wait(["timeout of zero"])


def secrets_differ(rank, size):
    """The secret of the job is part of the group's: a process that only knows the secret in the store cannot join."""
    os.environ["WEFT_SECRET"] = "the secret of one"
    group = dist.new_group()
    dist.all_reduce(tensor := torch.ones(3), group=group)
    assert torch.equal(tensor, torch.full((3,), float(size)))
    os.environ["WEFT_SECRET"] = f"the secret of {rank}"
    with raises(errors.Error, "secret|timed out"):
        dist.new_group(timeout=timedelta(seconds=2)).barrier().wait()
    del os.environ["WEFT_SECRET"]


def rank_is_missing(rank, size):
    """A rank makes no call: the errors of the others name it."""
    last = size - 1
    if rank != last:
        group = dist.group.WORLD
        reached = "" if rank == 0 else f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting"
        failed = f"Rank {last} failed to pass monitoredBarrier in 300 ms"
        with raises(errors.DeadlineError, reached, failed, "^monitored_barrier: ", late=[last]):
            dist.monitored_barrier(timeout=timedelta(seconds=0.3))
        store().add("timed out", 1)
    else:
        while store().add("timed out", 0) < last:
            time.sleep(0.01)
        # Its own call of the barrier that the others have left.
        with contextlib.suppress(errors.DeadlineError):
            dist.monitored_barrier(timeout=timedelta(seconds=0.3))
    # The group still works.
    dist.all_reduce(tensor := torch.ones(3))
    assert torch.equal(tensor, torch.full((3,), float(size)))
    group = dist.new_group()
    if rank != last:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.5)
        with raises(errors.DeadlineError, f"rank {last}", "all_reduce"):
            group.allreduce([torch.ones(3)], options).wait()
        assert weftlink.torch.last_error().peer == last
        with raises(errors.Error):
            dist.all_reduce(torch.ones(3), group=group)
        store().set(f"{rank} is done", "1")
    else:
        store().wait([f"{other} is done" for other in range(last)])


def times_out(rank, size):
    """A timeout raises ``DistBackendError`` with gloo's words, whichever call it ends, and names the late rank."""
    last = size - 1

    def all_reduce(group, limit):
        options = dist.AllreduceOptions()
        options.timeout = limit
        group.allreduce([torch.ones(3)], options).wait()

    def barrier(group, limit):
        options = dist.BarrierOptions()
        options.timeout = limit
        group.barrier(options).wait()

    def recv(group, limit):
        group.set_timeout(limit)
        dist.recv(torch.ones(3), last, group=group)

    for call, limit_ms in ((all_reduce, 300), (barrier, 1), (recv, 300)):
        group = dist.new_group()
        if rank == 0:
            # The second text is what PyTorch's own test of a barrier looks for.
            texts = (f"^{call.__name__}: Timed out waiting {limit_ms}ms: ", " (Timed out|closed|timeout) ", rf"rank {last}\b")
            with raises(dist.DistBackendError, *texts, late=[last]):
                call(group, timedelta(milliseconds=limit_ms))
            late = weftlink.torch.last_error()
            assert isinstance(late, errors.DeadlineError) and isinstance(late, TimeoutError), repr(late)
            store().set(f"{call.__name__} timed out", "1")
        else:
            store().wait([f"{call.__name__} timed out"])
        group.abort()


def wait_times_out(rank, size):
    """``Work.wait(timeout)`` raises ``DistBackendError``, and the call continues."""
    group = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(tensor := torch.ones(3), group=group, async_op=True)
        with raises(dist.DistBackendError, "Operation timed out!", "Timed out waiting 100ms for all_reduce"):
            work.wait(timedelta(seconds=0.1))
        store().set("the wait timed out", "1")
        work.wait()
    else:
        store().wait(["the wait timed out"])
        dist.all_reduce(tensor := torch.ones(3), group=group)
    assert torch.equal(tensor, torch.full((3,), float(size)))


def peer_dies(rank, size):
    """A peer's death raises ``DistBackendError`` with gloo's words, and names the peer."""
    last = size - 1
    groups = [dist.new_group() for _ in range(2)]
    [dist.barrier(group=group) for group in groups]
    pids = [None] * size
    dist.all_gather_object(pids, os.getpid())
    if rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    calls = (
        ("all_reduce", lambda: dist.all_reduce(torch.ones(3))),
        ("barrier", lambda: dist.barrier(group=groups[0])),
        ("recv", lambda: dist.recv(torch.ones(3), last, group=groups[1])),
    )
    for name, call in calls:
        with raises(dist.DistBackendError, f"^{name}: Connection closed by peer: ", rf"rank {last} \(pid {pids[last]}\)"):
            call()
        died = weftlink.torch.last_error()
        assert isinstance(died, errors.DiedError), repr(died)
        assert [(blame.rank, blame.kind, blame.pid) for blame in died.blamed] == [(last, "died", pids[last])], died.blamed
    with raises(dist.DistBackendError, "^all_reduce: Connection closed by peer: "):
        dist.all_reduce(torch.ones(3))


def mismatches(rank, size):
    """The error for different calls shows both."""
    group = dist.new_group()
    with raises(errors.MismatchError, "1000", "999"):
        dist.all_reduce(torch.ones(1000 - rank % 2), group=group)
    group = dist.new_group()
    with raises(errors.MismatchError, "(?i)all.?reduce", "(?i)broadcast"):
        work = dist.broadcast(torch.ones(4), 0, group=group, async_op=True) if rank else None
        work = work or dist.all_reduce(torch.ones(4), group=group, async_op=True)
        future = work.get_future()
        with raises(Exception, "MismatchError", "(?i)broadcast"):
            future.wait()
        assert isinstance(work.exception(), errors.MismatchError) and not work.is_success()
        work.wait()
    splits_disagree(rank, size)
    types_differ(rank)
    group = dist.new_group()
    with raises(errors.UsageError, "split sizes"):
        dist.all_to_all_single(torch.ones(4), torch.ones(4), [1] * size, [9] * size, group=group)
    uneven = [torch.ones(3 + other) for other in range(size)]
    with raises(errors.UsageError, f"tensor {rank} of the list", f"has {3 + rank} elements, and the other tensor 9"):
        dist.all_gather(uneven, torch.ones(9), group=group)
    with raises(errors.UsageError, "reduce_scatter", "the other tensor 9"):
        dist.reduce_scatter(torch.ones(9), uneven, group=group)
    with raises(errors.UsageError, f"the list has 1 tensors, and the group {size} ranks"):
        dist.all_gather([torch.ones(3)], torch.ones(3), group=group)
    with raises(errors.UsageError, "the tag is -1"):
        dist.isend(torch.ones(3), 0, tag=-1, group=group)
    # A call with wrong arguments does not break the group.
    dist.all_reduce(torch.ones(3), group=group)


def splits_disagree(rank, size):
    """Rank 0 sends more or less to rank 1 than that expects: all errors show both lengths, and nothing is written."""
    for sends, expects in ((10, 20), (20, 10), (30_000, 40_000)):
        group = dist.new_group()
        even = torch.full((2048 * size,), 77, dtype=torch.int32)
        dist.all_to_all_single(torch.empty_like(even), even, group=group)
        given, gotten = [5] * size, [5] * size
        if rank == 0:
            given[1] = sends
        if rank == 1:
            gotten[0] = expects
        source = torch.full((sum(given),), rank, dtype=torch.int32)
        target = torch.full((sum(gotten),), -1, dtype=torch.int32)
        with raises(errors.Error, f"sending {sends} i32 to rank 1", f"expecting {expects} i32 from rank 0"):
            dist.all_to_all_single(target, source, gotten, given, group=group)
        assert (target == -1).all(), target
        with raises(errors.Error):
            dist.barrier(group=group)


def types_differ(rank):
    """Types are compared also where elements are only moved. The root may return before another rank notices."""
    group = dist.new_group()
    with raises(errors.Error, "4 f32", "4 i32"):
        dist.broadcast(torch.ones(4, dtype=torch.float32 if rank else torch.int32), 0, group=group)
        dist.barrier(group=group)
    group = dist.new_group()
    if rank == 0:
        dist.send(torch.ones(4, dtype=torch.int32), 1, group=group)
    if rank == 1:
        with raises(errors.MismatchError, "send of 4 i32", "receive of 4 f32"):
            dist.recv(torch.ones(4), 0, group=group)
    # Only the message failed.
    dist.barrier(group=group)


def aborted(rank, size):
    """Another thread aborts the group while this one waits."""
    group = dist.new_group()
    if rank == 0:
        threading.Timer(0.2, group.abort).start()
        with raises(errors.Error, "abort", "^(?!.*closed by peer)"):
            dist.all_reduce(torch.ones(3), group=group)
        store().set("aborted", "1")
    else:
        store().wait(["aborted"])
        with raises(errors.Error, "abort", "^all_reduce: Connection closed by peer: "):
            dist.all_reduce(torch.ones(3), group=group)


def interrupted(rank, size):
    """Ctrl-C ends a wait."""
    groups = [dist.new_group() for _ in range(4)]
    # The first call of a group waits in the bootstrap, later calls in shared memory.
    [dist.all_reduce(torch.ones(3), group=group) for group in groups[1:]]
    waits = (
        lambda group: dist.all_reduce(torch.ones(3), group=group),
        lambda group: dist.all_reduce(torch.ones(3), group=group),
        lambda group: dist.all_reduce(torch.ones(3), group=group, async_op=True).wait(),
        lambda group: dist.recv(torch.ones(3), 1, group=group),
    )
    if rank == 0:
        for wait, group in zip(waits, groups, strict=True):
            sent = []

            def interrupt(sent=sent):
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            threading.Timer(0.2, interrupt).start()
            with raises(KeyboardInterrupt):
                wait(group)
            assert time.monotonic() - sent[0] < SOON
        store().set("all were interrupted", "1")
    else:
        store().wait(["all were interrupted"])
    [group.abort() for group in groups]


def handlers_call(rank, size):
    """A signal handler that makes a call while its thread is in a call gets a ``UsageError``."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    if rank == 0:
        signal.signal(signal.SIGUSR1, lambda *_: dist.all_reduce(torch.ones(3), group=group))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with raises(errors.UsageError, "handler"):
            dist.barrier(group=group)
        store().set("the handler ran", "1")
    else:
        store().wait(["the handler ran"])
    group.abort()


def handlers_abort(rank, size):
    """A signal handler aborts the group while its thread is in a call, also in the first one."""
    for made_before in (False, True):
        group = dist.new_group()
        if made_before:
            dist.all_reduce(torch.ones(3), group=group)
        if rank == 0:
            signal.signal(signal.SIGTERM, lambda *_, group=group: group.abort())
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            with raises(errors.Error, "abort"):
                dist.all_reduce(torch.ones(3), group=group)
            store().set(f"the handler has aborted {made_before}", "1")
        else:
            store().wait([f"the handler has aborted {made_before}"])
            with raises(errors.Error, "abort"):
                dist.all_reduce(torch.ones(3), group=group)


def two(rank, size):
    cases = (timeout_of_zero, secrets_differ, rank_is_missing, times_out, wait_times_out, mismatches)
    for case in (*cases, aborted, interrupted, handlers_call, handlers_abort):
        case(rank, size)


def three(rank, size):
    for case in (rank_is_missing, mismatches):
        case(rank, size)


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))


def killed(rank, size, kind):
    """A rank is killed during training: the errors of all others name it, soon."""
    if kind == "fsdp2":
        trained = model()
        [fully_shard(layer) for layer in trained if list(layer.parameters())]
        fully_shard(trained)
    else:
        trained = DistributedDataParallel(model(), gradient_as_bucket_view=True, bucket_cap_mb=0.002)
        if kind == "hook":
            trained.register_comm_hook(weftlink.torch.SymmetricState(), weftlink.torch.symmetric_allreduce_hook)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    victim, exit_report, error = size - 1, f"{os.environ['WEFT_TEST_FOLDER']}/{kind}{size}", None
    try:
        for step in range(1000):
            if rank == victim and step == 5:
                with open(exit_report, "w", encoding="ascii") as file:
                    file.write(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            trained(torch.randn(8, 16)).square().sum().backward()
            optimizer.step()
    except Exception as caught:
        error = caught
    with open(exit_report, encoding="ascii") as file:
        took = time.monotonic() - float(file.read())
    assert error is not None, "training continued without a rank"
    assert took < SOON, f"it took {took:.1f} s"
    # Torch's C++ code turns every error into a RuntimeError with its text.
    assert isinstance(error, errors.DiedError) or "DiedError: all_reduce: " in str(error), repr(error)
    assert f"rank {victim} (pid" in str(error), repr(error)
    died = weftlink.torch.last_error()
    assert isinstance(died, errors.DiedError) and died.peer == victim and died.rank == rank, repr(died)


def skips_a_call(rank, size, folder):
    """One rank skips a call. The ranks that time out write their flight records; that rank dumps its own."""
    os.environ |= {"TORCH_FR_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_"}
    dist.all_reduce(torch.ones(4))
    dist.barrier()
    if rank == 1:
        store().wait([f"{other} timed out" for other in (0, 2)])
        weftlink.torch.dump_flight_record()
        return
    with raises(errors.DeadlineError, "rank 1"):
        dist.all_reduce(torch.ones(7))
    assert os.path.exists(f"{folder}/rank_{rank}")
    store().set(f"{rank} timed out", "1")


# A rank that ends without destroying its group, with or without an exception.
ENDS = """
import os, sys, time, torch, torch.distributed as dist, weftlink.torch
rank, folder, how = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("weft", init_method=f"file://{folder}/{how}", rank=rank, world_size=2)
if rank == 0:
    dist.send(torch.full((3,), 7.0), 1)
    if how == "fails":
        raise ValueError("out of luck")
else:
    while not os.path.exists(f"{folder}/ended"):
        time.sleep(0.01)
    if how == "returns":
        dist.recv(tensor := torch.zeros(3), 0)
        print(tensor.tolist())
    else:
        dist.all_reduce(torch.ones(3))
"""


class Faults(unittest.TestCase):
    def test_a_program_leaves_its_group_when_it_ends(self):
        for how, wanted in (("returns", "[7.0, 7.0, 7.0]"), ("fails", "rank 0 aborted: ValueError: out of luck")):
            with self.subTest(how), tempfile.TemporaryDirectory() as folder:
                words = [sys.executable, "-W", "ignore", "-c", ENDS]
                start = lambda rank: subprocess.Popen([*words, str(rank), folder, how], stdout=-1, stderr=-2, text=True)  # noqa: E731
                with start(0) as first, start(1) as second:
                    first.communicate(timeout=60)
                    pathlib.Path(folder, "ended").touch()
                    self.assertIn(wanted, second.communicate(timeout=60)[0])

    def test_two_ranks(self):
        run(2, two)

    def test_three_ranks(self):
        run(3, three)

    def test_a_peer_dies(self):
        for size in (2, 3):
            with self.subTest(ranks=size):
                run(size, peer_dies, may_die=(size - 1,))

    def test_a_rank_is_killed_in_training(self):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["WEFT_TEST_FOLDER"] = folder
            for size, kind in ((2, "ddp"), (4, "ddp"), (2, "fsdp2"), (4, "fsdp2"), (2, "hook")):
                with self.subTest(ranks=size, kind=kind):
                    run(size, killed, kind, may_die=(size - 1,))

    def test_the_flight_record_names_the_rank_that_skipped_a_call(self):
        with tempfile.TemporaryDirectory() as folder:
            run(3, skips_a_call, folder, timeout=0.5)
            read = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "rank_", folder]
            printed = subprocess.run(read, capture_output=True, text=True, check=True, timeout=60)
            self.assertIn("missing ranks: {1}", printed.stdout + printed.stderr)
            self.assertIn("weft:all_reduce", printed.stdout + printed.stderr)


if __name__ == "__main__":
    unittest.main()
