"""A communication hook for DistributedDataParallel: its buckets move to symmetric memory and are reduced there, without a copy.

    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    model.register_comm_hook(SymmetricState(), symmetric_allreduce_hook)

With ``gradient_as_bucket_view=True`` the gradients are views of the buckets, so they move with them and nothing is copied. Without it DDP
copies gradients into its buckets and back, as it always does; then the buckets cannot be moved, and each is reduced where it is.
"""

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp

from weftlink.torch.symmetric import calls_of, empty, is_symmetric

# DDP lays its buckets out afresh once, after the first step.
_SETTLED_AFTER = 2
# A bucket is moved in a step in which all ranks have all its gradients. So often that is asked for.
_TRIES_MAX = 16


class SymmetricState:
    """What the hook remembers: the group, how many steps there were, and how often a bucket could not be moved."""

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
    """Puts a bucket into symmetric memory: its buffer, and the gradients, if all of them are views of it on all ranks."""
    storage = buffer.untyped_storage()
    gradients = [parameter.grad for parameter in bucket.parameters()]
    are_views = all(grad is not None and grad.untyped_storage().data_ptr() == storage.data_ptr() for grad in gradients)
    movable = torch.tensor([are_views and buffer.storage_offset() == 0], dtype=torch.uint8)
    dist.all_reduce(movable, op=dist.ReduceOp.MIN, group=group)
    if not movable.item():
        return False
    moved = empty(buffer.numel(), dtype=buffer.dtype, symmetric=True, group=group)
    moved.copy_(buffer)
    target = moved.untyped_storage()
    with torch.no_grad():
        for view in gradients:
            view.set_(target, view.storage_offset(), view.size(), view.stride())
        buffer.set_(target, 0, buffer.size(), buffer.stride())
    return True
