"""The process group and the backend that ``torch.distributed`` calls.

Torch accepts two classes for a backend written in Python. It calls a ``ProcessGroup`` directly, in a third of the time, and returns its
``Work`` unchanged. It calls a ``Backend`` through its dispatcher, one for each device type, so that it can be combined with others, and wraps
its ``Work``; the wrapper has no ``is_completed`` and no source of a message. So ``init_process_group("weft")`` makes a group that is both, and
a group for several device types gets a ``Backend``.
"""

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from weftlink.errors import UsageError
from weftlink.torch.calls import Calls
from weftlink.torch.rendezvous import meet

# None if this torch has no Backend to subclass; then there is only a ProcessGroup.
_Base = c10d.Backend if hasattr(c10d.Backend, "broadcast") else None


def can_be_mixed() -> bool:
    """Whether the installed torch supports subclasses of ``Backend``, so that ``cpu:weft,cuda:nccl`` works."""
    if _Base is None:
        return False
    try:
        return _Probe(0, 1).rank() == 0
    except (TypeError, RuntimeError):
        return False


class Group(Calls, dist.ProcessGroup):
    """A process group with Weft as its only backend."""

    def __init__(self, native, store, timeout, ranks):
        try:
            dist.ProcessGroup.__init__(self, store, native.rank, native.size)
        except TypeError:
            # This torch takes no store here.
            dist.ProcessGroup.__init__(self, native.rank, native.size)
        self._set_up(native, store, timeout, ranks)
        self._names = {"name": "", "desc": ""}
        self._has_backend = can_be_mixed()
        if self._has_backend:
            self._backend = Backend(native, store, timeout, ranks, self._gpu)
            for device in self._device_types:
                self._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, self._backend)
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
        return [torch.device("cpu"), torch.device("cuda")]

    def get_group_store(self):
        return self._store

    # What torch asks a backend: of the group itself, where there is none.
    supports_splitting = supports_coalescing = supports_shrinking = supports_time_estimate = False

    def _get_backend(self, device):
        return super()._get_backend(device) if self._has_backend else self

    # Torch stores these names in the backend, which the group may not have.

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
        """Makes a group of some of these ranks, for ``torch.distributed.split_group``; None on the others."""
        if self._native.rank not in ranks:
            return None
        store = dist.PrefixStore(f"{group_name}/", self._store)
        group = Group(*self._part(store, ranks, timeout or self._timeout, group_name))
        group._set_group_name(group_name)
        group._set_group_desc(group_desc or "undefined")
        return group


if _Base is not None:

    class Backend(Calls, _Base):
        """Weft combined with other backends, or called through torch's dispatcher."""

        # Without these attributes, torch looks them up in every call.
        supports_splitting = True
        supports_coalescing = False
        supports_shrinking = False
        supports_reconfigure = False
        supports_window = False
        _supports_time_estimate = False

        def __init__(self, native, store, timeout, ranks, on_gpu=None):
            _Base.__init__(self, native.rank, native.size)
            self._set_up(native, store, timeout, ranks, on_gpu)

        @property
        def options(self):
            return c10d.Backend.Options("weft", self._timeout)

        def split(self, store, ranks, opts):
            if self._native.rank not in ranks:
                # Torch fails on a rank without a new backend.
                raise UsageError("split_group of a group with several backends must give every rank a part, if need be one of its own")
            return Backend(*self._part(store, ranks, opts._timeout, opts.group_name))

    class _Probe(_Base):
        pass


def create(options, _backend_options=None):
    """Creates this rank's end of a group. ``torch.distributed`` calls it."""
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group) or list(range(size))
    native = meet(options.store, rank, size, options.timeout, options.group_id, "weft", ranks)
    kind = Backend if _is_mixed(options) else Group
    return kind(native, options.store, options.timeout, ranks)


def _is_mixed(options):
    """Whether the new group has other backends for other device types. That of its accelerator names it, or one is there already."""
    group = getattr(options, "process_group", None)
    return group is not None and can_be_mixed() and (group.name() != "custom" or bool(group._device_types))
