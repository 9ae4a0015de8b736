# SPDX-License-Identifier: Apache-2.0
"""Failures and signals in jobs with a coordinator, over nodes that are network namespaces of this machine."""
import os
import re
import signal
import subprocess
import time

import pytest

from elastic_support import PORT, STAY, job, write  # noqa: F401
from launcher_support import BIN, alive, wait_for


FAIL = """
import os, signal, sys
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, ("%s %s %s\\n" % (rank, attempt, os.environ["MASTER_PORT"])).encode())
open("at%s_%s" % (rank, attempt), "w").close()
if attempt == os.environ["LAST"]: sys.exit(0)
if rank == "2":
    while not all(os.path.exists("at%d_%s" % (r, attempt)) for r in range(3)): pass
    sys.exit(7)
signal.pause()
"""


def test_a_worker_s_failure_restarts_all_nodes_in_one_generation(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "fail.py", FAIL)
    for node, count in ((0, 2), (1, 1)):
        it.start(node, count, f"--node-rank={node}", script, restarts=2, LAST=2)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    lines = [line.split() for node in (0, 1) for line in it.out(node).splitlines()]
    assert sorted((rank, attempt) for rank, attempt, _ in lines) == sorted((r, a) for r in "012" for a in "012")
    ports = [{port for _, a, port in lines if a == attempt} for attempt in "012"]
    assert all(len(p) == 1 for p in ports) and len(set.union(*ports)) == 3  # a fresh store each time
    for node in (0, 1):
        for restart in (1, 2):
            assert re.search(rf"rank 2 .* on host1 exited with code 7; restart {restart} of 2", it.err(node))


@pytest.mark.parametrize("what", ["worker", "agent"])
def test_a_failure_is_told_without_a_heartbeat(job, tmp_path, what):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    it.spawn("d", 2, BIN / "musterd", "--unprotected", f"--port={PORT}", "--heartbeat-interval=600")
    for node in (0, 1):
        it.start(node, 1, f"--node-rank={node}", script, nnodes=2, backend="muster", endpoint=it.nodes.address(2),
                 conf="keep_alive_interval=600")
    pids = it.started("2.0", 0, 1)
    if what == "worker":
        os.kill(pids[1], signal.SIGKILL)
        assert it.codes(0, 1) == [137, 137], it.err(0)
    else:
        it.running[1].kill()
        assert it.codes(0) == [76], it.err(0)


def test_a_daemon_that_did_not_run_for_a_while_blames_no_agent(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    daemon = it.spawn("d", 2, BIN / "musterd", "--unprotected", f"--port={PORT}", "--heartbeat-interval=0.5", "--log-level=info")
    for node in (0, 1):
        it.start(node, 1, f"--node-rank={node}", script, nnodes=2, backend="muster", endpoint=it.nodes.address(2),
                 conf="keep_alive_interval=1,keep_alive_max_attempt=3")
    pids = it.started("2.0", 0, 1)
    # Past the agents' deadlines, once before and once after they gave their connections up for dead.
    for pause in (3.2, 4.5):
        daemon.send_signal(signal.SIGSTOP)
        until = time.monotonic() + pause
        wait_for(lambda: time.monotonic() > until, "the heartbeats to be overdue")
        daemon.send_signal(signal.SIGCONT)
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1), it.err("d"))
    assert "lost" not in it.err("d").replace("lost the coordinator", ""), it.err("d")
    assert all(not alive(pid) for pid in pids)


def test_a_spent_budget_ends_all_nodes_with_the_root_cause(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "fail.py", FAIL)
    for node, count in ((0, 2), (1, 1)):
        it.start(node, count, f"--node-rank={node}", script, restarts=1, LAST=9)
    assert it.codes(0, 1) == [7, 7], (it.err(0), it.err(1))
    for node in (0, 1):
        assert re.search(r"rank 2 .* on host1 exited with code 7; exit status 7", it.err(node))
    # The first node tells the whole story, and the node where it began its own part.
    for node in (0, 1):
        assert re.search(r"Root Cause .*\n\[0\]:\n.*\n  host      : host1\n  rank      : 2 ", it.err(node))
    assert "terminated by muster after the failure: ranks 0-1" in it.err(0)


