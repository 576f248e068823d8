"""Training with torch.distributed on Weft, compared with one process or with Gloo."""

import copy
import tempfile
import unittest

import torch
import torch._dynamo  # otherwise every rank imports it lazily
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import weftlink.torch
from ranks import run

STEPS, BATCH, WIDTH = 4, 12, 8


class Model(nn.Module):
    """Two layers, and one that is used every second step if asked for."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.sometimes = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, data, use_all=True):
        out = self.second(torch.tanh(self.first(data)))
        return self.sometimes(out) if use_all else out


def batches(steps=STEPS):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(BATCH, WIDTH, generator=generator) for _ in range(steps)]


def train(model, data, optimizer=None, use_all=lambda step: True):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, batch in enumerate(data):
        optimizer.zero_grad()
        model(batch, use_all(step)).square().mean().backward()
        optimizer.step()


def alone(use_all=lambda step: True, optimizer=None):
    """The result of one process with all the data."""
    model = Model()
    train(model, batches(), optimizer and optimizer(model.parameters()), use_all)
    return model


def shares(rank, size, data=None):
    return [batch.chunk(size)[rank] for batch in data or batches()]


def alike(found, wanted, what, tolerance=1e-5):
    for (name, mine), theirs in zip(found.named_parameters(), wanted.parameters(), strict=True):
        mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}, {name}: {text}")


def every_second(step):
    return step % 2 == 1


def ddp(rank, size):
    wanted = alone()
    ways = {
        "plain": {},
        "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
        "static graph": {"static_graph": True},
        "a group of its own": {"process_group": dist.new_group()},
    }
    for name, arguments in ways.items():
        model = DistributedDataParallel(Model(), **arguments)
        train(model, shares(rank, size))
        alike(model.module, wanted, name)
    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    train(model, shares(rank, size), use_all=every_second)
    alike(model.module, alone(every_second), "unused parameters")


def gradients_gathered(rank, size):
    """Steps without a reduction add up."""
    model = DistributedDataParallel(Model())
    data = shares(rank, size)
    with model.no_sync():
        model(data[0]).square().mean().backward()
    model(data[1]).square().mean().backward()
    wanted = Model()
    for batch in batches()[:2]:
        wanted(batch).square().mean().backward()
    for mine, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def hooks(rank, size):
    compressed = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    for name, hook in compressed.items():
        model = DistributedDataParallel(Model())
        model.register_comm_hook(None, hook)
        train(model, shares(rank, size))
        alike(model.module, alone(), name, tolerance=2e-2)


def power_sgd(rank, size):
    """Its callbacks make calls of their own and wait for them."""
    model = DistributedDataParallel(Model())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, shares(rank, size))
    same_on_all(model.module, "PowerSGD")


def same_on_all(model, what):
    for name, parameter in model.named_parameters():
        of_all = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(of_all, parameter.detach())
        assert all(torch.equal(other, of_all[0]) for other in of_all), f"{what}: ranks have different {name}"


def symmetric(rank, size):
    """Buckets and gradients move to symmetric memory, and gradients equal those of plain DDP."""
    plain, hooked = (DistributedDataParallel(Model(), gradient_as_bucket_view=True, bucket_cap_mb=0.001) for _ in range(2))
    hooked.register_comm_hook(weftlink.torch.SymmetricState(), weftlink.torch.symmetric_allreduce_hook)
    for step, batch in enumerate(shares(rank, size, batches(6))):
        for model in (plain, hooked):
            model.zero_grad(set_to_none=False)
            model(batch).square().mean().backward()
        for mine, theirs in zip(hooked.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
            assert step < 3 or weftlink.torch.is_symmetric(mine.grad), f"a gradient is elsewhere in step {step}"
            assert not weftlink.torch.is_symmetric(theirs.grad)
    # With gradients that the optimizer frees and allocates again.
    model = DistributedDataParallel(Model(), gradient_as_bucket_view=True)
    model.register_comm_hook(weftlink.torch.SymmetricState(), weftlink.torch.symmetric_allreduce_hook)
    train(model, shares(rank, size))
    alike(model.module, alone(), "symmetric")


def join(rank, size):
    """Ranks run out of data at different times."""
    gloo = dist.new_group(backend="gloo")
    ends = []
    for group in (None, gloo):
        model = DistributedDataParallel(Model(), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):
            train(model, shares(rank, size)[: STEPS - rank], optimizer)
        ends.append(model.module)
    alike(ends[0], ends[1], "join")


def zero(rank, size):
    model = DistributedDataParallel(Model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, shares(rank, size), optimizer)
    alike(model.module, alone(optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01)), "ZeRO")
    optimizer.consolidate_state_dict(to=0)
    assert rank or len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


def sharded(group=None):
    model = Model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if group is None else group
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2(rank, size):
    model = sharded()
    train(model, shares(rank, size))
    alike(model, alone(), "FSDP2")


def saved(rank, size, folder):
    model = sharded()
    train(model, shares(rank, size))
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    fresh = sharded()
    state = {"model": fresh.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    fresh.load_state_dict(state["model"])
    alike(fresh, alone(), "checkpoint")


def tensor_parallel(rank, size):
    mesh, model, wanted = init_device_mesh("cpu", (size,)), Model(), Model()
    parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    data = batches()[0]
    mine, theirs = model(data, False), wanted(data, False)
    torch.testing.assert_close(mine, theirs)
    mine.square().mean().backward()
    theirs.square().mean().backward()
    torch.testing.assert_close(model.first.weight.grad.full_tensor(), wanted.first.weight.grad)
    torch.testing.assert_close(model.second.weight.grad.full_tensor(), wanted.second.weight.grad)


def pipeline(rank, size):
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(size)]
    whole, data = copy.deepcopy(nn.Sequential(*layers)), batches()[0]
    dist.broadcast_object_list(weights := [whole.state_dict()], src=0)
    whole.load_state_dict(weights[0])
    theirs = whole(data)
    loss = lambda out, target: (out - target).square().mean()
    loss(theirs, data).backward()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        part = copy.deepcopy(whole[rank])
        part.zero_grad()
        stage = PipelineStage(part, rank, size, torch.device("cpu"))
        steps = schedule(stage, n_microbatches=4, loss_fn=loss)
        if rank == 0:
            steps.step(data)
        elif rank == size - 1:
            torch.testing.assert_close(steps.step(target=data), theirs)
        else:
            steps.step()
        torch.testing.assert_close(part[0].weight.grad, whole[rank][0].weight.grad)


def profiled(rank, size):
    model = DistributedDataParallel(Model())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(model, shares(rank, size)[:1])
        dist.broadcast(torch.ones(3), 0)
        dist.all_gather([torch.ones(3) for _ in range(size)], torch.ones(3))
    names = {event.key for event in profile.key_averages()}
    assert {"weft:all_reduce", "weft:broadcast", "weft:all_gather"} <= names, sorted(names)


def two(rank, size, folder):
    for case in (ddp, gradients_gathered, hooks, power_sgd, symmetric, join, zero, fsdp2, tensor_parallel, pipeline, profiled):
        case(rank, size)
    saved(rank, size, folder)


def more(rank, size):
    for case in (ddp, symmetric, fsdp2):
        case(rank, size)


class Training(unittest.TestCase):
    def test_all_of_it_on_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            run(2, two, folder)

    def test_three_and_four_ranks(self):
        for size in (3, 4):
            with self.subTest(ranks=size):
                run(size, more)


if __name__ == "__main__":
    unittest.main()
