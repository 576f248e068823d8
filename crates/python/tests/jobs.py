"""Starts programs on several ranks with `weft run`."""

import os
import pathlib
import subprocess
import sys

import inherited  # noqa: F401  first: later imports see a clean environment

HERE = pathlib.Path(__file__).resolve().parent
# The command that the wheel installed, beside the interpreter.
WEFT = pathlib.Path(sys.executable).parent / "weft"
# Against hangs; no test takes a tenth of it.
LIMIT_S = 60


def command(program, ranks, *arguments):
    """The command that starts a program of tests/programs on several ranks."""
    path = HERE / "programs" / program
    return [str(WEFT), "run", "-n", str(ranks), "--", sys.executable, str(path), *arguments]


def run(words):
    """Runs a command to its end, with a short deadline for calls."""
    environment = {**os.environ, "WEFT_DEADLINE": "20s"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
