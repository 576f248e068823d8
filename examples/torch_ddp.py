"""Trains a small model with DistributedDataParallel on Weft.

    torchrun --nproc-per-node 2 examples/torch_ddp.py
    weft run -n 2 -- python examples/torch_ddp.py
    mpirun -n 2 python examples/torch_ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weftlink.torch  # noqa: F401  registers the backend "weft"

STEPS = 20


def main():
    dist.init_process_group("weft")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # Every rank has its own data.
    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        inputs = torch.randn(64, 8, generator=generator)
        loss = (model(inputs).squeeze() - inputs.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # the gradients are averaged over all ranks here
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0 and step % 5 == 4:
            print(f"step {step + 1} of {STEPS} on {size} ranks: loss {mean.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
