#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's gloo all_reduce, in the same columns as all_reduce_bench. Usage: all_reduce_gloo.py [ranks=2] [max_mib=64]"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

SIZES = [4, 256, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 177704, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 64 << 20]


def measure(rank, ranks, max_bytes, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    for size in SIZES:
        if size > max_bytes:
            break
        tensor = torch.zeros(size // 4)
        rounds = 500 if size <= 64 << 10 else 100 if size <= 1 << 20 else 50 if size <= 4 << 20 else 20
        micros = []
        for i in range(-rounds // 10 - 3, rounds):
            tensor.fill_(1)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            if i >= 0:
                micros.append((time.perf_counter() - start) * 1e6)
        micros.sort()
        median = micros[len(micros) // 2]
        if rank == 0:
            rate = size / median * 1e-3
            print(f"{'torch/gloo':18s} {ranks:5d} {size:12d} {median:12.1f} {micros[0]:12.1f} {rate:10.3f}", flush=True)
    dist.destroy_process_group()


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    max_bytes = (int(sys.argv[2]) if len(sys.argv) > 2 else 64) << 20
    head = f"{'transport':18s} {'ranks':>5s} {'bytes':>12s} {'median us':>12s} {'best us':>12s} {'GB/s':>10s}"
    print(head, flush=True)
    with tempfile.TemporaryDirectory() as directory:
        children = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    measure(rank, ranks, max_bytes, os.path.join(directory, "store"))
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
