"""Cases of every collective of torch.distributed, compared with the expected result. They use the default device of torch.

`test_torch_collectives.py` runs them on CPU tensors, `test_torch_gpu.py` on a stand-in for a GPU, and `programs/torch_gpu.py` on a GPU.
"""

import functools

import torch
import torch.distributed as dist

from weftlink.errors import UsageError

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8]
TYPES += [torch.uint8]
MOVED = [*TYPES, torch.bool, torch.complex64, torch.complex128, torch.complex32, torch.uint16, torch.uint32, torch.uint64]
MOVED += [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]
LENGTHS = (0, 1, 7, 1000, 70_001)
Op = dist.ReduceOp


def values(rank, length, dtype=torch.float32, salt=0):
    """The input of a rank: small whole numbers, so that sums are exact in any order."""
    numbers = (torch.arange(length) * 7 + rank * 3 + salt) % 5 - (1 if dtype.is_signed else 0)
    if dtype in (torch.complex32, torch.float8_e8m0fnu) or str(dtype).startswith("torch.float8"):
        return numbers.to(torch.float32).to(dtype) if dtype != torch.float8_e8m0fnu else numbers.abs().to(torch.uint8).view(dtype)
    return numbers.to(dtype)


def all_values(size, length, dtype=torch.float32, salt=0):
    return [values(rank, length, dtype, salt) for rank in range(size)]


def same(found, wanted, what):
    raw = lambda tensor: tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor.numel()
    equal = found.shape == wanted.shape and (found.numel() == 0 or torch.equal(raw(found), raw(wanted)))
    assert equal, f"{what}: found {found}, wanted {wanted}"


COMBINE = {
    Op.SUM: torch.add,
    Op.PRODUCT: torch.mul,
    Op.MIN: torch.minimum,
    Op.MAX: torch.maximum,
    Op.BAND: torch.bitwise_and,
    Op.BOR: torch.bitwise_or,
    Op.BXOR: torch.bitwise_xor,
}


def combined(tensors, op):
    if op == Op.AVG:
        total = functools.reduce(torch.add, [tensor.double() for tensor in tensors])
        return (total / len(tensors)).to(tensors[0].dtype)
    return functools.reduce(COMBINE[op], tensors)


def bitwise(op):
    return op in (Op.BAND, Op.BOR, Op.BXOR)


def reductions(rank, size):
    for dtype in TYPES:
        for op in COMBINE:
            if bitwise(op) and dtype.is_floating_point:
                continue
            for length in (0, 5, 3000):
                tensor = values(rank, length, dtype)
                dist.all_reduce(tensor, op=op)
                same(tensor, combined(all_values(size, length, dtype), op), f"all_reduce {dtype} {op} {length}")
    for dtype in (torch.float32, torch.float64):
        tensor = values(rank, 999, dtype)
        dist.all_reduce(tensor, op=Op.AVG)
        torch.testing.assert_close(tensor, combined(all_values(size, 999, dtype), Op.AVG))
        for factor in (0.5, torch.tensor([0.5])):
            tensor = values(rank, 999, dtype)
            dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
            wanted = combined([part * 0.5 for part in all_values(size, 999, dtype)], Op.SUM)
            same(tensor, wanted, "pre-multiplied sum")
    truths = [torch.tensor([rank % 2 == 0, True, False, rank == 1]) for rank in range(size)]
    for op, combine in {Op.SUM: torch.logical_or, Op.PRODUCT: torch.logical_and, Op.BAND: torch.logical_and,
                        Op.BOR: torch.logical_or, Op.MIN: torch.logical_and, Op.MAX: torch.logical_or,
                        Op.BXOR: torch.logical_xor}.items():  # fmt: skip
        tensor = truths[rank].clone()
        dist.all_reduce(tensor, op=op)
        same(tensor, functools.reduce(combine, truths), f"truths {op}")
    tensor = torch.complex(values(rank, 9), values(rank, 9, salt=1))
    dist.all_reduce(tensor)
    same(tensor.real.contiguous(), combined(all_values(size, 9), Op.SUM), "complex")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = torch.full((9,), 2.0).to(dtype)
        dist.all_reduce(tensor)
        same(tensor.float(), torch.full((9,), 2.0 * size).to(dtype).float(), str(dtype))


