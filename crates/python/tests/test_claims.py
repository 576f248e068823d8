"""The claims about PyTorch and Gloo that docs/claims.md answers by a run."""

import inspect
import unittest

import torch
import torch.distributed as dist
from ranks import run
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DataParallel, DistributedDataParallel

from weftlink import errors

MIB = 1 << 20
LAYERS = 16


def backward_pass(rank, size):
    """Sixteen gradients of 4 MiB: which of them exist when DDP sums a bucket."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(LAYERS)])
    model = DistributedDataParallel(layers)
    events = []

    def call(_, bucket):
        events.append(bucket.buffer().nbytes // MIB)
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook(None, call)
    for parameter in layers.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: events.append("gradient"))
    model(torch.ones(1, 1024)).sum().backward()  # afterwards DDP orders its buckets by this pass
    events.clear()
    model(torch.ones(1, 1024)).sum().backward()
    calls = [event for event in events if event != "gradient"]
    assert calls == [4, 28, 28, 4], events
    assert events.count("gradient") == LAYERS, events
    last_gradient = LAYERS + len(calls) - 1 - events[::-1].index("gradient")
    assert last_gradient > events.index(28), f"no call before the last gradient: {events}"
    assert len([event for event in events[:last_gradient] if event != "gradient"]) == 3, events


def buckets(rank, size):
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    assert model.bucket_bytes_cap == 25 * MIB, model.bucket_bytes_cap
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == MIB, dist._DEFAULT_FIRST_BUCKET_BYTES


def received_over_loopback():
    with open("/proc/net/dev", encoding="utf-8") as lines:
        return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def gloo_on_one_host(rank, size):
    tensor = torch.ones(4 * MIB)
    before = received_over_loopback()
    dist.barrier()
    dist.all_reduce(tensor)
    dist.barrier()
    moved = received_over_loopback() - before
    assert moved >= size * tensor.nbytes, f"{moved} bytes of {tensor.nbytes} per rank"


def all_send_first(rank, size):
    """A ring in which every rank sends before it receives."""
    for length in (10, 4 * MIB):
        sent, got = torch.full((length,), float(rank)), torch.empty(length)
        try:
            dist.send(sent, dst=(rank + 1) % size)
            dist.recv(got, src=(rank - 1) % size)
        except errors.Error as error:
            assert length > 10, error
            assert "to receive 16777216 bytes" in str(error), error
            return
        assert length == 10, "a long message needs no receiver"
        assert got[0] == (rank - 1) % size, got


class Claims(unittest.TestCase):
    def test_ranks_that_all_send_long_messages_first_time_out(self):
        run(3, all_send_first, timeout=5)

    def test_ddp_sums_gradients_during_the_backward_pass(self):
        run(2, backward_pass)

    def test_buckets_of_ddp_have_25_mib(self):
        run(1, buckets)

    def test_gloo_uses_tcp_within_a_host(self):
        run(2, gloo_on_one_host, backend="gloo")

    def test_data_parallel_has_no_process_group(self):
        self.assertIn("process_group", inspect.signature(DistributedDataParallel).parameters)
        self.assertNotIn("process_group", inspect.signature(DataParallel).parameters)

    def test_intel_gpus_have_a_backend_in_torch(self):
        self.assertEqual(dist.Backend.default_device_backend_map["xpu"], "xccl")
        self.assertNotIn("ccl", dist.Backend.backend_list)


if __name__ == "__main__":
    unittest.main()
