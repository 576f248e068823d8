#!/usr/bin/env python3
"""Builds the wheel for other machines: target/wheels/weftlink-VERSION-cp310-abi3-manylinux...whl.

    crates/python/wheel.py [--glibc 2.17] [--out target/wheels]

It is the wheel of `pip install .`, but zig links it against an old glibc, it is stripped, and it contains no path of this machine. All its
binaries are checked, and crates/python/tests/test_wheel.py tests it in a new environment. Its tools are in .cache/wheel.
"""

import argparse
import os
import pathlib
import platform
import re
import sys
import tempfile
import time
import zipfile

import binaries
from binaries import HERE, ROOT
from cpu_torch import Unavailable
from environment import command, is_installed

TOOLS = ROOT / ".cache/wheel"
PACKAGES = ["maturin>=1.9,<2", "ziglang==0.17.0"]
SIZE_MAX = 64 << 20
# Cargo passes the target to the C compiler of crates; zig's has the version of glibc, too.
COMPILER = """\
#!/bin/sh
for word; do
    shift
    case $word in --target=*) ;; *) set -- "$@" "$word" ;; esac
done
exec "{zig}" cc -target {machine}-linux-gnu.{glibc} -fno-sanitize=undefined "$@"
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glibc", type=version, default="2.17", help="the oldest glibc that it works with [default: 2.17]")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/wheels", help="[default: target/wheels]")
    arguments = parser.parse_args()
    try:
        install_tools()
        wheel = build(arguments.glibc, arguments.out.resolve())
        if faults := check(wheel, tuple(map(int, arguments.glibc.split(".")))):
            raise Unavailable("; ".join(faults))
        try_out(wheel)
    except Unavailable as why:
        sys.exit(f"cannot build the wheel: {why}")


def version(text):
    if not re.fullmatch(r"\d+\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version such as 2.17")
    return text


def install_tools():
    if not (TOOLS / "bin/python").exists():
        command([sys.executable, "-m", "venv", TOOLS])
    site = next(TOOLS.glob("lib/python3*/site-packages"))
    if missing := [package for package in PACKAGES if not is_installed(site, package)]:
        log(f"installing {' '.join(missing)} into .cache/wheel")
        command([TOOLS / "bin/python", "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check", *missing])


def build(glibc, folder):
    """Builds the wheel and returns its path."""
    log(f"building for glibc {glibc}; takes 5 to 10 minutes on two cores, less if little has changed")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as fresh:
        words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--disable-pip-version-check"]
        command([TOOLS / "bin/python", "-m", "pip", *words, "--wheel-dir", fresh, ROOT], env=environment(glibc))
        built = next(pathlib.Path(fresh).glob("*.whl"))
        folder.mkdir(parents=True, exist_ok=True)
        wheel = folder / built.name
        wheel.write_bytes(built.read_bytes())
    log(f"built {wheel.name} in {time.monotonic() - began:.0f} s")
    return wheel


def environment(glibc):
    """Settings of cargo and maturin."""
    machine = platform.machine()
    target = f"{machine}-unknown-linux-gnu"
    zig = next(TOOLS.glob("lib/python3*/site-packages/ziglang/zig"))
    compiler = TOOLS / f"cc-{glibc}"
    compiler.write_text(COMPILER.format(zig=zig, machine=machine, glibc=glibc))
    compiler.chmod(0o755)
    cargo_home = os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo")
    flags = [f"--remap-path-prefix={ROOT}=weft", f"--remap-path-prefix={cargo_home}/registry/src=cargo"]
    return {
        **os.environ,
        "PATH": f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "CARGO_BUILD_TARGET": target,
        f"CARGO_TARGET_{target.upper().replace('-', '_')}_LINKER": str(compiler),
        f"CC_{target.replace('-', '_')}": str(compiler),
        # Instead of flags of the user, which may be for the processor of this machine.
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
        "CARGO_PROFILE_RELEASE_DEBUG": "none",
        "CARGO_PROFILE_RELEASE_STRIP": "symbols",
        "MATURIN_PEP517_ARGS": f"--compatibility manylinux_{glibc.replace('.', '_')}",
        "ZIG_GLOBAL_CACHE_DIR": str(TOOLS / "zig"),
    }


def check(wheel, glibc):
    """Prints what the wheel contains, and returns what is wrong with it."""
    size = wheel.stat().st_size
    faults = [] if size <= SIZE_MAX else [f"{wheel.name} has {size} bytes, more than {SIZE_MAX}"]
    log(f"{size / 1e6:.1f} MB packed:")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for entry in archive.infolist():
            data = archive.read(entry)
            if any(f"{path}/".encode() in data for path in (ROOT, pathlib.Path.home())):
                faults.append(f"{entry.filename} contains a path of this machine")
            if data[:4] != b"\x7fELF":
                continue
            path = pathlib.Path(archive.extract(entry, folder))
            binary = binaries.inspect(path)
            faults += [f"{entry.filename} {fault}" for fault in faults_of(path, binary, glibc)]
            log(f"  {entry.filename}: {len(data) / 1e6:.1f} MB, glibc {'.'.join(map(str, binary.glibc))}")
    return faults


def faults_of(path, binary, glibc):
    if binary.glibc > glibc:
        yield f"needs glibc {'.'.join(map(str, binary.glibc))}"
    if foreign := binary.foreign():
        yield f"needs {', '.join(foreign)}"
    if not binary.is_stripped:
        yield "is not stripped"
    if path.parent.name == "lib" and binary.soname not in (None, path.name):
        yield f"has the SONAME {binary.soname}, which must be `library` in [package.metadata.wheel] of its crate"


def try_out(wheel):
    """Installs the wheel into a new environment without a compiler, and tests it there."""
    with tempfile.TemporaryDirectory() as folder:
        python = pathlib.Path(folder, "bin/python")
        command([sys.executable, "-m", "venv", folder])
        began = time.monotonic()
        options = ["-q", "--no-index", "--no-deps", "--disable-pip-version-check"]
        command([python, "-m", "pip", "install", *options, wheel], env={"PATH": str(python.parent)})
        log(f"installed in {time.monotonic() - began:.1f} s")
        command([python, "-m", "unittest", "discover", "-s", HERE / "tests", "-p", "test_wheel.py"])


def log(what):
    print(f"wheel: {what}", flush=True)


if __name__ == "__main__":
    main()
