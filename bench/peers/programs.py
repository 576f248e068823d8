"""The programs that run.py measures: how each is started, with which settings, and how its rows are read.

A program is measured for one collective, a number of ranks and a list of sizes at a time. `Refused` is for what it does not
do, and is not asked again; `Failed` is for what went wrong.
"""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess

TIMEOUT_S = 600


class Refused(Exception):
    """The program does not do this."""


class Failed(Exception):
    """The program did not end well."""


@dataclasses.dataclass(frozen=True)
class Job:
    collective: str
    ranks: int
    sizes: tuple
    rotate_bytes: int  # 0: the same buffers in every call
    cores: tuple  # one for each rank; empty where there are fewer cores than ranks


@dataclasses.dataclass(frozen=True)
class Row:
    place: str
    bytes: int
    calls: int
    time_us: float
    wrong: int


def start(command, environment):
    environment = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    command = [str(part) for part in command]
    # A group of its own: Ctrl-C reaches run.py alone, which then asks the launcher to end what it has started.
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except BaseException as why:
        end(process)
        if isinstance(why, subprocess.TimeoutExpired):
            raise Failed(f"not done after {TIMEOUT_S} s") from None
        raise
    return process.returncode, out, err


def end(process):
    try:
        os.killpg(process.pid, signal.SIGTERM)
    except ProcessLookupError:  # it has ended by itself
        pass
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


class Weft:
    def __init__(self, binary, memory, build="weft"):
        self.binary, self.memory = binary, memory
        self.name = f"{build} {memory}"
        self.library = None

    def command(self, job, sizes):
        command = [self.binary, "bench", job.collective, "-n", job.ranks, "-R", {"ordinary": 0, "symmetric": 2}[self.memory]]
        if job.collective != "barrier":
            factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
            command += ["-b", sizes[0], "-e", sizes[-1], "-f", factor]
        if job.rotate_bytes:
            command += ["--rotate", job.rotate_bytes]
        return [str(part) for part in command + ["--json"]], {}

    def measure(self, job):
        return [row for sizes in self.batches(job) for row in self.batch(job, sizes)]

    def batches(self, job):
        """One command where the sizes grow by one factor, else one for each."""
        whole = job.collective == "barrier" or grow_by_one_factor(job.sizes)
        return [job.sizes] if whole else [(size,) for size in job.sizes]

    def batch(self, job, sizes):
        code, out, err = start(*self.command(job, sizes))
        if code == 2:
            lines = [line for line in err.splitlines() if line.strip()]
            raise Refused(lines[0].strip() if lines else "exit code 2")
        try:
            document = json.loads(out)
        except ValueError:
            raise Failed(last_line(err)) from None
        if document["error"] or document["interrupted"]:
            raise Failed(document["error"] or "interrupted")
        self.library = f"weft {document['version']}, {document['kernels']} kernels"
        rows = []
        for row in document["rows"]:
            size = 0 if job.collective == "barrier" else row["bytes"]
            for place in ("out-of-place", "in-place"):
                if measured := row[place.replace("-", "_")]:
                    rows.append(Row(place, size, measured["iterations"], measured["time_us"], measured["wrong"] or 0))
        return rows


