#!/usr/bin/env python3
"""Makes the Python environment that the tests and benchmarks of the package run in: .cache/python, with NumPy, PyTorch and Weft.

    crates/python/environment.py [--into .cache/python]

It takes nothing that is there already, and builds Weft's wheel anew only when its sources have changed: then cargo builds what
has. PyTorch comes from the Python registry, with stand-ins for the CUDA libraries that it never calls here.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import time

from cpu_torch import TORCH, TORCH_GIB, Unavailable, need_disk, stand_in_for_cuda, stands_alone

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# What torch imports, and what builds the wheel.
PACKAGES = ["numpy==2.4.6", "filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions", "maturin>=1.9,<2"]
PACKAGES_GIB = 0.5
# What the wheel is made of; tests and examples are not.
SOURCES = ["Cargo.toml", "Cargo.lock", "pyproject.toml", "README.md", "crates", "testdata/measurements"]
NO_SOURCES = {"tests", "benches", "examples", "target", "__pycache__", "weftlink.data"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / ".cache/python")
    folder = parser.parse_args().into.resolve()
    try:
        make(folder)
    except Unavailable as why:
        sys.exit(f"the Python environment cannot be had: {why}")


def make(folder):
    if not (folder / "bin/python").exists():
        tell(f"making {folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder}")
        folder.mkdir(parents=True, exist_ok=True)
        command([sys.executable, "-m", "venv", folder])
    site = next(folder.glob("lib/python3*/site-packages"))
    if missing := [package for package in PACKAGES if not is_there(site, package)]:
        need_disk(folder, PACKAGES_GIB)
        pip(folder, *missing)
    if missing := [package for package in TORCH if not is_there(site, package)]:
        need_disk(folder, TORCH_GIB)
        pip(folder, "--no-deps", *missing)
    if not stands_alone(site / "torch/lib"):
        tell("putting stand-ins where torch looks for CUDA's libraries")
        stand_in_for_cuda(site / "torch/lib", site / "nvidia")
    install_weft(folder, site)


def install_weft(folder, site):
    stamp, sources = folder / "weft-sources", fingerprint()
    if is_there(site, "weftlink") and stamp.exists() and stamp.read_text() == sources:
        return
    stamp.unlink(missing_ok=True)
    pip(folder, "--no-deps", "--no-build-isolation", ROOT)
    stamp.write_text(sources)


def is_there(site, package):
    name, _, version = package.partition("==")
    name = name.partition(">")[0].replace("-", "_")
    return any(site.glob(f"{name}-{version or '*'}.dist-info"))


def fingerprint():
    """Changes whenever a source does."""
    digest = hashlib.sha256()
    for source in SOURCES:
        for folder, folders, files in os.walk(ROOT / source) if (ROOT / source).is_dir() else [(ROOT, [], [source])]:
            folders[:] = sorted(set(folders) - NO_SOURCES)
            for name in sorted(name for name in files if not name.endswith(".so")):
                path = pathlib.Path(folder, name)
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def pip(folder, *what):
    # What is built with it (maturin) must be found.
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    tell(f"pip install {' '.join(str(one) if one != ROOT else '.' for one in what)}")
    began = time.monotonic()
    options = ["-q", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
    command([folder / "bin/python", "-m", "pip", "install", *options, *what], env=environment)
    tell(f"  took {time.monotonic() - began:.0f} s")


def command(words, **options):
    done = subprocess.run([str(word) for word in words], check=False, **options)
    if done.returncode:
        raise Unavailable(f"{' '.join(str(word) for word in words)} failed")


def tell(what):
    print(f"python: {what}", flush=True)


if __name__ == "__main__":
    main()
