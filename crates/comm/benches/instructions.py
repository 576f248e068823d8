#!/usr/bin/env python3
"""Counts the instructions of the hot paths under callgrind and compares them with instructions.csv.

    instructions.py            compare; exit code 1 if a count differs by more than 10 %
    instructions.py --bless    rewrite instructions.csv

Counts do not depend on the load of the machine, but slightly on the compiler and on the instruction sets that valgrind
knows; hence the tolerance.
"""

import csv
import json
import pathlib
import re
import subprocess
import sys
import tempfile

CALLS = 20
TOLERANCE = 0.10
KNOWN = pathlib.Path(__file__).with_suffix(".csv")


def count(program, path):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        command = ["valgrind", "--tool=callgrind", "--toggle-collect=*instructions::hot*",
                   f"--callgrind-out-file={out}", program, path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            sys.exit(f"{path}: valgrind ended with {done.returncode}\n{done.stderr[-2000:]}")
        total = sum(int(number) for number in re.findall(r"^(?:summary|totals): (\d+)", out.read_text(), re.M)[:1])
    if total == 0:
        sys.exit(f"{path}: nothing was counted; is the function `hot` there?")
    return total / CALLS


def build():
    command = ["cargo", "bench", "--locked", "-p", "weftlink-comm", "--bench", "instructions", "--no-run",
               "--message-format", "json"]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    return next(message["executable"] for message in messages if message.get("executable"))


def main():
    program, bless = build(), "--bless" in sys.argv[1:]
    listed = subprocess.run([program], capture_output=True, text=True, check=True, timeout=300).stdout
    paths = [line.split(":")[0] for line in listed.splitlines()]
    counted = {path: count(program, path) for path in paths}
    if bless:
        with KNOWN.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["path", "instructions"])
            rows.writerows([path, round(number)] for path, number in counted.items())
    with KNOWN.open() as file:
        known = {row["path"]: int(row["instructions"]) for row in csv.DictReader(file)}
    wrong = set(known) ^ set(counted)
    for path in sorted(set(known) & set(counted)):
        ratio = counted[path] / known[path]
        if abs(ratio - 1) > TOLERANCE:
            wrong.add(path)
        print(f"{path:24} {counted[path]:8.0f} instructions a call, {ratio:.2f} of {known[path]}")
    if wrong:
        sys.exit(f"counts changed: {', '.join(sorted(wrong))}. To accept them: make instructions BLESS=--bless")


if __name__ == "__main__":
    main()
