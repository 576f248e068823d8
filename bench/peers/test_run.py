"""The arithmetic of a run, on rows written by hand.

    python3 -m unittest bench/peers/test_run.py
"""

import dataclasses
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import programs  # noqa: E402
import summary  # noqa: E402


def row(number, program, time_us, **other):
    fields = {
        "round": number,
        "ranks": 2,
        "bound": 1,
        "program": program,
        "collective": "all-reduce",
        "place": "out-of-place",
        "buffers": "cached",
        "bytes": 8,
        "calls": 100,
        "time_us": time_us,
        "wrong": 0,
        **other,
    }
    return {name: str(value) for name, value in fields.items()}


def rows(program, times_us, **other):
    return [row(number, program, time_us, **other) for number, time_us in enumerate(times_us)]


CASE = summary.Case(2, True, "all-reduce", "out-of-place", "cached")
SYMMETRIC, ORDINARY = summary.WEFTS


def bar(text):
    return next(bar for bar in summary.BARS if bar.text.startswith(text))


class Interval(unittest.TestCase):
    def test_ranks_are_those_of_the_sign_test(self):
        for rounds, k in {1: 0, 5: 0, 6: 1, 8: 1, 9: 2, 11: 2, 12: 3, 15: 4, 17: 5, 20: 6, 25: 8}.items():
            self.assertEqual(summary.interval_rank(rounds), k, rounds)

    def test_nine_rounds_give_the_second_and_the_eighth(self):
        ratio = summary.median_ratio([9, 1, 8, 2, 7, 3, 6, 4, 5])
        self.assertEqual((ratio.median, ratio.low, ratio.high), (5, 2, 8))

    def test_too_few_rounds_give_their_range_and_the_summary_says_so(self):
        ratio = summary.median_ratio([3, 1, 2])
        self.assertEqual((ratio.median, ratio.low, ratio.high), (2, 1, 3))
        text = summary.summary(rows(SYMMETRIC, [1, 1, 1]) + rows("mpich", [3, 1, 2]))
        self.assertIn("3 rounds are too few", text)
        self.assertIn("2.00x (1.00 to 3.00)", text)


class Ratios(unittest.TestCase):
    def test_are_taken_within_a_round(self):
        # The machine slows down by ten from round to round; the peer always takes three times as long.
        times = summary.Times(rows(SYMMETRIC, [1, 10, 100]) + rows("mpich", [3, 30, 300]))
        ratio = times.ratio(CASE, SYMMETRIC, "mpich", 8)
        self.assertEqual((ratio.median, ratio.low, ratio.high), (3, 3, 3))

    def test_use_the_rounds_that_both_have(self):
        times = summary.Times(rows(SYMMETRIC, [1, 1, 1]) + [row(1, "mpich", 4)])
        self.assertEqual(times.ratio(CASE, SYMMETRIC, "mpich", 8).median, 4)
        times = summary.Times([row(0, SYMMETRIC, 1), row(1, "mpich", 4)])
        self.assertIsNone(times.ratio(CASE, SYMMETRIC, "mpich", 8))

    def test_best_peer_is_of_a_size_and_by_the_median(self):
        times = summary.Times(
            rows(SYMMETRIC, [1, 1, 1])
            + rows("mpich", [2, 2, 90])
            + rows("open-mpi", [3, 3, 3])
            + rows(SYMMETRIC, [1, 1, 1], bytes=64)
            + rows("mpich", [5, 5, 5], bytes=64)
            + rows("open-mpi", [4, 4, 4], bytes=64)
        )
        self.assertEqual([times.best(CASE, size) for size in (8, 64)], ["mpich", "open-mpi"])
        self.assertEqual({size: ratio.median for size, ratio in times.ratios(CASE, SYMMETRIC).items()}, {8: 2, 64: 4})

    def test_cases_do_not_mix(self):
        times = summary.Times(
            rows(SYMMETRIC, [1])
            + rows("mpich", [2])
            + rows("mpich", [9], ranks=4)
            + rows("mpich", [9], collective="scan")
            + rows("mpich", [9], buffers="rotating")
            + rows("mpich", [9], place="in-place")
        )
        self.assertEqual(times.cases(), [CASE])
        self.assertEqual(times.ratio(CASE, SYMMETRIC, "mpich", 8).median, 2)

    def test_a_peer_with_one_place_only_is_compared_by_it(self):
        times = summary.Times(rows(SYMMETRIC, [1]) + rows("gloo", [7], place="in-place"))
        self.assertEqual(times.ratio(CASE, SYMMETRIC, "gloo", 8).median, 7)
        self.assertEqual(times.borrowed(CASE), ["gloo"])
        # One that has the place at other sizes has no time at this one.
        times = summary.Times(rows(SYMMETRIC, [1]) + rows("gloo", [7], place="in-place") + rows("gloo", [1], bytes=64))
        self.assertIsNone(times.ratio(CASE, SYMMETRIC, "gloo", 8))

    def test_a_place_that_no_peer_has_is_left_out(self):
        times = summary.Times(rows(SYMMETRIC, [1]) + rows(SYMMETRIC, [1], place="in-place") + rows("mpich", [7], place="in-place"))
        self.assertEqual([case.place for case in times.cases()], ["in-place"])

    def test_geometric_mean(self):
        self.assertAlmostEqual(summary.geometric_mean([1, 4]), 2)
        self.assertAlmostEqual(summary.geometric_mean([0.5, 2, 8]), 2)

    def test_wrong_results_are_left_out_and_told(self):
        text = summary.summary(rows(SYMMETRIC, [1, 1]) + [row(0, "mpich", 2), row(1, "mpich", 99, wrong=3)])
        self.assertIn("1 rows had wrong results", text)
        self.assertIn("2.00x (2.00 to 2.00)", text)


    def test_the_bare_loop_is_shown_and_is_no_peer(self):
        made = rows(SYMMETRIC, [1]) + rows("mpich", [2]) + rows(summary.FLOOR, [0.5])
        self.assertEqual(summary.Times(made).best(CASE, 8), "mpich")
        self.assertIn("| 8 | 1 | 2 | 0.5 | mpich |", summary.summary(made))

    def test_a_baseline_is_compared_with_this_build_and_is_no_peer(self):
        made = rows(SYMMETRIC, [1, 2]) + rows("mpich", [4, 8]) + rows(summary.BASELINES[SYMMETRIC], [1.5, 3])
        self.assertEqual(summary.Times(made).best(CASE, 8), "mpich")
        self.assertIn("Over everything: 1.500x", summary.summary(made))
        self.assertNotIn("Against the baseline", summary.summary(rows(SYMMETRIC, [1]) + rows("mpich", [4])))


