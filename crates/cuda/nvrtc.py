#!/usr/bin/env python3
"""Puts the NVRTC libraries that tests compile with into .cache/nvrtc/<version>, from the Python registry.

    crates/cuda/nvrtc.py [--into .cache/nvrtc]

NVRTC needs neither a GPU nor a driver. 12.9 is the last version for sm_70, 13.0 the first for CUDA 13 drivers. Each takes a download of 90 MB
once; a version that is there is not downloaded again.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = {"12.9.86": "nvidia-cuda-nvrtc-cu12", "13.0.88": "nvidia-cuda-nvrtc"}
NEEDED_GIB = 1.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / ".cache/nvrtc")
    folder = parser.parse_args().into.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for version, package in PACKAGES.items():
        if not (folder / version).exists():
            install(folder, version, f"{package}=={version}")


def install(folder, version, package):
    """Unpacks beside the final folder and renames, so that an interrupted run leaves no half of a version."""
    free = shutil.disk_usage(folder).free / (1 << 30)
    if free < NEEDED_GIB:
        sys.exit(f"nvrtc: unpacking {package} needs {NEEDED_GIB} GiB of disk, and {free:.1f} GiB are free")
    print(f"nvrtc: downloading {package}", flush=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="unpacking-") as scratch:
        scratch = pathlib.Path(scratch)
        download(scratch, package)
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
            libraries = [name for name in wheel.namelist() if name.startswith("nvidia/") and "/lib/libnvrtc" in name]
            if not libraries:
                sys.exit(f"nvrtc: {package} has no library nvidia/*/lib/libnvrtc*; correct PACKAGES in {__file__}")
            # The .alt builds are for other loaders, and static libraries are for linkers.
            wheel.extractall(scratch / "made", [name for name in libraries if ".alt." not in name and ".so" in name])
        os.rename(scratch / "made", folder / version)


def download(folder, package):
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--timeout", "20"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(folder), package],
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    if done.returncode:
        sys.exit(
            f"{done.stdout}nvrtc: cannot download {package}, and it is not in {folder.parent}. The tests that compile kernels need it: "
            "make the Python registry reachable (or set PIP_INDEX_URL to a mirror) and run `make cuda` again."
        )


if __name__ == "__main__":
    main()
