#!/usr/bin/env python3
"""What raw.csv says: medians, ratios with their intervals, geometric means, and whether the bars are met.

    bench/peers/summary.py bench/runs/DATE-NAME-MACHINE

writes summary.md afresh. A ratio is a peer's time over Weft's in the same round, so that more is better for Weft and what
slows the whole machine for a minute cancels. Nothing is fitted, and no row is left out but those with wrong results.
"""

import collections
import csv
import dataclasses
import math
import pathlib
import statistics
import sys

FIELDS = ["round", "ranks", "bound", "program", "collective", "place", "buffers", "bytes", "calls", "time_us", "wrong"]
WEFTS = ("weft symmetric", "weft ordinary")
BASELINES = {weft: weft.replace("weft", "baseline") for weft in WEFTS}  # another build of Weft: compared with itself, not a peer
FLOOR = "bare loop"  # shown beside the others, but not a peer


@dataclasses.dataclass(frozen=True)
class Case:
    """What is compared like with like, size by size."""

    ranks: int
    bound: bool
    collective: str
    place: str
    buffers: str


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The median over rounds, and the interval that covers it."""

    median: float
    low: float
    high: float

    def __str__(self):
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f})"


def interval_rank(rounds):
    """The k for which the k-th smallest and k-th largest of so many values enclose their median in 95 % of cases; 0 if none."""
    tail, k = 0.0, 0
    while k < rounds // 2:
        tail += math.comb(rounds, k) / 2**rounds
        if 2 * tail > 0.05:
            break
        k += 1
    return k


def median_ratio(ratios):
    """Of a handful of rounds, too few for an interval, it gives their range."""
    ordered = sorted(ratios)
    k = max(interval_rank(len(ordered)), 1)
    return Ratio(statistics.median(ordered), ordered[k - 1], ordered[-k])


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


class Times:
    """All rows, as times[case][program][bytes][round]."""

    def __init__(self, rows):
        tree = lambda: collections.defaultdict(tree)  # noqa: E731
        self.times, self.rounds, self.wrong = tree(), set(), []
        for row in rows:
            if int(row["wrong"]):
                self.wrong.append(row)
                continue
            case = Case(int(row["ranks"]), row["bound"] == "1", row["collective"], row["place"], row["buffers"])
            number = int(row["round"])
            self.times[case][row["program"]][int(row["bytes"])][number] = float(row["time_us"])
            self.rounds.add(number)

    def cases(self):
        """Those that Weft has rows for, in order, but where all peers have the call in the other place only."""
        cases = [case for case, programs in self.times.items() if any(weft in programs for weft in WEFTS)]
        cases = [case for case in cases if not self.peers(case) or len(self.borrowed(case)) < len(self.peers(case))]
        return sorted(cases, key=lambda case: (case.ranks, case.collective, case.buffers, case.place == "in-place"))

    def sizes(self, case):
        return sorted({size for weft in WEFTS if weft in self.times[case] for size in self.times[case][weft]})

    def of(self, case, program, size):
        """Its times by round; for a peer without such calls in this place, those of the other place."""
        for place in (case.place, *({"in-place", "out-of-place"} - {case.place})):
            programs = self.times.get(dataclasses.replace(case, place=place), {})
            if programs.get(program, {}).get(size):
                return programs[program][size]
            if program in WEFTS or program in programs:
                break
        return {}

    def borrowed(self, case):
        """Peers whose times are those of the other place."""
        return [peer for peer in self.peers(case) if peer not in self.times[case]]

    def peers(self, case):
        names = {}
        for other in (case, dataclasses.replace(case, place="in-place"), dataclasses.replace(case, place="out-of-place")):
            names.update(dict.fromkeys(name for name in self.times.get(other, {}) if name not in (*WEFTS, *BASELINES.values(), FLOOR)))
        return sorted(names)

    def median(self, case, program, size):
        times = self.of(case, program, size)
        return statistics.median(times.values()) if times else None

    def best(self, case, size):
        """The peer with the least median time, or None."""
        medians = [(self.median(case, peer, size), peer) for peer in self.peers(case)]
        return min(((median, peer) for median, peer in medians if median is not None), default=(None, None))[1]

    def ratio(self, case, weft, peer, size):
        """The peer's time over Weft's, in the rounds that have both; None if none has."""
        ours, theirs = self.of(case, weft, size), self.of(case, peer, size) if peer else {}
        both = sorted(set(ours) & set(theirs))
        return median_ratio([theirs[number] / ours[number] for number in both]) if both else None

    def ratios(self, case, weft, peer=None):
        """By size, to the peer or to the best one of each size."""
        found = {size: self.ratio(case, weft, peer or self.best(case, size), size) for size in self.sizes(case)}
        return {size: ratio for size, ratio in found.items() if ratio}


def read(path):
    with open(path, newline="") as file:
        # The last line may have been cut off where a run was stopped.
        return [row for row in csv.DictReader(file) if all(row.get(field) for field in FIELDS)]


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---:|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def case_lines(times, case):
    peers, wefts = times.peers(case), [weft for weft in WEFTS if weft in times.times[case]]
    place = "" if case.collective == "barrier" else f", {case.place.replace('-', ' ')}"
    cores = "a core each" if case.bound else "more ranks than cores"
    rotating = ", buffers in turn" if case.buffers == "rotating" else ""
    lines = ["", f"## {case.collective}{place}, {case.ranks} ranks, {cores}{rotating}", "", "Median time, microseconds.", ""]

    def cell(program, size):
        median = times.median(case, program, size)
        return f"{median:.4g}" if median is not None else ""

    baselines = [baseline for baseline in BASELINES.values() if baseline in times.times[case]]
    shown = wefts + peers + baselines + [FLOOR] * (FLOOR in times.times[case])
    rows = [[str(size)] + [cell(p, size) for p in shown] + [times.best(case, size) or ""] for size in times.sizes(case)]
    lines += table(["bytes", *shown, "best peer"], rows)
    if borrowed := times.borrowed(case):
        other = "in place" if case.place == "out-of-place" else "out of place"
        lines += ["", f"{', '.join(borrowed)}: there is only the call {other}, whose time stands here."]
    for weft in wefts:
        lines += ["", f"How many times as long as *{weft}* the peers take.", ""]
        best = times.ratios(case, weft)
        each = {peer: times.ratios(case, weft, peer) for peer in peers}
        rows = [
            [str(size)] + [str(ratios.get(size, "")) for ratios in (best, *each.values())] for size in times.sizes(case)
        ]
        lines += table(["bytes", "best peer", *peers], rows)
    return lines


def mean_lines(times):
    lines = ["", "## Geometric means over the sizes", ""]
    names = sorted({peer for case in times.cases() for peer in times.peers(case)})
    rows = []
    for case in times.cases():
        for weft in WEFTS:
            found = [times.ratios(case, weft), *(times.ratios(case, weft, peer) for peer in names)]
            if any(found):
                cells = [f"{geometric_mean([r.median for r in ratios.values()]):.2f}x" if ratios else "" for ratios in found]
                what = [case.collective, case.place, case.buffers, str(case.ranks), weft]
                rows.append(what + cells)
    return lines + table(["collective", "place", "buffers", "ranks", "program", "best peer", *names], rows)


def baseline_lines(times):
    """The baseline's time over this build's: the geometric mean over sizes and the worst size, for each collective."""
    rows, all_medians = [], []
    for case in times.cases():
        for weft, baseline in BASELINES.items():
            ratios = times.ratios(case, weft, baseline)
            if ratios:
                medians = [ratio.median for ratio in ratios.values()]
                all_medians += medians
                size = min(ratios, key=lambda size: ratios[size].median)
                what = [case.collective, case.place, case.buffers, str(case.ranks), weft]
                rows.append([*what, f"{geometric_mean(medians):.3f}x", f"{ratios[size]} at {size} B"])
    if not rows:
        return []
    lines = ["", "## Against the baseline", "", f"Over everything: {geometric_mean(all_medians):.3f}x. Above 1 this build is faster.", ""]
    return lines + table(["collective", "place", "buffers", "ranks", "program", "mean", "worst size"], rows)


@dataclasses.dataclass
class Bar:
    text: str
    applies: object  # (case, weft) -> bool
    peer: str = None  # the best one, unless named
    least: object = None  # size -> the least median ratio allowed, or None
    least_mean: float = None  # of a case
    least_high: float = None  # the upper end of an interval may not lie below


def all_reduce(memory):
    return lambda case, weft: case.bound and case.collective == "all-reduce" and weft == f"weft {memory}"


BARS = [
    Bar("symmetric all-reduce: 2x the best peer at 8 to 512 B", all_reduce("symmetric"), least=lambda b: 2 if b <= 512 else None),
    Bar("symmetric all-reduce: 3x the best peer from 4 KiB", all_reduce("symmetric"), least=lambda b: 3 if b >= 4096 else None),
    Bar("ordinary all-reduce: never slower than the best peer", all_reduce("ordinary"), least=lambda b: 1),
    Bar("ordinary all-reduce: 1.5x the best peer in the mean", all_reduce("ordinary"), least_mean=1.5),
    Bar(
        "all-reduce: 5x Gloo to 16 MiB, 4x above",
        lambda case, weft: case.bound and case.collective == "all-reduce",
        peer="gloo",
        least=lambda b: 5 if b <= 16 << 20 else 4,
    ),
    Bar(
        "other collectives: 1.5x the best peer in the mean of each",
        lambda case, weft: case.bound and case.collective != "all-reduce",
        least_mean=1.5,
    ),
    Bar(
        "other collectives: nowhere below 0.9x the best peer",
        lambda case, weft: case.bound and case.collective != "all-reduce",
        least=lambda b: 0.9,
    ),
    Bar(
        "more ranks than cores: no size whose interval lies below 0.9x the best peer",
        lambda case, weft: not case.bound,
        least_high=0.9,
    ),
]


def judge(bar, times):
    """How many cells the bar was held to, and those that miss it."""
    held, misses = 0, []
    for case in times.cases():
        for weft in WEFTS:
            ratios = times.ratios(case, weft, bar.peer) if bar.applies(case, weft) else {}
            where = f"{weft}, {case.collective}, {case.place}, {case.buffers}, {case.ranks} ranks"
            for size, ratio in ratios.items():
                least = bar.least(size) if bar.least else None
                held += least is not None or bar.least_high is not None
                if least is not None and ratio.median < least:
                    misses.append(f"{where}, {size} B: {ratio}")
                if bar.least_high is not None and ratio.high < bar.least_high:
                    misses.append(f"{where}, {size} B: {ratio}")
            if ratios and bar.least_mean is not None:
                held += 1
                mean = geometric_mean([ratio.median for ratio in ratios.values()])
                if mean < bar.least_mean:
                    misses.append(f"{where}: {mean:.2f}x in the mean")
    return held, misses


def bar_lines(times):
    lines = ["", "## Bars", ""]
    for bar in BARS:
        held, misses = judge(bar, times)
        verdict = "not measured" if not held else f"met by all {held}" if not misses else f"missed by {len(misses)} of {held}"
        lines.append(f"- {bar.text}: **{verdict}**")
        lines += [f"  - {miss}" for miss in misses]
    return lines


def summary(rows):
    times = Times(rows)
    rounds = len(times.rounds)
    k = interval_rank(rounds)
    interval = (
        f"the 95 % interval of the median from order statistics, of {rounds} rounds the values of rank {k} and {rounds + 1 - k}"
        if k
        else f"the range, since {rounds} rounds are too few for an interval of 95 %"
    )
    lines = [
        "# Summary",
        "",
        f"{rounds} rounds. A ratio is the peer's time over Weft's in the same round: the median over rounds, in brackets {interval}.",
        "The best peer of a size is the one with the least median time.",
    ]
    if times.wrong:
        lines += ["", f"**{len(times.wrong)} rows had wrong results** and are left out:", ""]
        for row in times.wrong:
            lines.append(f"- {row['program']}, {row['collective']}, {row['place']}, {row['ranks']} ranks, {row['bytes']} B")
    for case in times.cases():
        lines += case_lines(times, case)
    if times.cases():
        lines += mean_lines(times) + baseline_lines(times) + bar_lines(times)
    else:
        lines += ["", "There are no rows of Weft, so nothing is compared."]
    return "\n".join(lines) + "\n"


def write(folder):
    """Writes summary.md from raw.csv, and after it what why.md, written by hand, says about it. Returns its text."""
    why = folder / "why.md"
    text = summary(read(folder / "raw.csv")) + ("\n" + why.read_text() if why.exists() else "")
    (folder / "summary.md").write_text(text)
    return text


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(pathlib.Path(sys.argv[1]))


if __name__ == "__main__":
    main()
