# Trains with the programs that users get, on the GPUs of this machine.
# SPDX-License-Identifier: Apache-2.0
"""gpu_train - fashion_mnist and imagenet_train on the GPUs of this machine: float32, mixed precision, resumed, evaluated, and one rank
per GPU where there are several. Data that is not here is made. With --device cpu a rehearsal whose figures say nothing about a GPU."""
import glob
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import zlib

import measure

FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
# Images of each class to train on, pixels of a file's side, of the model's, batch.
SIZES = {"cuda": [200, 128, 112, 64], "cpu": [6, 40, 32, 4]}


def make_fashion(folder):
    """Ten classes of bright rows under noise, as IDX files."""
    folder.mkdir()
    noise = random.Random(0)
    for split, count in (("train", 6000), ("t10k", 1000)):
        labels = bytes(number % 10 for number in range(count))
        rows = [[noise.randbytes(28) for _ in range(28)] for _ in range(count)]
        for label, image in zip(labels, rows):
            image[2 * label + 3] = bytes([255] * 28)
        pixels = b"".join(b"".join(image) for image in rows)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + pixels)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)


def png(side, colour, noise):
    rows = b"".join(b"\0" + bytes(min(255, base + noise.randrange(80)) for _ in range(side) for base in colour) for _ in range(side))

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def make_images(folder, count, side):
    noise = random.Random(0)
    for label, colour in enumerate([(150, 20, 20), (20, 150, 20), (20, 20, 150), (110, 110, 20)]):
        files = [png(side, colour, noise) for _ in range(min(count, 10))]  # the noise of ten is enough
        for split, number in (("train", count), ("val", count // 2)):
            (folder / split / str(label)).mkdir(parents=True)
            for at in range(number):
                (folder / split / str(label) / f"{at}.png").write_bytes(files[at % len(files)])


class Programs:
    def __init__(self, options, rows, folder):
        self.options, self.rows, self.folder = options, rows, folder

    def run(self, name, *flags, world=1):
        """What rank 0 writes; all ranks have to end well."""
        command = [str(self.options.build / "bin" / name), f"--device={self.options.device}", *map(str, flags)]
        if world > 1:
            meet = tempfile.mktemp(dir=self.folder)
            commands = [[*command, f"--init-method=file://{meet}?rank={rank}&world_size={world}", f"--local-rank={rank}"] for rank in range(world)]
        else:
            commands = [command]
        ranks = [subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for each in commands]
        try:
            outputs = [rank.communicate(timeout=min(3600, max(1, self.rows.left()))) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(rank.returncode for rank in ranks):
            raise measure.Failed("; ".join(error.strip() for _, error in outputs if error) or f"exit codes {[r.returncode for r in ranks]}")
        return outputs[0][0]

    def fashion(self, data, *flags, world=1):
        text = self.run("fashion_mnist", f"--data={data}", f"--epochs={world}", "--batch-size=64", "--lr=0.02", *flags, world=world)
        accuracy = float(re.search(r"^accuracy +([\d.]+) %", text, re.M)[1])
        rate = float(re.search(r"^speed +(\d+) images/s", text, re.M)[1])
        if accuracy < 50:
            raise measure.Failed(f"accuracy {accuracy} %")
        return {"accuracy": accuracy, "images_per_second": rate, "output": text, "text": f"{rate:.0f} images/s, accuracy {accuracy} %"}

    def imagenet(self, data, *flags, world=1):
        """Trained, then evaluated from its checkpoint: the accuracy is the same."""
        _, _, size, batch = SIZES[self.options.device]
        saved = tempfile.mkdtemp(dir=self.folder)
        common = [data, f"--image-size={size}", f"-b{batch}", "-j8", *flags]
        text = self.run("imagenet_train", *common, "--epochs=2", "-p4", "--lr=0.01", f"--checkpoint={saved}", world=world)
        trained = re.findall(r"Acc@1 ([\d.]+) Acc@5 ([\d.]+)", text)[-1]
        evaluated = re.findall(r"Acc@1 ([\d.]+) Acc@5 ([\d.]+)", self.run("imagenet_train", *common, "--evaluate", f"--resume={saved}", world=world))[-1]
        if any(abs(float(a) - float(b)) > 0.5 for a, b in zip(trained, evaluated)):  # a GPU's sums may differ in their order
            raise measure.Failed(f"Acc@1 and Acc@5 {trained} after training, {evaluated} from the checkpoint")
        line = re.findall(r"^epoch .*images/s.*$", text, re.M)[-1]
        return {"acc1": float(trained[0]), "output": text, "text": f"Acc@1 {trained[0]}; {line}"}


def main(arguments):
    options = measure.gpu_options(__doc__, arguments, programs=("fashion_mnist", "imagenet_train"))
    rows = measure.Rows(options)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fashion, images = FASHION, folder / "images"
        if not fashion.exists() or options.device == "cpu":
            fashion = folder / "fashion"
            make_fashion(fashion)
        make_images(images, *SIZES[options.device][:2])
        programs = Programs(options, rows, folder)
        worlds = {1, len(glob.glob("/dev/nvidia[0-9]*")) if options.device == "cuda" else 2}
        for world in sorted(worlds):
            for flags in ([], ["--amp=bf16"], ["--amp=fp16"]):
                what = f"{' '.join(flags) or 'float32'}, {world} rank{'s' * (world > 1)}"
                rows.add(f"fashion_mnist {what}", lambda f=flags, w=world: programs.fashion(fashion, *f, world=w))
                rows.add(f"imagenet_train {what}", lambda f=flags, w=world: programs.imagenet(images, *f, world=w))
            rows.add(f"imagenet_train --sync-bn, {world} rank{'s' * (world > 1)}",
                     lambda w=world: programs.imagenet(images, "--sync-bn", world=w))
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