def one_tensor(rank, size):
    for root in {0, size - 1}:
        for dtype in MOVED:
            tensor = values(rank, 33, dtype)
            dist.broadcast(tensor, root)
            same(tensor, values(root, 33, dtype), f"broadcast {dtype}")
        for length in LENGTHS:
            tensor = values(rank, length)
            dist.reduce(tensor, root)
            if rank == root:
                same(tensor, combined(all_values(size, length), Op.SUM), f"reduce {length}")
    tensors = [values(rank, length, salt=length) for length in (3, 1, 40)]
    dist.all_reduce_coalesced(tensors)
    for tensor, length in zip(tensors, (3, 1, 40), strict=True):
        same(tensor, combined(all_values(size, length, salt=length), Op.SUM), "all_reduce_coalesced")
    sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,))
    dist.all_reduce(sparse)
    same(sparse.to_dense(), torch.tensor([1.0] * size + [2.0 * size]), "sparse")


def gathers(rank, size):
    for dtype in MOVED:
        parts = all_values(size, 21, dtype)
        outputs = [torch.empty(21, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, parts[rank])
        [same(output, part, f"all_gather {dtype}") for output, part in zip(outputs, parts, strict=True)]
    for length in LENGTHS:
        parts = all_values(size, length)
        whole = torch.empty(size * length)
        dist.all_gather_into_tensor(whole, parts[rank])
        same(whole, torch.cat(parts), f"all_gather_into_tensor {length}")
        inside = torch.zeros(size * length)
        inside[rank * length : (rank + 1) * length] = parts[rank]
        dist.all_gather_into_tensor(inside, inside[rank * length : (rank + 1) * length])
        same(inside, torch.cat(parts), f"all_gather_into_tensor in place {length}")
        outputs = list(torch.empty(size * length).chunk(size)) if length else [torch.empty(0) for _ in parts]
        dist.all_gather(outputs, parts[rank])
        same(torch.cat(outputs), torch.cat(parts), "all_gather into neighbours")
    uneven = [values(other, 3 * other + 1) for other in range(size)]
    outputs = [torch.empty_like(part) for part in uneven]
    dist.all_gather(outputs, uneven[rank])
    [same(output, part, "uneven all_gather") for output, part in zip(outputs, uneven, strict=True)]
    for root in {0, size - 1}:
        parts = all_values(size, 50)
        outputs = [torch.empty(50) for _ in range(size)] if rank == root else None
        dist.gather(parts[rank], outputs, dst=root)
        [same(output, part, "gather") for output, part in zip(outputs or [], parts)]
        tensor = torch.empty(50)
        dist.scatter(tensor, [part + 1 for part in parts] if rank == root else None, src=root)
        same(tensor, parts[rank] + 1, "scatter")


def scatters(rank, size):
    for dtype in TYPES:
        inputs = [values(rank, 10, dtype, salt=block) for block in range(size)]
        output = torch.empty(10, dtype=dtype)
        dist.reduce_scatter(output, inputs)
        same(output, combined(all_values(size, 10, dtype, salt=rank), Op.SUM), f"reduce_scatter {dtype}")
    for length in LENGTHS:
        whole, output = values(rank, size * length), torch.empty(length)
        dist.reduce_scatter_tensor(output, whole.clone())
        wanted = combined(all_values(size, size * length), Op.SUM)[rank * length : (rank + 1) * length]
        same(output, wanted, f"reduce_scatter_tensor {length}")
        inside = whole.clone()
        dist.reduce_scatter_tensor(inside[rank * length : (rank + 1) * length], inside)
        same(inside[rank * length : (rank + 1) * length], wanted, "reduce_scatter_tensor in place")
    lengths = [2 * block + 1 for block in range(size)]
    output = torch.empty(lengths[rank])
    dist.reduce_scatter(output, [values(rank, length) for length in lengths])
    same(output, combined(all_values(size, lengths[rank]), Op.SUM), "uneven reduce_scatter")


def exchanges(rank, size):
    for dtype in MOVED:
        sent = torch.cat([values(rank, 6, dtype, salt=to).view(torch.uint8) for to in range(size)]).view(dtype)
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        wanted = torch.cat([values(other, 6, dtype, salt=rank).view(torch.uint8) for other in range(size)]).view(dtype)
        same(got, wanted, f"all_to_all_single {dtype}")
    counts = [[(sender + 2 * receiver) % 4 for receiver in range(size)] for sender in range(size)]
    sent = torch.cat([values(rank, counts[rank][to] * 3, salt=to).view(-1, 3) for to in range(size)])
    received = [counts[other][rank] for other in range(size)]
    got = torch.empty(sum(received), 3)
    dist.all_to_all_single(got, sent, received, counts[rank])
    wanted = [values(other, counts[other][rank] * 3, salt=rank).view(-1, 3) for other in range(size)]
    same(got, torch.cat(wanted), "uneven all_to_all_single")
    inputs = [values(rank, to + 1, salt=to) for to in range(size)]
    outputs = [torch.empty(rank + 1) for _ in range(size)]
    dist.all_to_all(outputs, inputs)
    [same(output, values(other, rank + 1, salt=rank), "all_to_all") for other, output in enumerate(outputs)]


def objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": other, "text": "x" * other} for other in range(size)], gathered
    received = [f"from {size - 1}", {1: 2}] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(received, src=size - 1)
    assert received == [f"from {size - 1}", {1: 2}], received
    got = [None]
    dist.scatter_object_list(got, [f"for {other}" for other in range(size)] if rank == 0 else None, src=0)
    assert got == [f"for {rank}"], got
    found = [None] * size if rank == 0 else None
    dist.gather_object((rank, "y"), found, dst=0)
    assert rank != 0 or found == [(other, "y") for other in range(size)], found
    dist.barrier()
    if torch.get_default_device().type == "cpu":
        # Torch refuses it on other devices.
        dist.monitored_barrier()


def strides(rank, size):
    """Tensors that are not contiguous."""
    matrix = values(rank, 30).view(5, 6)
    wanted = combined(all_values(size, 30), Op.SUM).view(5, 6)
    for view in (lambda tensor: tensor.t(), lambda tensor: tensor[:, ::2], lambda tensor: tensor[1:4, 2:5]):
        tensor = view(matrix.clone())
        dist.all_reduce(tensor)
        same(tensor.contiguous(), view(wanted).contiguous(), "all_reduce of a view")
        tensor = view(matrix.clone())
        dist.broadcast(tensor, 0)
        same(tensor.contiguous(), view(values(0, 30).view(5, 6)).contiguous(), "broadcast of a view")
    work = dist.all_reduce(view(tensor := matrix.clone()), async_op=True)
    work.wait()
    same(tensor[1:4, 2:5].contiguous(), wanted[1:4, 2:5].contiguous(), "asynchronous all_reduce of a view")


def short_forms(rank, size):
    """Calls on a process group without options, as in torch's own code."""
    group, total = dist.group.WORLD, combined(all_values(size, 4), Op.SUM)
    for call in (lambda t: group.allreduce(t), lambda t: group.allreduce([t], Op.SUM), lambda t: group.allreduce(t, op=Op.SUM)):
        tensor = values(rank, 4)
        call(tensor).wait()
        same(tensor, total, "group.allreduce")
    for call in (lambda t: group.broadcast(t, 0), lambda t: group.broadcast(t, root=0)):
        tensor = values(rank, 4)
        call(tensor).wait()
        same(tensor, values(0, 4), "group.broadcast")
    tensor = values(rank, 4)
    group.reduce(tensor, 0, Op.SUM).wait()
    if rank == 0:
        same(tensor, total, "group.reduce")
    outputs = [torch.empty(4) for _ in range(size)]
    group.allgather(outputs, values(rank, 4)).wait()
    same(torch.cat(outputs), torch.cat(all_values(size, 4)), "group.allgather")
    output = torch.empty(4)
    group.reduce_scatter(output, [values(rank, 4) for _ in range(size)]).wait()
    same(output, total, "group.reduce_scatter")
    group.scatter(output, outputs if rank == 0 else [], 0).wait()
    same(output, values(rank, 4), "group.scatter")
    group.gather(outputs if rank == 0 else [], output, 0).wait()
    try:
        dist.all_reduce(torch.empty(3, device="meta"))
        raise AssertionError("a tensor without memory was taken")
    except UsageError as error:
        assert "the tensor is on meta" in str(error), error


def as_gloo_does(rank, size):
    """Weft and Gloo, in one process, give bitwise equal sums of whole numbers."""
    gloo = dist.new_group(backend="gloo")
    for length in (1, 1000, 100_003):
        for op in (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX):
            mine, theirs = (values(rank, length, torch.int64) for _ in range(2))
            dist.all_reduce(mine, op=op)
            dist.all_reduce(theirs, op=op, group=gloo)
            same(mine, theirs, f"all_reduce {op}")
        parts = [[torch.empty(length) for _ in range(size)] for _ in range(2)]
        dist.all_gather(parts[0], values(rank, length))
        dist.all_gather(parts[1], values(rank, length), group=gloo)
        same(torch.cat(parts[0]), torch.cat(parts[1]), "all_gather")
        outputs = [torch.empty(length * size) for _ in range(2)]
        dist.all_to_all_single(outputs[0], values(rank, length * size))
        dist.all_to_all_single(outputs[1], values(rank, length * size), group=gloo)
        same(*outputs, "all_to_all_single")


def long_tensors(rank, size):
    """Tensors that are moved without a staging copy, or in parallel parts."""
    length = (1 << 18) + 3
    parts = all_values(size, length)
    total = combined(parts, Op.SUM)
    outputs = [torch.empty(length) for _ in range(size)]
    dist.all_gather(outputs, parts[rank])
    [same(output, part, "long all_gather") for output, part in zip(outputs, parts, strict=True)]
    uneven = [values(other, length + other) for other in range(size)]
    outputs = [torch.empty_like(part) for part in uneven]
    dist.all_gather(outputs, uneven[rank], async_op=True).wait()
    [same(output, part, "long uneven all_gather") for output, part in zip(outputs, uneven, strict=True)]
    output = torch.empty(length)
    dist.reduce_scatter(output, [parts[rank] for _ in range(size)])
    same(output, total, "long reduce_scatter")
    root = size - 1
    outputs = [torch.empty(length) for _ in range(size)] if rank == root else None
    dist.gather(parts[rank], outputs, dst=root)
    [same(output, part, "long gather") for output, part in zip(outputs or [], parts)]
    output = torch.empty(length)
    dist.scatter(output, parts if rank == root else None, src=root)
    same(output, parts[rank], "long scatter")
    for call in (dist.all_reduce, lambda tensor: dist.reduce(tensor, root)):
        tensor = parts[rank].clone()
        call(tensor)
        if call is dist.all_reduce or rank == root:
            same(tensor, total, "long sum")
    tensor = parts[rank].clone()
    work = dist.all_reduce(tensor, async_op=True)
    other = parts[rank].clone()
    dist.broadcast(other, root)
    work.wait()
    same(tensor, total, "long asynchronous sum")
    same(other, parts[root], "long broadcast beside it")


CASES = (reductions, one_tensor, gathers, scatters, exchanges, objects, strides, long_tensors, short_forms)
