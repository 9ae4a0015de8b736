# SPDX-License-Identifier: Apache-2.0
"""Process groups over gloo, each check run by every rank in a process of its own at the same time.

How the ranks find each other is the caller's: `init_method` for init_process_group, and MASTER_ADDR and the like in the
environment. `store` is where ranks can tell each other something beside the group: (host, port).
"""
import contextlib
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from checks_support import TIMEOUT, client, raises

torch.set_num_threads(1)


@contextlib.contextmanager
def _group(rank, world_size, init_method):
    # With env:// and tcp:// both generations want rank and size where the agent's environment does not say them.
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size,
                            timeout=timedelta(seconds=TIMEOUT))
    try:
        yield
    finally:
        dist.destroy_process_group()


def collectives(rank, world_size, init_method):
    with _group(rank, world_size, init_method):
        assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
        value = torch.tensor([float(rank + 1)])
        dist.all_reduce(value)
        assert value.item() == world_size * (world_size + 1) / 2
        gathered = [torch.zeros(1) for _ in range(world_size)]
        dist.all_gather(gathered, torch.tensor([float(rank)]))
        assert [one.item() for one in gathered] == list(range(world_size))
        word = torch.tensor([42.0 if rank == 0 else 0.0])
        dist.broadcast(word, 0)
        assert word.item() == 42
        objects = [None] * world_size
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": each} for each in range(world_size)]
        dist.barrier()


def groups_within_the_world(rank, world_size, init_method):
    """Each group has keys of its own in the store."""
    with _group(rank, world_size, init_method):
        for members in ([0, 1], [1, 2], [0, 1, 2]):
            group = dist.new_group(members)
            if rank in members:
                value = torch.tensor([float(rank)])
                dist.all_reduce(value, group=group)
                assert value.item() == sum(members)
        dist.barrier()


def a_monitored_barrier_names_the_rank_that_is_missing(rank, world_size, init_method, store):
    with _group(rank, world_size, init_method):
        dist.monitored_barrier(timeout=timedelta(seconds=TIMEOUT))
        side = client(*store)
        if rank == 1:
            side.get("looked")  # stays away from the barrier until the others have missed it
        else:
            with raises(RuntimeError, "Rank 1 failed to pass monitoredBarrier" if rank == 0 else ""):
                dist.monitored_barrier(timeout=timedelta(seconds=1))
            if rank == 0:
                side.set("looked", "1")


def ddp_computes_what_one_process_computes(rank, world_size, init_method):
    """Gradients averaged over the ranks are those of the whole batch."""
    def train(model, inputs, targets):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    def network(seed):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

    data = torch.Generator().manual_seed(7)
    inputs = torch.randn(4 * world_size, 8, generator=data)
    targets = torch.randn(4 * world_size, 4, generator=data)
    mine = slice(4 * rank, 4 * rank + 4)
    with _group(rank, world_size, init_method):
        # DDP gives every rank the parameters of rank 0.
        together = train(DistributedDataParallel(network(rank)), inputs[mine], targets[mine])
        dist.barrier()
    for ours, alone in zip(together, train(network(0), inputs, targets)):
        assert torch.allclose(ours, alone, atol=1e-5), (ours, alone)
