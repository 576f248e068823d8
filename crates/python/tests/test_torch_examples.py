"""The examples for PyTorch, and the training benchmark, with the environment variables of several launchers.

docs/pytorch.md shows torchrun and `weft run` themselves, and test_torch_docs.py runs them.
"""

import contextlib
import io
import os
import runpy
import sys
import tempfile
import unittest
from unittest import mock

import torch._dynamo  # otherwise every rank imports it lazily

import inherited
import jobs
from ranks import run
from weftlink.torch import _set_variables

ROOT = jobs.HERE.parents[2]
EXAMPLES = ROOT / "examples"


def example(rank, size, _store, name, variables, wanted):
    """Runs an example with the variables of a launcher, and checks its output."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **variables(rank, size)}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    missing = [text for text in wanted if text not in output.getvalue()]
    assert rank or not missing, f"{name} does not print {missing}: {output.getvalue()}"


def as_mpirun(rank, size):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        del os.environ[name]
    variables = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size}
    os.environ |= {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in variables.items()}
    os.environ["PMIX_NAMESPACE"] = f"job {os.getppid()}"
    _set_variables()
    return {}


def benchmark(rank, _size, _store, rows):
    sys.argv = ["train.py", "--steps", "4", "--block", "2", "--out", rows]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(str(ROOT / "bench/torch/train.py"), run_name="__main__")
    for text in ("ddp: communication in a step", "fsdp2: step"):
        assert text in output.getvalue(), output.getvalue()


class Examples(unittest.TestCase):
    def check(self, name, *wanted, variables=None):
        port = str(inherited.reserved_port())
        run(2, example, name, variables or (lambda _rank, _size: {"MASTER_PORT": port}), wanted, backend=None)

    def test_ddp(self):
        self.check("torch_ddp.py", "step 20 of 20 on 2 ranks")

    def test_fsdp2(self):
        self.check("torch_fsdp2.py", "step 20 of 20 on 2 ranks", "rank 0 keeps 2433 of 4801 parameters")

    def test_a_hook(self):
        self.check("torch_comm_hook.py", "gradients in symmetric memory: True", "error of bfloat16: 0.")

    def test_ranks_of_mpirun(self):
        self.check("torch_ddp.py", "step 20 of 20 on 2 ranks", variables=as_mpirun)

    def test_the_training_benchmark(self):
        with tempfile.TemporaryDirectory() as folder:
            run(1, benchmark, f"{folder}/rows", backend=None)
            with open(f"{folder}/rows", encoding="ascii") as rows:
                # Two ways to train, two backends, and the names of the fields.
                self.assertEqual(len(rows.readlines()), 2 * 2 * 4 + 1)


class Launchers(unittest.TestCase):
    def set(self, text):
        variables = dict(word.split("=") for word in text.split())
        with mock.patch.dict(os.environ, variables, clear=True):
            _set_variables()
            return [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")]

    def test_variables_of_launchers(self):
        mpich = "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2"
        self.assertEqual(self.set(mpich), ["1", "4", "1", None])
        self.assertEqual(self.set(mpich.replace("NRANKS=2", "NRANKS=4")), ["1", "4", "1", "127.0.0.1"])
        self.assertEqual(self.set(f"{mpich} MASTER_ADDR=c"), ["1", "4", "1", "c"])
        self.assertEqual(self.set(f"RANK=0 WORLD_SIZE=1 {mpich}"), ["0", "1", None, None])
        self.assertEqual(self.set("HOME=here"), [None] * 4)
        with self.assertWarnsRegex(RuntimeWarning, "does not tell how many ranks there are: set WORLD_SIZE"):
            self.set("PMIX_RANK=1 PMIX_NAMESPACE=job")


if __name__ == "__main__":
    unittest.main()
