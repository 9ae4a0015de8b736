#!/usr/bin/env python3
# Draws the charts of the report: reads a JSON list of them from stdin, prints a JSON list of SVG texts. A program of its own since
# matplotlib belongs to the system's Python, as the PyTorch that benches start does; ends with 3 where there is none.
# SPDX-License-Identifier: Apache-2.0
import io
import json
import sys

try:
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    import matplotlib.ticker
except ImportError as missing:
    print(missing, file=sys.stderr)
    sys.exit(3)

# Told apart in print, too: by marker and dashes.
STYLES = [("#1b5fa8", "o", "-"), ("#c0392b", "s", "--"), ("#2e7d32", "^", "-."), ("#6a3d9a", "D", ":"), ("#b26a00", "v", "-"), ("#444444", "x", "--"),
          ("#00838f", "P", "-."), ("#ad1457", "*", ":")]


def lines(axes, chart):
    for index, series in enumerate(chart["series"]):
        color, marker, dashes = STYLES[index % len(STYLES)]
        x, median, low, high = zip(*series["points"])
        below = [max(0, m - l) for m, l in zip(median, low)]
        above = [max(0, h - m) for m, h in zip(median, high)]
        axes.errorbar(x, median, yerr=[below, above], color=color, marker=marker, linestyle="none" if "fit" in series else dashes, markersize=5,
                      linewidth=1.3, capsize=3, label=series["name"])
        if "fit" in series:
            x, middle, low, high = zip(*series["fit"])
            axes.plot(x, middle, color=color, linestyle=dashes, linewidth=1.2)
            axes.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({point[0] for series in chart["series"] for point in series["points"]})
    if len(ticks) <= 8 and not any("fit" in series for series in chart["series"]):
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlabel(chart["x"])
    axes.set_ylabel(chart["y"])
    axes.grid(True, linewidth=0.4, alpha=0.5)


def bars(axes, chart):
    """Horizontal, one group a category; logarithmic where a chart says so."""
    names = list(dict.fromkeys(name for series in chart["series"] for name, *_ in series["points"]))
    height = 0.8 / len(chart["series"])
    for index, series in enumerate(chart["series"]):
        color, *_ = STYLES[index % len(STYLES)]
        at, medians, below, above = [], [], [], []
        for name, median, low, high in series["points"]:
            at.append(names.index(name) + index * height)
            medians.append(median)
            below.append(max(0, median - low))
            above.append(max(0, high - median))
        axes.barh(at, medians, height, xerr=[below, above], color=color, hatch=["", "//", "..", "xx"][index % 4], edgecolor="white", capsize=2,
                  label=series["name"], error_kw={"linewidth": 0.9})
    axes.set_yticks([position + 0.4 - height / 2 for position in range(len(names))], names)
    axes.invert_yaxis()
    if chart.get("log"):
        axes.set_xscale("log")
    axes.set_xlabel(chart["y"] + (" (logarithmic)" if chart.get("log") else ""))
    axes.grid(True, axis="x", linewidth=0.4, alpha=0.5)


def draw(index, chart):
    # Texts stay texts; ids differ from chart to chart, for all of them stand in one page.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": str(index), "font.family": "sans-serif", "font.size": 9})
    is_bars = chart["kind"] == "bars"
    count = len({name for series in chart["series"] for name, *_ in series["points"]}) if is_bars else 0
    figure, axes = plt.subplots(figsize=(7.2, max(1.8, 0.8 + 0.17 * count * (1 + len(chart["series"]))) if is_bars else 3.6))
    (bars if is_bars else lines)(axes, chart)
    if len(chart["series"]) > 1:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg"):]


json.dump([draw(index, chart) for index, chart in enumerate(json.load(sys.stdin))], sys.stdout)
