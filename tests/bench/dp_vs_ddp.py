# `scripts/bench dp_vs_ddp`: one replica, DataParallel (threads of one process) and DistributedDataParallel (a process each)
# on the same global batches, in turn: steps per second, loss, memory of each replica.
# SPDX-License-Identifier: Apache-2.0
import argparse

import measure

MODES = {"single": "single", "dp": "DataParallel", "ddp": "DistributedDataParallel"}
WHY = """The losses agree but for rounding, which thousands of steps add up: all do the same sums on the same batches.
Against DistributedDataParallel, DataParallel had {ratios} times its it/s. What it can lose: in each step one thread
makes the whole batch, adds up all gradients and runs the optimizer while the other replicas wait (batch and optimizer
were {alone} % of its time), and all parameters are copied. Small batches feel it most, as these costs do not shrink with
the batch. Ranks of DistributedDataParallel do all of it side by side and reduce gradients beside backward; each holds the
optimizer's state, where DataParallel has it on device 0 alone, which so holds {extra:.0f} KiB more than the others.
PyTorch's DataParallel also runs its threads under Python's lock, which muster's has not. Neither gains on one replica
where other work takes the cores: see the load above.
Rows of GPUs: none; they need two GPUs and have not been measured."""


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench dp_vs_ddp")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--batches", default="8,64,256", help="samples of a step, over all replicas")
    parser.add_argument("--samples", type=int, default=25600, help="of a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/dp_vs_ddp.json")
    options = parser.parse_args(arguments)
    program, rows, ratios, alone = measure.program("parallel_training"), [], [], []
    print(measure.machine())
    for batch in map(int, options.batches.split(",")):
        runs = {mode: [] for mode in MODES}
        for _ in range(options.rounds):
            for mode, lines in runs.items():
                lines.append(measure.json_line([program, mode, f"--replicas={options.replicas}", f"--batch={batch}",
                                                f"--steps={options.samples // batch}"]))
        rates = {mode: [line["steps"] / line["seconds"] for line in lines] for mode, lines in runs.items()}
        print(f"\nglobal batch {batch}, {options.replicas} CPU replicas    it/s (min to max)        loss   KiB of each replica")
        for mode, lines in runs.items():
            last, rate = lines[-1], measure.summary(rates[mode])
            memory = [bytes_ / 1024 for bytes_ in last["memory"]]
            rows.append({"mode": mode, "batch": batch, "replicas": last["replicas"], "rate": rate, "loss": last["loss"], "memory": last["memory"],
                         "ratio_to_single": measure.paired_ratio(rates[mode], rates["single"])})
            print(f"{MODES[mode]:26}{rate['median']:10.0f} ({rate['min']:.0f} to {rate['max']:.0f}){last['loss']:14.6f}"
                  f"   {', '.join(f'{kib:.0f}' for kib in memory)}", flush=True)
        print(f"{'GPUs':26}{'-':>10}")
        ratios.append(f"{measure.paired_ratio(rates['dp'], rates['ddp'])['of_medians']:.2f}")
        alone.append(f"{100 * runs['dp'][-1]['alone'] / runs['dp'][-1]['seconds']:.0f}")
        held = runs["dp"][-1]["memory"]
    print("\n" + WHY.format(alone=", ".join(alone), ratios=", ".join(ratios), extra=(held[0] - min(held)) / 1024))
    if options.save:
        measure.save("dp_vs_ddp", {"rows": rows})
    return 0
