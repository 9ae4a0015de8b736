# SPDX-License-Identifier: Apache-2.0
"""A training script that one of its ranks leaves once in the middle: the launcher must start all ranks again.

Trains with DistributedDataParallel over gloo and keeps a checkpoint after every step. In the first attempt rank 1 dies
without a word at step 6; the next attempt resumes. In the end every rank holds what one process computes that was never
interrupted, and says so. Before that, ranks meet by every other init method there is.
Usage: elastic_training.py FOLDER
"""
import os
import pathlib
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, FAILING_STEP = 12, 6
folder = pathlib.Path(sys.argv[1])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)


def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def batch(step, size):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, 8, generator=generator), torch.randn(size, 4, generator=generator)


def update(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()


def train():
    model = DistributedDataParallel(network(rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if attempt > 0:
        saved = torch.load(folder / "checkpoint")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    print(f"rank {rank} attempt {attempt} begins at step {first}", flush=True)
    for step in range(first, STEPS):
        if step == FAILING_STEP and attempt == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = batch(step, 4 * world_size)
        update(model, optimizer, inputs[4 * rank:4 * rank + 4], targets[4 * rank:4 * rank + 4])
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, folder / "new")
            os.rename(folder / "new", folder / "checkpoint")
        dist.barrier()  # what is saved at a step, every rank has done
    return [parameter.detach() for parameter in model.parameters()]


def alone():
    model = network(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        update(model, optimizer, *batch(step, 4 * world_size))
    return [parameter.detach() for parameter in model.parameters()]


dist.init_process_group("gloo", timeout=timedelta(seconds=60))
result = train()
dist.destroy_process_group()
for ours, expected in zip(result, alone()):
    assert torch.allclose(ours, expected, atol=1e-5), (ours, expected)

dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
value = torch.ones(1)
dist.all_reduce(value)
assert value.item() == world_size
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} attempt {attempt} is right", flush=True)
