"""Every collective on 1 to 4 processes, with NumPy as the oracle."""

import unittest

import jobs


class Collectives(unittest.TestCase):
    def test_all_of_them_give_what_numpy_gives(self):
        for ranks in 1, 2, 3, 4:
            with self.subTest(ranks=ranks):
                self.assertEqual(jobs.run("collectives.py", ranks), [])


if __name__ == "__main__":
    unittest.main()
