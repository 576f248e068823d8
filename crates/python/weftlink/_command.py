"""Runs the command `weft`, which is installed with the package. `weftlink.bench` starts and measures ranks with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

from weftlink.errors import Error, UsageError

# The exit code of the command for wrong arguments.
MISUSE = 2


def path() -> str:
    """The path of the command: in the environment's scripts, beside the interpreter, or in PATH."""
    folders = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    found = [shutil.which("weft", path=folder) for folder in folders] + [shutil.which("weft")]
    if command := next(filter(None, found), None):
        return command
    raise Error("the command weft was not found; reinstall the package, which installs it into the same environment")


def ask_json(*words: object) -> dict[str, Any]:
    """Runs the command with --json and returns what it prints."""
    done = subprocess.run([path(), *map(str, words), "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        kind = UsageError if done.returncode == MISUSE else Error
        raise kind(done.stderr.strip().removeprefix("weft: "))
    return json.loads(done.stdout)


def name_of(collective: str) -> str:
    """The command's name for a collective, with dashes."""
    return collective.replace("_", "-")


def options(**given: object) -> list[str]:
    """Flags of the command: None and False are left out, True is a flag without a value."""
    words: list[str] = []
    for name, value in given.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
    return words
