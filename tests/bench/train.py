# `scripts/bench train`: steps per second of the main job, ours and PyTorch's in turn (A B A B ...) in one run. One thread
# per rank, data in memory, start-up excluded on both sides; both are launched by muster.
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import time

import measure

RESNET = ["--resnet18", "--warm-up=2"]
# MODEL-BATCHxRANKS: (batch size per rank, ranks, our steps, PyTorch's steps, options of both): about two seconds of each
CASES = {"garment-4x1": (4, 1, 12000, 1600, []), "garment-4x2": (4, 2, 12000, 600, []), "garment-64x1": (64, 1, 2000, 400, []),
         "garment-256x1": (256, 1, 600, 150, []), "resnet18-64x1": (64, 1, 10, 10, RESNET), "resnet18-16x2": (16, 2, 20, 20, RESNET)}
# What the same bits on any number of ranks cost: 16 samples of each of two ranks, in one batch or in four shards.
SHARDS = {"plain": ["--batch-size=16"], "shards": ["--batch-size=4", "--shards=8"]}
# How much of one rank's speed, alone, each of two has: batch size per rank and steps.
SCALING = {4: 12000, 64: 2000}
# From exec to the end of the first step: the program alone, and with FashionMNIST read and unpacked (47 MB).
STARTS = {"alone": ["--samples=2048"], "with FashionMNIST": []}


def start(ours, env, flags):
    """Milliseconds, and the memory of the process then (PSS, in MB)."""
    began = time.perf_counter()
    with subprocess.Popen([ours, "--serve", "--batch-size=4", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        print(1, file=process.stdin, flush=True)
        process.stdout.readline()
        milliseconds = 1000 * (time.perf_counter() - began)
        memory = re.search(r"^Pss:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/smaps_rollup").read_text(), re.MULTILINE)
        process.stdin.close()
    return milliseconds, int(memory[1]) / 1024


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench train")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", default=",".join(CASES), help="MODEL-BATCHxRANKS, with commas between them [all]")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the steps of a run [1]")
    parser.add_argument("--torch", choices=["debian", "current"], default="debian", help="which PyTorch to compare with")
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/train.json")
    options = parser.parse_args(arguments)
    if unknown := [case for case in options.cases.split(",") if case not in CASES]:
        parser.error(f"--cases: there is no '{unknown[0]}'; there are {', '.join(CASES)}")
    part = lambda steps: max(1, round(steps * options.fraction))  # noqa: E731
    python, torch_env = measure.torch_environment(options.torch)
    ours_env = {**os.environ, "OMP_NUM_THREADS": "1"}
    muster, ours = measure.program("muster"), measure.program("train_steps")
    theirs = str(measure.ROOT / "tests/bench/train_torch.py")
    print(measure.machine())

    rows, version = [], ""
    for batch, ranks, our_steps, their_steps, flags in map(CASES.get, options.cases.split(",")):
        launch = [muster, "--standalone", f"--nproc-per-node={ranks}", "--no-python"]
        rates = {"muster": [], "torch": []}
        hidden = []
        for _ in range(options.rounds):
            for side, command, env, steps in (("muster", [ours], ours_env, our_steps),
                                              ("torch", [python, theirs], torch_env, their_steps)):
                line = measure.json_line([*launch, *command, f"--batch-size={batch}", f"--steps={part(steps)}", *flags], env=env)
                rates[side].append(line["steps"] / line["seconds"])
                version = line["version"] if side == "torch" else version
                if line.get("buckets", 0) > 1 and ranks > 1:
                    hidden.append((line["hidden"], line["communication_ms"]))
        ratio = measure.paired_ratio(rates["muster"], rates["torch"])
        rows.append({"model": "resnet18" if flags else "garment", "batch_size": batch, "ranks": ranks, "muster": measure.summary(rates["muster"]),
                     "torch": measure.summary(rates["torch"]), "ratio": ratio})
        print(f"\n{rows[-1]['model']}, batch {batch} per rank, {ranks} rank{'s' if ranks > 1 else ''}")
        for side, label in (("muster", "muster"), ("torch", version)):
            s, images = rows[-1][side], statistics.median(rates[side]) * batch * ranks
            print(f"{label:18}{s['median']:10.0f} it/s  (min {s['min']:.0f}, max {s['max']:.0f}, {s['runs']} runs)"
                  f"{images:12.0f} images/s")
        if hidden:
            share, milliseconds = sorted(hidden)[len(hidden) // 2]
            rows[-1]["communication"] = {"ms_per_step": milliseconds, "hidden_share": share}
            print(f"{'communication':18}{milliseconds:10.1f} ms a step, {100 * share:.0f} % hidden behind backward")
        print(f"{'ratio':18}{ratio['of_medians']:10.1f}x      (pairs: {ratio['min']:.1f} to {ratio['max']:.1f})", flush=True)
    rates = {"plain": [], "shards": []}
    for _ in range(options.rounds):
        for side, flags in SHARDS.items():
            line = measure.json_line([muster, "--standalone", "--nproc-per-node=2", "--no-python", ours, f"--steps={part(4000)}", *flags], env=ours_env)
            rates[side].append(line["steps"] / line["seconds"])
    shards = {side: measure.summary(values) for side, values in rates.items()}
    shards["ratio"] = measure.paired_ratio(rates["shards"], rates["plain"])
    print(f"\n8 logical shards on 2 ranks: {shards['shards']['median']:.0f} it/s, without {shards['plain']['median']:.0f}: "
          f"{shards['ratio']['of_medians']:.2f}x      (pairs: {shards['ratio']['min']:.2f} to {shards['ratio']['max']:.2f})")
    scaling = {}
    for batch, steps in SCALING.items():
        rates = {1: [], 2: []}
        for _ in range(options.rounds):
            for ranks in rates:
                line = measure.json_line([muster, "--standalone", f"--nproc-per-node={ranks}", "--no-python", ours, f"--batch-size={batch}",
                                          f"--steps={part(steps)}"], env=ours_env)
                rates[ranks].append(line["steps"] / line["seconds"])
        scaling[batch] = measure.paired_ratio(rates[2], rates[1])
        print(f"garment, batch {batch}: each of two ranks has {scaling[batch]['of_medians']:.2f} of the speed of one      "
              f"(pairs: {scaling[batch]['min']:.2f} to {scaling[batch]['max']:.2f})")
    starts = {}
    for name, flags in STARTS.items():
        times, sizes = zip(*(start(ours, ours_env, flags) for _ in range(options.rounds)))
        starts[name] = {"milliseconds": measure.summary(list(times)), "pss_mb": measure.summary(list(sizes))}
        print(f"first step {name}: {statistics.median(times):.1f} ms after exec (min {min(times):.1f}, max {max(times):.1f}), "
              f"{statistics.median(sizes):.1f} MB")
    if options.save:
        measure.save("train", {"unit": "steps per second of each rank", "torch": version, "cases": rows, "logical_shards": shards,
                               "scaling": scaling, "starts": starts})
    return 0
