"""Every collective of torch.distributed on Weft, with several numbers of ranks, compared with the expected result and with Gloo."""

import unittest

import torch
import torch.distributed as dist

import weftlink.torch
from ranks import run
from torch_cases import CASES, Op, all_values, as_gloo_does, combined, long_tensors, reductions, same, values
from weftlink.torch import rendezvous

SIZES = (1, 2, 3, 4, 8)


def in_lanes(rank, size, store):
    """The same where ranks have spare cores, so that long calls run in parts."""
    rendezvous._lanes = lambda hosts, members: 3
    dist.init_process_group("weft", store=store, rank=rank, world_size=size)
    long_tensors(rank, size)
    reductions(rank, size)
    symmetric = weftlink.torch.empty(1 << 19, symmetric=True)
    for _ in range(2):
        symmetric.copy_(values(rank, 1 << 19))
        dist.all_reduce(symmetric)
        same(symmetric, combined(all_values(size, 1 << 19), Op.SUM), "symmetric in parts")
    ordinary = values(rank, 1 << 19)
    dist.all_reduce(symmetric.copy_(ordinary) if rank == 0 else ordinary)
    same(symmetric if rank == 0 else ordinary, combined(all_values(size, 1 << 19), Op.SUM), "symmetric on one rank")
    dist.destroy_process_group()


def everything(rank, size):
    for case in CASES:
        case(rank, size)
    if size in (2, 3):
        as_gloo_does(rank, size)


class Collectives(unittest.TestCase):
    def test_every_collective_at_every_size(self):
        for size in SIZES:
            with self.subTest(ranks=size):
                run(size, everything)

    def test_long_calls_in_parts(self):
        run(3, in_lanes, backend=None)


if __name__ == "__main__":
    unittest.main()
