# The agents of torchrun's rendezvous (c10d) for `scripts/bench rendezvous`: as many nodes as are asked for, each with a
# connection of its own, in threads of one process, join one rendezvous at the store of a port. Prints JSON: milliseconds from
# the first node's start to the last that knows its rank. PyTorch's agents wait for one another by looking once a second.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys
import threading
import time
from datetime import timedelta

import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

PORT, NODES = map(int, sys.argv[1:])
TIMEOUT = 120  # seconds

ready, joined = threading.Barrier(NODES + 1), threading.Barrier(NODES + 1)
ranks = []


def join():
    store = TCPStore("127.0.0.1", PORT, is_master=False, timeout=timedelta(seconds=TIMEOUT))
    handler = DynamicRendezvousHandler.from_backend("bench", store, C10dRendezvousBackend(store, "bench"), NODES, NODES, "127.0.0.1")
    ready.wait()
    rank = handler.next_rendezvous().rank
    ranks.append((time.perf_counter(), rank))
    joined.wait()  # nobody leaves before all are there


for _ in range(NODES):
    threading.Thread(target=join, daemon=True).start()
ready.wait(TIMEOUT)
start = time.perf_counter()
joined.wait(TIMEOUT)
if sorted(rank for _, rank in ranks) != list(range(NODES)):
    sys.exit(f"the nodes' ranks are {sorted(rank for _, rank in ranks)}")
print(json.dumps({"version": torch.__version__, "join_ms": 1000 * (max(ranks)[0] - start)}), flush=True)
os._exit(0)  # the nodes' heartbeats go on
