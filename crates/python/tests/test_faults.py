"""Ranks that are interrupted, killed or forked during calls."""

import os
import tempfile
import unittest

import jobs


class Faults(unittest.TestCase):
    def printed(self, ranks, *arguments):
        """The sorted output of the ranks, whatever the exit code: a killed rank fails the job."""
        command = jobs.command("faults.py", ranks, *arguments)
        command[2:2] = ["--keep-going"] if arguments[0] == "killed" else []
        done = jobs.run(command)
        lines = [line.partition("] ")[2] or line for line in done.stdout.splitlines()]
        return sorted(lines), done.stderr

    def test_ctrl_c_ends_a_call_that_waits(self):
        for how in "run", "start":
            with self.subTest(how=how), tempfile.TemporaryDirectory() as folder:
                printed, errors = self.printed(2, "interrupted", how, os.path.join(folder, "interrupted"))
                expected = ["rank 0: interrupted within 2 s: True", "rank 1: rank 0 cancelled it"]
                self.assertEqual(printed, expected, errors)

    def test_a_signal_handler_may_abort(self):
        for how in "first", "later", "start":
            with self.subTest(how=how), tempfile.TemporaryDirectory() as folder:
                printed, errors = self.printed(2, "aborted", how, os.path.join(folder, "aborted"))
                refused = "rank 0: " + "" if how == "start" else "rank 0: refused refused refused refused"
                expected = sorted([refused, "rank 0: True", "rank 1: rank 0 cancelled it"])
                self.assertEqual(printed, expected, errors)

    def test_errors_name_a_killed_rank_and_the_others_shrink(self):
        printed, errors = self.printed(3, "killed")
        self.assertEqual(printed, ["rank 0: 1 died, pid True, 2 left", "rank 2: 1 died, pid True, 2 left"], errors)

    def test_forked_processes_cannot_use_a_communicator_or_disturb_it(self):
        printed, errors = self.printed(2, "forked")
        self.assertEqual(printed, ["rank 0: 0 2", "rank 1: 0 2"], errors)


if __name__ == "__main__":
    unittest.main()
