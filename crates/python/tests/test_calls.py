"""Asynchronous calls, derived communicators, counters and records."""

import asyncio
import os
import tempfile
import threading
import unittest

import inherited
import numpy as np

import weftlink
from weftlink.errors import CancelledError, DeadlineError, FailedError, MismatchError, UsageError

# Against hangs.
LIMIT_S = 20


class Handles(unittest.TestCase):
    def setUp(self):
        self.first, self.second = weftlink.Communicator.threads(2)

    def test_calls_return_before_others_arrive(self):
        values, others = np.ones(1000), np.ones(1000)
        calls = [self.first.start_all_reduce(values) for _ in range(4)]
        self.assertFalse(any(call.done() for call in calls))
        with self.assertRaises(TimeoutError):
            calls[0].wait(timeout=0.01)
        for _ in range(4):
            self.second.all_reduce(others)
        self.assertIs(calls[3].wait(LIMIT_S), values)
        self.assertEqual((values[0], others[0]), (16, 16))
        self.assertTrue(calls[0].done())
        self.assertIsNone(calls[0].exception())

    def test_callbacks_run_when_a_call_is_done(self):
        called, done = [], threading.Event()
        call = self.first.start_barrier()
        call.add_done_callback(called.append)
        call.add_done_callback(lambda _: done.set())
        self.assertEqual(called, [])
        self.second.barrier()
        self.assertTrue(done.wait(LIMIT_S))
        call.add_done_callback(called.append)
        self.assertEqual(called, [call, call])

    def test_handles_are_awaited(self):
        async def work(comm):
            return (await comm.start_all_reduce(np.full(3, comm.rank + 1.0))).tolist()

        async def main():
            return await asyncio.wait_for(asyncio.gather(work(self.first), work(self.second)), LIMIT_S)

        self.assertEqual(asyncio.run(main()), [[3, 3, 3], [3, 3, 3]])

    def test_arrays_live_until_their_call_is_done(self):
        for _ in range(20):
            self.first.start_all_reduce(np.ones(100_000))
        for _ in range(20):
            self.assertEqual(self.second.all_reduce(np.ones(100_000))[0], 2)

    def test_all_collectives_can_be_started(self):
        def work(comm):
            ones = np.ones(comm.size)
            whole = lambda: np.ones(6 * comm.size)
            ring = [(0, 1), (1, 0)]
            calls = [
                comm.start_all_reduce(ones.copy()),
                comm.start_reduce(ones.copy()),
                comm.start_reduce_scatter(ones, out=np.empty(1)),
                comm.start_scan(ones.copy()),
                comm.start_exclusive_scan(ones.copy()),
                comm.start_broadcast(ones.copy()),
                comm.start_all_gather(np.ones(1), out=np.empty(comm.size)),
                comm.start_gather(np.ones(1), out=np.empty(comm.size) if comm.rank == 0 else None),
                comm.start_scatter(ones if comm.rank == 0 else None, out=np.empty(1)),
                comm.start_all_to_all(ones, out=np.empty(comm.size)),
                comm.start_send_receive(np.ones(1), ring, 1, out=np.empty(1)),
                comm.start_neighbours(whole(), (1, 1, comm.size), out=whole()),
                comm.start_barrier(),
            ]
            return [None if found is None else float(np.ravel(found)[0]) for found in (call.wait() for call in calls)]

        first, second = weftlink.on_threads(2, work)
        self.assertEqual(first, [2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, None])
        self.assertEqual(second, [2, None, 2, 2, 1, 1, 1, None, 1, 1, 1, 1, None])

    def test_other_threads_run_while_a_call_waits(self):
        counted = []
        caller = threading.Thread(target=self.first.barrier)
        caller.start()
        for _ in range(1000):
            counted.append(caller.is_alive())
        self.second.barrier()
        caller.join(LIMIT_S)
        self.assertEqual((all(counted), caller.is_alive()), (True, False))

    def test_handles_outlive_their_communicator(self):
        call = self.first.start_barrier()
        self.second.barrier()
        call.wait(LIMIT_S)
        self.first.close()
        self.assertTrue(call.done())
        self.assertFalse(call.cancel())

    def test_cancelling_aborts_all_ranks(self):
        call = self.first.start_barrier()
        self.assertTrue(call.cancel())
        with self.assertRaises(CancelledError) as raised:
            self.second.barrier()
        self.assertEqual((raised.exception.rank, raised.exception.peer), (1, 0))
        with self.assertRaises(CancelledError):
            call.wait(LIMIT_S)
        self.assertIsInstance(call.exception(), CancelledError)
        with self.assertRaises(FailedError):
            self.first.barrier()


