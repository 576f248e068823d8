"""The calls of ``torch.distributed``, shared by the process group and the backend."""

import functools
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.autograd import profiler

from weftlink.errors import Error, UsageError
from weftlink.torch import accelerator
from weftlink.torch.barrier import monitored_barrier
from weftlink.torch.failure import record_error
from weftlink.torch.gpu import Gpu
from weftlink.torch.rendezvous import meet
from weftlink.torch.shutdown import leave_at_exit
from weftlink.torch.sparse import sum_of_sparse
from weftlink.torch.tensors import contiguous, join, together
from weftlink.torch.work import DONE, Work, Works

# Lists of tensors this long are sent one by one instead of being copied into one buffer.
_LONG_BYTES = 1 << 20


def _is_long(length, tensor):
    """Whether ``length`` elements count as long; all ranks decide the same."""
    return length * tensor.element_size() >= _LONG_BYTES


def _seconds(options):
    """The timeout of a call; None for that of the group."""
    timeout = options.timeout
    return None if timeout.days < 0 else timeout.total_seconds()


def _operation(options):
    """The reduction of a call, as a number, and its factor."""
    op = options.reduceOp
    number = int(op.op)
    if number != 8:
        return number, None
    factor = op.__getstate__()[1]
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise UsageError("the factor of a pre-multiplied sum must be a single number")
        factor = factor.item()
    return number, float(factor)


def _tensors(given):
    """A list of tensors; callers may pass a single tensor."""
    return [given] if isinstance(given, torch.Tensor) else given


def _lists(given):
    """A list of lists of tensors; callers may pass a single list."""
    return [given] if given and isinstance(given[0], torch.Tensor) else given


def _options(kind, given, root=None, op=None, timeout=None):
    """The options of a call; callers may pass a root, an operation or a timeout instead."""
    if isinstance(given, kind):
        return given
    options = kind()
    if isinstance(given, timedelta):
        given, timeout = None, given
    if given is not None and hasattr(options, "rootRank"):
        root = given
    elif given is not None:
        op = given
    if root is not None:
        options.rootRank = root
    if op is not None:
        options.reduceOp = op
    if timeout is not None:
        options.timeout = timeout
    return options


def _named(name):
    """Shows a call in profiles under a name, while a profiler is active."""

    def decorate(call):
        @functools.wraps(call)
        def named(self, *args, **kwargs):
            if not profiler._is_profiler_enabled:
                return call(self, *args, **kwargs)
            with profiler.record_function(f"weft:{name}"):
                return call(self, *args, **kwargs)

        return named

    return decorate


