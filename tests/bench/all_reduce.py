# `scripts/bench all_reduce`: time of an in-place float32 sum between the ranks of one host, ours over shared memory and
# PyTorch's gloo, in turn. The two programs print the same columns; this one takes the medians over rounds.
# SPDX-License-Identifier: Apache-2.0
import argparse
import statistics
import subprocess

import measure


def rows(command, env):
    """{(transport, bytes): median microseconds} of one run."""
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=600, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise measure.Failed(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    words = [line.split() for line in done.stdout.splitlines()]
    return {(w[0], int(w[2])): float(w[3]) for w in words if len(w) == 6 and w[2].isdigit()}


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench all_reduce")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--max-mib", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", choices=["debian", "current"], default="debian", help="which PyTorch to compare with")
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/all_reduce.json")
    options = parser.parse_args(arguments)
    python, env = measure.torch_environment(options.torch)
    size = [str(options.ranks), str(options.max_mib)]
    ours = [measure.program("all_reduce_bench"), *size, "shm", "registered"]
    theirs = [python, str(measure.ROOT / "tests/bench/all_reduce_gloo.py"), *size]
    print(measure.machine())

    times = {}
    for _ in range(options.rounds):
        for command in (ours, theirs):
            for key, micros in rows(command, env).items():
                times.setdefault(key, []).append(micros)
    transports = list(dict.fromkeys(transport for transport, _ in times))
    gloo = next(t for t in transports if "muster" not in t)
    print(f"\n{options.ranks} ranks, median microseconds of {options.rounds} rounds (min to max)")
    print(f"{'bytes':>10}" + "".join(f"{t:>30}" for t in transports))
    table = []
    for count in dict.fromkeys(b for _, b in times):
        cells = ""
        for transport in transports:
            values = times[transport, count]
            middle = statistics.median(values)
            factor = "" if transport == gloo else f" {statistics.median(times[gloo, count]) / middle:.1f}x"
            cells += f"{f'{middle:.1f} ({min(values):.1f}-{max(values):.1f}){factor}':>30}"
            table.append({"transport": transport, "bytes": count, **measure.summary(values)})
        print(f"{count:>10}{cells}")
    if options.save:
        measure.save("all_reduce", {"unit": "us", "ranks": options.ranks, "rows": table})
    return 0
