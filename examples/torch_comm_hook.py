"""Two communication hooks for DistributedDataParallel: Weft's own, and one to start from.

    torchrun --nproc-per-node 2 examples/torch_comm_hook.py
    weft run -n 2 -- python examples/torch_comm_hook.py

Weft's hook keeps the gradient buckets in symmetric memory, which all ranks share, and reduces them in place. The other
hook sends gradients as bfloat16, which halves the bytes.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weftlink.torch

STEPS = 8


def bfloat16_hook(group, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over the ranks, as bfloat16."""
    small = bucket.buffer().to(torch.bfloat16)
    sent = dist.all_reduce(small, op=dist.ReduceOp.AVG, group=group, async_op=True).get_future()

    def back(future):
        return bucket.buffer().copy_(future.value()[0])

    return sent.then(back)


def train(state, hook):
    torch.manual_seed(0)
    # Gradients are views of the buckets, so they move to symmetric memory with them.
    model = DistributedDataParallel(nn.Linear(256, 256), gradient_as_bucket_view=True)
    model.register_comm_hook(state, hook)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        model.zero_grad(set_to_none=False)
        model(torch.randn(16, 256, generator=generator)).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def main():
    dist.init_process_group("weft")
    shared = train(weftlink.torch.SymmetricState(), weftlink.torch.symmetric_allreduce_hook)
    small = train(None, bfloat16_hook)
    if dist.get_rank() == 0:
        moved = all(weftlink.torch.is_symmetric(gradient) for gradient in shared)
        error = max((one - other).abs().max().item() for one, other in zip(shared, small, strict=True))
        largest = max(gradient.abs().max().item() for gradient in shared)
        print(f"gradients in symmetric memory: {moved}")
        print(f"error of bfloat16: {error / largest:.1%} of the largest gradient")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