def grow_by_one_factor(sizes):
    factors = {(b // a, b % a) for a, b in zip(sizes, sizes[1:])}
    return len(factors) < 2 and all(rest == 0 and factor > 1 for factor, rest in factors)


class Peer:
    """A program of ours around somebody's library; see measure.h."""

    def __init__(self, name, launcher, program, environment):
        self.name, self.launcher, self.program, self.environment = name, launcher, program, environment
        self.library = None
        self.family = launched_by(launcher, environment) if launcher else "python"

    def batches(self, job):
        return [job.sizes]

    def command(self, job, sizes):
        return [str(part) for part in self.launch(job) + self.arguments(job, sizes)], self.settings(job)

    def launch(self, job):
        cores = ",".join(map(str, job.cores))
        if self.family == "python":
            return [*self.program, "--ranks", job.ranks, *(["--cores", cores] if cores else [])]
        how = {
            "open-mpi": ["--cpu-list", cores, "--bind-to", "cpu-list:ordered"]
            if cores
            else ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"],
            "hydra": ["-bind-to", f"user:{cores}"] if cores else ["-bind-to", "none"],
            "intel": [],
        }[self.family]
        return [*self.launcher, "-n", job.ranks, *how, *self.program]

    def settings(self, job):
        """Environment variables: what the peer needs to run, and what suits it with cores of its own or shared ones."""
        cores = ",".join(map(str, job.cores))
        more = {
            "open-mpi": {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1},
            "hydra": {} if cores else {"MPIR_CVAR_POLLS_BEFORE_YIELD": 1},
            "intel": {"I_MPI_PIN_PROCESSOR_LIST": cores} if cores else {"I_MPI_PIN": 0, "I_MPI_THREAD_YIELD": 2},
            "python": {},
        }[self.family]
        return {**self.environment, **more}

    def arguments(self, job, sizes):
        rotate = ["--rotate", job.rotate_bytes] if job.rotate_bytes else []
        return ["--collectives", job.collective, "--sizes", ",".join(map(str, sizes)), "--check", *rotate]

    def measure(self, job):
        code, out, err = start(*self.command(job, job.sizes))
        if code != 0:
            raise Failed(last_line(err))
        rows = []
        for line in out.splitlines():
            kind, _, rest = line.partition(",")
            if kind == "library":
                self.library = " ".join(rest.split())
            elif kind == "row":
                _, place, _, size, calls, time_us, wrong = rest.split(",")
                rows.append(Row(place, int(size), int(calls), float(time_us), int(wrong)))
        if not rows:
            raise Refused("it has no such call")
        return rows


class Floor:
    """A bare loop over buffers that two processes have mapped, with the additions and two flags and nothing else: not a peer,
    but what none can beat by much. It prints `registered BYTES TIME us`, and `8B inline TIME us` for a payload in the flags."""

    name = "bare loop"

    def __init__(self, words):
        self.words, self.library = words, "all-reduce of two processes, without checks"

    def batches(self, job):
        return [job.sizes]

    def command(self, job, sizes):
        return self.words, {}

    def measure(self, job):
        if (job.collective, job.ranks, job.rotate_bytes) != ("all-reduce", 2, 0):
            raise Refused("it adds the same two buffers of two ranks, and nothing else")
        code, out, err = start(self.words, {})
        if code != 0:
            raise Failed(last_line(err))
        times_us = {int(size): float(time_us) for size, time_us in re.findall(r"registered\s+(\d+) ([\d.]+) us", out)}
        if inline := re.search(r"8B inline ([\d.]+) us", out):
            times_us[8] = float(inline[1])
        return [Row("out-of-place", size, 1, time_us, 0) for size, time_us in times_us.items() if size in job.sizes]


def launched_by(launcher, environment):
    """Which kind of mpirun this is: they share hardly an option."""
    try:
        _, out, err = start([*launcher, "--version"], environment)
    except OSError as why:
        raise Failed(f"{launcher[0]}: {why.strerror}") from None
    text = out + err
    for mark, family in {"Open MPI": "open-mpi", "OpenRTE": "open-mpi", "Intel": "intel", "HYDRA": "hydra"}.items():
        if mark in text:
            return family
    raise Failed(f"{launcher[0]} --version names none of Open MPI, MPICH and Intel MPI")


def installed(manifest):
    """What install.py has left: peers, and why others are missing."""
    if not manifest.exists():
        return {}, {}
    document = json.loads(manifest.read_text())
    return {name: Peer(name, **peer) for name, peer in document["peers"].items()}, document["missing"]


def torch_of_the_system(python):
    code = "import sys, torch.distributed as d; sys.exit(not d.is_gloo_available())"
    if subprocess.run([python, "-c", code], capture_output=True, check=False).returncode != 0:
        return None
    return Peer("gloo", [], [python, pathlib.Path(__file__).with_name("gloo.py")], {})
