#!/usr/bin/env python3
"""Gloo's collectives, called through torch.distributed, measured as measure.h says: same options, same rows.

    gloo.py --ranks 2 --cores 0,1 --collectives all-reduce --sizes 8,512 [--iters auto|N] [--check] [--rotate BYTES]

Each rank is a process, on the core given for it if --cores is there, and connects to the others over the loopback
interface, which is how Gloo talks within a host. torch.distributed reduces and broadcasts only in place, has no scans, and
keeps the other calls out of place; what is not there has no row.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

PERIOD = 61
CACHE_BYTES = 24 << 10
SHARES = {"all-gather", "reduce-scatter", "all-to-all", "gather", "scatter"}
IN_PLACE = {"all-reduce", "reduce", "broadcast"}
OUT_OF_PLACE = SHARES | {"send-receive", "barrier"}
ABSENT = {"scan", "exclusive-scan"}


class Rank:
    """One rank, with the calls by name. `whole` elements are in a buffer, `count` in it or in a rank's share of it."""

    def __init__(self, options):
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        self.torch, self.dist, self.options = torch, torch.distributed, options
        self.rank, self.ranks, self.turn = options.rank, options.ranks, 0
        store = self.dist.FileStore(options.store, self.ranks)
        self.dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.ranks)

    def call(self, what, source, target):
        """What a call needs, made ready before the clock runs: a function without arguments."""
        dist, root = self.dist, self.rank == 0
        if what == "all-reduce":
            return lambda: dist.all_reduce(target)
        if what == "reduce":
            return lambda: dist.reduce(target, 0)
        if what == "broadcast":
            return lambda: dist.broadcast(target, 0)
        if what == "barrier":
            return dist.barrier
        if what == "all-to-all":
            return lambda: dist.all_to_all_single(target, source)
        if what == "send-receive":
            following, previous = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks

            def exchange():
                sent = dist.isend(source, following)
                dist.recv(target, previous)
                sent.wait()

            return exchange
        share = len(target) // self.ranks
        if what == "all-gather":
            own = source[:share]
            return lambda: dist.all_gather_into_tensor(target, own)
        if what == "reduce-scatter":
            result = target[:share]
            return lambda: dist.reduce_scatter_tensor(result, source)
        if what == "gather":
            own, parts = source[:share], list(target.chunk(self.ranks)) if root else None
            return lambda: dist.gather(own, parts, 0)
        result, parts = target[:share], list(source.chunk(self.ranks)) if root else None
        return lambda: dist.scatter(result, parts, 0)

    def value(self, rank, count, first=0):
        """So many elements of a rank's input, beginning at the first one given."""
        elements = self.torch.arange(first, first + PERIOD)
        period = ((elements % PERIOD * 7 + rank * 13) % PERIOD + 1).to(self.torch.float32)
        return period.repeat(count // PERIOD + 1)[:count]

    def expected(self, what, whole):
        """This rank's result, or None where it has none."""
        rank, ranks, count = self.rank, self.ranks, whole // self.ranks
        if what == "barrier" or (what in ("reduce", "gather") and rank != 0):
            return None
        if what in ("all-reduce", "reduce"):
            return sum(self.value(r, whole) for r in range(ranks))
        if what == "reduce-scatter":
            return sum(self.value(r, count, rank * count) for r in range(ranks))
        if what == "broadcast":
            return self.value(0, whole)
        if what == "scatter":
            return self.value(0, count, rank * count)
        if what == "send-receive":
            return self.value((rank - 1) % ranks, whole)
        first = rank * count if what == "all-to-all" else 0
        return self.torch.cat([self.value(r, count, first) for r in range(ranks)])

    def wrong(self, what, target, expected):
        return 0 if expected is None else int((target[: len(expected)] != expected).sum())

    def agreed(self, number, operation):
        tensor = self.torch.tensor([number], dtype=self.torch.float64)
        self.dist.all_reduce(tensor, operation)
        return tensor.item()

    def timed(self, turns, calls):
        """Makes the calls in turns, on inputs that are written anew before each, and times the calls alone."""
        seconds, done = 0.0, 0
        while done < calls:
            turn = turns[: calls - done]
            salt = float(self.turn % 8)
            self.turn += 1
            for source, filling, _ in turn:
                self.torch.add(filling, salt, out=source)
            self.dist.barrier()
            start = time.perf_counter()
            for _, _, call in turn:
                call()
            seconds += time.perf_counter() - start
            done += len(turn)
        return self.agreed(seconds, self.dist.ReduceOp.MAX)

    def calls(self, turns):
        """How many calls take a tenth of a second, going by the fastest of the warm-up's batches."""
        batch, batches = 5, 1
        seconds = self.timed(turns, batch)
        fastest = seconds / batch
        while seconds < 0.1 and (batches < 3 or fastest * batch < 0.01) and batch < 50000:
            batch, batches = batch * 4, batches + 1
            seconds = self.timed(turns, batch)
            fastest = min(fastest, seconds / batch)
        return min(max(int(0.1 / fastest), 5), 200000)

    def measure(self, what, size):
        torch, options = self.torch, self.options
        whole = 0 if what == "barrier" else size // 4
        if what in SHARES:
            whole = whole // self.ranks * self.ranks
        if whole == 0 and what != "barrier":
            return
        in_place = what in IN_PLACE
        unit = 32 if whole < 1024 else 1024
        stride = max((whole + unit - 1) // unit * unit, unit)
        sets = max((options.rotate or CACHE_BYTES) // (stride * 4), 2)
        if not options.rotate:
            sets = min(sets, 64)

        def buffers():
            memory = torch.full((stride * sets + 1024,), float("nan"))
            memory = memory[-memory.data_ptr() % 4096 // 4 :]
            return [memory[s * stride : s * stride + whole] for s in range(sets)]

        targets = buffers()
        sources = targets if in_place else buffers()
        filling = self.value(self.rank, whole)
        turns = [(pair[0], filling, self.call(what, *pair)) for pair in zip(sources, targets)]

        expected = self.expected(what, whole) if options.check else None
        wrong = 0
        for again in (False, True):
            targets[0].fill_(float("nan"))
            sources[0].copy_(filling)
            turns[0][2]()
            wrong += self.wrong(what, targets[0], expected)
            if not again:
                warm = self.calls(turns)
                calls = warm if options.iters == "auto" else int(options.iters)
                seconds = self.timed(turns, calls)
        wrong = int(self.agreed(wrong, self.dist.ReduceOp.SUM))
        if self.rank == 0:
            place = "in-place" if in_place else "out-of-place"
            reuse = "rotating" if options.rotate else "cached"
            print(f"row,{what},{place},{reuse},{whole * 4},{calls},{seconds / calls * 1e6:.6g},{wrong}", flush=True)


def one_rank(options):
    if options.cores:
        os.sched_setaffinity(0, {options.cores[options.rank]})
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    rank = Rank(options)
    if options.rank == 0:
        print(f"library,Gloo in torch {rank.torch.__version__}", flush=True)
    for what in options.collectives:
        for size in [0] if what == "barrier" else options.sizes:
            if what not in ABSENT:
                rank.measure(what, size)
    rank.dist.destroy_process_group()


def all_ranks(options):
    """Starts every rank; when one fails, stops the others."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--store", str(pathlib.Path(folder) / "store"), "--rank"]
        environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        processes = [subprocess.Popen(command + [str(rank)], env=environment) for rank in range(options.ranks)]
        try:
            while any(p.poll() is None for p in processes) and not any(p.poll() for p in processes):
                time.sleep(0.05)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        return max(abs(process.returncode) for process in processes)


def main():
    def collectives(text):
        names = text.split(",")
        for name in names:
            if name not in IN_PLACE | OUT_OF_PLACE | ABSENT:
                raise argparse.ArgumentTypeError(f"no such collective: {name}")
        return names

    def numbers(text):
        return [int(number) for number in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--cores", type=numbers, help="one for each rank; without it ranks run where they like")
    parser.add_argument("--collectives", type=collectives, required=True)
    parser.add_argument("--sizes", type=numbers, required=True)
    parser.add_argument("--iters", default="auto")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rotate", type=int, default=0, metavar="BYTES")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is None:
        sys.exit(all_ranks(options))
    one_rank(options)


if __name__ == "__main__":
    main()
