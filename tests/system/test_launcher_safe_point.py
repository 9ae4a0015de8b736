# SPDX-License-Identifier: Apache-2.0
"""Nodes that come while a job runs wait for its next checkpoint (--join-at), and nothing behind it is lost."""

import pytest

from elastic_support import job, write
from launcher_support import clean_environment, muster, wait_for

CONF = "last_call_timeout=0.05"

# Rank 0 takes steps and writes each down. Where the test asks for it, it writes a checkpoint and announces it.
TRAIN = """
import os, signal
e = os.environ
rank, world = int(e["RANK"]), int(e["WORLD_SIZE"])
open(f"started_{world}_{rank}", "w").close()
step = int(open("checkpoint").read()) if os.path.exists("checkpoint") else 0
steps = os.open("steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while not os.path.exists("go"):
    signal.sigtimedwait([], 0.002)
    if rank > 0: continue
    step += 1
    os.write(steps, b"%d\\n" % step)
    if not os.path.exists("save"): continue
    os.unlink("save")
    with open("checkpoint.new", "w") as file: file.write(str(step))
    os.rename("checkpoint.new", "checkpoint")
    point = e["MUSTER_SAFE_POINT_FILE"]
    open(point, "w").close()
    while os.path.exists(point): signal.sigtimedwait([], 0.001)  # nobody waits: go on
    open("passed", "w").close()
"""


def steps(tmp_path):
    return [int(line) for line in (tmp_path / "steps").read_text().split()] if (tmp_path / "steps").exists() else []


def more_steps(tmp_path, count):
    until = len(steps(tmp_path)) + count
    wait_for(lambda: len(steps(tmp_path)) >= until, f"{count} more steps")


@pytest.mark.parametrize("proxy", [(), ("--store-proxy",)])
def test_a_joiner_waits_for_the_checkpoint_and_no_step_is_lost(job, tmp_path, proxy):
    it = job(2)
    script = write(tmp_path, "train.py", TRAIN)
    options = [*proxy, "--join-at=safe-point", "--shutdown-timeout=10", script]
    it.start(0, 1, *options, nnodes="1:2", conf=CONF)
    more_steps(tmp_path, 5)
    # A checkpoint that nobody waits for interrupts nothing.
    (tmp_path / "save").touch()
    wait_for((tmp_path / "passed").exists, "the safe point to pass")
    more_steps(tmp_path, 5)
    it.start(1, 1, *options, nnodes="1:2", conf=CONF)
    it.said(1, r"this node has no workers: waits for the job's next checkpoint \(--join-at\); 1 nodes run generation 0")
    more_steps(tmp_path, 20)
    assert not (tmp_path / "started_2_0").exists()
    (tmp_path / "save").touch()
    wait_for(lambda: (tmp_path / "started_2_0").exists() and (tmp_path / "started_2_1").exists(), "the larger world", 30)
    more_steps(tmp_path, 5)
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], it.err(0) + it.err(1)
    taken = steps(tmp_path)
    assert taken == list(range(1, len(taken) + 1))  # each once: none lost, none repeated
    assert "1 node joined at the job's safe point; the workers start again" in it.err(0)
    assert "restart 1" not in it.err(0)


def test_a_joiner_waits_no_longer_than_was_said(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "train.py", TRAIN)
    options = ["--join-at=safe-point:0.3", script]
    it.start(0, 1, *options, nnodes="1:2", conf=CONF)
    more_steps(tmp_path, 5)
    it.start(1, 1, *options, nnodes="1:2", conf=CONF)
    wait_for((tmp_path / "started_2_1").exists, "the larger world", 30)
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0]
    assert "checkpoint, 0.3 s at most (--join-at)" in it.err(1)
    assert "1 node joined, and no safe point came within 0.3 s (--join-at)" in it.err(0)


def test_nodes_that_want_to_join_in_different_ways_are_of_different_jobs(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "train.py", TRAIN)
    it.start(0, 1, "--join-at=safe-point", script, nnodes="1:2", conf=CONF)
    more_steps(tmp_path, 1)
    it.start(1, 1, script, nnodes="1:2", conf=CONF)
    assert it.codes(1) == [78]
    assert "wants --join-at=now, the job has --join-at=safe-point" in it.err(1)
    (tmp_path / "go").touch()
    assert it.codes(0) == [0]


def test_without_joiners_to_wait_for_workers_hear_nothing_of_safe_points(muster):
    script = muster.script("show.py", "import os\nprint(os.environ.get('MUSTER_SAFE_POINT_FILE'))\n")
    result = muster.run("--nproc-per-node=1", script, env=clean_environment(MUSTER_SAFE_POINT_FILE="/another/launcher"))
    assert result.stdout == "None\n"
