"""Futures, messages, several groups, other threads and processes, and torch's other entry points."""

import gc
import os
import threading
import unittest
import weakref
from datetime import timedelta

import torch
import torch._dynamo  # otherwise every rank imports it lazily
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.utils.data import DataLoader, TensorDataset

import weftlink.torch
from ranks import run
from weftlink.torch.backend import Backend, Group

SECONDS = 30


def ones(length=10):
    return torch.ones(length)


def full(size, length=10):
    return torch.full((length,), float(size))


def same(found, wanted):
    assert torch.equal(found, wanted), f"found {found}, wanted {wanted}"


def store():
    return dist.distributed_c10d._get_default_store()


def futures(rank, size):
    """A call returns before the others have made it, and completes its future without a wait."""
    done, results, tensor = threading.Event(), [], ones()
    if rank != 0:
        store().wait(["rank 0 has returned"])
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    if rank == 0:
        assert not work.is_completed() and not future.done()
        future.then(lambda result: results.append(result.value()[0].clone())).then(lambda _: done.set())
        store().set("rank 0 has returned", "1")
        assert done.wait(SECONDS), "the callback did not run"
        same(results[0], full(size))
    same(future.wait()[0], full(size))
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    same(work.result()[0], full(size))
    # A callback that is added after the end runs at once, and its result is passed on.
    assert work.get_future().then(lambda done: done.value()[0].sum().item()).wait() == 10.0 * size
    failing = work.get_future().then(lambda _: 1 // 0)
    try:
        failing.wait()
    except Exception as error:
        assert "ZeroDivisionError" in str(error), error
    else:
        raise AssertionError("a callback's error was lost")


def four_in_flight(rank, size):
    """Two groups are independent: a rank may use them in another order."""
    groups = [dist.new_group(), dist.new_group()]
    tensors = [[ones() * (2 * group + call + 1) for call in range(2)] for group in range(2)]
    order = (0, 1)
    if rank != 0:
        store().wait(["four are in flight"])
        order = (1, 0)
    works = {}
    for group in order:
        for call in range(2):
            works[group, call] = dist.all_reduce(tensors[group][call], group=groups[group], async_op=True)
    if rank == 0:
        assert not any(work.is_completed() for work in works.values())
        store().set("four are in flight", "1")
    for (group, call), work in works.items():
        work.wait()
        same(tensors[group][call], full(size) * (2 * group + call + 1))
    [dist.destroy_process_group(group) for group in groups]


def messages(rank, size):
    peer, mine = 1 - rank, torch.arange(5.0) + 10 * rank
    if rank == 0:
        works = [dist.isend(mine + tag, 1, tag=tag) for tag in (3, 1, 2)]
        [work.wait() for work in works]
    else:
        for tag in (1, 2, 3):
            got = torch.empty(5)
            assert dist.recv(got, 0, tag=tag) == 0
            same(got, torch.arange(5.0) + tag)
    # Both directions at once, more than fits into the buffers.
    large, got = torch.full((1_000_000,), float(rank)), torch.empty(1_000_000)
    sending, receiving = dist.isend(large, peer), dist.irecv(got, peer)
    sending.wait()
    receiving.wait()
    same(got, torch.full((1_000_000,), float(peer)))
    # From any rank, into a tensor that is not contiguous.
    got = torch.zeros(5, 2)
    if rank == 0:
        assert dist.recv(got[:, 1]) == 1
        same(got[:, 1].contiguous(), torch.arange(5.0) + 10)
        work = dist.irecv(torch.empty(5))
        work.wait()
        assert work._source_rank() == 1
    else:
        dist.send(mine, 0)
        dist.send(mine, 0)
    got = torch.empty(5)
    both = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, got, peer)]
    [work.wait() for work in dist.batch_isend_irecv(both)]
    same(got, torch.arange(5.0) + 10 * peer)
    if rank == 0:
        dist.send_object_list([{"some": "thing"}], 1)
    else:
        dist.recv_object_list(received := [None], 0)
        assert received == [{"some": "thing"}], received
    # Torch refuses to send to itself, but the group can.
    group, got = dist.group.WORLD, torch.empty(5)
    sending = group.send([mine], rank, 7)
    group.recv([got], rank, 7).wait()
    sending.wait()
    same(got, mine)


