#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's training step of the GarmentClassifier on the CPU: the baseline that train_step_kernels is compared with.

One thread, data in memory as normalised tensors, batches picked with one index_select per step, eager mode, the usual
loop of zero_grad / forward / cross_entropy / backward / SGD with momentum. The loss is not read inside the timed
window, so nothing waits that a real loop would not wait for. Prints microseconds of CPU time per step, all threads, as
train_step_kernels does: median, best and spread over windows of about 0.1 s.
"""
import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional


class GarmentClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = x.view(-1, 16 * 4 * 4)
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        return self.fc3(x)


def window(model, optimizer, images, labels, order, steps):
    start = time.process_time()
    for step in range(steps):
        picked = order[step % len(order)]
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(images[picked]), labels[picked])
        loss.backward()
        optimizer.step()
    return (time.process_time() - start) / steps * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[4, 64, 256])
    parser.add_argument("--seconds", type=float, default=3.0, help="time spent per batch size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images = (torch.randint(0, 256, (4096, 1, 28, 28), dtype=torch.uint8).float() / 255 - 0.5) / 0.5
    labels = torch.randint(0, 10, (4096,))
    for batch in options.batch:
        order = torch.randperm(4096)[: 4096 // batch * batch].view(-1, batch)
        model = GarmentClassifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        per_step = window(model, optimizer, images, labels, order, 20)
        steps = max(5, int(1e5 / per_step))
        times = []
        deadline = time.process_time() + options.seconds
        while time.process_time() < deadline:
            times.append(window(model, optimizer, images, labels, order, steps))
        times.sort()
        print(
            f"torch {torch.__version__} batch {batch}: median {statistics.median(times):.1f} us/step, best {times[0]:.1f}, "
            f"p90 {times[int(len(times) * 0.9)]:.1f}, {len(times)} windows of {steps} steps",
            flush=True,
        )


if __name__ == "__main__":
    main()
