# `scripts/bench parameter_server`: a parameter server and a ring, written out with send and recv in parameter_server.cc, and
# the group's own all_reduce: time of a step against ranks and bytes, and what the rank that sends most sends. One plot.
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import math
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
    """Time against bytes, both logarithmic; a panel for each number of ranks. Written out: Debian's matplotlib does not
    go with the Boost that muster needs (its python3-scipy wants another)."""
    def span(values):
        return math.log2(min(values)), math.log2(max(values)) + 1e-9

    ranks = sorted({row["ranks"] for row in rows})
    (left, right), (low, high) = span([row["bytes"] for row in rows]), span([row["micros"]["median"] for row in rows])
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{60 + 230 * len(ranks)}" height="260" font-family="sans-serif" font-size="11">',
           '<rect width="100%" height="100%" fill="white"/>', '<text x="14" y="170" transform="rotate(-90 14 170)">microseconds a step</text>']
    for panel, count in enumerate(ranks):
        def place(size, micros, panel=panel):
            return 60 + 230 * panel + 200 * (math.log2(size) - left) / (right - left), 220 - 190 * (math.log2(micros) - low) / (high - low)

        svg.append(f'<rect x="{60 + 230 * panel}" y="30" width="200" height="190" fill="none" stroke="black"/>'
                   f'<text x="{130 + 230 * panel}" y="22">{count} ranks</text>')
        svg += [f'<text x="{place(2 ** left, 10 ** power)[0] - 4:.0f}" y="{place(2 ** left, 10 ** power)[1]:.0f}" text-anchor="end">1e{power}</text>'
                for power in range(9) if panel == 0 and low <= math.log2(10 ** power) <= high]
        for size in sorted({row["bytes"] for row in rows}):
            svg.append(f'<text x="{place(size, 2 ** low)[0]:.0f}" y="234" text-anchor="middle">{size // 1024} KiB</text>')
        for number, (way, color) in enumerate(zip(WAYS, ("#c03020", "#2060c0", "#208040"))):
            points = [place(row["bytes"], row["micros"]["median"]) for row in rows if row["way"] == way and row["ranks"] == count]
            svg.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
                       f'<text x="{66 + 230 * panel}" y="{44 + 13 * number}" fill="{color}">{WAYS[way]}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*svg, "</svg>"]) + "\n")
    print(f"saved {path}")


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench parameter_server")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--bytes", default="4096,65536,1048576,16777216")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each way, size and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", default=str(measure.ROOT / "build/parameter_server.svg"), help="where the plot goes")
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
