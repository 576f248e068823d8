#!/usr/bin/env python3
"""Trains a small transformer with DDP and with FSDP2, on Weft and on Gloo, in the same processes: losses, step and communication times.

    bench/torch/train.py [--ranks 2] [--steps 200] [--block 10] [--ways ddp,fsdp2] [--out rows.csv]

Each backend trains its own model from the same weights on the same data, so the losses must be equal. The backends run blocks of steps in
alternating order. Every second block times whole steps. The others time every collective separately: a barrier precedes it, so that no rank waits
for a slower one, and the caller waits for its end. There is one row for each step of each backend.
"""

import argparse
import csv
import datetime
import functools
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import weftlink.torch  # noqa: F401  registers the backend

# Also if a test runs this file.
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]

import forked  # noqa: E402

FIELDS = ["ranks", "way", "block", "step", "backend", "loss", "step_us", "communication_us", "collectives"]
BACKENDS = ("weft", "gloo")
TOKENS, LENGTH, BATCH, WIDTH, LAYERS = 64, 32, 4, 128, 2
# Losses may differ because the backends add floats in different orders.
TOLERANCE = 1e-3


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = lambda: nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)  # noqa: E731
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
        self.out = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        hidden = self.tokens(tokens) + self.places(torch.arange(LENGTH))
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.out(hidden)


def batch(rank, step):
    """Arithmetic sequences, whose next number can be learnt."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    start, by = (torch.randint(1, top, (BATCH, 1), generator=generator) for top in (TOKENS, 5))
    return (start + by * torch.arange(LENGTH + 1)) % TOKENS


class Clock:
    """Times the collectives of training, in the same way for every backend."""

    # The last two were renamed; FSDP2 uses the new names.
    NAMES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_single", "reduce_scatter_single")

    def __init__(self, meeting):
        self.meeting, self.seconds, self.calls, self.real = meeting, 0.0, 0, {}

    def __enter__(self):
        self.real = {name: getattr(dist, name) for name in self.NAMES if hasattr(dist, name)}
        for name, call in self.real.items():
            setattr(dist, name, functools.partial(self.timed, call))
        return self

    def __exit__(self, *_):
        for name, call in self.real.items():
            setattr(dist, name, call)

    def timed(self, call, *args, **kwargs):
        dist.barrier(group=self.meeting)
        began = time.perf_counter()
        work = call(*args, **kwargs)
        if work is not None:
            work.wait()
        self.seconds += time.perf_counter() - began
        self.calls += 1
        return work


def summed(group, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's own reduction of a bucket, as a hook that can be timed."""
    buffer = bucket.buffer().div_(group.size())
    return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


class Trained:
    """The training of a model on one backend."""

    def __init__(self, way, group, rank):
        torch.manual_seed(0)
        self.rank, model = rank, Transformer()
        if way == "ddp":
            self.model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
            self.model.register_comm_hook(group, summed)
        else:
            mesh = DeviceMesh.from_group(group, "cpu")
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            self.model = fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, number):
        tokens = batch(self.rank, number)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def train(way, rank, options, groups, rows):
    trained = {backend: Trained(way, group, rank) for backend, group in groups.items()}
    meeting = dist.new_group()
    for number in range(0, options.steps, options.block):
        block = number // options.block
        # Both blocks of a pair, one timed by step and one by collective, have the same order.
        for backend in BACKENDS if block // 2 % 2 == 0 else BACKENDS[::-1]:
            for step in range(number, min(number + options.block, options.steps)):
                rows.append([options.ranks, way, block, step, backend, *timed(trained[backend], step, block % 2, meeting)])


def timed(trained, step, by_collective, meeting):
    """One step: its loss, and its time or that of its collectives."""
    if by_collective:
        with Clock(meeting) as clock:
            loss = trained.step(step)
        times = ["", round(clock.seconds * 1e6, 1), clock.calls]
    else:
        dist.barrier(group=meeting)
        began = time.perf_counter()
        loss = trained.step(step)
        times = [round((time.perf_counter() - began) * 1e6, 1), "", ""]
    dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=meeting)
    return [round(loss.item(), 6), *times]


def work(options, rank, folder):
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=300)
    store = dist.FileStore(f"{folder}/store", options.ranks)
    dist.init_process_group("weft", store=store, rank=rank, world_size=options.ranks, timeout=limit)
    rows = []
    for way in options.ways:
        groups = {backend: dist.new_group(backend=backend, timeout=limit) for backend in BACKENDS}
        train(way, rank, options, groups, rows)
    dist.destroy_process_group()
    return rows


def summarise(rows, way):
    """Prints the result of one way to train; False if the losses differ."""
    of = {backend: [row for row in rows if (row["way"], row["backend"]) == (way, backend)] for backend in BACKENDS}
    losses = {backend: [float(row["loss"]) for row in of[backend]] for backend in BACKENDS}
    apart = max(abs(one - other) for one, other in zip(*losses.values(), strict=True))
    print(f"{way}: loss {losses['weft'][0]:.4f} to {losses['weft'][-1]:.4f} on Weft, {losses['gloo'][-1]:.4f} on Gloo; at most {apart:.1e} apart")
    for what, field in (("step", "step_us"), ("communication in a step", "communication_us")):
        medians = {backend: _medians(of[backend], field) for backend in BACKENDS}
        ratio = statistics.median(medians["gloo"][block] / medians["weft"][block] for block in medians["weft"])
        weft, gloo = (statistics.median(medians[backend].values()) / 1e3 for backend in BACKENDS)
        print(f"{way}: {what}: Weft {weft:.3f} ms, Gloo {gloo:.3f} ms; Gloo takes {ratio:.2f} times as long")
    return apart <= TOLERANCE


def _medians(rows, field):
    """The median of each block, without the first two, in which torch warms up."""
    blocks = sorted({row["block"] for row in rows if row[field]}, key=int)
    blocks = [block for block in blocks if int(block) >= 2] or blocks
    return {block: statistics.median(float(row[field]) for row in rows if row["block"] == block) for block in blocks}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--block", type=int, default=10, help="steps of a backend before the other continues")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["ddp", "fsdp2"])
    parser.add_argument("--out", help="file for the rows (default: none)")
    options = parser.parse_args()
    if options.steps < 2 * options.block:
        parser.error(f"--steps {options.steps} must be two blocks of {options.block} at least: one times steps, the other collectives")
    if unknown := set(options.ways) - {"ddp", "fsdp2"}:
        parser.error(f"no such way to train: {', '.join(sorted(unknown))}; there are ddp and fsdp2")
    rows = forked.ranks(options.ranks, FIELDS, functools.partial(work, options))
    if options.out:
        with open(options.out, "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    parameters = sum(parameter.numel() for parameter in Transformer().parameters())
    print(f"transformer of {parameters} parameters, {options.ranks} ranks, {options.steps} steps, torch {torch.__version__}")
    if not all([summarise(rows, way) for way in options.ways]):
        sys.exit(f"the losses differ by more than {TOLERANCE}")


if __name__ == "__main__":
    main()
