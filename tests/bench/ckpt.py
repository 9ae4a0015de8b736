# `scripts/bench ckpt`: what a checkpoint costs, ours and PyTorch's in turn in one run, on one disk that has nothing else to write
# when a turn begins. Ours is on the disk when it counts as written (fsync of files and directories, CRC-32C, rename, the one before
# removed), so PyTorch's files get an fsync, too. "Stop" is how long the step waits: for ours until save() returns, for theirs until
# the call returns, without the fsync. Ours is written after the stop, while the step goes on: its rate is shown with it and without.
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import measure

SIDES = ("plain", "save", "torch.save", "save_file")


class Server:
    """A program that answers words with JSON lines."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.about = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise measure.Failed(f"{self.process.args[0]}: exit status {self.process.wait()}")
        return json.loads(line)

    def ask(self, word):
        print(word, file=self.process.stdin, flush=True)
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench ckpt")
    parser.add_argument("--megabytes", type=int, default=1024, help="of parameters and momentum together [1024]")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", type=pathlib.Path, default=measure.ROOT / "build", help="on the disk to write to [build]")
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/ckpt.json")
    options = parser.parse_args(arguments)
    python, env = measure.torch_environment("current")
    env["PYTHONPATH"] += f":{measure.ROOT / '.venv/safetensors'}"
    print(measure.machine())
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="ckpt-") as folder:
        size = str(options.megabytes)
        ours = Server([measure.program("ckpt_bench"), folder, size])
        theirs = Server([python, str(measure.ROOT / "tests/bench/ckpt_torch.py"), folder, size], env)
        try:
            result = compare(ours, theirs, options.rounds)
        finally:
            ours.close()
            theirs.close()
    if options.save:
        measure.save("ckpt", result)
    return 0


def compare(ours, theirs, rounds):
    total, stop = {side: [] for side in SIDES}, {side: [] for side in ("copy", *SIDES[1:])}
    ours.ask("save")  # the first of all: files and memory of both are there afterwards
    ours.ask("copy")
    theirs.ask("torch.save")
    for turn in range(rounds):
        for side in SIDES[turn % len(SIDES):] + SIDES[:turn % len(SIDES)]:
            os.sync()
            if side == "save":  # beside each other: what they share is the memory
                stop["copy"].append(ours.ask("copy")["seconds"])
            answer = (ours if side in SIDES[:2] else theirs).ask(side)
            total[side].append(answer["seconds"])
            if "stop" in answer:
                stop[side].append(answer["stop"])
    size = ours.about["bytes"] / 1e6
    rates = {side: [size / seconds for seconds in values] for side, values in total.items()}
    rates["beside"] = [size / (seconds - waited) for seconds, waited in zip(total["save"], stop["save"])]
    names = {"plain": "the disk", "save": "muster, with the stop", "beside": "muster, beside the step", "torch.save": f"torch.save {theirs.about['torch']}", "save_file": "safetensors save_file",
             "copy": "one memory copy"}
    print(f"\n{size:.0f} MB until it is on the disk")
    for side in ("plain", "save", "beside", *SIDES[2:]):
        s, share = measure.summary(rates[side]), measure.paired_ratio(rates[side], rates["plain"])
        print(f"{names[side]:26}{s['median']:9.0f} MB/s  (min {s['min']:.0f}, max {s['max']:.0f}, {s['runs']} runs)"
              f"   {share['of_medians']:.2f} of the disk's  (pairs: {share['min']:.2f} to {share['max']:.2f})")
    print("\nhow long the step waits")
    for side, values in stop.items():
        s, share = measure.summary([1000 * value for value in values]), measure.paired_ratio(values, stop["copy"])
        print(f"{names[side]:26}{s['median']:9.1f} ms    (min {s['min']:.1f}, max {s['max']:.1f}, {s['runs']} runs)"
              f"   {share['of_medians']:.2f} memory copies  (pairs: {share['min']:.2f} to {share['max']:.2f})", flush=True)
    return {"unit": "seconds", "bytes": ours.about["bytes"], "torch": theirs.about["torch"],
            "written": {side: measure.summary(values) for side, values in total.items()},
            "stop": {side: measure.summary(values) for side, values in stop.items()},
            "rate_against_disk": {side: measure.paired_ratio(rates[side], rates["plain"]) for side in ("save", "beside")},
            "stop_against_copy": measure.paired_ratio(stop["save"], stop["copy"])}
