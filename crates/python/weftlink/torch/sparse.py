"""Sums of sparse tensors: all ranks gather the indices and values of all ranks, and add them up."""

import torch


def sum_of_sparse(native, tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' sparse tensors."""
    tensor = tensor.coalesce()
    counts = _gather(native, torch.tensor([tensor._nnz()]), [1] * native.size, (native.size,)).tolist()
    total, dimensions = sum(counts), tensor.sparse_dim()
    indices = _gather(native, tensor.indices().t().contiguous(), counts, (total, dimensions))
    values = _gather(native, tensor.values().contiguous(), counts, (total, *tensor.values().shape[1:]))
    return torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()


def _gather(native, rows, counts, shape):
    """The rows of all ranks, `counts[rank]` from each."""
    gathered = rows.new_empty(shape)
    width = gathered[:1].numel() if shape[0] else 0
    lengths = [count * width for count in counts]
    call = native.call("all_gather", rows, gathered, counts=([rows.numel()], lengths), now=True)
    if call is not None:
        call.wait()
    return gathered
