"""Runs the programs and commands of docs/pytorch.md in a folder, and compares the output.

A block `python NAME` is a file. In a block `shell-session`, lines after `$ ` are commands, each followed by its standard output, where `...`
matches any text.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import jobs
import weftlink.torch

PAGE = jobs.HERE.parents[2] / "docs/pytorch.md"
BESIDE = pathlib.Path(sys.executable).parent
PATH = f"{BESIDE}:{os.environ['PATH']}"


def blocks():
    """Info strings and contents."""
    return re.findall(r"^```(\S[^\n]*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands():
    """Commands, and the output that the page shows."""
    found = []
    for kind, text in blocks():
        if kind == "shell-session":
            found += [one.split("\n", 1) for one in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    return found


def printed(command, folder):
    package = str(pathlib.Path(weftlink.torch.__file__).parents[2])
    environment = {**os.environ, "PATH": PATH, "PYTHONPATH": package, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=jobs.LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class Page(unittest.TestCase):
    def test_its_commands_print_what_it_shows(self):
        self.assertGreater(len(commands()), 4)
        with tempfile.TemporaryDirectory() as folder:
            for kind, text in blocks():
                if kind.startswith("python "):
                    pathlib.Path(folder, kind.split()[1]).write_text(text, encoding="utf-8")
            for command, shown in commands():
                with self.subTest(command=command):
                    if command.startswith("weft ") and not shutil.which("weft", path=PATH):
                        self.skipTest("no command weft beside the interpreter: the package was not installed by pip")
                    pattern = ".*".join(re.escape(part) for part in shown.split("..."))
                    self.assertRegex(printed(command, folder), re.compile(f"^{pattern}$", re.DOTALL))

    def test_its_python_blocks_are_files_that_a_command_runs(self):
        used = " ".join(command for command, _ in commands())
        for kind, _ in blocks():
            if kind.startswith("python"):
                self.assertIn(kind.split()[1], used)


if __name__ == "__main__":
    unittest.main()
