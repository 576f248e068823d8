"""The command `weft` that is installed with the package: `weftlink.bench` has it start and measure ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

from weftlink.errors import Error, UsageError

# What the command ends with when it was asked something that makes no sense.
MISUSE = 2


def path() -> str:
    """Where the command is: with this package's scripts, beside the interpreter, or wherever the shell would find it."""
    folders = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    found = [shutil.which("weft", path=folder) for folder in folders] + [shutil.which("weft")]
    if command := next(filter(None, found), None):
        return command
    raise Error("the command weft is not there: pip puts it into the same environment as this package")


def ask_json(*words: object) -> dict[str, Any]:
    """What the command prints with --json."""
    done = subprocess.run([path(), *map(str, words), "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        kind = UsageError if done.returncode == MISUSE else Error
        raise kind(done.stderr.strip().removeprefix("weft: "))
    return json.loads(done.stdout)


def name_of(collective: str) -> str:
    """A collective as the command calls it, which writes dashes."""
    return collective.replace("_", "-")


def options(**given: object) -> list[str]:
    """Options of the command: what is None is left out, what is True has no value."""
    words: list[str] = []
    for name, value in given.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
    return words
