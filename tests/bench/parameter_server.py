# `scripts/bench parameter_server`: a parameter server and a ring, written out with send and recv in parameter_server.cc, and
# the group's own all_reduce: time of a step against ranks and bytes, and what the rank that sends most sends. One plot.
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import pathlib
import statistics
import subprocess

import measure

WAYS = {"parameter_server": "parameter server", "ring": "ring", "all_reduce": "all_reduce"}
WHY = """P ranks, S bytes. The server sends S to each of P - 1 workers and receives as much: 2S(P - 1) through one rank, more with every
rank. On a ring each rank sends 2S(P - 1)/P, below 2S whatever P is: no rank is a bottleneck. Between hosts, where each has a
network card of its own, the busiest card sets the time. On one host all ranks share its cores and memory, through which all
ways move about 2S(P - 1) bytes together: the ring's lead goes, and its 2(P - 1) turns, one after another, cost small sizes
more than the server's two. The group's all_reduce reads all inputs where they are, in one pass."""


def run(program, ranks, sizes, seconds):
    done = subprocess.run([program, str(ranks), ",".join(map(str, sizes)), str(seconds)], text=True, capture_output=True, timeout=300)
    if done.returncode:
        raise measure.Failed(f"parameter_server with {ranks} ranks: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def draw(rows, path):
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is missing; scripts/setup --bench installs python3-matplotlib")
        return
    matplotlib.use("svg")
    from matplotlib import pyplot

    ranks = sorted({row["ranks"] for row in rows})
    figure, axes = pyplot.subplots(1, len(ranks), figsize=(3.4 * len(ranks), 3.2), sharey=True, squeeze=False)
    for axis, count in zip(axes[0], ranks):
        for way, label in WAYS.items():
            line = [(row["bytes"], row["micros"]["median"]) for row in rows if row["way"] == way and row["ranks"] == count]
            axis.loglog(*zip(*line), marker="o", label=label)
        axis.set_title(f"{count} ranks")
        axis.set_xlabel("bytes")
    axes[0][0].set_ylabel("microseconds a step")
    axes[0][0].legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    print(f"saved {path}")


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench parameter_server")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--bytes", default="4096,65536,1048576,16777216")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each way, size and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", default=str(measure.RESULTS / "parameter_server.svg"), help="where the plot goes")
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/parameter_server.json")
    options = parser.parse_args(arguments)
    program, sizes = measure.program("parameter_server"), list(map(int, options.bytes.split(",")))
    print(measure.machine())
    times, sent = {}, {}
    for _ in range(options.rounds):
        for ranks in map(int, options.ranks.split(",")):
            for line in run(program, ranks, sizes, options.seconds):
                key = (line["way"], ranks, line["bytes"])
                times.setdefault(key, []).append(line["micros"])
                sent[key] = line["sent"]
    rows = []
    print(f"\n{'ranks':>5}{'bytes':>10}  {'way':18}{'us a step':>11} (min to max)   most bytes sent by a rank")
    for way, ranks, size in sorted(times, key=lambda key: (key[1], key[2], list(WAYS).index(key[0]))):
        key = (way, ranks, size)
        rows.append({"way": way, "ranks": ranks, "bytes": size, "micros": measure.summary(times[key]), "sent": sent[key]})
        print(f"{ranks:5}{size:10}  {WAYS[way]:18}{statistics.median(times[key]):11.1f} ({min(times[key]):.1f} to {max(times[key]):.1f})"
              f"   {sent[key] if way != 'all_reduce' else 'not counted'}")
    print("\n" + WHY)
    draw(rows, pathlib.Path(options.plot))
    if options.save:
        measure.save("parameter_server", {"rows": rows})
    return 0
