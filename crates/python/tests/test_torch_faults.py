"""What goes wrong on Weft is told to every rank, soon, and names who is to blame."""

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
import torch._dynamo  # imported by and by otherwise, in every rank anew
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
        raise AssertionError(f"nothing was raised, where {kind} was due")


def has_no_time(rank, size):
    """A timeout of zero is one that has passed: who is not there is missed at once, and who is there is not."""
    group = dist.new_group()
    if rank == 0:
        with raises(errors.DeadlineError, "rank.* did not reach", "monitored_barrier"):
            dist.monitored_barrier(group=group, timeout=timedelta(0))
        options = dist.BarrierOptions()
        options.timeout = timedelta(0)
        with raises(errors.DeadlineError):
            group.barrier(options).wait()
        store().set("had no time", "1")
    else:
        store().wait(["had no time"])


def secrets_differ(rank, size):
    """A secret of the job is part of the group's: who knows only what the store tells is not let in."""
    os.environ["WEFT_SECRET"] = "the secret of one"
    group = dist.new_group()
    dist.all_reduce(tensor := torch.ones(3), group=group)
    assert torch.equal(tensor, torch.full((3,), float(size)))
    os.environ["WEFT_SECRET"] = f"the secret of {rank}"
    with raises(errors.Error, "secret|timed out"):
        dist.new_group(timeout=timedelta(seconds=2)).barrier().wait()
    del os.environ["WEFT_SECRET"]


def stays_away(rank, size):
    """A rank does not come: the others say which."""
    last = size - 1
    if rank != last:
        group = dist.group.WORLD
        with raises(errors.DeadlineError, rf"rank.* {last} did not reach", "monitored_barrier", late=[last]):
            dist.monitored_barrier(timeout=timedelta(seconds=0.3))
        store().add("gave up", 1)
    else:
        while store().add("gave up", 0) < last:
            time.sleep(0.01)
        # Its own turn at the barrier that the others have left.
        with contextlib.suppress(errors.DeadlineError):
            dist.monitored_barrier(timeout=timedelta(seconds=0.3))
    # The group is none the worse for it.
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
        store().set(f"{rank} is through", "1")
    else:
        store().wait([f"{other} is through" for other in range(last)])


def mismatches(rank, size):
    """Ranks that make different calls are told both."""
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
    with raises(errors.UsageError, f"list of 1 tensors, and there are {size} ranks"):
        dist.all_gather([torch.ones(3)], torch.ones(3), group=group)
    with raises(errors.UsageError, "the tag is -1"):
        dist.isend(torch.ones(3), 0, tag=-1, group=group)
    # A call that was never made has done no harm.
    dist.all_reduce(torch.ones(3), group=group)


def splits_disagree(rank, size):
    """Rank 0 sends more to rank 1 than that expects, or less: all ranks are told both, and nothing has been written."""
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
    """What is only moved has a type as well. The root may be through before another rank has noticed."""
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
    # Only the message has failed.
    dist.barrier(group=group)


def aborted(rank, size):
    """Another thread ends the group while this one waits."""
    group = dist.new_group()
    if rank == 0:
        threading.Timer(0.2, group.abort).start()
        with raises(errors.Error, "abort"):
            dist.all_reduce(torch.ones(3), group=group)
        store().set("it is over", "1")
    else:
        store().wait(["it is over"])
        with raises(errors.Error, "abort"):
            dist.all_reduce(torch.ones(3), group=group)


def interrupted(rank, size):
    """Ctrl-C ends a wait."""
    groups = [dist.new_group() for _ in range(4)]
    # The first call of a group waits elsewhere than the others.
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
    """A signal's handler that makes a call, while the thread it runs on is in one, is told so."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    if rank == 0:
        signal.signal(signal.SIGUSR1, lambda *_: dist.all_reduce(torch.ones(3), group=group))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with raises(errors.UsageError, "handler"):
            dist.barrier(group=group)
        store().set("it was told", "1")
    else:
        store().wait(["it was told"])
    group.abort()


def handlers_abort(rank, size):
    """A signal's handler ends the group, while the thread it runs on is in a call of it: in the first one too."""
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
    for case in (has_no_time, secrets_differ, stays_away, mismatches, aborted, interrupted, handlers_call, handlers_abort):
        case(rank, size)


def three(rank, size):
    for case in (stays_away, mismatches):
        case(rank, size)


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))


def killed(rank, size, kind):
    """A rank is killed in the middle of training: all others name it, soon."""
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
    assert error is not None, "training went on without a rank"
    assert took < SOON, f"it took {took:.1f} s"
    # Torch's C++ parts make a RuntimeError of every error, with its text.
    assert isinstance(error, errors.DiedError) or "DiedError: all_reduce: " in str(error), repr(error)
    assert f"rank {victim} (pid" in str(error), repr(error)
    died = weftlink.torch.last_error()
    assert isinstance(died, errors.DiedError) and died.peer == victim and died.rank == rank, repr(died)


def skips_a_call(rank, size, folder):
    """One rank leaves out a call. Who waits in vain writes the flight record then; the other one is asked for its own."""
    os.environ |= {"TORCH_FR_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_"}
    dist.all_reduce(torch.ones(4))
    dist.barrier()
    if rank == 1:
        store().wait([f"{other} gave up" for other in (0, 2)])
        weftlink.torch.dump_flight_record()
        return
    with raises(errors.DeadlineError, "rank 1"):
        dist.all_reduce(torch.ones(7))
    assert os.path.exists(f"{folder}/rank_{rank}")
    store().set(f"{rank} gave up", "1")


# A rank that ends without destroying its group: well, or not.
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
    def test_a_program_that_ends_has_left(self):
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

    def test_a_rank_is_killed_in_training(self):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["WEFT_TEST_FOLDER"] = folder
            for size, kind in ((2, "ddp"), (4, "ddp"), (2, "fsdp2"), (4, "fsdp2"), (2, "hook")):
                with self.subTest(ranks=size, kind=kind):
                    run(size, killed, kind, may_die=(size - 1,))

    def test_the_flight_record_names_the_rank_that_left_out_a_call(self):
        with tempfile.TemporaryDirectory() as folder:
            run(3, skips_a_call, folder, timeout=0.5)
            read = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "--prefix", "rank_", folder]
            said = subprocess.run(read, capture_output=True, text=True, check=True, timeout=60)
            self.assertIn("missing ranks: {1}", said.stdout + said.stderr)
            self.assertIn("weft:all_reduce", said.stdout + said.stderr)


if __name__ == "__main__":
    unittest.main()
