"""Trains a model that is sharded over the ranks (FSDP2) on Weft, and saves it.

    torchrun --nproc-per-node 2 examples/torch_fsdp2.py
    weft run -n 2 -- python examples/torch_fsdp2.py
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import weftlink.torch  # noqa: F401  registers the backend "weft"

STEPS = 20


def main():
    dist.init_process_group("weft")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)  # gathers the weights before use and frees them after
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        inputs = torch.randn(64, 8, generator=generator)
        loss = (model(inputs).squeeze() - inputs.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            print(f"step {step + 1} of {STEPS} on {size} ranks: loss {loss.item():.3f}")
    kept = sum(parameter.to_local().numel() for parameter in model.parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder[0])  # every rank writes its shard
    if rank == 0:
        print(f"rank 0 keeps {kept} of {total} parameters; saved to {folder[0]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