class Bars(unittest.TestCase):
    def judged(self, text, made):
        held, misses = summary.judge(bar(text), summary.Times(made))
        return held, len(misses)

    def test_symmetric_all_reduce(self):
        made = rows(SYMMETRIC, [1]) + rows("mpich", [2])
        self.assertEqual(self.judged("symmetric all-reduce: 2x", made), (1, 0))
        self.assertEqual(self.judged("symmetric all-reduce: 3x", made), (0, 0))
        made = rows(SYMMETRIC, [1], bytes=4096) + rows("mpich", [2.9], bytes=4096)
        self.assertEqual(self.judged("symmetric all-reduce: 2x", made), (0, 0))
        self.assertEqual(self.judged("symmetric all-reduce: 3x", made), (1, 1))

    def test_ordinary_all_reduce(self):
        made = []
        for size, time_us in {8: 0.9, 64: 4}.items():
            made += rows(ORDINARY, [1], bytes=size) + rows("mpich", [time_us], bytes=size)
        self.assertEqual(self.judged("ordinary all-reduce: never", made), (2, 1))
        self.assertEqual(self.judged("ordinary all-reduce: 1.5x", made), (1, 0))

    def test_gloo_is_held_to_its_own_bar_even_if_another_peer_is_best(self):
        large = 128 << 20
        made = rows(ORDINARY, [1]) + rows("mpich", [2]) + rows("gloo", [4.9], place="in-place")
        made += rows(ORDINARY, [1], bytes=large) + rows("gloo", [4.1], bytes=large, place="in-place")
        self.assertEqual(self.judged("all-reduce: 5x Gloo", made), (2, 1))

    def test_other_collectives(self):
        made = []
        for size, time_us in {8: 0.8, 64: 2}.items():
            made += rows(SYMMETRIC, [1], bytes=size, collective="scan") + rows("mpich", [time_us], bytes=size, collective="scan")
        self.assertEqual(self.judged("other collectives: 1.5x", made), (1, 1))
        self.assertEqual(self.judged("other collectives: nowhere", made), (2, 1))

    def test_more_ranks_than_cores_miss_only_if_the_whole_interval_does(self):
        def made(ratios):
            shared = {"ranks": 4, "bound": 0}
            return rows(ORDINARY, [1] * len(ratios), **shared) + rows("mpich", ratios, **shared)

        self.assertEqual(self.judged("more ranks", made([0.5] * 7 + [1.0] * 2)), (1, 0))
        self.assertEqual(self.judged("more ranks", made([0.5] * 8 + [1.0])), (1, 1))
        self.assertEqual(self.judged("ordinary all-reduce: never", made([0.5])), (0, 0))

    def test_the_summary_ends_with_them(self):
        text = summary.summary(rows(SYMMETRIC, [1]) + rows("mpich", [1.5]))
        self.assertIn("2x the best peer at 8 to 512 B: **missed by 1 of 1**", text)
        self.assertIn("1.50x (1.50 to 1.50)", text.split("## Bars")[1])
        self.assertIn("other collectives: nowhere below 0.9x the best peer: **not measured**", text)


