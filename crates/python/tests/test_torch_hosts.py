"""Ranks on two hosts, which are network namespaces of this machine: shared memory inside, TCP between."""

import ctypes
import os
import shutil
import subprocess
import unittest

import torch
import torch.distributed as dist

from ranks import run

NAMES = [f"weft-{os.getpid()}-{host}" for host in "ab"]
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
ADDRESS = "10.77.0.1"


def ip(*words):
    subprocess.run([shutil.which("ip", path=PATH), *words], check=True, capture_output=True, text=True)


def move_to(name):
    """Moves this process to a host."""
    with open(f"/var/run/netns/{name}") as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot move to {name}")


def everything(rank, size, _store):
    """Ranks 0 and 1 are on one host, the others on the second."""
    move_to(NAMES[rank >= 2])
    os.environ |= {"MASTER_ADDR": ADDRESS, "MASTER_PORT": "29577"}
    dist.init_process_group("weft")
    for length in (3, 1 << 20):
        tensor = torch.full((length,), float(rank + 1))
        dist.all_reduce(tensor)
        assert tensor[-1] == size * (size + 1) / 2, tensor
    parts = [torch.empty(5) for _ in range(size)]
    dist.all_gather(parts, torch.full((5,), float(rank)))
    assert [int(part[0]) for part in parts] == list(range(size)), parts
    if rank == 0:
        dist.send(torch.arange(1 << 18), size - 1, tag=3)
    if rank == size - 1:
        got = torch.empty(1 << 18, dtype=torch.int64)
        assert dist.recv(got, tag=3) == 0
        assert torch.equal(got, torch.arange(1 << 18))
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": other} for other in range(size)], gathered
    dist.barrier()
    dist.destroy_process_group()


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip", path=PATH), "namespaces take root and iproute2")
class Hosts(unittest.TestCase):
    def setUp(self):
        for name in NAMES:
            ip("netns", "add", name)
            self.addCleanup(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "wire", "netns", NAMES[0], "type", "veth", "peer", "name", "wire", "netns", NAMES[1])
        for number, name in enumerate(NAMES, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")

    def test_a_group_spans_hosts(self):
        run(3, everything, backend=None)


if __name__ == "__main__":
    unittest.main()
