# SPDX-License-Identifier: Apache-2.0
"""The start of a job: what a dry run promises is what workers get, and a launcher that dies in the middle leaves nobody."""
import json
import os
import pathlib
import random
import re
import signal

import pytest

from launcher_support import BIN, clean_environment, muster, wait_for

# What no dry run can know: it is drawn, or bound, when the job starts.
DRAWN = {"MASTER_PORT", "MUSTER_LINEAGE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "MUSTER_PROGRESS_FILE"}
TELL = """
import json, os
os.write(1, (json.dumps(dict(os.environ)) + "\\n").encode())
"""


def promised(text):
    """By local rank, the environment that a dry run lists."""
    everybody, ranks, place = {}, {}, None
    for line in text.splitlines():
        if line == "environment of all:":
            place = everybody
        elif rank := re.fullmatch(r"local rank (\d+):", line):
            place = ranks.setdefault(int(rank[1]), {})
        elif place is not None and (entry := re.fullmatch(r"  (\w+)=(.*)", line)):
            place[entry[1]] = entry[2]
    return {rank: everybody | own for rank, own in ranks.items()}


@pytest.mark.parametrize("options", [
    ["--nproc-per-node=2"],
    ["--nproc-per-node=2", "--bind=core", "--role=trainer", "--max-restarts=3"],
    ["--gpus=1,0", "--virtual-local-rank"],
    ["--nproc-per-node=2", "--rdzv-backend=static", "--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1"],
])
def test_workers_get_the_environment_of_the_dry_run(muster, options):
    gpus = muster.tmp_path / "gpus"
    gpus.write_text("GPU-1000 0000:17:00.0 0 0 0 -\nGPU-2000 0000:18:00.0 0 0 0 -\n")
    env = clean_environment(MUSTER_NVML_LIBRARY=BIN / "libfake_nvml.so", FAKE_NVML=gpus, OMP_NUM_THREADS=None)
    dry = muster.run("--dry-run", *options, "true", env=env)
    assert dry.returncode == 0, dry.stderr
    plan = promised(dry.stdout)
    real = muster.run(*options, muster.script("tell.py", TELL), env=env)
    assert real.returncode == 0, real.stderr
    workers = {int(worker["RANK"]): worker for worker in map(json.loads, real.stdout.splitlines())}
    assert sorted(plan) == sorted(workers) == [0, 1]
    inherited = {**env, "TMPDIR": str(muster.tmp_path)}
    for rank, worker in workers.items():
        added = {name: value for name, value in worker.items() if inherited.get(name) != value and name != "LC_CTYPE"}
        assert added.keys() == {name for name in plan[rank] if inherited.get(name) != plan[rank][name]}
        differing = {name for name in added if added[name] != plan[rank][name]}
        assert differing <= DRAWN, {name: (added[name], plan[rank][name]) for name in differing - DRAWN}


def test_a_launcher_killed_at_any_moment_of_its_start_leaves_no_process(muster):
    seed = int(os.environ.get("MUSTER_SEED") or random.randrange(2**32))
    print(f"MUSTER_SEED={seed}")
    chance = random.Random(seed)
    mark = f"muster-start-{os.getpid()}-{seed}"
    env = clean_environment(MUSTER_TEST_MARK=mark)

    def left():
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark.encode() in path.read_bytes():
                    found.append((path.parent.name, (path.parent / "cmdline").read_bytes()))
            except OSError:
                continue  # gone
        return found

    for _ in range(40):
        process = muster.start("--nproc-per-node=32", "sleep", "1000", env=env)
        # As many children as chance wants: the kill comes while the others are being started.
        wanted = chance.randrange(33)
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: len(children.read_text().split()) >= wanted, f"{wanted} children")
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not left(), f"nobody to be left, seed {seed}: {left()}")


def test_several_nodes_without_an_address_are_told_at_once_where_node_0_is_looked_for(muster):
    say = "muster: --nnodes=2 without --master-addr: each node looks for node 0 at 127.0.0.1, on its own host"
    for options, said in (([], True), (["--master-addr=127.0.0.1"], False), (["--rdzv-endpoint=127.0.0.1:29511"], False)):
        result = muster.run("--nnodes=2", "--node-rank=1", "--rdzv-conf=timeout=1", "--master-port=29511", *options, "true")
        assert result.returncode == 69 and result.stderr.startswith(say) == said, result.stderr
