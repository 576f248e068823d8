"""Fabrics, plans, predictions and measurements from Python."""

import json
import pathlib
import re
import tempfile
import unittest

from weftlink import bench, fabric, plan, sim
from weftlink.errors import Error, PlanError, UsageError


class Fabrics(unittest.TestCase):
    def test_files_hold_the_parsed_fabric(self):
        machine = fabric.parse("hgx-h100")
        self.assertEqual((machine.name, len(machine.gpus)), ("hgx-h100", 8))
        self.assertIn("8 ", machine.summary())
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"a.json": machine.json(), "a.toml": machine.toml()}.items():
                file = pathlib.Path(folder, name)
                file.write_text(text)
                self.assertEqual(json.loads(fabric.read(file).json()), json.loads(machine.json()))

    def test_paths_and_pictures(self):
        machine = fabric.parse("hgx-h100")
        kind, hops, links, nominal, _effective, stations = machine.path("gpu0", "gpu7")
        self.assertEqual((kind, hops, links, nominal), ("NVL", 2, 18, 450.0))
        self.assertEqual((stations[0], stations[-1]), (["gpu0"], ["gpu7"]))
        self.assertTrue(machine.svg().startswith("<svg"))
        self.assertIn("graph", machine.dot())

    def test_this_machine_has_a_host(self):
        self.assertEqual(len(fabric.here().hosts), 1)

    def test_wrong_arguments_are_errors(self):
        for wrong in (
            lambda: fabric.parse("hgx-h1000"),
            lambda: fabric.parse("hgx-h100").path("gpu0", "gpu9"),
            lambda: fabric.Fabric.read(b"nonsense", "file"),
            lambda: fabric.Fabric.read(b"nonsense", "file", "h1000"),
        ):
            self.assertRaises(UsageError, wrong)


class Plans(unittest.TestCase):
    def test_plans_are_built_verified_drawn_and_exchanged(self):
        ring = plan.build("all_reduce", ranks=4, algorithm="ring")
        self.assertEqual((ring.ranks, ring.collective), (4, "all-reduce"))
        again = plan.import_msccl(ring.msccl())
        self.assertEqual(len(again.verify()), len(ring.verify()))
        self.assertEqual(plan.Plan.from_json(ring.json()).verify(), ring.verify())
        self.assertTrue(ring.svg().startswith("<svg"))
        self.assertIn("graph", ring.dot())

    def test_plans_for_a_fabric(self):
        machine = fabric.parse("hgx-h100")
        chosen = plan.choose("all_reduce", machine, "1GiB")
        self.assertEqual(chosen["ranks"], 8)
        built = plan.build("all_reduce", fabric=machine, algorithm="ring", size="1GiB")
        self.assertEqual(built.ranks, 8)
        built.verify()

    def test_a_wrong_plan_is_an_error(self):
        text = json.loads(plan.build("all_reduce", ranks=2, algorithm="ring").json())
        text["collective"] = "all-to-all"
        with self.assertRaises((PlanError, UsageError)):
            plan.Plan.from_json(json.dumps(text)).verify()

    def test_wrong_arguments_are_errors(self):
        for wrong in (
            lambda: plan.build("all_reduce"),
            lambda: plan.build("all_reduce", ranks=2, algorithm="rnig"),
            lambda: plan.build("al_reduce", ranks=2, algorithm="ring"),
            lambda: plan.build("broadcast", ranks=2, algorithm="ring", root=7),
            lambda: plan.build("all_reduce", fabric="hgx-h100", ranks=3),
            lambda: plan.choose("all_reduce", "no-such-fabric"),
            lambda: plan.import_msccl("<nonsense>"),
        ):
            self.assertRaises(UsageError, wrong)


class Predictions(unittest.TestCase):
    def test_rows_have_time_bottleneck_and_intervals(self):
        (row,) = sim.predict("all_reduce", "hgx-h100", ["64MiB"], library="nccl")
        self.assertEqual(row.bytes, 64 << 20)
        self.assertAlmostEqual(row.busbw_gb_per_s, row.algbw_gb_per_s * 2 * 7 / 8)
        self.assertTrue(row.limited_by and row.evidence)
        self.assertLess(row.intervals_us["low90"], row.time_us)
        self.assertGreater(row.intervals_us["high50"], row.time_us)
        self.assertEqual(row.outside_the_evidence, [])

    def test_calibration(self):
        (shipped,) = sim.predict("all_reduce", "hgx-h100", 8)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "mine.toml")
            file.write_text("nonsense")
            with self.assertRaisesRegex(UsageError, "weft sim calibrate"):
                sim.predict("all_reduce", "hgx-h100", 8, calibration=file)
            head = 'machine = "m"\nlibrary = "nccl"\ncalls = 1\nconstants = '
            file.write_text(head + '"0x1"')
            with self.assertRaisesRegex(UsageError, "run `weft sim calibrate` again") as stale:
                sim.predict("all_reduce", "hgx-h100", 8, calibration=file)
            constants = re.search("this Weft has (0x[0-9a-f]+)", str(stale.exception))[1]
            file.write_text(head + f'"{constants}"\n[LaunchUs]\nvalue = 50.0\nbefore = 0.2\nnow = 0.1\n')
            (calibrated,) = sim.predict("all_reduce", "hgx-h100", 8, calibration=file)
        self.assertGreater(calibrated.time_us, shipped.time_us + 40)

    def test_wrong_arguments_are_errors(self):
        self.assertRaises(UsageError, lambda: sim.predict("all_reduce", "hgx-h100", [8], library="nickel"))
        self.assertRaises(UsageError, lambda: sim.predict("all_reduce", "hgx-h1000", [8]))

    def test_errors_name_arguments_and_no_flags_of_the_command(self):
        smi = "        GPU0    GPU1    CPU Affinity\nGPU0     X      NV18    0-3\nGPU1    NV18     X      0-3\n"
        unnamed = fabric.Fabric.read(smi.encode(), "topo.txt")
        every = [row["algorithm"] for row in plan.choose("all_reduce", "2x-rtx4090")["candidates"]]
        for kind, words, wrong in (
            (UsageError, "argument root", lambda: plan.choose("all_reduce", "2x-rtx4090", root=1)),
            (UsageError, "argument size", lambda: plan.choose("barrier", "2x-rtx4090", 8)),
            (Error, "argument without", lambda: plan.choose("all_reduce", "2x-rtx4090", without=every)),
            (UsageError, "pass another library", lambda: sim.predict("all_reduce", "hgx-h100", [8], library="rccl")),
            (Error, "gpu=", lambda: sim.predict("all_reduce", unnamed, [8])),
        ):
            with self.subTest(words), self.assertRaises(kind) as raised:
                wrong()
            self.assertIn(words, str(raised.exception))
            self.assertNotRegex(str(raised.exception), "--(?!list)")


class Measurements(unittest.TestCase):
    def test_every_size_is_measured_and_checked(self):
        measured = bench.run("broadcast", ranks=2, minbytes=8, maxbytes=512, iters=5, symmetric=True)
        self.assertEqual([row["bytes"] for row in measured["rows"]], [8, 64, 512])
        self.assertEqual((measured["buffers"], measured["checked"]), ("symmetric", True))

    def test_wrong_arguments_are_errors(self):
        self.assertRaises(Error, lambda: bench.run("all_reduce", datatype="floating"))


if __name__ == "__main__":
    unittest.main()
