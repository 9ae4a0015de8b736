# The PyTorch side of `scripts/bench train`: the tutorial's network on FashionMNIST, DDP over gloo when there are several
# ranks. The data set is normalised once and kept in memory; a batch is one tensor index, faster than a DataLoader. The
# clock runs over a fixed number of steps after a warm-up, start-up excluded.
# SPDX-License-Identifier: Apache-2.0
import argparse
import gzip
import json
import os
import pathlib
import sys
import time

import numpy
import torch
from torch import nn
from torch.nn import functional

PIXELS = 28


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


def load(folder):
    def idx(name, header):
        return numpy.frombuffer(gzip.decompress((folder / name).read_bytes()), numpy.uint8, offset=header)

    images = torch.from_numpy(idx("train-images-idx3-ubyte.gz", 16).astype(numpy.float32)).view(-1, 1, PIXELS, PIXELS)
    labels = torch.from_numpy(idx("train-labels-idx1-ubyte.gz", 8).astype(numpy.int64))
    return (images / 255 - 0.5) / 0.5, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--resnet18", action="store_true", help="on made-up images of 3x32x32")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    options = parser.parse_args()

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.resnet18:
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data"))
        from make_fixtures import ResNet
        images, labels, model = torch.rand(2048, 3, 32, 32) * 2 - 1, torch.randint(0, 10, (2048,)), ResNet(18, 10)
    else:
        images, labels = load(options.data)
        model = GarmentClassifier()
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    sampler = torch.utils.data.DistributedSampler(range(len(images)), num_replicas=world, rank=rank)

    def indices():
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            mine = torch.tensor(list(sampler))
            yield from mine.split(options.batch_size)[: len(mine) // options.batch_size]
            epoch += 1

    batches, total = indices(), 0.0
    for step in range(options.warm_up + options.steps):
        if step == options.warm_up:
            if world > 1:
                torch.distributed.barrier()
            start, total = time.perf_counter(), 0.0
        index = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(images[index]), labels[index])
        loss.backward()
        optimizer.step()
        total += loss.item()
    seconds = time.perf_counter() - start
    if rank == 0:
        print(json.dumps({"steps": options.steps, "seconds": seconds, "batch_size": options.batch_size, "world_size": world,
                          "loss": total / options.steps, "version": "PyTorch " + torch.__version__}), flush=True)
    if world > 1:
        torch.distributed.destroy_process_group()


main()
