"""PyTorch as PyPI has it, for use on CPUs: without the gigabytes of CUDA libraries that it is linked with and never calls there.

Shared by environment.py and bench/peers/install.py.
"""

import collections
import pathlib
import re
import shutil
import subprocess
import tempfile

# The run-time library is the one part of CUDA that must be real.
TORCH = ["torch==2.15.0", "nvidia-cuda-runtime==13.2.86"]
# While it is unpacked.
TORCH_GIB = 2.5

GIB = 1 << 30


class Unavailable(Exception):
    """Why something cannot be had here."""


def run(command, **options):
    """What a command prints."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
    except FileNotFoundError:
        raise Unavailable(f"there is no {command[0]}") from None
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines() or ["it said nothing"]
        told = next((line for line in lines if "rror" in line), lines[-1])
        raise Unavailable(f"{pathlib.Path(command[0]).name} failed: {told.strip()}") from None


def need_disk(folder, gib):
    free = shutil.disk_usage(folder).free / GIB
    if free < gib:
        raise Unavailable(f"it takes {gib} GiB of disk while it is unpacked, and {free:.1f} are free")


def stands_alone(libraries):
    """Whether stand-ins are there, or not needed: torch for some processors knows no CUDA."""
    return not (libraries / "libtorch_cuda.so").exists() or any(libraries.glob("libcudart.so.*"))


def stand_in_for_cuda(libraries, nvidia):
    """Lets torch load without the CUDA libraries that it is linked with.

    Each of them is replaced by a library of the same name whose symbols are there and are not code: whatever called one
    would crash. Only CUDA's run-time library, which is small, is real, because torch registers its kernels there as it loads.
    """
    real = next(nvidia.rglob("libcudart.so.*"))
    needed, versions, unversioned = set(), collections.defaultdict(set), set()
    symbols = collections.defaultdict(set)
    for library in libraries.glob("*.so"):
        text = run(["readelf", "-W", "-d", "-V", "--dyn-syms", str(library)])
        needed |= set(re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)[^\]]*)\]", text))
        for file, names in re.findall(r"File: (\S+)\s+Cnt: \d+\n((?:\s+\S+:\s+Name: .*\n)+)", text):
            versions[file] |= set(re.findall(r"Name: (\S+)", names))
        for symbol in re.findall(r"GLOBAL\s+DEFAULT\s+UND\s+(\S+)", text):
            name, _, version = symbol.partition("@")
            if version:
                symbols[version].add(name)
            elif re.match(r"(cu|nv|nccl)[a-zA-Z]", name):
                unversioned.add(name)
    for file in sorted(needed - {real.name}):
        names = set().union(*(symbols[version] for version in versions[file])) or unversioned
        source = "".join(f"char {name}[64];\n" for name in sorted(names))
        command = ["gcc", "-shared", "-fPIC", "-w", "-nostdlib", "-x", "c", "-", "-o", str(libraries / file)]
        command.append(f"-Wl,-soname,{file}")
        with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
            if versions[file]:
                script.write("".join(f"{version} {{ global: *; }};\n" for version in versions[file]))
                script.flush()
                command.append(f"-Wl,--version-script,{script.name}")
            run(command, input=source)
    # Last, because it tells that the others are there.
    shutil.copy(real, libraries / real.name)