class Communicators(unittest.TestCase):
    def test_mismatches_name_both_ranks(self):
        def work(comm):
            with self.assertRaises(MismatchError) as raised:
                comm.all_reduce(np.ones(3 + comm.rank))
            error = raised.exception
            return error.rank, error.peer, error.operation, [tuple(blame) for blame in error.blamed]

        found = weftlink.on_threads(2, work)
        # The ranks are threads of this process.
        blames = lambda rank: [(rank, "differs", None, os.getpid())]
        self.assertEqual(found, [(0, 1, "all_reduce", blames(1)), (1, 0, "all_reduce", blames(0))])

    def test_deadlines_name_the_late_rank(self):
        first, _second = weftlink.Communicator.threads(2)
        with self.assertRaises(DeadlineError) as raised:
            first.barrier(timeout=0.05)
        self.assertIsInstance(raised.exception, TimeoutError)
        self.assertIn("rank 1", str(raised.exception))

    def test_splits_work_beside_the_whole(self):
        def work(comm):
            half = comm.split(comm.rank // 2, key=-comm.rank)
            none = comm.split(None if comm.rank == 0 else 1)
            total = half.all_reduce(np.array([comm.rank]))
            comm.barrier()
            return half.rank, half.origins, total[0], none and none.size

        expected = [(1, [1, 0], 1, None), (0, [1, 0], 1, 3), (1, [3, 2], 5, 3), (0, [3, 2], 5, 3)]
        self.assertEqual(weftlink.on_threads(4, work), expected)

    def test_survivors_shrink(self):
        def work(comm):
            if comm.rank == 1:
                comm.abort("for the test")
                return None
            with self.assertRaises(CancelledError):
                comm.barrier()
            smaller = comm.shrink()
            self.assertTrue(comm.closed)
            return smaller.all_reduce(np.array([comm.rank + 1]))[0], smaller.origins

        communicators = weftlink.Communicator.threads(3, deadline=2)
        results = [None] * 3
        threads = [
            threading.Thread(target=lambda comm: results.__setitem__(comm.rank, work(comm)), args=(comm,))
            for comm in communicators
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        self.assertEqual(results, [(4, [0, 2]), None, (4, [0, 2])])

    def test_ranks_meet_at_an_address(self):
        port = inherited.reserved_port()
        results = [None] * 2

        def rank(number):
            with weftlink.meet(f"127.0.0.1:{port}", number, 2, "a secret for two", deadline=LIMIT_S) as comm:
                results[number] = comm.all_reduce(np.array([number + 1]))[0]

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        self.assertEqual(results, [3, 3])

    def test_counters_and_records_show_the_calls(self):
        def work(comm):
            for _ in range(3):
                comm.all_reduce(np.ones(10, "float32"))
            counted = {row.collective: row for row in comm.counters()}["all-reduce"]
            with tempfile.TemporaryDirectory() as folder:
                written = comm.dump(folder).exists()
            return counted.calls, counted.bytes, len(comm.record()["calls"]) >= 3, written

        self.assertEqual(weftlink.on_threads(2, work), [(3, 120, True, True)] * 2)

    def test_an_exception_in_a_block_aborts_all_ranks(self):
        def work(comm):
            if comm.rank == 0:
                raise KeyError("lost")
            comm.barrier()

        with self.assertRaises(KeyError):
            weftlink.on_threads(2, work)

    def test_a_closed_communicator_stays_closed(self):
        (comm,) = weftlink.Communicator.threads(1)
        with comm:
            self.assertFalse(comm.closed)
        comm.close()
        with self.assertRaises(UsageError):
            comm.barrier()

    def test_errors_can_be_pickled(self):
        import pickle

        (comm,) = weftlink.Communicator.threads(1)
        with self.assertRaises(UsageError) as raised:
            comm.broadcast(np.ones(1), root=3)
        again = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual((str(again), again.operation), (str(raised.exception), "broadcast"))


if __name__ == "__main__":
    unittest.main()
