"""Tensors whose elements follow each other, as calls need them."""

import torch


def contiguous(tensor):
    """A tensor with the same elements that follow each other, and what brings them back from there, if it is another one."""
    if tensor.is_contiguous():
        return tensor, None
    flat = tensor.contiguous()
    return flat, lambda: tensor.copy_(flat)


def together(tensors, writes=False):
    """Tensors for a call that takes them as one, and what brings results back to those whose elements do not follow each other."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return list(tensors), None
    flat = [tensor.contiguous() for tensor in tensors]
    return flat, (lambda: _copy(flat, tensors)) if writes else None


def join(tensors):
    """Tensors as one that is a copy, and what brings its elements back to them."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return flat, lambda: _copy(flat.split([tensor.numel() for tensor in tensors]), tensors)


def _copy(sources, targets):
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source.view(target.shape))
