#!/usr/bin/env python3
"""Makes the Python environment for tests and benchmarks of the package: .cache/python, with NumPy, PyTorch and Weft.

    crates/python/environment.py [--into .cache/python]

It installs only what is missing, and rebuilds Weft's wheel only if its sources have changed. PyTorch comes from PyPI, with stubs for the
CUDA libraries that it never calls on a CPU.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import time

from cpu_torch import TORCH, TORCH_GIB, Unavailable, need_disk, stub_cuda, has_stubs

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# The dependencies of torch, and the builder of the wheel.
PACKAGES = ["numpy==2.4.6", "filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions", "maturin>=1.9,<2"]
PACKAGES_GIB = 0.5
# The sources of the wheel, without tests and examples.
SOURCES = ["Cargo.toml", "Cargo.lock", "pyproject.toml", "README.md", "crates", "testdata/measurements"]
NO_SOURCES = {"tests", "benches", "examples", "target", "__pycache__", "weftlink.data", "lib"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / ".cache/python")
    folder = parser.parse_args().into.resolve()
    try:
        make(folder)
    except Unavailable as why:
        sys.exit(f"cannot make the Python environment: {why}")


def make(folder):
    if not (folder / "bin/python").exists():
        log(f"making {folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder}")
        folder.mkdir(parents=True, exist_ok=True)
        command([sys.executable, "-m", "venv", folder])
    site = next(folder.glob("lib/python3*/site-packages"))
    if missing := [package for package in PACKAGES if not is_installed(site, package)]:
        need_disk(folder, PACKAGES_GIB)
        pip(folder, *missing)
    if missing := [package for package in TORCH if not is_installed(site, package)]:
        need_disk(folder, TORCH_GIB)
        pip(folder, "--no-deps", *missing)
    if not has_stubs(site / "torch/lib"):
        log("making stubs of the CUDA libraries for torch")
        stub_cuda(site / "torch/lib", site / "nvidia")
    install_weft(folder, site)


def install_weft(folder, site):
    stamp, sources = folder / "weft-sources", fingerprint()
    if is_installed(site, "weftlink") and stamp.exists() and stamp.read_text() == sources:
        return
    stamp.unlink(missing_ok=True)
    pip(folder, "--no-deps", "--no-build-isolation", ROOT)
    stamp.write_text(sources)


def is_installed(site, package):
    name, _, version = package.partition("==")
    name = name.partition(">")[0].replace("-", "_")
    return any(site.glob(f"{name}-{version or '*'}.dist-info"))


def fingerprint():
    """A hash of all sources."""
    digest = hashlib.sha256()
    for source in SOURCES:
        for folder, folders, files in os.walk(ROOT / source) if (ROOT / source).is_dir() else [(ROOT, [], [source])]:
            folders[:] = sorted(set(folders) - NO_SOURCES)
            for name in sorted(name for name in files if not name.endswith(".so")):
                path = pathlib.Path(folder, name)
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def pip(folder, *packages):
    # The build must find maturin.
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    log(f"pip install {' '.join(str(one) if one != ROOT else '.' for one in packages)}")
    began = time.monotonic()
    options = ["-q", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
    command([folder / "bin/python", "-m", "pip", "install", *options, *packages], env=environment)
    log(f"  took {time.monotonic() - began:.0f} s")


def command(words, **options):
    done = subprocess.run([str(word) for word in words], check=False, **options)
    if done.returncode:
        raise Unavailable(f"{' '.join(str(word) for word in words)} failed")


def log(what):
    print(f"python: {what}", flush=True)


if __name__ == "__main__":
    main()