def parts(rank, size):
    """Groups of some ranks, which overlap."""
    members = [[0, 1], [1, 2], [2, 0], [2]]
    groups = [dist.new_group(ranks) for ranks in members]
    for ranks, group in zip(members, groups, strict=True):
        if rank not in ranks:
            continue
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.tensor([float(sum(ranks))]))
        dist.broadcast(tensor.fill_(rank), group=group, src=ranks[-1])
        same(tensor, torch.tensor([float(ranks[-1])]))
    [dist.destroy_process_group(group) for ranks, group in zip(members, groups, strict=True) if rank in ranks]
    before = dist.group.WORLD._get_sequence_number_for_group()
    [dist.all_reduce(ones()) for _ in range(3)]
    assert dist.group.WORLD._get_sequence_number_for_group() == before + 3


def splits(rank, size):
    group = dist.split_group(split_ranks=[[0, 2], [1]])
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.tensor([1.0 if rank == 1 else 2.0]))
    assert dist.get_world_size(group) == (1 if rank == 1 else 2)
    got = [None] * dist.get_world_size(group)
    dist.all_gather_object(got, rank, group=group)
    assert got == ([1] if rank == 1 else [0, 2]), got
    dist.destroy_process_group(group)
    few = dist.split_group(split_ranks=[[1, 2]])
    assert (few is dist.GroupMember.NON_GROUP_MEMBER) == (rank == 0)
    if rank:
        dist.all_reduce(tensor.fill_(1), group=few)
        same(tensor, torch.tensor([2.0]))


def beside(rank, size):
    """A thread runs while another waits, and forked processes do not disturb the group."""
    count, over = [0], threading.Event()

    def counts():
        while not over.is_set():
            count[0] += 1

    if rank == 0:
        other = threading.Thread(target=counts)
        other.start()
        before = count[0]
        store().set("rank 0 counts", "1")
        dist.all_reduce(ones())
        during = count[0] - before
        over.set()
        other.join()
        assert during > 1000, during
    else:
        store().wait(["rank 0 counts"])
        # Rank 0 waits for longer than a thread holds the GIL.
        threading.Event().wait(0.2)
        dist.all_reduce(ones())
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2)
    for (batch,) in loader:
        wanted = batch * size
        work = dist.all_reduce(batch, async_op=True)
        work.wait()
        same(batch, wanted)
    dist.barrier()


def other_entry_points(rank, size):
    """Torch's dispatcher calls the backend, not the group."""
    group = dist.group.WORLD
    same(functional.all_reduce(ones(), "sum", group).wait(), full(size))
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group).wait()
    same(gathered, torch.arange(size).float().repeat_interleave(2))
    same(functional.reduce_scatter_tensor(ones(4 * size), "avg", 0, group).wait(), ones(4))
    exchanged = functional.all_to_all_single(torch.arange(size).float(), None, None, group).wait()
    same(exchanged, torch.full((size,), float(rank)))
    same(functional.broadcast(torch.full((3,), float(rank)), size - 1, group).wait(), torch.full((3,), size - 1.0))
    backend = group._get_backend(torch.device("cpu"))
    assert isinstance(backend, Backend) and backend.name() == "weft", backend
    tensor = ones()
    backend.allreduce([tensor]).wait()
    same(tensor, full(size))
    assert weftlink.torch.can_be_mixed()
    # Several calls as one.
    tensors = [ones(), ones(3)]
    with dist._coalescing_manager(group, async_ops=True) as several:
        [dist.all_reduce(tensor) for tensor in tensors]
    several.wait()
    [same(tensor, full(size, len(tensor))) for tensor in tensors]


def lists(rank, size):
    """Lists of tensors that are not adjacent: one for both sides, and one that the caller changes during the call."""
    native = dist.group.WORLD._native
    for now in (True, False):
        tensors = [ones(3), ones(5)]
        call = native.call("all_reduce", tensors, tensors, op=0, now=now)
        if call is not None:
            call.wait()
        [same(tensor, full(size, len(tensor))) for tensor in tensors]
    tensors = [ones(3), ones(5)]
    if rank > 0:
        store().wait(["changed"])
        native.call("all_reduce", tensors, tensors, op=0, now=True)
        return
    call = native.call("all_reduce", tensors, tensors, op=0, now=False)
    kept = weakref.ref(tensors[0])
    tensors.clear()
    gc.collect()
    assert kept() is not None, "the call did not keep its tensor alive"
    store().set("changed", "1")
    call.wait()


