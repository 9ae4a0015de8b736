# The PyTorch side of `scripts/bench train` and of gpu_compare.py: the tutorial's network on FashionMNIST, or a model on the
# images that train_steps makes up; DDP over gloo when there are several ranks. The data set is normalised once and kept in
# the device's memory; a batch is one tensor index, faster than a DataLoader. The clock runs over a fixed number of steps after
# a warm-up, start-up and the drawing of the samples excluded. With --serve it reads requests from standard input: the name of
# a variant starts anew from the weights of --load, a number makes so many steps.
# SPDX-License-Identifier: Apache-2.0
import argparse
import functools
import gc
import gzip
import inspect
import itertools
import json
import os
import pathlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional

PIXELS = 28
# Of torch.optim.SGD; eager takes PyTorch's defaults.
OPTIMIZERS = {"eager": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}


class GarmentClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        return self.fc3(x)


class Block(nn.Module):
    """torchvision's BasicBlock (expansion 1) and Bottleneck (expansion 4), with their names."""

    def __init__(self, channels, width, stride, expansion):
        super().__init__()
        sizes = [(3, stride), (3, 1)] if expansion == 1 else [(1, 1), (3, stride), (1, 1)]
        self.count = len(sizes)
        out = width * expansion
        for i, (kernel, step) in enumerate(sizes):
            to = out if i + 1 == self.count else width
            setattr(self, f"conv{i + 1}", nn.Conv2d(channels if i == 0 else width, to, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(to))
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = x
        for i in range(self.count):
            y = getattr(self, f"bn{i + 1}")(getattr(self, f"conv{i + 1}")(y))
            if i + 1 < self.count:
                y = functional.relu(y)
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, depth, classes):
        super().__init__()
        blocks = {18: [2, 2, 2, 2], 50: [3, 4, 6, 3]}[depth]
        expansion = 1 if depth == 18 else 4
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, count in enumerate(blocks):
            layer = []
            for i in range(count):
                layer.append(Block(channels, 64 << stage, 2 if stage > 0 and i == 0 else 1, expansion))
                channels = (64 << stage) * expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layer))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def load(folder):
    def idx(name, header):
        return torch.frombuffer(bytearray(gzip.decompress((folder / name).read_bytes())), dtype=torch.uint8, offset=header)

    return idx("train-images-idx3-ubyte.gz", 16).view(-1, 1, PIXELS, PIXELS), idx("train-labels-idx1-ubyte.gz", 8)


@functools.cache
def made_up(count, channels, size):
    """train_steps' images and labels, drawn from the same generator."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = torch.empty(count, channels, size, size, dtype=torch.uint8).random_(0, 128, generator=generator)
    return images + (12 * labels).to(torch.uint8).view(-1, 1, 1, 1), labels


def read_safetensors(path):
    """The float32 tensors of a safetensors file: the length of a JSON header, the header, the tensors' bytes."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=start + begin).view(entry["shape"])
    return tensors


class WholeStep:
    """A step as one CUDA graph: three steps on a side stream, then the capture, which all later steps replay."""

    def __init__(self, step, batch_size):
        self.step, self.seen, self.graph = step, 0, None
        self.index = torch.zeros(batch_size, dtype=torch.int64, device="cuda")
        self.side = torch.cuda.Stream()

    def __call__(self, index):
        self.index.copy_(index)
        self.seen += 1
        if self.seen <= 3:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.step(self.index)
            torch.cuda.current_stream().wait_stream(self.side)
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.step(self.index)
        self.graph.replay()


