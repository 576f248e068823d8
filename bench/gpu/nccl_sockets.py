#!/usr/bin/env python3
"""All-reduce of ranks that share a GPU: Weft beside NCCL, which goes over sockets there.

    weft run -n 4 --gpus shared --mps -- python bench/gpu/nccl_sockets.py --rounds 5 > raw.csv

NCCL refuses two ranks on one GPU. With a host id of its own for each rank it takes them for different hosts and uses TCP over the loopback
interface: what a user of one GPU has without Weft. Every round times both for each size, one after the other: float32 sums in place through
PyTorch tensors, calls one by one without a graph, by events on each rank's stream; the slowest rank counts. Results are checked. Rank 0
prints CSV.
"""

import argparse
import os

os.environ["NCCL_HOSTID"] = os.environ["RANK"]
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
os.environ.setdefault("NCCL_IB_DISABLE", "1")

import torch
import torch.distributed as dist

import weftlink


def number(text: str) -> int:
    units = {"k": 10, "m": 20, "g": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)


def time_us(call, tensor: torch.Tensor, calls: int) -> float:
    """The time of a call on the slowest rank."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call(tensor)
    torch.cuda.synchronize()
    dist.barrier()
    start.record()
    for _ in range(calls):
        call(tensor)
    end.record()
    torch.cuda.synchronize()
    slowest = torch.tensor([start.elapsed_time(end) * 1e3 / calls], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="8,4k,64k,1m,16m,64m,256m")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    comm = weftlink.init()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    libraries = {"nccl": dist.all_reduce, "weft": comm.all_reduce}
    for name, call in libraries.items():
        tensor = torch.full((100_000,), float(rank + 1), device="cuda")
        call(tensor)
        assert (tensor == ranks * (ranks + 1) / 2).all(), name
    if rank == 0:
        print("library,ranks,bytes,round,us")
    for size in map(number, args.sizes.split(",")):
        tensor = torch.zeros(size // 4, device="cuda")
        calls = max(2, min(50, (64 << 20) // size))
        for round in range(args.rounds):
            for name, call in libraries.items():
                us = time_us(call, tensor, calls)
                if rank == 0:
                    print(f"{name},{ranks},{size},{round},{us:.2f}", flush=True)
    comm.check()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
