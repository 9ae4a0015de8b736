# SPDX-License-Identifier: Apache-2.0
"""A data-parallel training script as PyTorch users write it: nothing in it knows which launcher started it.

Trains a small network on FashionMNIST with DistributedDataParallel over gloo and prints, per rank, the loss at the
beginning and at the end and a hash of the parameters, which must be the same on every rank.
"""
import argparse
import gzip
import hashlib
import os

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def read_idx(path):
    with gzip.open(path, "rb") as file:
        data = file.read()
    dimensions = data[3]
    shape = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(dimensions)]
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    assert rank == int(os.environ["RANK"]) and world_size == int(os.environ["WORLD_SIZE"])

    images = read_idx(os.path.join(options.data, "train-images-idx3-ubyte.gz")).float().div(255).sub(0.5).div(0.5)
    labels = read_idx(os.path.join(options.data, "train-labels-idx1-ubyte.gz")).long()
    dataset = TensorDataset(images.unsqueeze(1), labels)
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=options.batch_size, sampler=sampler)

    torch.manual_seed(rank)  # DDP gives every rank the parameters of rank 0
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    losses = []
    sampler.set_epoch(0)
    for step, (batch, target) in enumerate(loader):
        if step == options.steps:
            break
        optimizer.zero_grad()
        loss = criterion(model(batch), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    window = max(1, len(losses) // 10)
    print(f"rank {rank}/{world_size} first {sum(losses[:window]) / window:.4f} last {sum(losses[-window:]) / window:.4f} "
          f"parameters {digest}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
