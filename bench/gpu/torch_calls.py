#!/usr/bin/env python3
"""What `all_reduce` of torch.distributed costs on CUDA tensors, on Weft and on NCCL in the same process. Prints CSV.

    weft run --no-tag -n 1 --gpus all -- python bench/gpu/torch_calls.py            # NCCL needs a GPU for each rank
    weft run --no-tag -n 2 --gpus shared --mps -- python bench/gpu/torch_calls.py --weft-only

`host_us` is the time of the caller per call, without waiting for the GPU in between; `total_us` the time until the GPU has run all calls. Ways:
`blocking` (async_op=False), `async` (async_op=True and a wait) and `graph` (a captured graph of the blocking calls, launched).
"""

import argparse
import csv
import os
import sys
import time

import torch
import torch.distributed as dist

import weftlink.torch  # noqa: F401  registers the backend "weft"

CALLS, RUNS = 200, 7


def medians(device, enqueue, calls=CALLS):
    """The medians over all runs of host and total time per call, in microseconds."""
    host, total = [], []
    for _ in range(RUNS):
        synchronize(device)
        began = time.perf_counter()
        enqueue()
        host.append(time.perf_counter() - began)
        synchronize(device)
        total.append(time.perf_counter() - began)
    return [sorted(times)[RUNS // 2] / calls * 1e6 for times in (host, total)]


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def ways(tensor, group):
    """The name of each way to make the calls, and a function that makes them."""

    def blocking():
        for _ in range(CALLS):
            dist.all_reduce(tensor, group=group)

    def asynchronous():
        for _ in range(CALLS):
            dist.all_reduce(tensor, group=group, async_op=True).wait()

    yield "blocking", blocking
    yield "async", asynchronous
    if tensor.is_cuda:
        blocking()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            blocking()
        yield "graph", graph.replay


def backends(device):
    """Weft, and the library beside it if it works here."""
    yield "weft", dist.group.WORLD
    beside = "nccl" if device.type == "cuda" else "gloo"
    try:
        group = dist.new_group(backend=beside)
        dist.all_reduce(torch.zeros(1, device=device), group=group)
        synchronize(device)
    except (RuntimeError, ValueError) as error:
        print(f"no {beside}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        return
    yield beside, group


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--bytes", type=int, nargs="+", default=[8 << shift for shift in range(0, 18)])
    parser.add_argument("--weft-only", action="store_true", help="do not try NCCL, which may hang if ranks share a GPU")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("weft")
    rows = csv.writer(sys.stdout)
    if dist.get_rank() == 0:
        rows.writerow(["backend", "ranks", "bytes", "way", "host_us", "total_us"])
    for name, group in backends(device) if not options.weft_only else [("weft", dist.group.WORLD)]:
        for length in options.bytes:
            # Zeros, whose sum is the same after any number of calls.
            tensor = torch.zeros(length // 4, device=device)
            for way, enqueue in ways(tensor, group):
                enqueue()
                host, total = medians(device, enqueue)
                if dist.get_rank() == 0:
                    rows.writerow([name, dist.get_world_size(), length, way, f"{host:.2f}", f"{total:.2f}"])
                    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
