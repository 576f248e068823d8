"""Builds the Python package: copies the command `weft` to maturin's scripts, then lets maturin build the native module.

pyproject.toml names this as the build backend, so that `pip install .` installs both. Cargo's environment variables apply to both.
"""

import json
import pathlib
import shutil
import subprocess

import maturin
from maturin import (  # noqa: F401 (the rest of a build backend)
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE / "weftlink.data" / "scripts"
# Maturin needs the folder even if it only prepares metadata.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    place_command()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    place_command()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def place_command():
    """Builds the command and copies it to the wheel's scripts."""
    built = built_command()
    # Replaced, not overwritten: a running program cannot be overwritten.
    fresh = SCRIPTS / "weft.fresh"
    shutil.copy2(built, fresh)
    if strip := shutil.which("strip"):
        subprocess.run([strip, "--strip-debug", str(fresh)], check=True)
    fresh.replace(SCRIPTS / built.name)


def built_command():
    # With both packages, cargo builds shared crates once: for the command alone they would have fewer features.
    command = ["cargo", "build", "--release", "--locked", "-p", "weftlink-cli", "-p", "weftlink-python"]
    command += ["--bin", "weft", "--message-format=json-render-diagnostics"]
    output = subprocess.run(command, cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True, check=True).stdout
    # The path of the executable depends on cargo's settings.
    artifacts = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    return pathlib.Path(next(path for artifact in artifacts if (path := artifact.get("executable"))))
