# `scripts/bench data`: images per second from an image folder to normalised 224x224 batches, muster's DataLoader and PyTorch's
# with torchvision in turn (A B C A B C ...), of images of 500x375 and of 1600x1200, where a scaled decode leaves most out, and
# what that costs in likeness; the memory of all their processes; the cost of a batch without work; a large folder's listing.
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

import measure

TRANSFORM = "RandomResizedCrop(224), RandomHorizontalFlip, ToTensor, Normalize"


def environment():
    python, env = measure.torch_environment("current")
    folders = [measure.ROOT / ".venv" / name for name in ("torchvision", "pillow")]
    if missing := [folder.name for folder in folders if not folder.is_dir()]:
        raise measure.Failed(f"no {', '.join(missing)} in .venv; scripts/setup --full installs them")
    env["PYTHONPATH"] = ":".join([env["PYTHONPATH"], *map(str, folders)])
    return python, env


def memory(pid):
    """PSS of a process and its children, in MB."""
    children = [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1]) / 1024 + sum(memory(child) for child in children)


class Side:
    def __init__(self, command):
        self.served = measure.Served(command, lambda: 600.0)
        self.rates, self.pss, self.version = [], [], ""

    def epoch(self, keep=True):
        line = self.served.ask("epoch", 600)
        if keep:
            self.rates.append(line["images"] / line["seconds"])
            self.pss.append(memory(self.served.process.pid))
        self.version = line.get("version", "")
        return line["images"] / line["seconds"]


def best_workers(torch, root, batch):
    """The number of worker processes that is PyTorch's fastest here."""
    rates = {}
    for workers in (0, 1, 2, 3):
        side = Side(torch(root, workers, batch))
        side.epoch()
        rates[workers] = side.epoch()
        side.served.close()
    return max(rates, key=rates.get), rates


def psnr(ours, python, root):
    """How like the exact images are to those of the scaled decode, with the same crops: [least, median] in dB."""
    files = [f"{root}-{decode}" for decode in ("exact", "scaled")]
    for file, decode in zip(files, ("exact", "scaled")):
        subprocess.run([ours, "dump", root, file, decode, "train"], stdout=subprocess.DEVNULL, check=True)
    answer = measure.json_line([*python, "psnr", *files])
    for file in files:
        os.remove(file)
    return dict(zip(("least", "median"), answer))


def loading(ours, torch, root, images, options):
    workers, tried = best_workers(torch, root, options.batch_size) if options.torch_workers is None else (options.torch_workers, {})
    if tried:
        print("PyTorch by workers: " + ", ".join(f"{count}: {rate:.0f} images/s" for count, rate in tried.items()))
    sides = {"exact": Side([ours, "serve", root, str(options.workers), str(options.batch_size), "exact"]),
             "scaled": Side([ours, "serve", root, str(options.workers), str(options.batch_size), "scaled"]),
             "torch": Side(torch(root, workers, options.batch_size))}
    try:
        for side in sides.values():
            side.epoch(keep=False)
        for _ in range(options.rounds):
            for side in sides.values():
                side.epoch()
    finally:
        for side in sides.values():
            side.served.close()
    result = {"transform": TRANSFORM, "batch_size": options.batch_size, "workers": {"muster": options.workers, "torch": workers}, "version": sides["torch"].version,
              "tried": tried, "images": images}
    for name, side in sides.items():
        result[name] = {"images_per_second": measure.summary(side.rates), "pss_mb": measure.summary(side.pss)}
        rates = result[name]["images_per_second"]
        label = side.version if name == "torch" else f"muster, {name}"
        print(f"{label:36}{rates['median']:8.0f} images/s  (min {rates['min']:.0f}, max {rates['max']:.0f}, {rates['runs']} epochs of "
              f"{images}){statistics.median(side.pss):8.0f} MB")
    for name in ("exact", "scaled"):
        ratio = measure.paired_ratio(sides[name].rates, sides["torch"].rates)
        space = measure.paired_ratio(sides[name].pss, sides["torch"].pss)
        result[name] |= {"ratio": ratio, "memory_ratio": space}
        print(f"{name:8} {ratio['of_medians']:.2f}x the images/s (pairs: {ratio['min']:.2f} to {ratio['max']:.2f}), {space['of_medians']:.2f}x the memory")
    return result


def empty_batches(ours, options):
    result = {}
    for workers in (0, options.workers):
        lines = [measure.json_line([ours, "empty", str(workers), str(options.batches)]) for _ in range(options.rounds)]
        result[f"{workers} workers"] = measure.summary([1e6 * line["seconds"] / line["batches"] for line in lines])
        print(f"a batch of 64 samples without work, {workers} workers: {result[f'{workers} workers']['median']:.1f} us")
    return result


def listing(ours, files, folder, options):
    """Empty files: what is measured reads names only."""
    for index in range(10):
        (folder / f"{index:03}").mkdir(parents=True)
        for file in range(files // 10):
            os.close(os.open(folder / f"{index:03}" / f"n{index:03}_{file * 7919 % 1000003}.JPEG", os.O_CREAT | os.O_WRONLY, 0o644))
    result = measure.summary([measure.json_line([ours, "list", str(folder)])["seconds"] for _ in range(options.rounds)])
    print(f"a folder of {files} images listed: {result['median']:.3f} s (min {result['min']:.3f}, max {result['max']:.3f})")
    return {"files": files, "seconds": result}


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench data")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2, help="muster's threads")
    parser.add_argument("--torch-workers", type=int, help="PyTorch's processes [the number that is its best]")
    parser.add_argument("--batches", type=int, default=20000, help="without work")
    parser.add_argument("--files", type=int, default=100000, help="of the folder that is listed")
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/data.json")
    options = parser.parse_args(arguments)
    python, env = environment()
    ours, theirs = measure.program("data_load"), str(measure.ROOT / "tests/bench/data_torch.py")
    with tempfile.TemporaryDirectory() as folder:
        variables = [f"{name}={env[name]}" for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")]
        torch = ["env", *variables, python, theirs]
        print(measure.machine())
        result = {}
        for name, images, width in (("loading", options.images, 500), ("loading_large", max(options.images // 4, 2 * options.batch_size), 1600)):
            root = f"{folder}/{name}"
            subprocess.run([*torch, "make", root, str(images), str(width)], check=True)
            print(f"\n{width}x{width * 3 // 4}:")
            result[name] = loading(ours, lambda *what: [*torch, "serve", *map(str, what)], root, images, options)
            result[name]["psnr_db"] = psnr(ours, torch, root)
            print(f"scaled against exact: PSNR {result[name]['psnr_db']['median']:.1f} dB, {result[name]['psnr_db']['least']:.1f} at least")
        print()
        result |= {"empty_batch_us": empty_batches(ours, options),
                   "listing": listing(ours, options.files, pathlib.Path(folder) / "many", options)}
    if options.save:
        measure.save("data", result)
    return 0
