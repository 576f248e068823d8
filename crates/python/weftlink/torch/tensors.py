"""Contiguous copies of tensors, which calls need."""

import torch


def contiguous(tensor):
    """The tensor, or a contiguous copy and a function that copies the result back."""
    if tensor.is_contiguous():
        return tensor, None
    flat = tensor.contiguous()
    return flat, lambda: tensor.copy_(flat)


def together(tensors, writes=False):
    """The tensors, or contiguous copies and, if the call writes them, a function that copies the results back."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return list(tensors), None
    flat = [tensor.contiguous() for tensor in tensors]
    return flat, (lambda: _copy(flat, tensors)) if writes else None


def join(tensors):
    """A copy of the tensors as one, and a function that copies its elements back."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return flat, lambda: _copy(flat.split([tensor.numel() for tensor in tensors]), tensors)


def adjacent(tensors):
    """Contiguous tensors as one without a copy; None if they do not follow each other in one storage."""
    first, end = tensors[0], tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or tensor.dtype != first.dtype:
            return None
        end += tensor.numel() * tensor.element_size()
    length, storage = sum(tensor.numel() for tensor in tensors), first.untyped_storage()
    if end > storage.data_ptr() + storage.nbytes():
        return None
    return first.as_strided((length,), (1,))


def _copy(sources, targets):
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source.view(target.shape))