def test_a_killed_agent_is_told_at_once_and_the_rest_goes_on(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    for node in range(3):
        it.start(node, 1, f"--node-rank={node}", script, nnodes="2:3", restarts=1, conf="last_call_timeout=0.2")
    pids = it.started("3.0", 0, 1, 2)
    it.running[1].kill()
    it.started("2.1", 0, 1)
    for node in (0, 2):
        assert re.search(r"lost node \d \(host1\): .*; restart 1 of 1", it.err(node))
    for pid in pids:
        wait_for(lambda: not alive(pid), "the first generation's workers to be gone")
    (tmp_path / "go").touch()
    assert it.codes(0, 2) == [0, 0], it.err(0)


def test_a_killed_agent_ends_the_others_where_no_restart_is_left(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "stay.py", STAY)
    for node in range(2):
        it.start(node, 1, f"--node-rank={node}", script)
    pids = it.started("2.0", 0, 1)
    it.running[1].kill()
    assert it.codes(0) == [76]
    assert re.search(r"lost node 1 \(host1\): .*; exit status 76", it.err(0))
    wait_for(lambda: not any(alive(pid) for pid in pids), "workers to be gone")


def test_a_spare_takes_the_place_of_a_killed_node_and_ranks_stay(job, tmp_path):
    it = job(4)
    script = write(tmp_path, "stay.py", STAY)
    it.start(0, 1, "--spares=1", script, nnodes=3, restarts=1)
    it.said(0, "this agent runs the coordinator")
    for node in (1, 2):
        it.start(node, node + 1, "--spares=1", script, nnodes=3, restarts=1)
    it.started("6.0", *range(6))
    first = {w: it.err(w) for w in (0, 1, 2)}
    it.start(3, 2, "--spares=1", script, nnodes=3, restarts=1)
    it.said(3, r"this node has no workers: spare 1 of 1; 3 nodes run generation 0")
    it.running[1].kill()
    it.started("6.1", *range(6))
    ranks = lambda text, generation: re.findall(rf"generation {generation}: (node \d of 3, ranks \d to \d of 6)", text)
    for node in (0, 2):
        assert ranks(it.err(node), 1) == ranks(first[node], 0) != []
    assert ranks(it.err(3), 1) == ranks(first[1], 0) != []
    (tmp_path / "go").touch()
    assert it.codes(0, 2, 3) == [0, 0, 0], it.err(3)


def test_a_spare_that_does_not_reach_the_first_node_leaves_before_it_is_needed(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    conf = "keep_alive_interval=1,keep_alive_max_attempt=5"
    start = lambda node, *args: it.start(node, 1, "--spares=1", *args, script, nnodes=2, conf=conf)
    # The first node is another than the one that runs the coordinator, which the spare reaches.
    start(0, "--node-rank=1")
    start(1, "--node-rank=0")
    it.started("2.0", 0, 1)
    it.nodes.lose(2, 1)
    start(2)
    assert it.codes(2) == [69]
    assert re.search(r"host2 could take no place in the job: it cannot reach the first node, host1: "
                     r".*10\.77\.0\.2:\d+", it.err(2)), it.err(2)
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0]


def test_a_spare_that_was_not_needed_ends_in_success(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "stay.py", STAY)
    it.start(0, 1, "--spares=1", script, nnodes=1)
    it.started("1.0", 0)
    it.start(1, 1, "--spares=1", script, nnodes=1)
    it.said(1, "spare 1 of 1")
    it.said(1, r"host0 answers at 10\.77\.0\.1 from 10\.77\.0\.2")
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0]
    assert "the job succeeded without this node" in it.err(1)
    assert it.out(1) == ""


