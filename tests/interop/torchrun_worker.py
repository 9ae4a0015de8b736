# SPDX-License-Identifier: Apache-2.0
"""A worker of two jobs that run side by side: what it finds under a name must be its own job's.

Usage: torchrun_worker.py JOB [MARK]: rank 1 fails after it has met the others, unless there is a file MARK, which it makes.
"""
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

job = sys.argv[1]
os.environ["MASTER_ADDR"] = "127.0.0.1"  # of this machine; what its name resolves to is not the subject
dist.init_process_group("gloo", timeout=timedelta(seconds=120))
rank, world_size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
store.set(f"name{rank}", job)
value = torch.tensor([float(len(job) if rank == 0 else 0)])
dist.all_reduce(value)
assert value.item() == len(job)
for other in range(world_size):
    assert store.get(f"name{other}") == job.encode()
if len(sys.argv) > 2 and rank == 1 and not os.path.exists(sys.argv[2]):
    open(sys.argv[2], "w").close()
    os._exit(3)
dist.barrier()
assert os.environ["TORCHELASTIC_RUN_ID"] == job
print(f"job {job} rank {rank} of {world_size}", flush=True)
dist.destroy_process_group()
