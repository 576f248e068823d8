"""The command `weft` that is installed with the package, for answers that it puts together from many parts."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from typing import Any

from weftlink._native import Fabric
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


def ask(*words: object) -> str:
    """What the command prints."""
    done = subprocess.run([path(), *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        kind = UsageError if done.returncode == MISUSE else Error
        raise kind(done.stderr.strip().removeprefix("weft: "))
    return done.stdout


def ask_json(*words: object) -> dict[str, Any]:
    """The same, as what its JSON says."""
    return json.loads(ask(*words, "--json"))


@contextlib.contextmanager
def target(fabric: Fabric | str) -> Iterator[str]:
    """A fabric as the command takes it: by its name, or in a file."""
    if isinstance(fabric, str):
        yield fabric
        return
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "fabric.json")
        file.write_text(fabric.json())
        yield str(file)


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
