# Measures muster alone on a GPU: step rates with and without captured steps, and each kernel against a copy or a product.
# SPDX-License-Identifier: Apache-2.0
"""gpu_bench - the step rate of GarmentClassifier and the ResNets, and of each kernel the share of the measured copy bandwidth
or product rate. Every figure has its raw samples. With --device cpu a rehearsal whose figures say nothing about a GPU."""
import statistics
import subprocess
import sys

import measure

AIM = 0.9  # of the copy bandwidth
# Elements of a tensor, rows of the product, samples of a convolution.
SIZES = {"cuda": [1 << 26, 4096, 64], "cpu": [1 << 18, 64, 1]}


def step_rate(options, rows, model, batch, flags):
    """Captured steps, in turn with steps whose kernels are launched one by one where the launches are the step."""
    command = [str(options.build / "bin/train_steps"), *flags]
    ways = {"captured": command} | ({"launched": [*command, "--no-capture"]} if model == "garment" else {})
    sides = {}
    try:
        for way, each in ways.items():
            sides[way] = measure.Served(each, rows.left)
        rates = measure.in_turn(sides, options)
        replays = sides["captured"].ask(1)["replays"]
    finally:
        for side in sides.values():
            side.close()
    if options.device == "cuda" and replays == 0:
        raise measure.Failed("the steps were not captured")
    row = {"unit": "steps per second", "batch_size": batch, "replays": replays, **{way: measure.summary(values) for way, values in rates.items()}}
    row["text"] = f"{row['captured']['median']:.1f} it/s, {row['captured']['median'] * batch:.0f} images/s"
    if "launched" in rates:
        row["ratio"] = measure.paired_ratio(rates["captured"], rates["launched"])
        row["text"] += f", {row['ratio']['of_medians']:.2f}x of launched steps"
    return row


def kernel(options, rows, name):
    command = [str(options.build / "bin/gpu_kernel_bench"), name, options.device, *map(str, SIZES[options.device]), str(options.rounds)]
    line = measure.json_line(command, seconds=min(120, rows.left()))
    what = "flop" if line["flop"] else "bytes"
    rates = [line[what] / seconds for seconds in line["seconds"]]
    reference = [line["reference_" + what] / seconds for seconds in line["reference_seconds"]]
    row = {"unit": f"{what} per second", **line, "rate": measure.summary(rates), "reference": measure.summary(reference),
           "share": measure.paired_ratio(rates, reference)}
    row["text"] = f"{statistics.median(rates) / 1e9:.1f} G{what}/s, {row['share']['of_medians']:.2f} of the {'product' if line['flop'] else 'copy'}"
    if what == "bytes":
        row |= {"aim": AIM, "aim_met": row["share"]["of_medians"] >= AIM}
        row["text"] += f" (aim {AIM}: {'met' if row['aim_met'] else 'missed'})"
    return row


def main(arguments):
    options = measure.gpu_options(__doc__, arguments)
    rows = measure.Rows(options)
    for name, model, batch, flags in measure.gpu_cases(options.device):
        rows.add(f"steps of {name}", lambda m=model, b=batch, f=flags: step_rate(options, rows, m, b, f))
    listed = subprocess.run([str(options.build / "bin/gpu_kernel_bench"), "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        rows.add(name, lambda n=name: kernel(options, rows, n))
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
