"""Builds the Python package: places the command and the shared libraries, then lets maturin build the native module.

pyproject.toml names this as the build backend, so that `pip install .` installs all of them. Cargo's environment variables apply to all.
"""

import maturin
from maturin import (  # noqa: F401 (the rest of a build backend)
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

import binaries

# Maturin needs the folder even if it only prepares metadata.
binaries.SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    binaries.place()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    binaries.place()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
