# `scripts/bench scaling_rule`: what more ranks gain, as time to a fixed loss of the test set: each rank has a batch of 16, so
# more ranks make fewer steps an epoch. At the learning rate of one rank, times the ranks, and times the ranks after a warm-up.
# SPDX-License-Identifier: Apache-2.0
import argparse
import statistics

import measure

RULES = {"same rate": (False, 0), "rate x ranks": (True, 0), "x ranks, warm-up": (True, 50)}


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench scaling_rule")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--lr", type=float, default=0.01, help="of one rank")
    parser.add_argument("--until", type=float, default=0.55, help="mean loss of 4,000 test images")
    parser.add_argument("--steps", type=int, default=2500, help="at most")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/scaling_rule.json")
    options = parser.parse_args(arguments)
    program, rows = measure.program("parallel_training"), []
    print(measure.machine())
    print(f"\n{'ranks':>5}  {'rule':18}{'steps':>7}{'samples':>9}  seconds (min to max) to a test loss of {options.until}; {options.seeds} seeds")
    for ranks in map(int, options.ranks.split(",")):
        for rule, (scales, warm_up) in RULES.items():
            if ranks == 1 and scales:
                continue
            runs = [measure.json_line([program, "ddp", f"--replicas={ranks}", f"--batch={16 * ranks}", f"--lr={options.lr * (ranks if scales else 1)}",
                                       f"--warm-up={warm_up}", f"--until={options.until}", f"--steps={options.steps}", "--every=25", f"--seed={seed}"])
                    for seed in range(options.seeds)]
            reached = [run for run in runs if run["reached"]]
            row = {"ranks": ranks, "rule": rule, "reached": len(reached), "steps": [run["steps"] for run in runs], "seconds": measure.summary([run["seconds"] for run in runs])}
            rows.append(row)
            steps, seconds = statistics.median(row["steps"]), row["seconds"]
            note = "" if len(reached) == len(runs) else f"  not reached by {len(runs) - len(reached)} of {len(runs)} within {options.steps} steps"
            print(f"{ranks:5}  {rule:18}{steps:7.0f}{16 * ranks * steps:9.0f}  {seconds['median']:.2f} ({seconds['min']:.2f} to {seconds['max']:.2f}){note}", flush=True)
    print("\nMore ranks at the same rate take fewer steps, but more samples: a step of more samples is a better one, not a longer one."
          "\nA rate times the ranks makes it as long as their steps would be together. A warm-up is for rates at which the first"
          "\nsteps diverge; where they do not, it costs the steps that it takes. it/s shows none of this.")
    if options.save:
        measure.save("scaling_rule", {"rows": rows})
    return 0
