"""How the ranks of a group join: they exchange hosts, address and secret through the store of torch."""

import collections
import contextlib
import json
import os
import secrets
import socket
from datetime import timedelta

from weftlink._native import Group


def meet(store, rank: int, size: int, timeout: timedelta, name: str, description: str, ranks: list[int]) -> Group:
    """Joins a group. Rank 0 chooses the address once it knows the hosts of all ranks."""
    # A store may outlive a group and serve another of the same name.
    generation = store.add(f"weft/{rank}/generation", 1)
    prefix = f"weft/{generation}"
    store.set(f"{prefix}/host/{rank}", json.dumps([_host(), len(os.sched_getaffinity(0))]))
    with contextlib.ExitStack() as until_joined:
        if rank == 0:
            members = [json.loads(store.get(f"{prefix}/host/{other}")) for other in range(size)]
            hosts = collections.Counter(host for host, _ in members)
            place, secret = _place(len(hosts) == 1, until_joined), secrets.token_hex(32)
            lanes = _lanes(hosts, members)
            store.set(f"{prefix}/place", json.dumps([place, secret, lanes]))
        else:
            place, secret, lanes = json.loads(store.get(f"{prefix}/place"))
        return Group(rank, size, place, secret.encode(), timeout.total_seconds(), name, description, ranks, lanes)


def _lanes(hosts: collections.Counter, members: list) -> int:
    """How many parts of a long call run in parallel: the cores per rank, on the host with the fewest."""
    if len(members) == 1:
        return 1
    return max(1, min(cores // hosts[host] for host, cores in members))


def _host() -> str:
    """An identifier of this host, the same for all processes that can share memory."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def _place(one_host: bool, until_joined: contextlib.ExitStack) -> str:
    if one_host:
        return f"weft-torch-{secrets.token_hex(8)}"
    address = _address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # The port stays bound until the ranks have joined, so that no other process gets it. Rank 0 can still listen there: both
    # sockets set SO_REUSEADDR, and this one does not listen.
    reserved = until_joined.enter_context(socket.socket(family))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((address, 0))
    return f"{address}:{reserved.getsockname()[1]}"


def _address() -> str:
    """The address of this host for ranks on other hosts: MASTER_ADDR if it belongs to this host, else that of its name."""
    candidates = [os.environ.get("MASTER_ADDR"), socket.getfqdn(), socket.gethostname()]
    for name in filter(None, candidates):
        try:
            resolved = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
        except OSError:
            continue
        for family, _, _, _, address in resolved:
            with socket.socket(family) as probe:
                try:
                    probe.bind((address[0], 0))
                except OSError:
                    continue
                return address[0]
    raise RuntimeError("found no address of this host; set MASTER_ADDR to an address of rank 0's host")
