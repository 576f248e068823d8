"""PyTorch, which was built for NCCL, with Weft's libnccl.so.2 loaded before it (docs/nccl.md). No GPU is needed: nothing is sent."""

import os
import pathlib
import subprocess
import sys
import unittest

import jobs

SITE = next(pathlib.Path(sys.prefix).glob("lib/python3*/site-packages"))
LIBRARY = (SITE / "weftlink/lib/libnccl.so.2").resolve()
TORCH = SITE / "torch/lib/libtorch_cuda.so"

PROGRAM = """
import ctypes, torch
version = ctypes.c_int()
assert ctypes.CDLL(None).ncclGetVersion(ctypes.byref(version)) == 0
print(torch.cuda.nccl.version(), version.value, torch.cuda.nccl.unique_id()[:7])
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "libnccl.so" in line}))
"""
# The NCCL of a wheel, which torch 2.15 loads by its path before its own libraries.
SECOND = """
import ctypes, pathlib, torch
other = next(pathlib.Path(torch.__file__).parent.rglob("libnccl.so.2")).resolve()
ctypes.CDLL(str(other))
print(torch.cuda.nccl.unique_id()[:7], sum(str(other) in line for line in open("/proc/self/maps")) > 0)
"""
# A communicator of one rank.
COMMUNICATOR = """
import ctypes
nccl = ctypes.CDLL(None)
class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 128)]
identifier, comm = Id(), ctypes.c_void_p()
assert nccl.ncclGetUniqueId(ctypes.byref(identifier)) == 0
assert nccl.ncclCommInitRank(ctypes.byref(comm), 1, identifier, 0) == 0
assert nccl.ncclCommDestroy(comm) == 0
"""


def names(option, library):
    """The names of NCCL that a library defines, or uses."""
    words = ["nm", "-D", option, str(library)]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = (line.split()[-1].partition("@")[0] for line in listed.splitlines())
    return {name for name in found if name.startswith("nccl")}


@unittest.skipUnless(TORCH.exists(), "torch for this processor has no CUDA")
class Nccl(unittest.TestCase):
    def setUp(self):
        self.assertTrue(LIBRARY.exists(), f"there is no {LIBRARY}: `make python` installs it")

    def python(self, program, **settings):
        environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), "NCCL_SOCKET_IFNAME": "lo", **settings}
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=jobs.LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_torch_calls_the_library(self):
        self.assertEqual(self.python(PROGRAM), f"(2, 30, 7) 23007 b'weft-id'\n{LIBRARY}\n")
        # The first is the version that torch was built with.
        told = self.python(PROGRAM, WEFT_NCCL_VERSION="22809")
        self.assertEqual(told, f"(2, 30, 7) 22809 b'weft-id'\n{LIBRARY}\n")

    def test_another_that_is_loaded_later_is_not_used(self):
        self.assertEqual(self.python(SECOND), "b'weft-id' True\n")

    def test_the_library_has_all_that_torch_uses(self):
        used = names("--undefined-only", TORCH)
        self.assertIn("ncclAllReduce", used)
        self.assertEqual(used - names("--defined-only", LIBRARY), set())

    def test_weft_run_loads_it(self):
        words = [str(jobs.WEFT), "run", "-n", "2", "--bind", "none", "-x", "NCCL_SOCKET_IFNAME=lo", "--nccl", "--", sys.executable, "-c"]
        done = jobs.run([*words, COMMUNICATOR])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = jobs.run([*words, "pass"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no rank made an NCCL communicator of Weft", done.stderr)


if __name__ == "__main__":
    unittest.main()
