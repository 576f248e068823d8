#!/usr/bin/env python3
"""Compares Weft with Gloo in PyTorch: every collective of torch.distributed on CPU tensors, 8 bytes to 256 MiB.

    bench/torch/run.py [--ranks 2] [--collectives all_reduce,...] [--sizes 8,4096] [--rounds 7] [--name torch] [--quick]

Every rank is a process with a group of each backend, on the same tensors. For each size of each collective, a round measures both
backends in alternating order; the summary compares the ratio within a round. Writes raw.csv, summary.md and README.md into
bench/runs/DATE-NAME-MACHINE, or into --out.
"""

import argparse
import csv
import datetime
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers")]

import forked  # noqa: E402
import machine  # noqa: E402
from summary import geometric_mean, median_ratio  # noqa: E402

FIELDS = ["round", "ranks", "backend", "collective", "bytes", "calls", "time_us"]
SIZES = [8 << shift for shift in range(0, 25, 3)] + [256 << 20]
BACKENDS = ("weft", "gloo")
# The time of a block of calls, and its least and largest number of calls.
BLOCK_S = 0.05
CALLS_MIN = 2
CALLS_MAX = 2000


def calls(torch, dist, group, rank, ranks, count):
    """A function without arguments for every collective, by name. The larger buffer of each has `count` floats."""
    share = max(count // ranks, 1)
    whole, other = torch.ones(share * ranks), torch.ones(share * ranks)
    full = torch.ones(count)
    part = torch.ones(share)
    parts = [torch.ones(share) for _ in range(ranks)]
    at_root = rank == 0
    peer = rank ^ 1

    def send_receive():
        if peer < ranks:
            (dist.send if rank < peer else dist.recv)(full, peer, group=group)
            (dist.recv if rank < peer else dist.send)(full, peer, group=group)

    return {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_reduce_async": lambda: dist.all_reduce(full, group=group, async_op=True).wait(),
        "broadcast": lambda: dist.broadcast(full, 0, group=group),
        "reduce": lambda: dist.reduce(full, 0, group=group),
        "all_gather": lambda: dist.all_gather(parts, part, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(part, parts, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(other, whole, group=group),
        "gather": lambda: dist.gather(part, parts if at_root else None, 0, group=group),
        "scatter": lambda: dist.scatter(part, parts if at_root else None, 0, group=group),
        "send_recv": send_receive,
        "barrier": lambda: dist.barrier(group=group),
    }


# Weft's tensor is in symmetric memory.
SYMMETRIC = "_symmetric"
COLLECTIVES = [
    "all_reduce", "all_reduce_symmetric", "all_reduce_async", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all_single", "gather", "scatter", "send_recv", "barrier",
]  # fmt: skip


class Rank:
    """One rank: both groups, and the calls on them."""

    def __init__(self, rank, options, folder):
        import torch
        import torch.distributed as dist

        import weftlink.torch

        torch.set_num_threads(1)
        self.weft = weftlink.torch
        self.torch, self.dist, self.rank, self.options = torch, dist, rank, options
        limit = datetime.timedelta(seconds=300)
        store = dist.FileStore(f"{folder}/store", options.ranks)
        dist.init_process_group("weft", store=store, rank=rank, world_size=options.ranks, timeout=limit)
        self.groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo", timeout=limit)}

    def time(self, call, number):
        began = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - began) / number

    def slowest(self, seconds):
        """The longest time of all ranks."""
        longest = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.dist.all_reduce(longest, op=self.dist.ReduceOp.MAX)
        return longest.item()

    def measure(self, what, size, rows):
        options, count = self.options, max(size // 4, 1)
        calls_of = {
            backend: calls(self.torch, self.dist, group, self.rank, options.ranks, count)[what.removesuffix(SYMMETRIC)]
            for backend, group in self.groups.items()
        }
        if what.endswith(SYMMETRIC):
            tensor = self.weft.empty(count, symmetric=True)
            calls_of["weft"] = lambda: self.dist.all_reduce(tensor)
        numbers = {}
        for backend, call in calls_of.items():
            try:
                self.time(call, 1)
            except (RuntimeError, ValueError) as error:
                if self.rank == 0:
                    print(f"{backend} does not support {what}: {str(error).splitlines()[0]}", flush=True)
                return
            took = self.slowest(min(self.time(call, 3), self.time(call, 3)))
            numbers[backend] = min(max(int(BLOCK_S / took), CALLS_MIN), CALLS_MAX)
        for turn in range(options.rounds):
            order = BACKENDS if turn % 2 == 0 else BACKENDS[::-1]
            for backend in order:
                self.dist.barrier()
                self.time(calls_of[backend], 1)
                took = self.slowest(self.time(calls_of[backend], numbers[backend]))
                rows.append([turn, options.ranks, backend, what, size, numbers[backend], round(took * 1e6, 3)])

    def run(self):
        rows, began = [], time.monotonic()
        for what in self.options.collectives:
            for size in self.options.sizes[:1] if what == "barrier" else self.options.sizes:
                self.measure(what, size, rows)
                if self.rank == 0 and rows and rows[-1][3] == what:
                    print(f"{time.monotonic() - began:6.0f} s  {line(rows, what, size)}", flush=True)
        self.dist.destroy_process_group()
        return rows


def line(rows, what, size):
    """The result for one size of a collective."""
    times = {
        backend: statistics.median(row[6] for row in rows if (row[2], row[3], row[4]) == (backend, what, size))
        for backend in BACKENDS
    }
    return f"{what} {size} B: Weft {times['weft']:.1f} us, Gloo {times['gloo']:.1f} us, {times['gloo'] / times['weft']:.1f}x"


def launch(options):
    """Forks the ranks and returns the rows of rank 0."""
    import torch  # noqa: F401

    cores = sorted(os.sched_getaffinity(0))

    def work(rank, folder):
        if options.bind and options.ranks <= len(cores):
            os.sched_setaffinity(0, {cores[rank]})
        return Rank(rank, options, folder).run()

    return forked.ranks(options.ranks, FIELDS, work)


def summarise(rows):
    """The text of summary.md: medians, ratios with confidence intervals, geometric means, and whether the bars are met."""
    text = ["# Weft beside Gloo in PyTorch", "", "Medians over rounds; a ratio is Gloo's time over Weft's in the same round, with the interval that covers its median.", ""]  # fmt: skip
    verdicts = []
    for ranks in sorted({int(row["ranks"]) for row in rows}):
        for what in dict.fromkeys(row["collective"] for row in rows):
            chosen = [row for row in rows if int(row["ranks"]) == ranks and row["collective"] == what]
            if not chosen:
                continue
            text += [f"## {what}, {ranks} ranks", "", "| bytes | Weft us | Gloo us | ratio |", "|--:|--:|--:|--:|"]
            ratios = {}
            for size in sorted({int(row["bytes"]) for row in chosen}):
                times = {
                    backend: {int(row["round"]): float(row["time_us"]) for row in chosen if row["backend"] == backend and int(row["bytes"]) == size}
                    for backend in BACKENDS
                }  # fmt: skip
                ratio = median_ratio([times["gloo"][turn] / times["weft"][turn] for turn in times["weft"]])
                ratios[size] = ratio.median
                medians = [statistics.median(times[backend].values()) for backend in BACKENDS]
                text.append(f"| {size} | {medians[0]:.1f} | {medians[1]:.1f} | {ratio} |")
            mean = geometric_mean(ratios.values())
            text += ["", f"Geometric mean {mean:.2f}x.", ""]
            verdicts.append(verdict(what, ranks, ratios, mean))
    return "\n".join([*text, "## Bars", "", *verdicts, ""])


def verdict(what, ranks, ratios, mean):
    if what not in ("all_reduce", "all_reduce_symmetric"):
        return f"- {what}, {ranks} ranks: at least 3x in the geometric mean: {'met' if mean >= 3 else 'missed'} ({mean:.2f}x)"
    short = min((ratio for size, ratio in ratios.items() if size <= 16 << 20), default=float("inf"))
    long = min((ratio for size, ratio in ratios.items() if size > 16 << 20), default=float("inf"))
    met = short >= 5 and long >= 4
    return f"- {what}, {ranks} ranks: at least 5x to 16 MiB and 4x above, at every size: {'met' if met else 'missed'} (least {short:.2f}x and {long:.2f}x)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--ranks", type=numbers, default=[2], metavar="N[,N]", help="numbers of ranks, one run for each")
    parser.add_argument("--collectives", type=lambda text: text.split(","), default=COLLECTIVES)
    parser.add_argument("--sizes", type=numbers, default=SIZES, metavar="BYTES[,BYTES]")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--name", default="torch")
    parser.add_argument("--out", type=pathlib.Path, help="output folder; existing rows are kept")
    parser.add_argument("--bind", action="store_true", help="bind each rank, with all its threads, to one core; this slows down Gloo")
    parser.add_argument("--quick", action="store_true", help="smoke test: three sizes, three rounds")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.rounds = [8, 32 << 10, 2 << 20], 3
    if unknown := set(options.collectives) - set(COLLECTIVES):
        parser.error(f"unknown collective {', '.join(sorted(unknown))}; choose from {', '.join(COLLECTIVES)}")
    today = datetime.date.today().isoformat()
    out = options.out or HERE.parent / "runs" / f"{today}-{options.name}-{machine.short_name()}"
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    if (out / "raw.csv").exists():
        with open(out / "raw.csv", newline="") as file:
            rows = list(csv.DictReader(file))
    for ranks in options.ranks:
        options.ranks = ranks
        rows += launch(options)
        # Keeps the rows if a later run is interrupted.
        write(out, rows)
    print((out / "summary.md").read_text().partition("## Bars")[2])


def write(out, rows):
    import torch

    with open(out / "raw.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    (out / "summary.md").write_text(summarise(rows))
    about = ["# Weft beside Gloo in PyTorch", "", *machine.description(), f"- torch {torch.__version__}", ""]
    about += ["`bench/torch/run.py`: both backends in the same processes, on the same tensors, in turns. `raw.csv` has every row.", ""]
    (out / "README.md").write_text("\n".join(about))


if __name__ == "__main__":
    main()