class Calls:
    """All calls of a group whose ranks have joined."""

    def _set_up(self, native, store, timeout, ranks, on_gpu=None):
        self._native = native
        self._gpu = on_gpu or Gpu(native)
        self._store = store
        self._timeout = timeout
        self._ranks = ranks
        self._windows = []
        self._barriers = 0
        leave_at_exit(self)

    def _call(self, what, source, target, options, tensors, now=True, **rest):
        now = now and not options.asyncOp
        first = source if source is not None else target
        if first is not None and accelerator.is_on_gpu(first[0] if isinstance(first, list) else first):
            return self._gpu.call(what, source, target, tensors, now, timeout=_seconds(options), **rest)
        try:
            call = self._native.call(what, source, target, timeout=_seconds(options), now=now, **rest)
        except Error as error:
            record_error(error)
            raise
        if call is None:
            return DONE
        work = Work(call, tensors, self._native.sequence)
        if now:
            work.wait()
        return work

    def _lengths_for(self, what, tensors, own):
        """The lengths of a list with one tensor per rank, checked: this rank's has as many elements as ``own``."""
        rank, lengths = self._native.rank, [tensor.numel() for tensor in tensors]
        if len(lengths) != self._native.size:
            raise UsageError(f"{what}: the list has {len(lengths)} tensors, and the group {self._native.size} ranks")
        if lengths[rank] != own.numel():
            theirs, mine = lengths[rank], own.numel()
            raise UsageError(f"{what}: tensor {rank} of the list (this rank's) has {theirs} elements, and the other tensor {mine}")
        return lengths

    # One tensor.

    @_named("broadcast")
    def broadcast(self, tensors, opts=None, timeout=None, *, root=None):
        opts = _options(c10d.BroadcastOptions, opts, root=root, timeout=timeout)
        (tensor,) = tensors = _tensors(tensors)
        flat, finish = contiguous(tensor)
        return self._call("broadcast", flat, flat, opts, tensors, root=opts.rootRank, finish=finish)

    @_named("all_reduce")
    def allreduce(self, tensors, opts=None, timeout=None, *, op=None):
        opts = _options(c10d.AllreduceOptions, opts, op=op, timeout=timeout)
        (tensor,) = tensors = _tensors(tensors)
        if tensor.is_sparse:
            return self.allreduce_sparse(tensors, opts)
        flat, finish = contiguous(tensor)
        op, factor = _operation(opts)
        return self._call("all_reduce", flat, flat, opts, tensors, op=op, factor=factor, finish=finish)

    @_named("all_reduce_coalesced")
    def allreduce_coalesced(self, tensors, opts=c10d.AllreduceCoalescedOptions()):
        flat, finish = join(tensors)
        op, factor = _operation(opts)
        return self._call("allreduce_coalesced", flat, flat, opts, tensors, op=op, factor=factor, finish=finish)

    @_named("all_reduce_sparse")
    def allreduce_sparse(self, tensors, opts=c10d.AllreduceOptions()):
        """Sums sparse tensors. It blocks, also with ``async_op``."""
        (tensor,) = tensors
        if _operation(opts)[0] != 0:
            raise UsageError("sparse tensors can only be summed")
        tensors[0].copy_(sum_of_sparse(self._gather_lengths, self._native.size, tensor))
        return Work(None, tensors)

    def _gather_lengths(self, source, target, lengths):
        """Gathers the elements of all ranks, whose lengths may differ, and waits for them."""
        options = c10d.AllgatherOptions()
        options.asyncOp = False
        self._call("all_gather", source, target, options, [target], counts=([source.numel()], lengths))

    @_named("reduce")
    def reduce(self, tensors, opts=None, op=None, timeout=None, *, root=None):
        opts = _options(c10d.ReduceOptions, opts, root=root, op=op, timeout=timeout)
        (tensor,) = tensors = _tensors(tensors)
        at_root = opts.rootRank == self._native.rank
        flat, finish = contiguous(tensor)
        op, factor = _operation(opts)
        target, finish = (flat, finish) if at_root else (None, None)
        return self._call("reduce", flat, target, opts, tensors, root=opts.rootRank, op=op, factor=factor, finish=finish)

    # Tensors of all ranks.

    @_named("all_gather")
    def allgather(self, output_lists, inputs, opts=None, timeout=None):
        opts = _options(c10d.AllgatherOptions, opts, timeout=timeout)
        output_lists, inputs = _lists(output_lists), _tensors(inputs)
        ((*outputs,), (tensor,)) = (output_lists[0], inputs)
        lengths = self._lengths_for("all_gather", outputs, tensor)
        if _is_long(max(lengths), tensor):
            return self._all_gather_long(outputs, tensor, opts)
        flat, finish = together(outputs, writes=True)
        counts = None if len(set(lengths)) <= 1 else ([tensor.numel()], lengths)
        return self._call("all_gather", contiguous(tensor)[0], flat, opts, output_lists[0], counts=counts, finish=finish)

    def _all_gather_long(self, outputs, tensor, opts):
        """Every rank broadcasts its tensor directly into the outputs."""
        self._copy(outputs[self._native.rank], tensor)
        works = []
        for root, output in enumerate(outputs):
            flat, finish = contiguous(output)
            works.append(self._call("broadcast", flat, flat, opts, [output], root=root, finish=finish))
        return Works(works, outputs)

    @_named("_all_gather_base")
    def all_gather_single(self, output, input, opts=c10d.AllgatherOptions()):
        flat, finish = contiguous(output)
        return self._call("_all_gather_base", contiguous(input)[0], flat, opts, [output], finish=finish)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        pairs = zip(outputs, inputs, strict=True)
        return Works([self.all_gather_single(output, input, opts) for output, input in pairs], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists, inputs, opts=c10d.AllgatherOptions()):
        """``output_lists[rank][index]`` gets the rank's ``inputs[index]``."""
        works = [
            self.allgather([[outputs[index] for outputs in output_lists]], [tensor], opts)
            for index, tensor in enumerate(inputs)
        ]
        return Works(works, [output for outputs in output_lists for output in outputs])

    @_named("reduce_scatter")
    def reduce_scatter(self, outputs, input_lists, opts=None, timeout=None, *, op=None):
        opts = _options(c10d.ReduceScatterOptions, opts, op=op, timeout=timeout)
        outputs, input_lists = _tensors(outputs), _lists(input_lists)
        (output,), inputs = outputs, input_lists[0]
        lengths = self._lengths_for("reduce_scatter", inputs, output)
        op, factor = _operation(opts)
        flat, finish = contiguous(output)
        if _is_long(max(lengths), output):
            # One reduction per rank, directly from the inputs.
            rank, works = self._native.rank, []
            for root, tensor in enumerate(inputs):
                target, rest = (flat, {"finish": finish}) if root == rank else (None, {})
                source = contiguous(tensor)[0]
                works.append(self._call("reduce", source, target, opts, outputs, root=root, op=op, factor=factor, **rest))
            return Works(works, outputs)
        source, _ = together(inputs)
        counts = None if len(set(lengths)) <= 1 else (lengths, [output.numel()])
        return self._call("reduce_scatter", source, flat, opts, outputs, op=op, factor=factor, counts=counts, finish=finish)

    @_named("_reduce_scatter_base")
    def reduce_scatter_single(self, output, input, opts=c10d.ReduceScatterOptions()):
        flat, finish = contiguous(output)
        op, factor = _operation(opts)
        source = contiguous(input)[0]
        return self._call("_reduce_scatter_base", source, flat, opts, [output], op=op, factor=factor, finish=finish)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        pairs = zip(outputs, inputs, strict=True)
        return Works([self.reduce_scatter_single(output, input, opts) for output, input in pairs], outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @_named("all_to_all")
    def all_to_all_single(self, output, input, output_splits, input_splits, opts=c10d.AllToAllOptions()):
        flat, finish = contiguous(output)
        source = contiguous(input)[0]
        counts = None
        if output_splits or input_splits:
            counts = (self._lengths(input, input_splits), self._lengths(output, output_splits))
            # Blocks of different lengths cannot be exchanged in place.
            source = source.clone() if source.data_ptr() == flat.data_ptr() else source
        return self._call("all_to_all", source, flat, opts, [output], counts=counts, finish=finish)

    alltoall_base = all_to_all_single

    def _lengths(self, tensor, splits):
        """The number of elements in each rank's part; the first dimension is split."""
        size = self._native.size
        rows = tensor.size(0) if tensor.dim() else 0
        if not splits:
            if rows % size:
                raise UsageError(f"{rows} rows do not divide evenly among {size} ranks: pass split sizes")
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            raise UsageError(f"split sizes {list(splits)} for {size} ranks do not add up to {rows} rows")
        width = tensor.numel() // rows if rows else 0
        return [split * width for split in splits]

    @_named("all_to_all")
    def alltoall(self, outputs, inputs, opts=c10d.AllToAllOptions()):
        flat, finish = together(outputs, writes=True)
        source, _ = together(inputs)
        counts = ([tensor.numel() for tensor in inputs], [tensor.numel() for tensor in outputs])
        return self._call("all_to_all", source, flat, opts, outputs, counts=counts, finish=finish)

    @_named("gather")
    def gather(self, output_lists, inputs, opts=None, timeout=None, *, root=None):
        opts = _options(c10d.GatherOptions, opts, root=root, timeout=timeout)
        output_lists, (tensor,) = _lists(output_lists), _tensors(inputs)
        source, root = contiguous(tensor)[0], opts.rootRank
        outputs = output_lists[0] if root == self._native.rank else []
        if outputs:
            self._lengths_for("gather", outputs, tensor)
        if _is_long(tensor.numel(), tensor) and not accelerator.is_on_gpu(tensor):
            return self._one_by_one("gather_one", root, outputs, source, opts)
        if root != self._native.rank:
            return self._call("gather", source, None, opts, [], root=root)
        flat, finish = together(outputs, writes=True)
        return self._call("gather", source, flat, opts, outputs, root=root, finish=finish)

    @_named("scatter")
    def scatter(self, outputs, input_lists, opts=None, timeout=None, *, root=None):
        opts = _options(c10d.ScatterOptions, opts, root=root, timeout=timeout)
        outputs, input_lists = _tensors(outputs), _lists(input_lists)
        (output,), root = outputs, opts.rootRank
        inputs = input_lists[0] if root == self._native.rank else []
        if inputs:
            self._lengths_for("scatter", inputs, output)
        if _is_long(output.numel(), output) and not accelerator.is_on_gpu(output):
            return self._one_by_one("scatter_one", root, inputs, output, opts)
        flat, finish = contiguous(output)
        source = together(inputs)[0] if inputs else None
        return self._call("scatter", source, flat, opts, outputs, root=root, finish=finish)

    def _one_by_one(self, what, root, parts, own, opts):
        """Moves long tensors one by one between the root and every other rank, without a staging copy."""
        rank, gathers = self._native.rank, what == "gather_one"
        count, works = own.numel(), []
        for other in (other for other in range(self._native.size) if other != root):
            sender, receiver = (other, root) if gathers else (root, other)
            mine = parts[other] if rank == root else own
            source = contiguous(mine)[0] if rank == sender else None
            target, finish = contiguous(mine) if rank == receiver else (None, None)
            rest = {"root": sender, "to": receiver, "count": count, "like": own, "finish": finish}
            works.append(self._call(what, source, target, opts, [mine], now=rank != root, **rest))
        work = Works(works, parts or [own])
        if rank == root:
            # Overlaps with the other parts.
            self._copy(*((parts[root], own) if gathers else (own, parts[root])))
            if not opts.asyncOp:
                self._wait_or_abort(work)
        return work

    def _wait_or_abort(self, work):
        """Waits for calls that worker threads run. An interrupt aborts the group, as it does in a call on this thread."""
        try:
            work.wait()
        except KeyboardInterrupt:
            self._native.abort("interrupted")
            raise

    def _copy(self, target, source):
        """Copies this rank's own part, on a GPU on the current stream."""
        is_plain = target.is_contiguous() and source.is_contiguous() and target.dtype == source.dtype
        if is_plain and not accelerator.is_on_gpu(target):
            if target.data_ptr() != source.data_ptr():
                self._native.copy(source, target)
        else:
            target.copy_(source.reshape(target.shape))

    # Messages.

    @_named("send")
    def send(self, tensors, dst, tag=0):
        (tensor,) = tensors
        if accelerator.is_on_gpu(tensor):
            return self._gpu.send(tensor, dst, tag)
        return Work(self._native.send(contiguous(tensor)[0], dst, tag), tensors)

    @_named("recv")
    def recv(self, tensors, src, tag=0):
        return self._receive(tensors, src, tag)

    @_named("recv_anysource")
    def recv_anysource(self, tensors, tag=0):
        return self._receive(tensors, None, tag)

    recvAnysource = recv_anysource

    def _receive(self, tensors, source, tag):
        (tensor,) = tensors
        if accelerator.is_on_gpu(tensor):
            return self._gpu.receive(tensor, source, tag)
        flat, finish = contiguous(tensor)
        return Work(self._native.receive(flat, source, tag, finish=finish), tensors)

    # Barriers.

    @_named("barrier")
    def barrier(self, opts=c10d.BarrierOptions()):
        """Also waits, on the host, for the work of the current stream and for all calls, once the group has been used on a GPU."""
        self._gpu.synchronize()
        return self._call("barrier", None, None, opts, [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier whose error names the missing ranks. It runs over the store, so that a timeout does not break the group."""
        # Torch's C++ code passes it in options.
        timeout = getattr(timeout, "timeout", timeout)
        # A negative timeout is torch's default. Zero is a timeout that has passed.
        if timeout is None or timeout < timedelta(0):
            timeout = self._timeout
        self._barriers += 1
        store = dist.PrefixStore(f"weft/monitored/{self._barriers}", self._store)
        monitored_barrier(store, self._native.rank, self._native.size, timeout, wait_all_ranks)

    # The group itself.

    def _set_sequence_number_for_group(self):
        """Nothing to do: every rank counts its calls from 0."""

    def _get_sequence_number_for_group(self):
        return self._native.sequence

    def set_timeout(self, timeout):
        self._timeout = timeout
        self._native.set_timeout(timeout.total_seconds())

    def _wait_for_pending_works(self):
        self.barrier().wait()

    def abort(self):
        self._native.abort("the process group was aborted")

    def shutdown(self):
        """Leaves the group when all calls have ended, also those on a GPU."""
        failure = self._native.close()
        self._gpu.close()
        if failure is not None:
            warnings.warn(f"a call on a GPU had failed when the process group was destroyed: {failure}", RuntimeWarning, stacklevel=3)

    def getBackendName(self):
        return "weft"

    def _part(self, store, members, timeout, name):
        """The constructor arguments for a group of some of these ranks."""
        ranks = [self._ranks[member] for member in members]
        native = meet(store, members.index(self._native.rank), len(ranks), timeout, name, "weft", ranks)
        return native, store, timeout, ranks
