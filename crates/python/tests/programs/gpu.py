"""Collectives of ranks that share a GPU on PyTorch tensors: `weft run -n 3 --gpus shared --mps -- python gpu.py`.

Every rank compares its results with those that it computes from the inputs of all ranks. `crates/cuda/gpu-test.sh` runs it.
"""

import os

import torch

import weftlink

COUNTS = [1, 1000, 100_003, 3 << 20]
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.float8_e4m3fn]


class Interface:
    """An array that only has `__cuda_array_interface__`."""

    def __init__(self, tensor):
        self.kept, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__


class Exported:
    """An array that only has DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def inputs(rank: int, count: int, dtype) -> torch.Tensor:
    """Small whole numbers, whose sums every type holds."""
    return ((torch.arange(count, device="cuda") % 5 + rank) % 4).to(dtype)


def check(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if found.dtype.itemsize == 1:
        found, expected = found.view(torch.uint8), expected.view(torch.uint8)
    wrong = (found != expected).sum().item()
    assert wrong == 0, f"{name}: {wrong} of {expected.numel()} elements are wrong"


def collectives(comm: weftlink.Communicator, count: int, dtype) -> int:
    """Returns the number of calls."""
    rank, size = comm.rank, comm.size
    every = [inputs(other, count, dtype) for other in range(size)]
    total = sum(each.to(torch.float32) for each in every).to(dtype)
    name = f"{count} x {dtype}"

    tensor = every[rank].clone()
    comm.all_reduce(tensor)
    check(f"all_reduce {name}", tensor, total)
    output = torch.empty_like(tensor)
    comm.all_reduce(every[rank], "max", out=output)
    largest = torch.stack([each.to(torch.float32) for each in every]).amax(0).to(dtype)
    check(f"all_reduce max {name}", output, largest)

    if dtype in (torch.float32, torch.float16):
        output = torch.empty_like(tensor)
        comm.all_reduce(every[rank], weftlink.PremultipliedSum(rank + 1), out=output)
        scaled = sum(each.to(torch.float32) * (other + 1) for other, each in enumerate(every))
        check(f"all_reduce premultiplied {name}", output, scaled.to(dtype))

    gathered = torch.empty(size * count, dtype=dtype, device="cuda")
    comm.all_gather(every[rank], out=gathered)
    check(f"all_gather {name}", gathered, torch.cat(every))
    tensor = every[rank].clone()
    comm.broadcast(tensor, root=size - 1)
    check(f"broadcast {name}", tensor, every[size - 1])
    tensor = every[rank].clone()
    comm.reduce(tensor, root=0)
    check(f"reduce {name}", tensor, total if rank == 0 else every[rank])

    blocks = [inputs(other, size * count, dtype) for other in range(size)]
    own = slice(rank * count, (rank + 1) * count)
    output = torch.empty(count, dtype=dtype, device="cuda")
    comm.reduce_scatter(blocks[rank], out=output)
    check(f"reduce_scatter {name}", output, sum(each[own].to(torch.float32) for each in blocks).to(dtype))
    output = torch.empty(size * count, dtype=dtype, device="cuda")
    comm.all_to_all(blocks[rank], out=output)
    check(f"all_to_all {name}", output, torch.cat([each[own] for each in blocks]))
    return 7


def streams(comm: weftlink.Communicator) -> None:
    """Calls are ordered with the work of the current stream, on any stream."""
    other = torch.cuda.Stream()
    for round in range(20):
        with torch.cuda.stream(other if round % 2 else torch.cuda.current_stream()):
            tensor = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(1_000_000)
            tensor += comm.rank + round
            comm.all_reduce(tensor)
            tensor *= 2
            expected = 2 * sum(rank + round for rank in range(comm.size))
            assert (tensor == expected).all(), f"round {round}"


def graphs(comm: weftlink.Communicator) -> None:
    tensor = torch.zeros(1 << 18, device="cuda")
    comm.all_reduce(tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.fill_(comm.rank + 1)
        comm.all_reduce(tensor)
    for _ in range(5):
        graph.replay()
        assert (tensor == comm.size * (comm.size + 1) / 2).all()


def memory(comm: weftlink.Communicator) -> None:
    """Tensors at addresses that were freed and allocated again, which peers must map again."""
    for round in range(6):
        tensor = torch.full(((4 + round % 3) << 20,), float(comm.rank + round), device="cuda")
        poison = torch.full_like(tensor, -1)
        comm.all_reduce(tensor)
        assert (tensor == sum(rank + round for rank in range(comm.size))).all(), f"round {round}"
        del tensor, poison
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    comm = weftlink.init()
    calls = sum(collectives(comm, count, dtype) for count in COUNTS for dtype in TYPES if count < 1 << 20 or dtype == torch.float32)
    for wrapped in (Interface, Exported):
        tensor = torch.full((1000,), float(comm.rank), device="cuda")
        comm.all_reduce(wrapped(tensor))
        torch.cuda.synchronize()
        assert (tensor == comm.size * (comm.size - 1) / 2).all(), wrapped.__name__
    streams(comm)
    graphs(comm)
    memory(comm)
    comm.check()
    print(f"rank {comm.rank} of {comm.size}: {calls + 2} calls of collectives; streams, graphs and memory are right")
    comm.close()


if __name__ == "__main__":
    main()
