"""The binaries of the wheel beside the native module: the command `weft`, and the shared libraries of the workspace.

Every package of the workspace with a cdylib, except the native module, provides a library: it goes to the folder weftlink/lib of the Python
package, together with the headers in the folder of its crate. The file is `libNAME.so`, unless the manifest of the crate names
another, which must be the library's SONAME:

    [package.metadata.wheel]
    library = "libNAME.so.2"
"""

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Where maturin finds the command and the libraries: `data` and `include` in pyproject.toml.
SCRIPTS = HERE / "weftlink.data" / "scripts"
LIBRARIES = HERE / "weftlink" / "lib"
COMMAND, NATIVE = "weftlink-cli", "weftlink-python"
# Libraries that every Linux distribution with glibc has.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"}


@dataclasses.dataclass(frozen=True)
class Library:
    """A shared library of the workspace."""

    package: str
    manifest: str
    file: str

    def headers(self):
        return sorted(pathlib.Path(self.manifest).parent.glob("*.h"))


@dataclasses.dataclass(frozen=True)
class Binary:
    """What a binary needs to run."""

    soname: str | None
    needed: tuple[str, ...]
    # The newest version of glibc of which it uses a symbol: (2, 17).
    glibc: tuple[int, ...]
    is_stripped: bool

    def foreign(self):
        """The libraries that it needs and that a system may not have."""
        return [name for name in self.needed if name not in SYSTEM and not name.startswith("ld-linux-")]


def libraries():
    """The shared libraries of the workspace, except the native module."""
    command = ["cargo", "metadata", "--no-deps", "--format-version=1", "--locked"]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return libraries_in(json.loads(output))


def libraries_in(metadata):
    """The shared libraries in the output of `cargo metadata`."""
    found = []
    for package in metadata["packages"]:
        for target in package["targets"]:
            if "cdylib" in target["crate_types"] and package["name"] != NATIVE:
                named = (package["metadata"] or {}).get("wheel", {}).get("library")
                found.append(Library(package["name"], package["manifest_path"], named or f"lib{target['name']}.so"))
    return found


def place():
    """Builds the command and the libraries, and copies them to where maturin finds them."""
    wanted = libraries()
    command, built = build(wanted)
    copy_stripped(command, SCRIPTS / "weft")
    shutil.rmtree(LIBRARIES, ignore_errors=True)
    for library in wanted:
        copy_stripped(built[library.manifest], LIBRARIES / library.file)
        for header in library.headers():
            shutil.copy2(header, LIBRARIES / header.name)


def build(wanted):
    """Builds the command and libraries. Returns the path of the command, and those of the libraries by manifest."""
    # With all packages, cargo builds shared crates once: for the command alone they would have fewer features.
    packages = [COMMAND, NATIVE, *(library.package for library in wanted)]
    words = ["cargo", "build", "--release", "--locked", "--bin", "weft", *(["--lib"] if wanted else [])]
    words += [word for package in packages for word in ("-p", package)]
    words.append("--message-format=json-render-diagnostics")
    output = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    # The paths depend on cargo's settings.
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    artifacts = [message for message in messages if message["reason"] == "compiler-artifact"]
    command = next(artifact["executable"] for artifact in artifacts if artifact["executable"])
    shared = {
        artifact["manifest_path"]: next(file for file in artifact["filenames"] if file.endswith(".so"))
        for artifact in artifacts
        if "cdylib" in artifact["target"]["crate_types"]
    }
    return command, shared


def copy_stripped(source, target):
    """Copies a binary without its debug information. The target is replaced, because a running program cannot be overwritten."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f"{target.name}.fresh")
    shutil.copy2(source, fresh)
    if strip := shutil.which("strip"):
        subprocess.run([strip, "--strip-debug", str(fresh)], check=True)
    fresh.replace(target)


def inspect(path):
    """What a binary needs to run, from binutils' readelf."""
    command = ["readelf", "--wide", "--dynamic", "--version-info", "--section-headers", str(path)]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    soname = re.search(r"\(SONAME\).*\[(.*)\]", text)
    versions = (tuple(map(int, version.split("."))) for version in re.findall(r"Name: GLIBC_([\d.]+)", text))
    return Binary(
        soname[1] if soname else None,
        tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", text)),
        max(versions, default=()),
        not re.search(r"\] \.(symtab|debug_\w+) ", text),
    )