class Training:
    def __init__(self, options, variant):
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.device = options.device
        torch.set_num_threads(1)
        torch.manual_seed(0)
        depth = int(options.model[-2:]) if options.model.startswith("resnet") else 0
        if depth or options.samples:
            images, labels = made_up(options.samples or 2048, *((3, options.image) if depth else (1, PIXELS)))
        else:
            images, labels = load(options.data)
        model = ResNet(depth, 10) if depth else GarmentClassifier()
        if options.load:
            wrong = model.load_state_dict(read_safetensors(options.load), strict=False)
            assert not wrong.unexpected_keys and all(key.endswith("num_batches_tracked") for key in wrong.missing_keys), wrong
        layout = torch.channels_last if options.autocast else torch.contiguous_format
        model = model.to(self.device, memory_format=layout)
        images = ((images.to(self.device) / 255 - 0.5) / 0.5).contiguous(memory_format=layout)
        if self.world > 1:
            torch.distributed.init_process_group("gloo")
            model = nn.parallel.DistributedDataParallel(model)
        self.total = torch.zeros((), device=self.device)
        self.step = self.make_step(variant, model, images, labels.long().to(self.device), bool(options.autocast))
        if variant == "graph":
            self.step = WholeStep(self.step, options.batch_size)
        self.batches = self.draw(len(images), options.batch_size)

    def make_step(self, variant, model, images, labels, lower):
        # The compiled and the captured step have the fastest optimizer that this PyTorch has.
        fastest = "fused" if "fused" in inspect.signature(torch.optim.SGD).parameters else "foreach"
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, **OPTIMIZERS[variant if variant in OPTIMIZERS else fastest])
        criterion = nn.CrossEntropyLoss()

        def loss_of(x, target):
            with torch.autocast(self.device, torch.bfloat16, enabled=lower):
                return criterion(model(x), target)

        compiled = variant == "compile"
        if compiled:
            loss_of = torch.compile(loss_of, mode="reduce-overhead")

        def step(index):
            if compiled:
                torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(images[index], labels[index])
            loss.backward()
            optimizer.step()
            self.total += loss.detach()

        return step

    def draw(self, samples, batch_size):
        sampler = torch.utils.data.DistributedSampler(range(samples), num_replicas=self.world, rank=self.rank)
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            mine = torch.tensor(list(sampler), device=self.device)
            yield from mine.split(batch_size)[: len(mine) // batch_size]

    def run(self, steps):
        """Makes the steps; their seconds and the mean loss."""
        batches = list(itertools.islice(self.batches, steps))
        self.total.zero_()
        if self.world > 1:
            torch.distributed.barrier()
        if self.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for index in batches:
            self.step(index)
        total = self.total.item()  # waits for the steps
        return {"steps": steps, "seconds": time.perf_counter() - start, "loss": total / steps}


def settings(device):
    """What a comparison has to say about this PyTorch."""
    cuda = device == "cuda"
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version() if cuda else None,
            "gpu": torch.cuda.get_device_name() if cuda else None, "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32, "cudnn_benchmark": torch.backends.cudnn.benchmark}


def serve(options):
    training = None
    for line in sys.stdin:
        request = line.strip()
        try:
            if request.isdigit():
                answer = training.run(int(request))
            else:
                training = None
                gc.collect()
                if options.device == "cuda":
                    torch.cuda.empty_cache()
                training = Training(options, request)
                answer = settings(options.device)
        except Exception as error:  # of any kind: a variant that this PyTorch cannot do is an answer
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(answer), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--model", choices=["garment", "resnet18", "resnet50"], default="garment")
    parser.add_argument("--resnet18", dest="model", action="store_const", const="resnet18")
    parser.add_argument("--samples", type=int, help="made-up images")
    parser.add_argument("--image", type=int, default=32, help="height and width of a ResNet's images")
    parser.add_argument("--autocast", choices=["bf16"], help="in channels_last too")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--load", type=pathlib.Path, help="initial weights as train_steps --save writes them")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    options = parser.parse_args()
    # The defaults of both: TF32 in convolutions alone. Both may look for the fastest convolutions.
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    torch.backends.cudnn.benchmark = True
    if options.serve:
        return serve(options)
    training = Training(options, "eager")
    training.run(options.warm_up)
    result = training.run(options.steps)
    if training.rank == 0:
        print(json.dumps({**result, "batch_size": options.batch_size, "world_size": training.world,
                          "version": "PyTorch " + torch.__version__}), flush=True)
    if training.world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
