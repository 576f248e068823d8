#!/usr/bin/env python3
"""What a call on a PyTorch tensor costs on the host: microseconds of `all_reduce` and of its parts.

    weft run -n 2 --gpus shared --mps -- python bench/gpu/python_calls.py
"""

import os
import time

import torch

import weftlink


def us(call, times: int = 300) -> float:
    """The median of five runs without waiting for the GPU between calls."""
    runs = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            call()
        runs.append((time.perf_counter() - began) / times * 1e6)
    return sorted(runs)[2]


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    comm = weftlink.init()
    tensor, large = torch.ones(2, device="cuda"), torch.ones(1 << 18, device="cuda")
    comm.all_reduce(tensor), comm.all_reduce(large)
    rows = {
        "a kernel of PyTorch (add_)": us(lambda: tensor.add_(0)),
        "all_reduce of 8 bytes": us(lambda: comm.all_reduce(tensor)),
        "all_reduce of 1 MiB": us(lambda: comm.all_reduce(large)),
        "check": us(comm.check),
    }
    if comm.rank == 0:
        for name, value in rows.items():
            print(f"{name}: {value:.2f} us", flush=True)
    comm.close()


if __name__ == "__main__":
    main()
