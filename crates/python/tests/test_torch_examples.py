"""The examples for PyTorch run as people start them: with torchrun, with `weft run`, and where mpirun or srun tell who a rank is."""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

import jobs
import weftlink.torch
from weftlink.torch.launched import translate

ROOT = jobs.HERE.parents[2]
EXAMPLES = ROOT / "examples"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_"))}
    package = str(pathlib.Path(weftlink.torch.__file__).parents[2])
    return {**kept, "PYTHONPATH": package, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", **variables}


def by_hand(name, of_rank):
    """Two processes that nobody started together; what they printed."""
    command = [sys.executable, str(EXAMPLES / name)]
    ranks = [
        subprocess.Popen(command, env=environment(**of_rank(rank)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=jobs.LIMIT_S)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), said
    return "".join(said)


class Examples(unittest.TestCase):
    def check(self, command, *wanted):
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=jobs.LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for text in wanted:
            self.assertIn(text, done.stdout)

    def test_fsdp2_with_torchrun(self):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
        self.check([*command, str(EXAMPLES / "torch_fsdp2.py")], "step 20 of 20 on 2 ranks", "rank 0 keeps 2433 of 4801 parameters")

    @unittest.skipUnless(jobs.WEFT.exists(), "the wheel has not installed `weft` beside this interpreter")
    def test_a_hook_with_weft_run(self):
        command = [str(jobs.WEFT), "run", "-n", "2", "--", sys.executable, str(EXAMPLES / "torch_comm_hook.py")]
        self.check(command, "gradients in symmetric memory: True", "error of bfloat16: 0.")

    def test_the_benchmark_that_trains(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(ROOT / "bench/torch/train.py"), "--steps", "4", "--block", "2", "--out", f"{folder}/rows"]
            self.check(command, "ddp: communication in a step", "fsdp2: step")
            with open(f"{folder}/rows", encoding="ascii") as rows:
                # Two ways to train, two backends, and the names of the fields.
                self.assertEqual(len(rows.readlines()), 2 * 2 * 4 + 1)

    def test_ddp_with_the_variables_of_mpirun(self):
        def of_rank(rank):
            place = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
            return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in place.items()} | {"PMIX_NAMESPACE": f"job {os.getpid()}"}

        self.assertIn("step 20 of 20 on 2 ranks", by_hand("torch_ddp.py", of_rank))


class Launchers(unittest.TestCase):
    def told(self, text):
        variables = dict(word.split("=") for word in text.split())
        translate(variables)
        return [variables.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")]

    def test_what_launchers_say(self):
        several = "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_STEP_NUM_NODES=2 SLURM_JOB_ID=77"
        self.assertEqual(self.told(f"{several} SLURM_STEP_NODELIST=node[03-04],other"), ["5", "8", "1", "node03"])
        self.assertEqual(self.told(f"{several} SLURM_STEP_NODELIST=a,b MASTER_ADDR=c"), ["5", "8", "1", "c"])
        self.assertEqual(self.told(several.replace("NODES=2", "NODES=1")), ["5", "8", "1", "127.0.0.1"])
        mpich = "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2"
        self.assertEqual(self.told(mpich), ["1", "4", "1", None])
        self.assertEqual(self.told(f"RANK=0 WORLD_SIZE=1 {mpich}"), ["0", "1", None, None])
        self.assertEqual(self.told("HOME=here"), [None] * 4)


if __name__ == "__main__":
    unittest.main()