def waits_in_turn(rank, size):
    """A waiting thread runs the call that it waits for, but none after it, which other ranks may start only later."""
    for length in (10, 1 << 20):
        first, second = torch.ones(2 * length)[::2], ones(length)
        one = dist.all_reduce(first, async_op=True)
        other = dist.all_reduce(second, async_op=True) if rank == 0 else None
        one.get_future()
        one.wait()
        if rank == 0:
            [dist.send(ones(1), peer) for peer in range(1, size)]
        else:
            dist.recv(ones(1), 0)
            other = dist.all_reduce(second, async_op=True)
        other.wait()
        same(first, full(size, length))
        same(second, full(size, length))


def destroyed_during_calls(rank, size):
    """Destroying a group waits for calls that other threads wait for."""
    for _ in range(20):
        group, tensor = dist.new_group(), ones()
        work = dist.all_reduce(tensor, group=group, async_op=True)
        waits = threading.Thread(target=work.wait)
        waits.start()
        dist.destroy_process_group(group)
        same(tensor, full(size))
        waits.join()


def by_device(rank, size):
    """A group with a backend for each device type: torch wraps the works."""
    assert isinstance(dist.new_group(backend="cpu:weft"), Group)
    group = dist.new_group(backend="cpu:weft,cuda:gloo")
    assert type(group) is dist.ProcessGroup and isinstance(group._get_backend(torch.device("cpu")), Backend)
    tensor = ones()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    same(tensor, full(size))
    same(work.get_future().wait()[0], full(size))
    outputs = [torch.empty(2) for _ in range(size)]
    dist.all_gather(outputs, torch.full((2,), float(rank)), group=group)
    same(torch.stack(outputs)[:, 0], torch.arange(size).float())
    dist.barrier(group=group)
    dist.monitored_barrier(group=group)
    got = torch.empty(3)
    works = [dist.isend(torch.full((3,), float(rank)), (rank + 1) % size, group=group)]
    works.append(dist.irecv(got, (rank - 1) % size, group=group))
    [work.wait() for work in works]
    same(got, torch.full((3,), float((rank - 1) % size)))
    part = dist.split_group(group, split_ranks=[[0, 1], [2]][: size - 1])
    if rank < 2:
        dist.all_reduce(tensor.fill_(1), group=part)
        same(tensor, full(2))
    dist.destroy_process_group(group)


def with_details(rank, size, store_):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.init_process_group("weft", store=store_, rank=rank, world_size=size, timeout=timedelta(seconds=SECONDS))
    dist.all_reduce(tensor := ones())
    same(tensor, full(size))
    dist.barrier()
    other_entry_points(rank, size)
    dist.destroy_process_group()


def created_and_destroyed(rank, size, store_):
    """Creating and destroying groups in one process leaks no descriptors."""
    opened = []
    for turn in range(20):
        dist.init_process_group("weft", store=store_, rank=rank, world_size=size, timeout=timedelta(seconds=SECONDS))
        dist.all_reduce(tensor := ones())
        same(tensor, full(size))
        dist.destroy_process_group()
        opened.append(len(os.listdir("/proc/self/fd")))
    assert opened[-1] <= opened[4], opened


def two(rank, size):
    for case in (futures, four_in_flight, messages, beside, other_entry_points, lists, waits_in_turn, destroyed_during_calls, by_device):
        case(rank, size)


def three(rank, size):
    for case in (parts, splits, by_device):
        case(rank, size)


class Async(unittest.TestCase):
    def test_two_ranks(self):
        run(2, two)

    def test_parts_of_three_ranks(self):
        run(3, three)

    def test_debug_level_detail(self):
        run(2, with_details, backend=None)

    def test_groups_are_created_and_destroyed(self):
        run(2, created_and_destroyed, backend=None)


if __name__ == "__main__":
    unittest.main()
