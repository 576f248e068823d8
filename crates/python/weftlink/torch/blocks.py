"""Collectives on a GPU as calls with equal blocks in single tensors, which are all that Weft's kernels take.

Lists of tensors are copied into one tensor and back, unless they are adjacent. With blocks of different lengths, an all-gather is a broadcast
from each rank, a reduce-scatter a reduction to each rank, and an all-to-all has its blocks padded to equal length.
"""

import torch

from weftlink.errors import UsageError
from weftlink.torch.tensors import adjacent

# Padded blocks have a power of two of elements, at least this many: each length needs a kernel of its own at first.
_PADDED_MIN = 256


def collective(native, enqueue, what, source, target, counts):
    """Enqueues a collective on the current stream, as one or several calls. ``counts`` has the lengths of blocks if they may differ."""
    if counts is None:
        _equal_blocks(enqueue, what, source, target)
    elif what == "all_gather":
        _all_gather(native, enqueue, source, target, counts)
    elif what == "reduce_scatter":
        _reduce_scatter(native, enqueue, source, target, counts)
    else:
        _all_to_all(native, enqueue, source, target, counts)


def _equal_blocks(enqueue, what, source, target):
    if not isinstance(source, list) and not isinstance(target, list):
        if what == "all_to_all" and source.data_ptr() == target.data_ptr():
            # Kernels do not exchange blocks in place.
            source = source.clone()
        enqueue(what, source, target)
        return
    flat_source = _as_one(source)
    flat_target = adjacent(target) if isinstance(target, list) else target
    if flat_target is not None or target is None:
        enqueue(what, flat_source, flat_target)
        return
    flat_target = target[0].new_empty(sum(tensor.numel() for tensor in target))
    enqueue(what, flat_source, flat_target)
    _spread(flat_target, target)


def _all_gather(native, enqueue, source, target, counts):
    parts = _parts(target, counts[1])
    own = parts[native.rank]
    if own.data_ptr() != source.data_ptr():
        own.copy_(source.view(own.shape))
    for root, part in enumerate(parts):
        enqueue("broadcast", part, part, root=root)


def _reduce_scatter(native, enqueue, source, target, counts):
    for root, part in enumerate(_parts(source, counts[0])):
        enqueue("reduce", part, target if root == native.rank else None, root=root)


def _all_to_all(native, enqueue, source, target, counts):
    lengths = _exchange_counts(native, counts)
    longest = int(lengths.max())
    if bool((lengths == longest).all()):
        _equal_blocks(enqueue, "all_to_all", source, target)
        return
    rows = _first(source, target).new_empty((native.size, _padded(longest)))
    for row, part in zip(rows, _parts(source, counts[0]), strict=True):
        row[: part.numel()].copy_(part.view(-1))
    result = torch.empty_like(rows)
    enqueue("all_to_all", rows, result)
    for row, part in zip(result, _parts(target, counts[1]), strict=True):
        part.copy_(row[: part.numel()].view(part.shape))


def _exchange_counts(native, counts):
    """The elements that each rank sends to each, from the lengths of all ranks, which are exchanged on the CPU."""
    own = torch.tensor(counts, dtype=torch.int64, device="cpu")
    all_counts = own.new_empty((native.size, *own.shape))
    call = native.call("all_gather", own, all_counts, now=True)
    if call is not None:
        call.wait()
    sent, received = all_counts[:, 0], all_counts[:, 1].t()
    wrong = (sent != received).nonzero().tolist()
    if wrong:
        sender, receiver = wrong[0]
        sends, expects = int(sent[sender, receiver]), int(received[sender, receiver])
        raise UsageError(
            f"all_to_all: rank {sender} sends {sends} elements to rank {receiver}, and rank {receiver} expects {expects}. "
            "The call fails on all ranks; no data was changed"
        )
    return sent


def _padded(length):
    return max(_PADDED_MIN, 1 << (length - 1).bit_length())


def _first(*sides):
    """A tensor of a side that has one."""
    return next(side[0] if isinstance(side, list) else side for side in sides if side is not None)


def _parts(side, lengths):
    """The blocks of a side: the tensors of a list, or parts of a tensor."""
    return side if isinstance(side, list) else side.view(-1).split(lengths)


def _as_one(side):
    """A side as one tensor, copied if it is a list of tensors that are not adjacent."""
    if not isinstance(side, list):
        return side
    together = adjacent(side)
    return together if together is not None else torch.cat([tensor.view(-1) for tensor in side])


def _spread(flat, tensors):
    for part, tensor in zip(flat.split([tensor.numel() for tensor in tensors]), tensors, strict=True):
        tensor.copy_(part.view(tensor.shape))
