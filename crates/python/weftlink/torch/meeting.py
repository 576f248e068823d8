"""How the ranks of a group find each other: through the store that torch has made for it."""

import collections
import contextlib
import json
import os
import secrets
import socket
from datetime import timedelta

from weftlink._native import Group


def meet(store, rank: int, size: int, timeout: timedelta, name: str, description: str, ranks: list[int]) -> Group:
    """All ranks of a group meet. Rank 0 chooses where, once it knows on which hosts the others are."""
    # A store may outlive a group and see another of the same name.
    generation = store.add(f"weft/{rank}/generation", 1)
    prefix = f"weft/{generation}"
    store.set(f"{prefix}/host/{rank}", json.dumps([_host(), len(os.sched_getaffinity(0))]))
    with contextlib.ExitStack() as until_met:
        if rank == 0:
            found = [json.loads(store.get(f"{prefix}/host/{other}")) for other in range(size)]
            hosts = collections.Counter(host for host, _ in found)
            place, secret = _place(len(hosts) == 1, until_met), secrets.token_hex(32)
            lanes = _lanes(hosts, found)
            store.set(f"{prefix}/place", json.dumps([place, secret, lanes]))
        else:
            place, secret, lanes = json.loads(store.get(f"{prefix}/place"))
        return Group(rank, size, place, secret.encode(), timeout.total_seconds(), name, description, ranks, lanes)


def _lanes(hosts: collections.Counter, found: list) -> int:
    """In how many parts long calls are made side by side: as many as each rank has cores, on the host where these are fewest."""
    if len(found) == 1:
        return 1
    return max(1, min(cores // hosts[host] for host, cores in found))


def _host() -> str:
    """What processes that can share memory have in common."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def _place(one_host: bool, until_met: contextlib.ExitStack) -> str:
    if one_host:
        return f"weft-torch-{secrets.token_hex(8)}"
    address = _address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # The port stays bound until the ranks have met, so that no other process gets it. Rank 0 may listen there all the same: both
    # sockets allow their address to be reused, and this one does not listen.
    reserved = until_met.enter_context(socket.socket(family))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((address, 0))
    return f"{address}:{reserved.getsockname()[1]}"


def _address() -> str:
    """Where ranks of other hosts reach this one: the address under which the job was started, if it is this host's."""
    candidates = [os.environ.get("MASTER_ADDR"), socket.getfqdn(), socket.gethostname()]
    for name in filter(None, candidates):
        try:
            found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
        except OSError:
            continue
        for family, _, _, _, address in found:
            with socket.socket(family) as probe:
                try:
                    probe.bind((address[0], 0))
                except OSError:
                    continue
                return address[0]
    raise RuntimeError("no address of this host is known: set MASTER_ADDR to one of rank 0's")