class Files(unittest.TestCase):
    def test_a_line_cut_short_is_no_row(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "raw.csv"
            whole = ",".join(row(0, "mpich", 2).values())
            path.write_text(",".join(summary.FIELDS) + f"\n{whole}\n{whole[:20]}")
            self.assertEqual(summary.read(path), rows("mpich", [2]))

    def test_nothing_of_weft_is_no_error(self):
        self.assertIn("nothing is compared", summary.summary(rows("mpich", [1])))
        self.assertIn("nothing is compared", summary.summary([]))


class Sizes(unittest.TestCase):
    def test_one_command_of_weft_for_sizes_that_grow_by_one_factor(self):
        self.assertTrue(programs.grow_by_one_factor((8, 64, 512)))
        self.assertTrue(programs.grow_by_one_factor((8,)))
        self.assertFalse(programs.grow_by_one_factor((8, 64, 128)))
        self.assertFalse(programs.grow_by_one_factor((8, 12)))


class Rows(unittest.TestCase):
    JOB = programs.Job("all-reduce", 2, (8,), 0, (0, 1))

    def script(self, folder, text):
        path = pathlib.Path(folder) / "program"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def test_of_a_peer_are_read_among_other_output(self):
        with tempfile.TemporaryDirectory() as folder:
            said = "library,MPI\t1.0\nsome warning\nrow,all-reduce,in-place,cached,8,100,0.5,0\n"
            program = self.script(folder, f"cat <<'end'\n{said}end\n")
            peer = programs.Peer("gloo", [], [program], {})
            self.assertEqual(peer.measure(self.JOB), [programs.Row("in-place", 8, 100, 0.5, 0)])
            self.assertEqual(peer.library, "MPI 1.0")

    def test_of_weft_are_read_from_its_document(self):
        with tempfile.TemporaryDirectory() as folder:
            document = (
                '{"version": "0.1.0", "kernels": "avx2", "error": null, "interrupted": false, "rows": [{"bytes": 8,'
                ' "out_of_place": {"iterations": 5, "time_us": 0.25, "wrong": 0}, "in_place": null}]}'
            )
            program = self.script(folder, f"cat <<'end'\n{document}\nend\n")
            self.assertEqual(
                programs.Weft(program, "symmetric").measure(self.JOB), [programs.Row("out-of-place", 8, 5, 0.25, 0)]
            )

    def test_of_the_bare_loop_are_those_of_registered_buffers(self):
        with tempfile.TemporaryDirectory() as folder:
            said = "8B inline 0.250 us (1)\nregistered       512 0.75 us algbw 1 GB/s\nprivate       512 2.00 us\n"
            floor = programs.Floor([self.script(folder, f"cat <<'end'\n{said}end\n")])
            job = dataclasses.replace(self.JOB, sizes=(8, 512))
            self.assertEqual({row.bytes: row.time_us for row in floor.measure(job)}, {8: 0.25, 512: 0.75})
            with self.assertRaises(programs.Refused):
                floor.measure(dataclasses.replace(job, ranks=4))

    def test_what_a_program_does_not_do_is_told_from_what_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            refusing = self.script(folder, "echo 'weft: no scan' >&2; exit 2")
            with self.assertRaisesRegex(programs.Refused, "weft: no scan"):
                programs.Weft(refusing, "ordinary").measure(self.JOB)
            with self.assertRaises(programs.Failed):
                programs.Peer("gloo", [], [refusing], {}).measure(self.JOB)
            silent = self.script(folder, "echo library,1")
            with self.assertRaises(programs.Refused):
                programs.Peer("gloo", [], [silent], {}).measure(self.JOB)


if __name__ == "__main__":
    unittest.main()
