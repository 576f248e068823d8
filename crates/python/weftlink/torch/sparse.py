"""Sums of sparse tensors: all ranks gather the indices and values of all ranks, and add them up."""

import torch


def sum_of_sparse(all_gather, size: int, tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' sparse tensors. ``all_gather(source, target, lengths)`` gathers so many elements of each rank."""
    tensor = tensor.coalesce()
    counts = _gather(all_gather, torch.tensor([tensor._nnz()], device="cpu"), [1] * size, (size,)).tolist()
    total, dimensions = sum(counts), tensor.sparse_dim()
    indices = _gather(all_gather, tensor.indices().t().contiguous(), counts, (total, dimensions))
    values = _gather(all_gather, tensor.values().contiguous(), counts, (total, *tensor.values().shape[1:]))
    return torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()


def _gather(all_gather, rows, counts, shape):
    """The rows of all ranks, `counts[rank]` from each."""
    gathered = rows.new_empty(shape)
    width = gathered[:1].numel() if shape[0] else 0
    all_gather(rows, gathered, [count * width for count in counts])
    return gathered
