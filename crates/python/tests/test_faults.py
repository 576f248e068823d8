"""What becomes of calls when a rank is interrupted, killed or forked."""

import os
import tempfile
import unittest

import jobs


class Faults(unittest.TestCase):
    def told(self, ranks, *arguments):
        """What the ranks print, whatever the job ends with: a rank that is killed fails it."""
        command = jobs.command("faults.py", ranks, *arguments)
        command[2:2] = ["--keep-going"] if arguments[0] == "killed" else []
        done = jobs.run(command)
        lines = [line.partition("] ")[2] or line for line in done.stdout.splitlines()]
        return sorted(lines), done.stderr

    def test_ctrl_c_ends_a_call_that_waits(self):
        for how in "run", "start":
            with self.subTest(how=how), tempfile.TemporaryDirectory() as folder:
                told, errors = self.told(2, "interrupted", how, os.path.join(folder, "interrupted"))
                expected = ["rank 0: interrupted within 2 s: True", "rank 1: rank 0 cancelled it"]
                self.assertEqual(told, expected, errors)

    def test_a_signals_handler_may_abort(self):
        for how in "first", "later", "start":
            with self.subTest(how=how), tempfile.TemporaryDirectory() as folder:
                told, errors = self.told(2, "aborted", how, os.path.join(folder, "aborted"))
                refused = "rank 0: " + "" if how == "start" else "rank 0: refused refused refused refused"
                expected = sorted([refused, "rank 0: True", "rank 1: rank 0 cancelled it"])
                self.assertEqual(told, expected, errors)

    def test_a_rank_that_is_killed_is_named_and_the_others_go_on(self):
        told, errors = self.told(3, "killed")
        self.assertEqual(told, ["rank 0: 1 died, 2 left", "rank 2: 1 died, 2 left"], errors)

    def test_forked_processes_are_refused_and_disturb_nobody(self):
        told, errors = self.told(2, "forked")
        self.assertEqual(told, ["rank 0: 0 2", "rank 1: 0 2"], errors)


if __name__ == "__main__":
    unittest.main()
