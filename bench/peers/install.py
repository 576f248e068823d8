#!/usr/bin/env python3
"""Installs the libraries that Weft is compared with, and builds the programs that measure them.

    bench/peers/install.py [--into .cache/peers] [--peers open-mpi,mpich,intel-mpi,oneccl,gloo] [--afresh]

The script downloads Debian packages and wheels and unpacks them in the folder, without root; it writes nothing elsewhere. It
uses Open MPI and torch of the system if present. If a peer cannot be installed, it prints the reason and continues;
peers.json in the folder lists the installed peers for run.py. It supports Debian and its derivatives only; elsewhere, name an
installed MPI with run.py --mpi.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "crates/python"))
from cpu_torch import TORCH, TORCH_GIB, Unavailable, need_disk, run, stub_cuda  # noqa: E402

MPICC = ["gcc", "-O3", "-march=native"]

INTEL_MPI = ["impi-rt==2021.19.0", "impi-devel==2021.19.0"]
# The CPU part of oneCCL is a static library; it needs the run-time library of the compiler that built it, and hwloc.
ONECCL = INTEL_MPI + ["oneccl-devel==2022.2.0", "intel-cmplr-lib-rt==2026.2.0", "tcmlib==1.6.0"]


def unpack_debs(packages, folder):
    """The packages, and what they depend on that the system lacks."""
    listing = run(["apt-get", "-s", "--no-install-recommends", "install", *packages])
    names = re.findall(r"^Inst (\S+)", listing, re.MULTILINE)
    if not names:
        return
    with tempfile.TemporaryDirectory(dir=folder) as downloads:
        if os.geteuid() == 0:
            os.chmod(downloads, 0o777)  # apt downloads as a user of its own
        run(["apt-get", "download", "-qq", *names], cwd=downloads)
        for package in sorted(pathlib.Path(downloads).glob("*.deb")):
            run(["dpkg", "-x", str(package), str(folder)])


def unpack_wheels(packages, folder):
    """Wheels without what they depend on; files that pip would put beside its packages (`data`) go to the folder's top."""
    with tempfile.TemporaryDirectory(dir=folder) as downloads:
        run([sys.executable, "-m", "pip", "download", "-q", "--no-cache-dir", "--no-deps", "--only-binary=:all:",
             "-d", downloads, *packages])  # fmt: skip
        for wheel in sorted(pathlib.Path(downloads).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.infolist():
                    name = re.sub(r"^[^/]+\.data/(data|purelib|platlib)/", "", entry.filename)
                    target = folder / name
                    if entry.is_dir() or not target.resolve().is_relative_to(folder.resolve()):
                        continue
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, open(target, "wb") as file:
                        shutil.copyfileobj(source, file, 1 << 20)
                    target.chmod(0o755 if entry.external_attr >> 16 & 0o111 else 0o644)


def once(folder, fill):
    """Fills the folder unless it has been filled; a folder that was filled in part does not count."""
    done = folder / "installed"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            fill()
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        done.touch()


def library_folder(root):
    triplet = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    return root / "usr/lib" / triplet


def open_mpi(folder):
    program = folder / "open-mpi"
    if shutil.which("mpirun.openmpi") and shutil.which("mpicc.openmpi"):
        run(["mpicc.openmpi", *MPICC[1:], str(HERE / "mpi.c"), "-o", str(program)])
        return {"launcher": [shutil.which("mpirun.openmpi")], "program": [program], "environment": {}}
    root = folder / "open-mpi-root"
    once(root, lambda: unpack_debs(["openmpi-bin", "libopenmpi-dev"], root))
    libraries = library_folder(root)
    own = libraries / "openmpi"
    run([*MPICC, f"-I{own / 'include'}", str(HERE / "mpi.c"), "-o", str(program), f"-L{own / 'lib'}", "-lmpi",
         f"-Wl,-rpath,{libraries}"])  # fmt: skip
    environment = {"OPAL_PREFIX": root / "usr", "LD_LIBRARY_PATH": libraries}
    return {"launcher": [root / "usr/bin/mpirun.openmpi"], "program": [program], "environment": environment}


def mpich(folder):
    program, root = folder / "mpich", folder / "mpich-root"
    once(root, lambda: unpack_debs(["mpich", "libmpich-dev"], root))
    libraries = library_folder(root)
    if not (root / "usr/bin/mpiexec.hydra").exists():
        # Installed in the system, so that apt had nothing to unpack.
        run(["mpicc.mpich", *MPICC[1:], str(HERE / "mpi.c"), "-o", str(program)])
        return {"launcher": ["mpiexec.mpich"], "program": [program], "environment": {}}
    headers = root / "usr/include" / libraries.name / "mpich"
    run([*MPICC, f"-I{headers}", str(HERE / "mpi.c"), "-o", str(program), f"-L{libraries}", "-lmpich",
         f"-Wl,-rpath,{libraries}"])  # fmt: skip
    launcher = [root / "usr/bin/mpiexec.hydra"]
    return {"launcher": launcher, "program": [program], "environment": {"LD_LIBRARY_PATH": libraries}}


def intel_root(folder):
    """Intel MPI and oneCCL share a folder, since the second runs on the first."""
    root = folder / "intel-root"

    def fill():
        need_disk(folder, 1)
        unpack_wheels(ONECCL, root)

    once(root, fill)
    return root


def intel_mpi(folder):
    program, root = folder / "intel-mpi", intel_root(folder)
    run([*MPICC, f"-I{root / 'include'}", str(HERE / "mpi.c"), "-o", str(program), f"-L{root / 'lib'}", "-lmpi",
         f"-Wl,-rpath,{root / 'lib'}"])  # fmt: skip
    environment = {"I_MPI_ROOT": root, "I_MPI_FABRICS": "shm"}
    return {"launcher": [root / "bin/mpiexec.hydra"], "program": [program], "environment": environment}


def oneccl(folder):
    program, root = folder / "oneccl", intel_root(folder)
    libraries = root / "lib"
    static = libraries / "ccl/cpu/lib/libccl.a"
    parts = [libraries / name for name in ("libintlc.so.5", "libsvml.so", "libimf.so", "libirng.so", "libhwloc.so.15")]
    run(["g++", *MPICC[1:], f"-I{root / 'include'}", str(HERE / "oneccl.cpp"), "-o", str(program), str(static),
         f"-L{libraries}", "-lmpi", *map(str, parts), "-lpthread", "-ldl", f"-Wl,-rpath,{libraries}"])  # fmt: skip
    environment = {
        "I_MPI_ROOT": root,
        "I_MPI_FABRICS": "shm",
        "CCL_ATL_TRANSPORT": "mpi",
        "CCL_WORKER_OFFLOAD": "0",
        "CCL_LOG_LEVEL": "error",
    }
    return {"launcher": [root / "bin/mpiexec.hydra"], "program": [program], "environment": environment}


def gloo(folder):
    program = [sys.executable, HERE / "gloo.py"]
    if torch_has_gloo({}):
        return {"launcher": [], "program": program, "environment": {}}
    root = folder / "torch-root"

    def fill():
        need_disk(folder, TORCH_GIB)
        unpack_wheels([*TORCH, "typing-extensions"], root)
        stub_cuda(root / "torch/lib", root / "nvidia")

    once(root, fill)
    environment = {"PYTHONPATH": root}
    if not torch_has_gloo(environment):
        raise Unavailable("torch was unpacked, but does not load or has no Gloo")
    return {"launcher": [], "program": program, "environment": environment}


def torch_has_gloo(environment):
    code = "import sys, torch.distributed as d; sys.exit(not d.is_gloo_available())"
    environment = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False).returncode == 0


PEERS = {"open-mpi": open_mpi, "mpich": mpich, "intel-mpi": intel_mpi, "oneccl": oneccl, "gloo": gloo}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=pathlib.Path, default=HERE.parents[1] / ".cache/peers")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS))
    parser.add_argument("--afresh", action="store_true", help="remove the folder first")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    folder = options.into.resolve()
    if options.afresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)

    # Peers that were not asked for stay as they are.
    path = folder / "peers.json"
    before = json.loads(path.read_text()) if path.exists() else {"peers": {}, "missing": {}}
    found = {name: peer for name, peer in before["peers"].items() if name not in options.peers}
    missing = {name: why for name, why in before["missing"].items() if name not in options.peers}
    for name in options.peers:
        start = time.monotonic()
        try:
            found[name] = PEERS[name](folder)
            print(f"{name}: ready after {time.monotonic() - start:.0f} s", flush=True)
        except Unavailable as why:
            missing[name] = str(why)
            print(f"{name}: not to be had: {why}", flush=True)
    path.write_text(json.dumps({"peers": found, "missing": missing}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
