"""Trains a small model on all ranks in several ways, compared with one process that has all the data."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
# Sums in another order, over all steps.
TOLERANCE = 1e-4


def check(device, steps=STEPS, width=16):
    """Yields a line, and the losses, for each way to train that is right."""
    train = functools.partial(losses_of, device=device, steps=steps, width=width)
    model = functools.partial(model_on, device, width)
    ways = {"DDP": ddp, "DDP with views": ddp_views, "FSDP2": fsdp2, "tensor parallel": tensor_parallel}
    wanted, _ = train(model(), shares=False)
    for name, way in ways.items():
        losses, parameters = train(way(model(), device), shares=way is not tensor_parallel)
        torch.testing.assert_close(losses, wanted, rtol=0, atol=TOLERANCE, msg=lambda text: f"{name}: {text}")  # noqa: B023
        again, parameters_again = train(way(model(), device), shares=way is not tensor_parallel)
        assert torch.equal(losses, again), f"{name}: losses differ between two runs"
        assert all(map(torch.equal, parameters, parameters_again)), f"{name}: weights differ between two runs"
        yield f"{name}: {steps} steps have the losses of one process; a second run has the same bits", losses


def model_on(device, width):
    torch.manual_seed(3)
    layers = nn.Linear(width, 3 * width // 2), nn.Tanh(), nn.Linear(3 * width // 2, width)
    return nn.Sequential(*layers).to(device)


def losses_of(model, shares, device, steps, width):
    """The losses of all steps, over all ranks, and this rank's parameters."""
    rank, size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator, losses = torch.Generator("cpu").manual_seed(4), []
    for _ in range(steps):
        # Nothing to learn: the loss stays large, so that a difference shows.
        batch, wanted = torch.randn(2, 4 * size, width, generator=generator, device="cpu").to(device)
        if shares:
            batch, wanted = batch.chunk(size)[rank], wanted.chunk(size)[rank]
        loss = (model(batch) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    if shares:
        dist.all_reduce(losses, op=dist.ReduceOp.AVG)
    local = lambda tensor: tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return losses, [local(parameter.detach()).clone() for parameter in model.parameters()]


def ddp(model, device):
    return DistributedDataParallel(model)


def ddp_views(model, device):
    return DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=0.001)


def fsdp2(model, device):
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model, device):
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
