"""Tests do not depend on inherited signals and variables."""

import subprocess
import sys
import unittest

import jobs

PROGRAM = """
import os, signal
import inherited
print([os.environ.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK", "WEFT_DEADLINE", "WEFT_MUTANT")])
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
try:
    os.kill(os.getpid(), signal.SIGINT)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", flush=True)
os.kill(os.getpid(), signal.SIGHUP)
print("not ended")
"""


class Inherited(unittest.TestCase):
    def test_ignored_signals_and_variables_of_a_job_are_undone(self):
        script = "trap '' INT HUP; RANK=3 OMPI_COMM_WORLD_RANK=3 WEFT_DEADLINE=1s WEFT_MUTANT=kept exec \"$0\" -c \"$1\""
        words = ["sh", "-c", script, sys.executable, PROGRAM]
        done = subprocess.run(words, cwd=jobs.HERE, capture_output=True, text=True, timeout=jobs.LIMIT_S, check=False)
        self.assertEqual(done.stdout, "[None, None, None, 'kept']\nset()\ninterrupted\n", done.stderr)
        self.assertEqual(done.returncode, -1, "ended by SIGHUP")


if __name__ == "__main__":
    unittest.main()
