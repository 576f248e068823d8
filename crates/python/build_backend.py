"""Builds the Python package: maturin makes it of the native module, after the command `weft` was put where maturin takes scripts from.

pyproject.toml names this as the backend, so that `pip install .` gives both. Cargo's settings in the environment hold for both too.
"""

import json
import pathlib
import shutil
import subprocess

import maturin
from maturin import (  # noqa: F401 (what else a backend has)
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE / "weftlink.data" / "scripts"
# Maturin wants to see the folder even when it only writes down what the package is.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    place_command()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    place_command()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def place_command():
    """Builds the command and copies it to where pip puts it into bin/ from."""
    built = built_command()
    # Not written in place: a command that runs cannot be.
    fresh = SCRIPTS / "weft.fresh"
    shutil.copy2(built, fresh)
    if strip := shutil.which("strip"):
        subprocess.run([strip, "--strip-debug", str(fresh)], check=True)
    fresh.replace(SCRIPTS / built.name)


def built_command():
    # The module's package is named so that both are built of the same crates: alone, the command would have some with fewer features.
    command = ["cargo", "build", "--release", "--locked", "-p", "weftlink-cli", "-p", "weftlink-python"]
    command += ["--bin", "weft", "--message-format=json-render-diagnostics"]
    told = subprocess.run(command, cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True, check=True).stdout
    # Cargo says where it puts things, which depends on its settings.
    artifacts = (json.loads(line) for line in told.splitlines() if line.startswith("{"))
    return pathlib.Path(next(path for artifact in artifacts if (path := artifact.get("executable"))))
