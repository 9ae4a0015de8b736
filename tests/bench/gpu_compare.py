# Measures training steps of muster and of PyTorch side by side on a GPU, each variant of PyTorch in turn with muster.
# SPDX-License-Identifier: Apache-2.0
"""gpu_compare - step rates of muster and of the PyTorch found here (eager, foreach, fused, compile in mode reduce-overhead, the
whole step as one CUDA graph): the same images in the device's memory, the same order, first weights and precision. A short run
has to give equal losses before anything is timed. With --device cpu a rehearsal whose figures say nothing about a GPU."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import measure

VARIANTS = ["eager", "foreach", "fused", "graph", "compile"]  # the last keeps memory
LOSSES = 10  # steps of the short run
# Relative differences that rounding explains: of the loss of the first step, and of the short run's mean. Gradients of a
# ResNet at its first weights enlarge the rounding of bfloat16 with each step.
TOLERANCES = {"garment": (1e-4, 1e-4), "resnet18": (0.03, 0.1), "resnet50": (0.03, 0.1)}
# (model, batch size on a GPU, what is divided by, the least ratio)
AIMS = [("garment", 4, "best", 2.0), ("garment", 4, "eager", 15.0), ("garment", 1024, "best", 1.2), ("resnet50", 256, "best", 1.0)]


class Pair:
    """Our side and PyTorch's of one case, each started when it is first needed."""

    def __init__(self, options, rows, model, flags, folder):
        self.options, self.rows, self.tolerances = options, rows, TOLERANCES[model]
        weights = folder / "weights.safetensors"
        script = str(pathlib.Path(__file__).with_name("train_torch.py"))
        # Ours comes first: it writes the weights that the other reads.
        self.commands = {"muster": [str(options.build / "bin/train_steps"), *flags, f"--save={weights}"],
                         "torch": [options.python, script, *flags, f"--load={weights}"]}
        self.sides, self.losses = {}, []

    def start(self, name, failure):
        if name not in self.sides:
            self.sides[name] = measure.Served(self.commands[name], self.rows.left, failure)
        return self.sides[name]

    def stop(self):
        while self.sides:
            self.sides.popitem()[1].close()

    def compare(self, variant, batch):
        try:
            return self.measured(variant, batch)
        except measure.Failed:
            self.stop()  # the next variant starts both anew
            raise

    def measured(self, variant, batch):
        def losses(side):
            return [side.ask(1)["loss"] for _ in range(self.options.losses)]

        ours = self.start("muster", measure.Failed)
        self.losses = self.losses or losses(ours)
        theirs = self.start("torch", measure.Unsupported)
        settings = theirs.ask(variant)
        if self.rows.machine.setdefault("torch", settings) is settings:
            print(settings, flush=True)
        values = losses(theirs)
        off = [abs(a / b - 1) for a, b in [(self.losses[0], values[0]), (sum(self.losses), sum(values))]]
        row = {"unit": "steps per second", "variant": variant, "batch_size": batch, "settings": settings,
               "losses": {"muster": self.losses, "torch": values, "difference": off, "tolerance": self.tolerances}}
        if not all(difference <= most for difference, most in zip(off, self.tolerances)):
            return row | {"status": "failed", "error": f"the losses differ by {off[0]:.2g} in the first step and {off[1]:.2g} in the mean"}
        rates = measure.in_turn({"muster": ours, "torch": theirs}, self.options)
        ratio = measure.paired_ratio(rates["muster"], rates["torch"])
        row |= {side: measure.summary(samples) for side, samples in rates.items()} | {"ratio": ratio}
        row["text"] = (f"{row['muster']['median']:.1f} it/s against {row['torch']['median']:.1f}: {ratio['of_medians']:.2f}x "
                       f"(pairs: {ratio['min']:.2f} to {ratio['max']:.2f})")
        return row


def judge(rows, batches):
    """Of each aim whether it was met: by the lowest ratio of all variants, or by eager's. None: nothing was measured."""
    judged = []
    for model, batch, other, least in AIMS:
        ratios = {row["variant"]: row["ratio"]["of_medians"] for row in rows if row["name"].startswith(f"{model} batch {batches[model, batch]},")
                  and row["status"] == "ok"}
        chosen = [ratio for variant, ratio in ratios.items() if other in ("best", variant)]
        ratio = min(chosen, default=None)
        judged.append({"aim": f"{model} batch {batch}: at least {least}x of {'the best variant' if other == 'best' else other}",
                       "ratio": ratio, "met": None if ratio is None else ratio >= least})
    return judged


def main(arguments):
    def add(parser):
        parser.add_argument("--python", default=shutil.which("python3"), help="one that has PyTorch")
        parser.add_argument("--variants", default=",".join(VARIANTS))
        parser.add_argument("--losses", type=int, default=LOSSES, help="steps of the run whose losses have to be equal")

    options = measure.gpu_options(__doc__, arguments, add)
    rows = measure.Rows(options)
    if subprocess.run([options.python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        sys.exit(f"gpu_compare: {options.python} has no PyTorch; name one that has with --python")
    cases = measure.gpu_cases(options.device)
    for name, model, batch, flags in cases:
        with tempfile.TemporaryDirectory() as folder:
            pair = Pair(options, rows, model, flags, pathlib.Path(folder))
            for variant in options.variants.split(","):
                rows.add(f"{name}, {variant}", lambda v=variant, b=batch, p=pair: p.compare(v, b))
            pair.stop()
    # The rehearsal's ResNets have smaller batches.
    batches = {(model, real[2]): batch for (_, model, batch, _), real in zip(cases, measure.gpu_cases("cuda"))}
    aims = judge(rows.rows, batches)
    rows.write(aims=aims)
    for aim in aims:
        print(f"{'not judged' if aim['met'] is None else 'met' if aim['met'] else 'missed':11} {aim['aim']}: {json.dumps(aim['ratio'])}")
    return rows.exit_code() if any(row["status"] == "ok" for row in rows.rows) else 1  # all unsupported is no comparison


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