def test_a_spare_takes_the_place_of_a_node_that_is_asked_to_stop(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    it.spawn("d", 2, BIN / "musterd", "--unprotected", f"--port={PORT}")
    it.start(0, 1, "--spares=1", script, nnodes=1, backend="muster", endpoint=it.nodes.address(2))
    it.started("1.0", 0)
    it.start(1, 1, "--spares=1", script, nnodes=1, backend="muster", endpoint=it.nodes.address(2))
    it.said(1, "spare 1 of 1")
    (tmp_path / "pid0_1.0").unlink()
    it.running[0].send_signal(signal.SIGTERM)
    assert it.codes(0) == [143]
    it.started("1.0", 0)  # no restart was used
    (tmp_path / "go").touch()
    assert it.codes(1) == [0], it.err(1)


@pytest.mark.parametrize("backend", ["c10d", "muster"])
def test_a_connection_that_breaks_under_a_living_agent_ends_nothing(job, tmp_path, backend):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    head = 2 if backend == "muster" else 0
    if backend == "muster":
        it.spawn("d", 2, BIN / "musterd", "--unprotected", f"--port={PORT}", "--log-level=info")
    for node in (0, 1):
        it.start(node, 1, f"--node-rank={node}", script, nnodes=2, backend=backend, endpoint=it.nodes.address(head))
    pids = it.started("2.0", 0, 1)
    done = subprocess.run(it.nodes.command(1, "ss", "-K", "dst", it.nodes.address(head), "dport", "=", f":{PORT}"),
                          capture_output=True, text=True)
    if "Operation not supported" in done.stderr:
        pytest.skip("this kernel does not let ss -K break connections (CONFIG_INET_DIAG_DESTROY)")
    it.said("d" if backend == "muster" else 0, "job none: host1 is back, generation 0 goes on")
    assert all(alive(pid) for pid in pids)
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))


def test_a_machine_with_a_broken_gpu_cools_down_and_a_spare_takes_the_place(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "ecc.py", """
import os, signal, sys
if os.environ["NODE"] == "1":
    while not os.path.exists("spare"): pass
    sys.exit("CUDA error: uncorrectable ECC error encountered")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    signal.pause()
while not os.path.exists("go"): signal.sigtimedwait([], 0.02)
""")
    for node in (0, 1):
        it.start(node, 1, "--spares=1", f"--node-rank={node}", script, nnodes=2, restarts=1, conf="cool_down=600")
    it.said(1, "generation 0: node 1 of 2")
    it.start(2, 1, "--spares=1", "--node-rank=2", script, nnodes=2, restarts=1, conf="cool_down=600")
    it.said(2, "spare 1 of 1")
    (tmp_path / "spare").touch()
    it.said(1, "this node has no workers")
    (tmp_path / "go").touch()
    assert it.codes(0, 1, 2) == [0, 0, 0], (it.err(0), it.err(1), it.err(2))
    assert "generation 1: node 1 of 2" in it.err(2)


def test_a_second_job_by_the_same_name_that_never_ran_is_no_success(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "stay.py", STAY)
    it.spawn("d", 0, BIN / "musterd", "--unprotected", f"--port={PORT}")
    it.start(0, 1, "--rdzv-id=same", script, nnodes=1, backend="muster")
    it.started("1.0", 0)
    it.start(1, 1, "--rdzv-id=same", "touch", tmp_path / "ran", nnodes=1, backend="muster")
    it.said(1, "all places of the job are taken .another job needs another --rdzv-id.")
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 69], it.err(1)
    assert re.search(r"error: rendezvous: .*succeeded without this node.*one more than --nnodes=1 and --spares=0: nothing was "
                     r"run here.*another --rdzv-id.*exit status 69", it.err(1))
    assert not (tmp_path / "ran").exists()


