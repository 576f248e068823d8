"""Starts programs of several ranks, as a launcher would, for the tests."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# The command that the wheel installed, beside the interpreter.
WEFT = pathlib.Path(sys.executable).parent / "weft"
# Against hangs; nothing here takes a tenth of it.
LIMIT_S = 60


def command(program, ranks, *arguments):
    """What starts a program of tests/programs on so many ranks."""
    path = HERE / "programs" / program
    return [str(WEFT), "run", "-n", str(ranks), "--", sys.executable, str(path), *arguments]


def run(program, ranks, *arguments, **variables):
    """Runs it, and gives what it printed, line by line; fails if a rank does."""
    environment = {**os.environ, "WEFT_DEADLINE": "20s", **variables}
    done = subprocess.run(
        command(program, ranks, *arguments), env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise AssertionError(f"{program} with {ranks} ranks ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()
