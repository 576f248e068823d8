#!/usr/bin/env python3
"""Measures all-reduce beside other programs, in turn, in one run.

    bench/all-reduce.py --out bench/runs/DATE-all-reduce-MACHINE [--rounds 9] [--sketch PROGRAM] [--mpi "mpirun ... PROGRAM"]

Each round runs, one after the other: `weft bench all-reduce -n 2 -b 8 -e 128MiB -f 8` with symmetric and with ordinary
memory; PROGRAM, which prints `registered BYTES TIME us` lines for a bare loop over shared buffers (and `8B inline TIME us`);
an MPI program that prints `BYTES TIME us`. Writes raw.csv (every row of every round) and summary.md (medians, and the
median and range over rounds of the ratio within a round) into the folder. Run it on an idle machine: ratios within a
round survive a busy one, times do not.
"""

import argparse
import csv
import json
import pathlib
import re
import shlex
import statistics
import subprocess
import sys


def weft(binary, memory):
    command = [binary, "bench", "all-reduce", "-n", "2", "-b", "8", "-e", "128MiB", "-f", "8", "-R", memory, "--json"]
    document = json.loads(run(command))
    for row in document["rows"]:
        if row["out_of_place"]["wrong"] or row["in_place"]["wrong"]:
            sys.exit(f"wrong results at {row['bytes']} bytes")
        yield "out-of-place", row["bytes"], row["out_of_place"]["time_us"]
        yield "in-place", row["bytes"], row["in_place"]["time_us"]


def sketch(command):
    for line in run(command).splitlines():
        if found := re.match(r"registered\s+(\d+) ([\d.]+) us", line):
            yield "out-of-place", int(found[1]), float(found[2])
        elif found := re.match(r"8B inline ([\d.]+) us", line):
            yield "out-of-place", 8, float(found[1])


def mpi(command):
    for line in run(command).splitlines():
        if found := re.match(r"(\d+) ([\d.]+) us", line):
            yield "out-of-place", int(found[1]), float(found[2])


def run(command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def summary(rows, rounds):
    times = {}
    for number, what, place, size, time_us in rows:
        times.setdefault((what, place), {}).setdefault(size, {})[number] = time_us
    symmetric = times[("weft -R 2", "out-of-place")]
    columns = [key for key in times if key != ("weft -R 2", "out-of-place")]
    lines = [
        f"Medians of {rounds} rounds, microseconds; beside each, how many times as long as `weft -R 2` out of place it takes:",
        "median over rounds of the ratio within a round, and its range.",
        "",
        "| bytes | weft -R 2 | " + " | ".join(f"{what}{', in place' if place == 'in-place' else ''}" for what, place in columns) + " |",
        "|---:|---:|" + "---:|" * len(columns),
    ]
    for size in sorted(symmetric):
        cells = [f"{size}", f"{statistics.median(symmetric[size].values()):.2f}"]
        for key in columns:
            other = times[key].get(size)
            if not other:
                cells.append("")
                continue
            ratios = sorted(other[number] / symmetric[size][number] for number in other)
            middle = statistics.median(ratios)
            cells.append(f"{statistics.median(other.values()):.2f} ({middle:.2f}x, {ratios[0]:.2f} to {ratios[-1]:.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--weft", default="target/release/weft")
    parser.add_argument("--sketch", type=shlex.split)
    parser.add_argument("--mpi", type=shlex.split)
    options = parser.parse_args()

    contestants = {"weft -R 2": lambda: weft(options.weft, "2"), "weft -R 0": lambda: weft(options.weft, "0")}
    if options.sketch:
        contestants["bare loop"] = lambda: sketch(options.sketch)
    if options.mpi:
        contestants["Open MPI"] = lambda: mpi(options.mpi)

    rows = []
    for number in range(options.rounds):
        for what, measure in contestants.items():
            print(f"round {number + 1} of {options.rounds}: {what}", file=sys.stderr)
            rows += [(number, what, place, size, time_us) for place, size, time_us in measure()]
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "raw.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["round", "program", "buffers", "bytes", "time_us"])
        writer.writerows(rows)
    text = summary(rows, options.rounds)
    (options.out / "summary.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
