"""Multi-GPU communication, planned from the wiring.

>>> import weftlink
>>> def work(comm):
...     values = bytearray([comm.rank, 1])
...     comm.all_reduce(values, "sum")
...     return list(values)
>>> weftlink.on_threads(4, work)
[[6, 4], [6, 4], [6, 4], [6, 4]]

`init` joins the job of this process; `Communicator` has the collectives, `errors` the exceptions. `fabric` describes machines, `plan` chooses
and verifies algorithms, `sim` predicts times on any fabric, `bench` measures on this machine.
"""

from weftlink import bench, errors, fabric, plan, sim
from weftlink._native import Window
from weftlink.communicator import CollectiveCounters, Communicator, init, meet, on_threads
from weftlink.errors import Error
from weftlink.handle import Handle
from weftlink.reduction import PremultipliedSum, Reduction

__all__ = [
    "CollectiveCounters",
    "Communicator",
    "Error",
    "Handle",
    "PremultipliedSum",
    "Reduction",
    "Window",
    "bench",
    "errors",
    "fabric",
    "init",
    "meet",
    "on_threads",
    "plan",
    "sim",
]
