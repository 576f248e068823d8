"""The installed wheel is complete: the native module, the command of the same version, the libraries of the workspace, the GPU kernels.

`make test-python` runs this on the wheel of `pip install .`, crates/python/wheel.py on the one that it has built.
"""

import importlib.metadata
import importlib.util
import pathlib
import sys
import sysconfig
import unittest

import jobs
import weftlink
from weftlink import _native

PACKAGE = pathlib.Path(weftlink.__file__).parent
# The files in crates/cuda/device that every program on a GPU contains.
KERNELS = ["types.h", "operations.h", "memory.h", "steps.h", "run.h", "kernel.h"]
PROGRAM = """
import weftlink
with weftlink.init() as comm:
    values = bytearray([comm.rank + 1, 5])
    comm.all_reduce(values)
    print(list(values))
"""


# By path: with crates/python in sys.path, the sources would be importable as weftlink.
spec = importlib.util.spec_from_file_location("binaries", jobs.HERE.parent / "binaries.py")
binaries = importlib.util.module_from_spec(spec)
spec.loader.exec_module(binaries)


class Wheel(unittest.TestCase):
    def setUp(self):
        self.distribution = importlib.metadata.distribution("weftlink")

    def test_one_wheel_serves_all_versions_of_python(self):
        tags = [line for line in self.distribution.read_text("WHEEL").splitlines() if line.startswith("Tag: ")]
        self.assertTrue(tags and all(tag.startswith("Tag: cp310-abi3-") for tag in tags), tags)
        self.assertEqual(self.distribution.metadata["Requires-Python"], ">=3.10")
        self.assertEqual(pathlib.Path(_native.__file__), PACKAGE / "_native.abi3.so")

    def test_command_and_package_have_one_version(self):
        first, *rest = jobs.run([str(jobs.WEFT), "--version"]).stdout.splitlines()
        self.assertEqual(first.split()[:2], ["weft", self.distribution.version])
        self.assertIn("CUDA", rest[-1])

    def test_it_contains_the_libraries_of_the_workspace(self):
        libraries = binaries.libraries()
        expected = {name for library in libraries for name in (library.file, *(path.name for path in library.headers()))}
        found = {path.name for path in self.distribution.files if path.parent.as_posix() == "weftlink/lib"}
        self.assertEqual(found, expected)
        for library in libraries:
            self.assertIn(binaries.inspect(PACKAGE / "lib" / library.file).soname, (None, library.file))

    def test_it_contains_no_other_binary(self):
        files = [path for path in self.distribution.files if ".so" in path.name]
        expected = ["_native.abi3.so", *(library.file for library in binaries.libraries())]
        self.assertEqual(sorted(path.name for path in files), sorted(expected))
        scripts = pathlib.Path(sysconfig.get_path("scripts"))
        installed = [path for path in self.distribution.files if path.locate().resolve().parent == scripts.resolve()]
        self.assertEqual([path.name for path in installed], ["weft"])

    def test_the_binaries_need_only_libraries_of_the_system(self):
        libraries = [PACKAGE / "lib" / library.file for library in binaries.libraries()]
        for path in (PACKAGE / "_native.abi3.so", jobs.WEFT, *libraries):
            binary = binaries.inspect(path)
            self.assertIn("libc.so.6", binary.needed)
            self.assertEqual(binary.foreign(), [], path.name)

    def test_the_binaries_contain_the_kernels(self):
        for path in (PACKAGE / "_native.abi3.so", jobs.WEFT):
            binary = path.read_bytes()
            for name in KERNELS:
                source = (binaries.ROOT / "crates/cuda/device" / name).read_bytes()
                self.assertIn(source, binary, f"{name} in {path.name}")

    def test_two_ranks_reduce_as_threads_and_as_processes(self):
        threads = weftlink.on_threads(2, lambda comm: list(comm.all_reduce(bytearray([comm.rank + 1, 5]))))
        self.assertEqual(threads, [[3, 10], [3, 10]])
        done = jobs.run([str(jobs.WEFT), "run", "-n", "2", "--no-tag", "--", sys.executable, "-c", PROGRAM])
        self.assertEqual(done.stdout, "[3, 10]\n" * 2, done.stderr)


class Libraries(unittest.TestCase):
    def test_packages_with_a_shared_library_are_found(self):
        def package(name, crate_types, metadata=None):
            targets = [{"name": name.removeprefix("weftlink-"), "crate_types": crate_types}]
            return {"name": name, "manifest_path": f"crates/{name}/Cargo.toml", "targets": targets, "metadata": metadata}

        packages = [
            package("weftlink-cli", ["bin"]),
            package("weftlink-python", ["cdylib"]),
            package("weftlink-one", ["cdylib", "rlib"], {"docs": {}}),
            package("weftlink-two", ["cdylib"], {"wheel": {"library": "libtwo.so.2"}}),
        ]
        found = binaries.libraries_in({"packages": packages})
        self.assertEqual([library.file for library in found], ["libone.so", "libtwo.so.2"])
        self.assertEqual([library.package for library in found], ["weftlink-one", "weftlink-two"])


if __name__ == "__main__":
    unittest.main()
