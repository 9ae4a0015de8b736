# `scripts/bench --compare A B`: what moved between two results by more than both spread. The decision is a pure function; the
# rest prints it.
# SPDX-License-Identifier: Apache-2.0
import math
import typing

import metrics


class Row(typing.NamedTuple):
    metric: str
    unit: str
    a: dict
    b: dict
    ratio: float  # B's median by A's
    verdict: str  # better, worse, within spread, one sample
    distance: float  # of the medians, in widths of the mean range between the quartiles


def judged(name, a, b):
    """B moved if its range between the quartiles has nothing in common with A's."""
    first, second = a.summary, b.summary
    ratio = second["median"] / first["median"] if first["median"] else (math.inf if second["median"] else 1.0)
    width = (first["p75"] - first["p25"] + second["p75"] - second["p25"]) / 2
    gap = abs(second["median"] - first["median"])
    distance = gap / width if width > 0 else (math.inf if gap else 0.0)
    if min(first["runs"], second["runs"]) < 2:
        verdict, distance = "one sample", 0.0
    elif max(first["p25"], second["p25"]) <= min(first["p75"], second["p75"]):
        verdict = "within spread"
    else:
        verdict = "better" if (second["median"] > first["median"]) == (a.better == "higher") else "worse"
    return Row(name, a.unit, first, second, ratio, verdict, distance)


def compared(a, b):
    """(rows, names that only A has, names that only B has); what moved comes first, by its distance."""
    rows = [judged(name, metric, b[name]) for name, metric in a.items() if name in b and b[name].unit == metric.unit]
    rows.sort(key=lambda row: (row.verdict not in ("better", "worse"), -row.distance, row.metric))
    common = {row.metric for row in rows}
    return rows, [name for name in a if name not in common], [name for name in b if name not in common]


def number(value):
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cell(summary):
    return f"{number(summary['median'])} [{number(summary['p25'])}, {number(summary['p75'])}]"


def _tell(which, results):
    print(f"{which}: {results.source}")
    machines = {}
    for name, result in results.benches.items():
        m = result.get("machine", {})
        text = f"{m.get('cores', '?')} cores of {m.get('cpu', '?')}, commit {m.get('commit', '?')}{' with changes' if m.get('dirty') else ''}, {m.get('date', '?')}"
        machines.setdefault(text, []).append(f"{name} {m.get('load_during', math.nan):.1f}")
    for text, loads in machines.items():
        print(f"   {text}; load during: {', '.join(loads)}")
    for name, why in results.unfinished.items():
        print(f"   no figures of {name}: {why}")


def main(a, b):
    """Prints the comparison of two results; BadInput if one is none."""
    first, second = metrics.load([a]), metrics.load([b])
    rows, only_a, only_b = compared(metrics.metrics(first.benches), metrics.metrics(second.benches))
    _tell("A", first)
    _tell("B", second)
    moved = [row for row in rows if row.verdict in ("better", "worse")]
    width = max((len(row.metric) for row in rows), default=6)
    print(f"\nmedians [quartiles]; better and worse: the ranges between the quartiles have nothing in common\n"
          f"{'':{width}}  {'A':>26}{'B':>26}{'B / A':>8}  verdict")
    for row in rows:
        print(f"{row.metric:{width}}  {cell(row.a):>26}{cell(row.b):>26}{row.ratio:8.2f}  {row.verdict}  ({row.unit})")
    print(f"\n{len(moved)} of {len(rows)} metrics moved beyond the spread: {sum(row.verdict == 'better' for row in moved)} better, "
          f"{sum(row.verdict == 'worse' for row in moved)} worse")
    for which, names in (("A", only_a), ("B", only_b)):
        if names:
            print(f"only in {which}: {len(names)} metrics, the first of them {names[0]}")
