#!/usr/bin/env python3
"""Measures `weft bench` and other libraries in turn, and writes raw.csv, summary.md and README.md to a folder.

    bench/peers/run.py [--ranks 2,4] [--collectives all-reduce,scan] [--rounds 9] [--out bench/runs/DATE-NAME-MACHINE]

In each round, for each number of ranks and each collective, all programs run one after the other; the first of them changes
from round to round. Peers are those that bench/peers/install.py has installed, torch if this Python has it, and the programs
of --mpi. A collective that a program does not have is reported once and skipped. Rows are saved at once: after Ctrl-C, the
summary covers the rows so far. The script installs and builds nothing.
"""

import argparse
import csv
import datetime
import os
import pathlib
import shlex
import shutil
import signal
import sys
import time

import machine
import programs
import summary

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLLECTIVES = (
    "all-reduce reduce broadcast all-gather reduce-scatter all-to-all "
    "gather scatter scan exclusive-scan send-receive barrier"
).split()
SIZES = tuple(8**power for power in range(1, 10))
QUICK = {"ranks": [2], "collectives": ["all-reduce", "broadcast", "barrier"], "sizes": (8, 4096, 262144), "rounds": 2}


class Run:
    def __init__(self, options, contestants, missing):
        self.options, self.contestants, self.missing = options, contestants, missing
        self.notes = {}  # what is told, and how often it happened
        self.refused = set()
        self.wrong = False
        self.out = options.out
        self.done_rounds = 0

    def note(self, text):
        if text not in self.notes:
            print(text, flush=True)
        self.notes[text] = self.notes.get(text, 0) + 1

    def jobs(self):
        cores = sorted(os.sched_getaffinity(0))
        for ranks in self.options.ranks:
            for collective in self.options.collectives:
                for rotate_bytes in (0, self.options.rotate) if self.options.rotate else (0,):
                    bound = tuple(cores[:ranks]) if ranks <= len(cores) else ()
                    yield programs.Job(collective, ranks, self.options.sizes, rotate_bytes, bound)

    def measure_all(self):
        self.out.mkdir(parents=True, exist_ok=True)
        jobs = list(self.jobs())
        total, done, begin = self.options.rounds * len(jobs) * len(self.contestants), 0, time.monotonic()
        with open(self.out / "raw.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, summary.FIELDS, lineterminator="\n")
            writer.writeheader()
            for number in range(self.options.rounds):
                first = number % len(self.contestants)
                for job in jobs:
                    for program in self.contestants[first:] + self.contestants[:first]:
                        left = (time.monotonic() - begin) / done * (total - done) if done else None
                        self.progress(number, job, program, left)
                        writer.writerows(self.rows(number, job, program))
                        file.flush()
                        done += 1
                self.done_rounds += 1

    def progress(self, number, job, program, left_s):
        left = "" if left_s is None else f", {datetime.timedelta(seconds=round(left_s))} left"
        buffers = ", buffers in turn" if job.rotate_bytes else ""
        what = f"{job.collective}, {job.ranks} ranks{buffers}: {program.name}"
        print(f"round {number + 1} of {self.options.rounds}, {what}{left}", flush=True)

    def rows(self, number, job, program):
        key = (job, program.name)
        if key in self.refused:
            return []
        try:
            rows = program.measure(job)
        except programs.Refused as why:
            self.refused.add(key)
            self.note(f"{program.name} does not do {job.collective} with {job.ranks} ranks{rotating(job)}: {why}")
            return []
        except programs.Failed as why:
            self.note(f"{program.name} failed at {job.collective} with {job.ranks} ranks{rotating(job)}: {why}")
            return []
        if any(row.wrong for row in rows):
            self.wrong = True
            self.note(f"WRONG RESULTS of {program.name} at {job.collective} with {job.ranks} ranks{rotating(job)}")
        return [
            {
                "round": number,
                "ranks": job.ranks,
                "bound": int(bool(job.cores)),
                "program": program.name,
                "collective": job.collective,
                "place": row.place,
                "buffers": "rotating" if job.rotate_bytes else "cached",
                "bytes": row.bytes,
                "calls": row.calls,
                "time_us": f"{row.time_us:.6g}",
                "wrong": row.wrong,
            }
            for row in rows
        ]

    def readme(self):
        options = self.options
        lines = [f"# {options.name}: Weft and its peers", "", *machine.description(), ""]
        lines += [
            f"{self.done_rounds} of {options.rounds} rounds, {', '.join(map(str, options.ranks))} ranks, floats, sum. "
            "[raw.csv](raw.csv) has every row, [summary.md](summary.md) the medians, ratios and bars. The method is in "
            "[bench/README.md](../../README.md). Measured by",
            "",
            f"    {shlex.join(['bench/peers/run.py', *(relative(word) for word in sys.argv[1:])])}",
            "",
            "## Programs",
        ]
        for program in self.contestants:
            lines += ["", f"- *{program.name}*: {program.library or 'gave no row'}"]
            for bound in (True, False):
                job = next((job for job in self.jobs() if bool(job.cores) == bound), None)
                if job:
                    lines.append(f"  - {'a core each' if bound else 'more ranks than cores'}: `{shown(program, job)}`")
        if self.missing:
            lines += ["", "Not to be had:", ""] + [f"- {name}: {why}" for name, why in self.missing.items()]
        if self.notes:
            lines += ["", "## What else was noticed", ""]
            lines += [f"- {text}" + (f" ({often} times)" if often > 1 else "") for text, often in self.notes.items()]
        return "\n".join(lines) + "\n"


def rotating(job):
    return " and buffers in turn" if job.rotate_bytes else ""


def relative(text):
    """Without the paths of this machine, as far as they can be known."""
    return str(text).replace(sys.executable, "python3").replace(f"{ROOT}/", "").replace(f"{pathlib.Path.home()}/", "~/")


def shown(program, job):
    """The first command for a job, as a reader would type it."""
    command, environment = program.command(job, program.batches(job)[0])
    return relative(shlex.join([*(f"{name}={value}" for name, value in environment.items()), *command]))


def contestants(options):
    found, missing = programs.installed(options.installed)
    if "gloo" not in found and (torch := programs.torch_of_the_system(sys.executable)):
        found["gloo"] = torch
        missing.pop("gloo", None)
    for name, launcher, program in options.mpi:
        found[name] = programs.Peer(name, shlex.split(launcher), [program], {})
        missing.pop(name, None)
    if options.peers is not None:
        for name in options.peers:
            if name not in found:
                missing.setdefault(name, "not installed: bench/peers/install.py, or name it by --mpi")
        found = {name: peer for name, peer in found.items() if name in options.peers}
        missing = {name: why for name, why in missing.items() if name in options.peers}
    for name, why in missing.items():
        print(f"without {name}: {why}")
    wefts = [programs.Weft(options.weft, memory) for memory in ("symmetric", "ordinary")]
    if options.baseline:
        wefts += [programs.Weft(options.baseline, memory, "baseline") for memory in ("symmetric", "ordinary")]
    floor = [programs.Floor(options.floor)] if options.floor else []
    return wefts + list(found.values()) + floor, missing


def parse():
    def words(text):
        return text.split(",")

    def numbers(text):
        return [int(word) for word in text.split(",")]

    def mpi(text):
        name, equals, rest = text.partition("=")
        launcher, colon, program = rest.rpartition(":")
        if not (equals and colon and launcher):
            raise argparse.ArgumentTypeError("say NAME=LAUNCHER:BINARY, as in open-mpi=mpirun:./mpi")
        return name, launcher, program

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default=ROOT / "target/release/weft", type=pathlib.Path)
    parser.add_argument("--baseline", type=pathlib.Path, metavar="WEFT", help="another build of weft to measure beside it")
    parser.add_argument("--installed", default=ROOT / ".cache/peers/peers.json", type=pathlib.Path, metavar="PEERS.JSON")
    parser.add_argument("--peers", type=words, metavar="A,B", help="measure only these: open-mpi, mpich, intel-mpi, oneccl, gloo")
    parser.add_argument("--mpi", type=mpi, action="append", default=[], metavar="NAME=LAUNCHER:BINARY",
                        help="add another MPI, for which mpi.c was built")  # fmt: skip
    parser.add_argument("--floor", type=shlex.split, metavar="COMMAND", help="a bare loop to compare with all-reduce between 2 ranks")
    parser.add_argument("--ranks", type=numbers, help="numbers of ranks (default: 2,4,8)")
    parser.add_argument("--collectives", type=words, help="collectives to measure (default: all)")
    parser.add_argument("--sizes", type=lambda text: tuple(numbers(text)), help="sizes in bytes (default: 8 B to 128 MiB by a factor of 8)")
    parser.add_argument("--rotate", type=int, nargs="?", const=machine.rotate_bytes(), default=0, metavar="BYTES",
                        help="measure again with buffers of BYTES, used in turn (default: 1.25 times the last-level cache)")  # fmt: skip
    parser.add_argument("--rounds", type=int, help="number of rounds (default: 9)")
    parser.add_argument("--name", default="peers", help="name of the run, part of the folder's name")
    parser.add_argument("--out", type=pathlib.Path, help="folder to write (default: bench/runs/DATE-NAME-MACHINE)")
    parser.add_argument("--quick", action="store_true", help="two rounds of three collectives and sizes, as a smoke test")
    options = parser.parse_args()
    full = {"ranks": [2, 4, 8], "collectives": COLLECTIVES, "sizes": SIZES, "rounds": 9}
    for name, value in (QUICK if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if unknown := set(options.collectives) - set(COLLECTIVES):
        parser.error(f"no such collective: {', '.join(sorted(unknown))}; there are {', '.join(COLLECTIVES)}")
    if options.rounds < 1 or min(options.ranks) < 2 or any(size < 4 or size % 4 for size in options.sizes):
        parser.error("at least one round, two ranks, and sizes of whole floats")
    options.sizes = tuple(sorted(set(options.sizes)))
    if not shutil.which(options.weft):
        parser.error(f"there is no {options.weft}: cargo build --release, or say --weft")
    if options.out is None:
        folder = f"{datetime.date.today()}-{options.name}-{machine.short_name()}"
        options.out = ROOT / ("target/bench-quick" if options.quick else "bench/runs") / folder
    return options


def main():
    options = parse()
    for asked in (signal.SIGINT, signal.SIGTERM):  # also where the shell had them ignored
        signal.signal(asked, signal.default_int_handler)
    run = Run(options, *contestants(options))
    stopped = False
    try:
        run.measure_all()
    except KeyboardInterrupt:
        stopped = True
        print("stopped; here is what there is")
    text = summary.write(options.out)
    (options.out / "README.md").write_text(run.readme())
    print(text[text.find("## Bars") :] if "## Bars" in text else text)
    print(f"written to {relative(options.out)}")
    sys.exit(130 if stopped else 1 if run.wrong else 0)


if __name__ == "__main__":
    main()