def test_losing_the_coordinator_ends_the_others_and_names_it(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "stay.py", STAY)
    for node in range(2):
        it.start(node, 1, script, nnodes="1:2", restarts=3, conf="last_call_timeout=60")
    pids = it.started("2.0", 0, 1)
    it.running[0].kill()
    assert it.codes(1) == [76]
    assert re.search(r"lost the coordinator at 10.77.0.1:29433: .*exit status 76", it.err(1))
    wait_for(lambda: not any(alive(pid) for pid in pids), "workers to be gone")


def test_a_frozen_agent_is_lost_after_missed_heartbeats_and_stops_its_workers(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    for node in range(3):
        it.start(node, 1, f"--node-rank={node}", script, nnodes="2:3", restarts=1,
                 conf="last_call_timeout=0.2,keep_alive_interval=1,keep_alive_max_attempt=5")
    it.started("3.0", 0, 1, 2)
    frozen = int((tmp_path / "pid-of-1").read_text())
    it.running[1].send_signal(signal.SIGSTOP)
    it.started("2.1", 0, 1)
    assert re.search(r"lost node \d \(host1\): no heartbeat for \d.*; restart 1 of 1", it.err(2))
    it.running[1].send_signal(signal.SIGCONT)
    assert it.codes(1) == [76]
    assert re.search(r"gave this node up for job none: no heartbeat.*exit status 76", it.err(1))
    wait_for(lambda: not alive(frozen), "the frozen node's worker to be gone")
    (tmp_path / "go").touch()
    assert it.codes(0, 2) == [0, 0]


@pytest.mark.parametrize("node", [0, 1])
def test_a_signal_to_one_node_of_a_fixed_job_ends_all(job, tmp_path, node):
    it = job(2)
    script = write(tmp_path, "stay.py", STAY)
    for each in range(2):
        it.start(each, 1, script, restarts=3)
    it.started("2.0", 0, 1)
    it.running[node].send_signal(signal.SIGTERM)
    assert it.codes(0, 1) == [143, 143]
    assert f"job stopped by SIGTERM on host{node}" in it.err(1 - node)


def test_a_signalled_node_leaves_where_the_rest_suffices(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    for node in range(3):
        it.start(node, 1, script, nnodes="2:3", conf="last_call_timeout=0.2")
    it.started("3.0", 0, 1, 2)
    it.forget("2.0")
    it.running[2].send_signal(signal.SIGTERM)
    assert it.codes(2) == [143]
    it.started("2.0", 0, 1)
    for node in (0, 1):
        assert re.search(r"node \d \(host2\) left the job: job stopped by SIGTERM on host2; the workers start again", it.err(node))
    # Two are the least: now it ends.
    it.running[1].send_signal(signal.SIGTERM)
    assert it.codes(0, 1) == [143, 143]


DEAF = """
import os, signal, sys
rank = os.environ["RANK"]
signal.signal(signal.SIGTERM, lambda *_: open("termed" + rank, "w").close())
open("here" + rank, "w").close()
if rank == "0":
    while not os.path.exists("here1"): pass
    sys.exit(7)
while True: signal.pause()
"""


@pytest.mark.parametrize("end", ["signal", "kill"])
def test_a_job_that_ends_while_workers_are_being_stopped_ends_there_too(job, tmp_path, end):
    it = job(2)
    script = write(tmp_path, "deaf.py", DEAF)
    it.start(0, 1, "--node-rank=0", "--shutdown-timeout=2", script, restarts=3)
    it.start(1, 1, "--node-rank=1", "--shutdown-timeout=2", script, restarts=3)
    wait_for(lambda: (tmp_path / "termed1").exists(), "node 1 to stop its worker")
    # Node 0, which runs the coordinator, has stopped its own and waits for the next generation.
    if end == "signal":
        it.running[0].send_signal(signal.SIGTERM)
        assert it.codes(0, 1) == [143, 143], it.err(1)
    else:
        it.running[0].kill()
        assert it.codes(1) == [76], it.err(1)
