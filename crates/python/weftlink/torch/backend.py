"""The backend: what ``torch.distributed`` calls.

Torch has two places for a backend that is written in Python. A ``ProcessGroup`` is called by ``torch.distributed`` directly, which takes a
third of the time, and what it returns reaches the caller as it is. A ``Backend`` is called through torch's dispatcher, one for each kind of
device, so that it can stand beside another one; what it returns reaches the caller in a wrapper that does not tell ``is_completed`` nor where
a message came from. So ``init_process_group("weft")`` makes a group that is both, and a group for several devices gets a backend.
"""

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from weftlink.errors import UsageError
from weftlink.torch.calls import Calls
from weftlink.torch.meeting import meet

# Where a Backend cannot be subclassed, a group is only what torch.distributed calls directly.
_Base = c10d.Backend if hasattr(c10d.Backend, "broadcast") else None


def can_be_mixed() -> bool:
    """Whether the installed torch lets a ``Backend`` be subclassed, so that ``cpu:weft,cuda:nccl`` has both."""
    if _Base is None:
        return False
    try:
        return _Probe(0, 1).rank() == 0
    except (TypeError, RuntimeError):
        return False


class Group(Calls, dist.ProcessGroup):
    """A process group that Weft serves alone."""

    def __init__(self, native, store, timeout, ranks):
        try:
            dist.ProcessGroup.__init__(self, store, native.rank, native.size)
        except TypeError:
            # A torch in which only groups of its own have a store.
            dist.ProcessGroup.__init__(self, native.rank, native.size)
        self._set_up(native, store, timeout, ranks)
        self._names = {"name": "", "desc": ""}
        self._has_backend = can_be_mixed()
        if self._has_backend:
            self._backend = Backend(native, store, timeout, ranks)
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, self._backend)
            self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def getRank(self):
        return self._native.rank

    def getSize(self):
        return self._native.size

    rank, size = getRank, getSize

    def name(self):
        return "weft"

    _get_backend_name = name

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    def get_group_store(self):
        return self._store

    # Torch keeps names in backends, which a group may not have.

    def _set_group_name(self, name):
        self._names["name"] = name
        if self._has_backend:
            super()._set_group_name(name)

    def _set_group_desc(self, description):
        self._names["desc"] = description
        if self._has_backend:
            super()._set_group_desc(description)

    def getGroupName(self):
        return self._names["name"]

    def getGroupDesc(self):
        return self._names["desc"]

    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None):
        """A group of some of these ranks, as ``torch.distributed.split_group`` asks for it; None on the others."""
        if self._native.rank not in ranks:
            return None
        store = dist.PrefixStore(f"{group_name}/", self._store)
        group = Group(*self._part(store, ranks, timeout or self._timeout, group_name))
        group._set_group_name(group_name)
        group._set_group_desc(group_desc or "undefined")
        return group


if _Base is not None:

    class Backend(Calls, _Base):
        """Weft beside other backends, or below torch's dispatcher."""

        # Where a class does not say, torch asks it again and again.
        supports_splitting = True
        supports_coalescing = False
        supports_shrinking = False
        supports_reconfigure = False
        supports_window = False
        _supports_time_estimate = False

        def __init__(self, native, store, timeout, ranks):
            _Base.__init__(self, native.rank, native.size)
            self._set_up(native, store, timeout, ranks)

        @property
        def options(self):
            return c10d.Backend.Options("weft", self._timeout)

        def split(self, store, ranks, opts):
            if self._native.rank not in ranks:
                # Torch falls over a rank that has nothing to give back.
                raise UsageError("a group with several backends is split into parts that have all its ranks, if only alone")
            return Backend(*self._part(store, ranks, opts._timeout, opts.group_name))

    class _Probe(_Base):
        pass


def create(options, _backend_options=None):
    """Makes one rank's end of a group. ``torch.distributed`` calls it."""
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group) or list(range(size))
    native = meet(options.store, rank, size, options.timeout, options.group_id, "weft", ranks)
    kind = Backend if _is_mixed(options) else Group
    return kind(native, options.store, options.timeout, ranks)


def _is_mixed(options):
    """Whether the group being made has backends for other devices too."""
    made = getattr(options, "process_group", None)
    return made is not None and can_be_mixed() and made.name() != "custom"
