#!/usr/bin/env python3
"""How many planted defects the tests catch: `make mutants`.

    crates/comm/mutants.py [NAME ...] [--bless]

Defects are planted in the sources of crates/ as `mutant!("name")`, listed in crates/comm/mutants.toml, and all compiled into one build of the
tests. Each is switched on in turn by WEFT_MUTANT, first under the tests that should notice it, then under all others that are made to
find faults; the first test that fails ends it. A test that hangs until its time is up has noticed, too, and is counted apart.

The tests are run once without any defect before: those that fail then prove nothing, and end this.
With --bless what was found goes into testdata/mutants.csv. The exit status is 1 if a defect was missed.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TABLE = ROOT / "testdata/mutants.csv"
LIBRARIES = ["bootstrap", "comm", "membership", "p2p", "recorder", "shm"]
PACKAGE = [word for name in LIBRARIES for word in ("-p", f"weftlink-{name}", "--features", f"weftlink-{name}/mutants")] + ["--lib"]
# Tests that are about faults; others take longer, and are about nothing that is planted here.
BINARIES = ["background_faults", "bootstrap", "cases", "counts", "draws", "faults", "faults_of_all", "groups", "memory_faults", "p2p"]
BINARIES += ["p2p_faults", "p2p_hosts", "regroup", "schedules"]
PACKAGE += [f"--test={name}" for name in BINARIES]
NEVER = "test(processes_pass_a_part_of_the_cases) | test(thousands_of_calls_of_all_sizes_stay_right)"
# Whatever a hanging test does, one defect takes no longer.
LIMIT_S = 300
FAILED = re.compile(r"^\s+(FAIL|TIMEOUT|SIG\w+|ABORT|LEAK-FAIL)\s.*\]\s+(?:\(\s*\d+/\d+\)\s+)?(.+)$", re.MULTILINE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these defects")
    parser.add_argument("--bless", action="store_true", help="write the table")
    arguments = parser.parse_args()
    table = planted()
    if unknown := set(arguments.names) - {row["name"] for row in table}:
        sys.exit(f"no such defects: {', '.join(sorted(unknown))}")
    chosen = [row for row in table if not arguments.names or row["name"] in arguments.names]
    with tempfile.TemporaryDirectory() as folder:
        tests = Tests(pathlib.Path(folder))
        first = " | ".join(f"({row['tests']})" for row in chosen)
        verdict, by, _ = tests.run(first, None)
        if verdict != "missed":
            sys.exit(f"without any defect {by} does not pass: that has to be mended first")
        results = []
        for row in chosen:
            results.append(judge(tests, row))
            if arguments.bless:
                write(table, results)
    report(results)
    sys.exit(any(verdict == "missed" for _, verdict, _, _ in results))


def planted():
    """The defects of the list, which are those in the sources."""
    with open(HERE / "mutants.toml", "rb") as file:
        rows = tomllib.load(file)["mutant"]
    found = {}
    for source in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
        for name in re.findall(r'mutant!\("([^"]+)"\)', source.read_text(encoding="utf-8")):
            if name != "name":
                found.setdefault(name, []).append(str(source.relative_to(ROOT / "crates")).replace("/src/", "/"))
    listed = [row["name"] for row in rows]
    if wrong := sorted(set(found) ^ set(listed)) + sorted(name for name in listed if listed.count(name) > 1):
        sys.exit(f"planted and not listed in mutants.toml, listed and not planted, or listed twice: {', '.join(wrong)}")
    return [{**row, "file": found[row["name"]][0]} for row in rows]


class Tests:
    """The tests, built once."""

    def __init__(self, folder):
        print("building the tests with all defects, none of them switched on", flush=True)
        self.metadata, self.binaries = folder / "metadata.json", folder / "binaries.json"
        run = lambda *words: subprocess.run(["cargo", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: E731
        subprocess.run(["cargo", "test", "--locked", "--no-run", *PACKAGE], cwd=ROOT, check=True)
        self.metadata.write_text(run("metadata", "--format-version=1", "--locked"), encoding="utf-8")
        listed = run("nextest", "list", "--list-type=binaries-only", "--message-format=json", "--locked", *PACKAGE)
        self.binaries.write_text(json.dumps(json.loads(listed)), encoding="utf-8")

    def run(self, tests, defect, limit_s=LIMIT_S):
        """Whether a test notices, which, and after how many seconds."""
        words = ["cargo", "nextest", "run", "--profile=mutants", "--color=never", "--no-tests=fail"]
        words += ["--cargo-metadata", self.metadata, "--binaries-metadata", self.binaries]
        words += ["-E", f"({tests}) & not ({NEVER})"]
        environment = {name: value for name, value in os.environ.items() if name != "WEFT_MUTANT"}
        if defect:
            environment["WEFT_MUTANT"] = defect
        began = time.monotonic()
        try:
            done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return "hung", "the time for one defect was up", time.monotonic() - began
        seconds = time.monotonic() - began
        if done.returncode == 0:
            return "missed", "", seconds
        if not (failed := FAILED.findall(done.stderr)):
            sys.exit(f"nextest ended with {done.returncode}:\n{done.stderr}")
        how, test = failed[0]
        return "hung" if how == "TIMEOUT" else "caught", test.strip(), seconds


def judge(tests, row):
    verdict, by, seconds = tests.run(row["tests"], row["name"])
    if verdict == "missed":
        verdict, by, more = tests.run("not binary(cases)", row["name"])
        seconds += more
    print(f"{verdict:6} {row['name']}: {by or row['what']} ({seconds:.0f} s)", flush=True)
    return row, verdict, by, seconds


def report(results):
    counts = {kind: sum(verdict == kind for _, verdict, _, _ in results) for kind in ("caught", "hung", "missed")}
    share = 100 * (counts["caught"] + counts["hung"]) / max(1, len(results))
    print(f"{len(results)} planted defects: {counts['caught']} caught by a test that failed, {counts['hung']} by one that hung, ", end="")
    print(f"{counts['missed']} missed; {share:.0f} % noticed")


def write(table, results):
    """Writes what is known of all defects: what was just found out, and the rest as the table had it."""
    with open(TABLE, encoding="utf-8", newline="") as file:
        known = {row["defect"]: (row["outcome"], row["first test that noticed"]) for row in csv.DictReader(file)}
    known |= {row["name"]: (verdict, by) for row, verdict, by, _ in results}
    with open(TABLE, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["defect", "file", "what it breaks", "outcome", "first test that noticed"])
        rows.writerows([row["name"], row["file"], row["what"], *known.get(row["name"], ("not measured", ""))] for row in table)


if __name__ == "__main__":
    main()
