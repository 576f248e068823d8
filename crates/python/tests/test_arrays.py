"""The arrays that calls take, and the errors for those that they do not."""

import array
import unittest

import numpy as np
import torch

import weftlink
from weftlink.errors import UsageError


def alone():
    (comm,) = weftlink.Communicator.threads(1)
    return comm


class Arrays(unittest.TestCase):
    def both(self, make):
        """The results of two ranks that all-reduce `make(rank)`."""
        return weftlink.on_threads(2, lambda comm: comm.all_reduce(make(comm.rank)))

    def test_anything_with_the_buffer_protocol(self):
        for found in self.both(lambda rank: bytearray([1, rank])):
            self.assertEqual(list(found), [2, 1])
        for found in self.both(lambda rank: array.array("d", [0.5, rank])):
            self.assertEqual(found.tolist(), [1.0, 1.0])
        for found in self.both(lambda rank: memoryview(bytearray(8)).cast("i")):
            self.assertEqual(found.tolist(), [0, 0])

    def test_numpy_arrays_of_any_shape(self):
        for found in self.both(lambda rank: np.full((2, 3, 4), rank + 1, "float32")):
            self.assertTrue((found == 3).all())
        for found in self.both(lambda rank: np.array(float(rank))):
            self.assertEqual(found, 1)
        for found in self.both(lambda rank: np.zeros((0, 3))):
            self.assertEqual(found.shape, (0, 3))

    def test_tensors(self):
        for dtype in torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.complex64, torch.float8_e5m2:
            for found in self.both(lambda rank, dtype=dtype: torch.ones(5).to(dtype)):
                self.assertTrue((found.to(torch.complex64) == 2).all(), dtype)

    def test_elements_are_what_dtype_says(self):
        for found in self.both(lambda rank: np.ones(4, "float32")):
            self.assertEqual(found.tolist(), [2.0] * 4)
        one = np.full(3, 0x3F80, "uint16")
        found = weftlink.on_threads(2, lambda comm: comm.all_reduce(one.copy(), dtype="bfloat16"))
        self.assertEqual(found[0].tolist(), [0x4000] * 3)

    def test_inputs_may_be_read_only(self):
        def work(comm):
            return bytes(comm.all_gather(bytes([comm.rank + 65]), out=bytearray(2)))

        self.assertEqual(weftlink.on_threads(2, work), [b"AB"] * 2)

    def test_wrong_arrays_are_errors_and_the_communicator_still_works(self):
        comm = alone()
        fixed = np.zeros(3)
        fixed.flags.writeable = False
        whole = np.zeros(8)
        wrong = [
            (lambda: comm.all_reduce(np.zeros((4, 4))[:, 1]), "ascontiguousarray"),
            (lambda: comm.all_reduce(torch.zeros(4, 4).t()), "contiguous"),
            (lambda: comm.all_reduce(fixed), "read-only"),
            (lambda: comm.all_reduce(b"abc"), "read-only"),
            (lambda: comm.all_reduce([1, 2]), "an object of type list is not an array"),
            (lambda: comm.all_reduce(np.array(["a"])), "dtype="),
            (lambda: comm.all_reduce(np.zeros(3, ">f4")), "dtype="),
            (lambda: comm.all_reduce(torch.zeros(3, requires_grad=True)), "detach"),
            (lambda: comm.all_reduce(np.zeros(3), out=np.zeros(3, "float32")), "must be the same"),
            (lambda: comm.all_reduce(whole[:6], out=whole[2:]), "overlap"),
            (lambda: comm.all_reduce(np.zeros(3), out=np.zeros(4)), "of equal length"),
            (lambda: comm.all_reduce(np.zeros(3), "median"), "unknown operation"),
            (lambda: comm.all_reduce(np.zeros(3), "bit-or"), "there is no bit-or of f64"),
            (lambda: comm.all_reduce(bytearray(3), dtype="float32"), "not a multiple"),
            (lambda: comm.all_reduce(np.zeros(3, int), weftlink.PremultipliedSum(2)), "factor"),
            (lambda: comm.broadcast(np.zeros(3), root=5), "5"),
            (lambda: comm.all_reduce(np.zeros(3), timeout=-1), "not possible"),
        ]
        for call, text in wrong:
            with self.subTest(text=text):
                with self.assertRaises(UsageError) as raised:
                    call()
                self.assertIn(text, str(raised.exception))
                self.assertIsInstance(raised.exception, ValueError)
                self.assertIn(raised.exception.operation, ("all_reduce", "broadcast"))
        self.assertEqual(comm.all_reduce(np.ones(2)).tolist(), [1, 1])

    def test_a_call_keeps_its_memory_in_place(self):
        first, second = weftlink.Communicator.threads(2)
        values = bytearray(10)
        call = first.start_all_reduce(values)
        with self.assertRaises(BufferError):
            values.extend(b"more")
        second.all_reduce(bytearray(10))
        call.wait()
        values.extend(b"more")


