"""Ranks for benchmarks, forked after torch was imported once."""

import csv
import os
import sys
import tempfile
import traceback


def ranks(number, fields, work):
    """Runs work(rank, folder) on each rank, and returns the rows of rank 0, by field."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(number):
            if child := os.fork():
                children.append(child)
                continue
            try:
                rows = work(rank, folder)
                if rank == 0:
                    with open(f"{folder}/rows", "w", newline="") as file:
                        csv.writer(file).writerows(rows)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if failed := [child for child in children if os.waitpid(child, 0)[1]]:
            sys.exit(f"{len(failed)} ranks failed")
        with open(f"{folder}/rows", newline="") as file:
            return [dict(zip(fields, row, strict=True)) for row in csv.reader(file)]
