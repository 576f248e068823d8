"""Starts programs of several ranks, as a launcher would, for the tests."""

import os
import pathlib
import subprocess
import sys

import inherited  # noqa: F401  first: what is imported after it sees a clean environment

HERE = pathlib.Path(__file__).resolve().parent
# The command that the wheel installed, beside the interpreter.
WEFT = pathlib.Path(sys.executable).parent / "weft"
# Against hangs; nothing here takes a tenth of it.
LIMIT_S = 60


def command(program, ranks, *arguments):
    """What starts a program of tests/programs on so many ranks."""
    path = HERE / "programs" / program
    return [str(WEFT), "run", "-n", str(ranks), "--", sys.executable, str(path), *arguments]


def run(words):
    """Runs a command to its end, with a short deadline for calls."""
    environment = {**os.environ, "WEFT_DEADLINE": "20s"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
