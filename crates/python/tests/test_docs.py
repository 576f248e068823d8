"""Examples in docstrings and docs/python.md run, and the stubs are complete."""

import ast
import doctest
import importlib
import pathlib
import pkgutil
import sys
import unittest

import jobs
import weftlink
from weftlink import _native

ROOT = jobs.HERE.parents[2]


def modules():
    found = pkgutil.iter_modules(weftlink.__path__)
    # The modules for PyTorch have tests of their own.
    names = [one.name for one in found if one.name != "torch"]
    return [weftlink, *(importlib.import_module(f"weftlink.{name}") for name in names)]


def load_tests(_loader, tests, _pattern):
    for module in modules():
        if module is not _native:
            tests.addTests(doctest.DocTestSuite(module))
    return tests


class Stubs(unittest.TestCase):
    def setUp(self):
        text = pathlib.Path(_native.__file__).with_name("_native.pyi").read_text()
        self.stub = ast.parse(text)

    def public(self, thing):
        special = {"__len__", "__array_interface__", "__dlpack__", "__dlpack_device__"}
        return {name for name in vars(thing) if not name.startswith("_") or name in special}

    def test_every_name_is_in_the_stub_and_no_other(self):
        declared = {node.name: node for node in self.stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        self.assertEqual(set(declared), self.public(_native))
        for name, node in declared.items():
            if isinstance(node, ast.ClassDef):
                methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)} - {"__new__"}
                self.assertEqual(methods, self.public(getattr(_native, name)), name)

    def test_arguments_are_the_same(self):
        for owner in [node for node in self.stub.body if isinstance(node, ast.ClassDef)] + [self.stub]:
            for node in owner.body:
                if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.name.startswith("__"):
                    continue
                holder = _native if owner is self.stub else getattr(_native, owner.name)
                signature = getattr(holder, node.name).__text_signature__
                real = ast.parse(f"def f{signature.replace('$self', 'self').replace('/, ', '').replace(', /', '')}: ...")
                names = [each.arg for each in real.body[0].args.args + real.body[0].args.kwonlyargs]
                declared = [each.arg for each in node.args.args + node.args.kwonlyargs]
                self.assertEqual(declared, names, f"{getattr(owner, 'name', '')}.{node.name}")


class Page(unittest.TestCase):
    """docs/python.md: its Python blocks run, those with `weftlink.init()` on two ranks."""

    def blocks(self):
        text = (ROOT / "docs/python.md").read_text()
        parts = text.split("```")[1::2]
        return [part.split("\n", 1) for part in parts]

    def test_its_programs_run(self):
        programs = [code for kind, code in self.blocks() if kind == "python"]
        self.assertGreater(len(programs), 3)
        for program in programs:
            with self.subTest(program=program.splitlines()[0]):
                command = [sys.executable, "-c", program]
                if "weftlink.init()" in program:
                    command = [str(jobs.WEFT), "run", "-n", "2", "--", *command]
                done = jobs.run(command)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_its_outputs_are_right(self):
        shown = self.blocks()
        for (kind, program), (next_kind, output) in zip(shown, shown[1:]):
            if (kind, next_kind) == ("python", "text"):
                done = jobs.run([sys.executable, "-c", program])
                self.assertEqual(done.stdout, output, done.stderr)


if __name__ == "__main__":
    unittest.main()
