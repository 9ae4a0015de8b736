# SPDX-License-Identifier: Apache-2.0
"""One report for a job of several nodes, which are network namespaces of this machine."""
import re
import signal

import pytest

from elastic_support import PORT, job, write  # noqa: F401
from launcher_support import BIN, MUSTER, clean_environment, read_report, wait_for

# Rank 2 fails. Rank 1 sees its connection break and is through first; rank 0 stays until it is stopped.
CASCADE = """
import os, signal, sys, time
rank = os.environ["RANK"]
open("up" + rank, "w").close()
def until(name):
    deadline = time.monotonic() + 60
    while not os.path.exists(name): assert time.monotonic() < deadline, name
for r in "012": until("up" + r)
if rank == "0": signal.pause()
if rank == "1":
    until("failing")
    raise ConnectionResetError("[pair.cc:598] Connection closed by peer")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
print('Traceback (most recent call last):\\n  File "train.py", line 9, in step\\nRuntimeError: CUDA error: an illegal '
      'memory access was encountered', file=sys.stderr, flush=True)
open("failing", "w").close()
while True: signal.pause()
"""


def static(job, node, *args):
    environment = clean_environment()
    return job.spawn(node, node, MUSTER, "--nnodes=3", f"--node-rank={node}", f"--master-addr={job.nodes.address(0)}",
                     "--master-port=29511", f"--local-addr=host{node}", "--nproc-per-node=1", *args, env=environment)


def elastic(job, node, *args):
    return job.start(node, 1, f"--node-rank={node}", *args)


def at_musterd(job, node, *args):
    if node == 0:
        job.spawn("d", 2, BIN / "musterd", "--unprotected", f"--port={PORT}")
    return job.start(node, 1, f"--node-rank={node}", *args, backend="muster", endpoint=job.nodes.address(2))


@pytest.mark.parametrize("start", [static, elastic, at_musterd])
def test_the_first_node_tells_of_the_first_failure_wherever_it_was(job, tmp_path, start):
    it = job(3)
    script = write(tmp_path, "cascade.py", CASCADE)
    for node in range(3):
        start(it, node, f"--log-dir=logs{node}", script)
    assert it.codes(0, 1, 2) == [1, 1, 1], [it.err(node) for node in range(3)]
    report = read_report(tmp_path / "logs0")
    assert [(node["node"], node["host"]) for node in report["nodes"]] == [(n, f"host{n}") for n in range(3)]
    assert report["missing_nodes"] == []
    root = report["root_cause"]
    assert (root["rank"], root["host"], root["cause"], root["where"]) == (2, "host2", "gpu-fault", "train.py:9")
    labels = {worker["rank"]: worker["label"] for worker in report["workers"]}
    assert labels == {0: "stopped by muster", 1: "consequence", 2: "root cause"}
    text = it.err(0)
    assert "failed as a consequence: rank 1\n" in text and "terminated by muster after the failure: rank 0\n" in text
    assert re.search(r"Root Cause .*\n\[0\]:\n.*\n  host      : host2\n  rank      : 2 \(local_rank: 0\)\n", text)
    # Who was told first gives the exit status, and says it on every node.
    assert all(re.search(r"rank 1 \(local_rank 0, pid \d+\) on host1 exited with code 1 \(ConnectionResetError", it.err(n))
               for n in range(3))


@pytest.mark.parametrize("start", [static, elastic])
def test_a_lost_node_is_the_root_cause_of_what_breaks_after_it(job, tmp_path, start):
    it = job(3)
    script = write(tmp_path, "lost.py", """
import os, signal, time
rank = os.environ["RANK"]
open("up" + rank, "w").close()
if rank == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deadline = time.monotonic() + 60
    while not os.path.exists("told"): assert time.monotonic() < deadline
    raise ConnectionResetError("Connection reset by peer")
while True: signal.pause()
""")
    for node in range(3):
        start(it, node, f"--log-dir=logs{node}", script)
    wait_for(lambda: all((tmp_path / f"up{rank}").exists() for rank in range(3)), "all workers")
    it.running[2].send_signal(signal.SIGKILL)
    it.said(0, "lost node 2")
    (tmp_path / "told").touch()
    assert it.codes(0, 1) == [76, 76], (it.err(0), it.err(1))
    report = read_report(tmp_path / "logs0")
    assert report["root_cause"] is None and "lost node 2 (host2)" in report["text"]
    assert report["missing_nodes"] == [2]
    assert {worker["rank"] for worker in report["workers"]} == {0, 1}


def test_a_second_signal_does_not_wait_for_the_other_nodes_parts(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "slow.py", """
import os, signal
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: open("asked", "w").close())
    open("up", "w").close()
    while True: signal.pause()
while not os.path.exists("up"): pass
raise SystemExit(4)
""")
    for node in range(2):
        it.start(node, 1, f"--node-rank={node}", "--shutdown-timeout=1000", f"--log-dir=logs{node}", script)
    wait_for((tmp_path / "asked").exists, "the stop on the other node")
    it.running[0].send_signal(signal.SIGTERM)
    it.running[0].send_signal(signal.SIGINT)
    it.running[1].send_signal(signal.SIGTERM)
    assert it.codes(0, 1) == [4, 4], (it.err(0), it.err(1))
    assert read_report(tmp_path / "logs0")["root_cause"]["rank"] == 0
