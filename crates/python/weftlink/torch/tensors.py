"""Tensors whose elements follow each other, as calls need them."""

import torch

# So many elements are sooner copied than looked at.
_FEW = 1024


def contiguous(tensor):
    """A tensor with the same elements that follow each other, and what brings them back from there, if it is another one."""
    if tensor.is_contiguous():
        return tensor, None
    flat = tensor.contiguous()
    return flat, lambda: tensor.copy_(flat)


def join(tensors, writes=False, fill=True):
    """Tensors as one, and what brings its elements back to them if it is a copy and they are written.

    Tensors that follow each other in memory are joined without a copy. ``fill`` is False if their elements do not matter.
    """
    # Where there is little to copy, that is sooner done than looking.
    if tensors[0].numel() > _FEW and (joined := _neighbours(tensors)) is not None:
        return joined, None
    if fill:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    else:
        flat = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))
    return flat, (lambda: cut(flat, tensors)) if writes else None


def cut(flat, tensors):
    """Copies the elements of one tensor into several."""
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view(tensor.shape))


def _neighbours(tensors):
    """Tensors that follow each other in memory as one; None if they do not."""
    first = tensors[0]
    address = first.data_ptr()
    storage = first.untyped_storage().data_ptr()
    total = 0
    for tensor in tensors:
        alike = tensor.dtype == first.dtype and tensor.is_contiguous()
        if not alike or tensor.data_ptr() != address or tensor.untyped_storage().data_ptr() != storage:
            return None
        total += tensor.numel()
        address += tensor.numel() * tensor.element_size()
    return first.as_strided((total,), (1,), first.storage_offset())
