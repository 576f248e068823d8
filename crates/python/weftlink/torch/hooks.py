"""A communication hook for DistributedDataParallel that moves its buckets to symmetric memory and reduces them there, without a copy.

    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    model.register_comm_hook(SymmetricState(), symmetric_allreduce_hook)

With ``gradient_as_bucket_view=True`` the gradients are views of the buckets and move with them. Without it, DDP copies gradients into its
buckets and back; then the hook cannot move the buckets, and reduces each in place.
"""

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp

from weftlink.torch.symmetric import calls_of, empty, is_symmetric

# DDP rebuilds its buckets once, after the first step.
_SETTLED_AFTER = 2
# A bucket moves in a step in which all ranks have all its gradients. After this many other steps the hook stops trying.
_TRIES_MAX = 16


class SymmetricState:
    """The state of the hook: the group, the number of steps, and how often a bucket could not be moved."""

    def __init__(self, group=None):
        self.group = group
        self.steps = 0
        self.tries = 0


def symmetric_allreduce_hook(state: SymmetricState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over the ranks."""
    buffer = bucket.buffer()
    settled = state.steps >= _SETTLED_AFTER and state.tries < _TRIES_MAX
    if settled and not is_symmetric(buffer, state.group):
        state.tries += not _move(bucket, buffer, state.group)
    if bucket.is_last():
        state.steps += 1
    options = AllreduceOptions()
    options.reduceOp = ReduceOp.AVG
    return calls_of(state.group).allreduce([buffer], options).get_future().then(lambda future: future.value()[0])


def _move(bucket: dist.GradBucket, buffer: torch.Tensor, group) -> bool:
    """Moves a bucket to symmetric memory with its gradients, if these are views of it on all ranks; returns whether it did."""
    storage = buffer.untyped_storage()
    gradients = [parameter.grad for parameter in bucket.parameters()]
    are_views = all(grad is not None and grad.untyped_storage().data_ptr() == storage.data_ptr() for grad in gradients)
    movable = torch.tensor([are_views and buffer.storage_offset() == 0], dtype=torch.uint8, device="cpu")
    dist.all_reduce(movable, op=dist.ReduceOp.MIN, group=group)
    if not movable.item():
        return False
    moved = empty(buffer.numel(), dtype=buffer.dtype, symmetric=True, group=group, device=buffer.device)
    moved.copy_(buffer)
    target = moved.untyped_storage()
    with torch.no_grad():
        for view in gradients:
            view.set_(target, view.storage_offset(), view.size(), view.stride())
        buffer.set_(target, 0, buffer.size(), buffer.stride())
    return True
