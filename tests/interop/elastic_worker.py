# SPDX-License-Identifier: Apache-2.0
"""A worker of torchrun that writes down who it is, and stays until it is told to go, or to fail.

Usage: elastic_worker.py DIRECTORY [meet]: `meet`: it does an all-reduce with the others first.
"""
import os
import pathlib
import signal
import sys

folder = pathlib.Path(sys.argv[1])
env = os.environ
who = f"{env['RANK']}.{env['WORLD_SIZE']}.{env['TORCHELASTIC_RESTART_COUNT']}"
meet = len(sys.argv) > 2
if meet:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == dist.get_world_size() == int(env["WORLD_SIZE"])
(folder / f"new.{os.getpid()}").write_text(str(os.getpid()))
(folder / f"new.{os.getpid()}").rename(folder / f"worker.{who}")
while not (folder / "go").exists():
    if (folder / "fail").exists() and env["RANK"] == "1" and not (folder / "failed").exists():
        (folder / "failed").touch()
        sys.exit(3)
    signal.sigtimedwait([], 0.02)
if meet:
    dist.barrier()
    dist.destroy_process_group()