class OnGpu:
    """What an array on a GPU says of itself. There is no memory at its address."""

    def __init__(self, **other):
        data = {"shape": (4,), "typestr": "<f4", "data": (1 << 40, False), "version": 3}
        self.__cuda_array_interface__ = data | other


class GpuArrays(unittest.TestCase):
    def test_wrong_arrays_are_errors_and_the_communicator_still_works(self):
        comm = alone()
        wrong = [
            (lambda: comm.all_reduce(OnGpu(), out=np.zeros(4, "float32")), "one array is in CPU memory"),
            (lambda: comm.all_reduce(OnGpu(strides=(8,))), "contiguous"),
            (lambda: comm.all_reduce(OnGpu(typestr="<M8")), "dtype="),
            (lambda: comm.all_reduce(OnGpu(mask=1)), "mask"),
            (lambda: comm.start_all_reduce(OnGpu()), "does not block: call all_reduce"),
            (lambda: comm.all_gather(OnGpu(), counts=[4]), "not supported on GPUs yet"),
            (lambda: comm.group([(0, OnGpu())], []), "not supported on GPUs yet"),
        ]
        for call, text in wrong:
            with self.subTest(text=text):
                with self.assertRaises(UsageError) as raised:
                    call()
                self.assertIn(text, str(raised.exception))
        comm.check()
        self.assertEqual(comm.all_reduce(np.ones(2)).tolist(), [1, 1])

    def test_producers_need_not_wait_if_the_call_runs_on_their_stream(self):
        class Tensor:
            def __dlpack_device__(self):
                return 2, 0

            def __dlpack__(self, *, stream, max_version=None):
                raise BufferError(f"stream {stream}")

        # A type that is derived from torch's, and one of another library.
        for tensor, stream in [(type("Derived", (Tensor, torch.Tensor), {})(), -1), (Tensor(), 1)]:
            with self.assertRaisesRegex(UsageError, f"stream {stream}$"):
                alone().all_reduce(tensor)

    @unittest.skipIf(torch.cuda.is_available(), "there is a GPU")
    def test_without_a_driver_the_error_says_what_to_install(self):
        with self.assertRaisesRegex(weftlink.Error, "CUDA driver"):
            alone().all_reduce(OnGpu())


class Windows(unittest.TestCase):
    def test_windows_are_arrays_and_outlive_the_communicator(self):
        def work(comm):
            window = comm.window(100, "int32")
            values = np.asarray(window)
            values[:] = comm.rank + 1
            comm.all_reduce(values[10:60])
            tensor = torch.from_dlpack(window)
            self.assertEqual((tensor.dtype, len(window), window.dtype), (torch.int32, 100, "int32"))
            tensor[0] = 7
            del window
            comm.close()
            return values[[0, 10, 59, 60]].tolist(), tensor[10].item()

        self.assertEqual(weftlink.on_threads(2, work), [([7, 3, 3, 1], 3), ([7, 3, 3, 2], 3)])

    def test_windows_of_every_type(self):
        comm = alone()
        for dtype in "uint8", "bool", "float16", "float64", "complex128", "bfloat16":
            window = comm.window(3, dtype)
            self.assertEqual(window.dtype, dtype)
            self.assertEqual(len(np.asarray(window)), 3)
            self.assertEqual(len(torch.from_dlpack(window)), 3)
        with self.assertRaises(UsageError):
            comm.window(3, "object")


if __name__ == "__main__":
    unittest.main()
