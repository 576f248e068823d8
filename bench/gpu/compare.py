#!/usr/bin/env python3
"""Runs builds of crates/cuda/examples/graphs.rs in turn on one GPU and compares them with the first.

    compare.py --rounds 5 [--csv FILE] build/graphs-main build/graphs-other -- --ranks 2,8 --bytes 8,64k,1m

A clock that drifts, or another load on the machine, affects all builds alike: every round runs each build once, and every other round in
the opposite order. Printed are the median over all rounds of each build, and the median, the least and the largest of the ratios that each
round gives. A build that fails is reported and left out of the rest.
"""

import argparse
import csv
import io
import statistics
import subprocess
import sys
from pathlib import Path


def main() -> int:
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("builds", nargs="+", type=Path, help="binaries of the example; the first is the reference")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=120, help="seconds of one run")
    parser.add_argument("--csv", type=Path, help="write all rows here")
    args = parser.parse_args(arguments)

    rows, failed = [], set()
    for round in range(args.rounds):
        for build in args.builds[:: -1 if round % 2 else 1]:
            if build in failed:
                continue
            try:
                done = subprocess.run(
                    [build.resolve(), *options], capture_output=True, text=True, timeout=args.timeout
                )
                code, text, why = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired:
                code, text, why = 124, "", f"no end after {args.timeout:g} s"
            if code != 0:
                failed.add(build)
                print(f"{build.name} failed in round {round} ({code}): {why.strip()[-500:]}", file=sys.stderr)
            rows += [{"build": build.name, "round": round, **row} for row in csv.DictReader(io.StringIO(text))]
    if args.csv and rows:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)

    times = {}
    for row in rows:
        case = (row["plan"], int(row["ranks"]), int(row["bytes"]))
        times.setdefault(case, {}).setdefault(row["build"], {})[row["round"]] = float(row["us"])
    print(f"{'plan':12} {'ranks':>5} {'bytes':>11}  us and ratio to {args.builds[0].name} (least to largest of {args.rounds} rounds)")
    for (plan, ranks, size), builds in times.items():
        reference = builds.get(args.builds[0].name, {})
        cells = []
        for name, rounds in builds.items():
            cell = f"{name} {statistics.median(rounds.values()):.2f}"
            ratios = [rounds[round] / reference[round] for round in rounds if reference.get(round)]
            if rounds is not reference and ratios:
                cell += f" x{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            cells.append(cell)
        print(f"{plan:12} {ranks:5} {size:11}  {'  '.join(cells)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
