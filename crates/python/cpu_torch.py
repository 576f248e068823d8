"""PyTorch from PyPI for CPUs, without the gigabytes of CUDA libraries that it links to and never calls there.

Shared by environment.py and bench/peers/install.py.
"""

import collections
import pathlib
import re
import shutil
import subprocess
import tempfile

# Only CUDA's runtime library must be real.
TORCH = ["torch==2.15.0", "nvidia-cuda-runtime==13.2.86"]
# Disk space while unpacking.
TORCH_GIB = 2.5

GIB = 1 << 30


class Unavailable(Exception):
    """A package or tool is not available here."""


def run(command, **options):
    """The output of a command."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines() or ["no output"]
        error_line = next((line for line in lines if "rror" in line), lines[-1])
        raise Unavailable(f"{pathlib.Path(command[0]).name} failed: {error_line.strip()}") from None


def need_disk(folder, gib):
    free = shutil.disk_usage(folder).free / GIB
    if free < gib:
        raise Unavailable(f"unpacking needs {gib} GiB of disk, and {free:.1f} GiB are free")


def has_stubs(libraries):
    """Whether the stubs exist or are not needed: torch for some processors has no CUDA."""
    return not (libraries / "libtorch_cuda.so").exists() or any(libraries.glob("libcudart.so.*"))


def stub_cuda(libraries, nvidia):
    """Lets torch load without the CUDA libraries that it links to.

    A stub library of the same name defines the symbols as data: calling one would crash. Only CUDA's runtime library, which is small, is
    real, because torch registers its kernels there when it loads.
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
    # Last, because `has_stubs` looks for it.
    shutil.copy(real, libraries / real.name)
