# One rank of test_process_group.py.
# SPDX-License-Identifier: Apache-2.0
import os
from datetime import timedelta

import torch
import torch.distributed as dist

url = os.environ.get("INIT_METHOD")
if url:
    dist.init_process_group("gloo", init_method=url, rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]), timeout=timedelta(seconds=60))
else:
    dist.init_process_group("gloo", init_method="env://", timeout=timedelta(seconds=60))
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
dist.barrier()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {value.item()}", flush=True)
dist.destroy_process_group()
