# SPDX-License-Identifier: Apache-2.0
"""Static rendezvous of several nodes, each a network namespace of this machine."""
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from launcher_support import MUSTER, alive, clean_environment, wait_for, write_at_once
from netns import Nodes


@pytest.fixture
def nodes():
    made = []

    def make(count):
        made.append(Nodes(count))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Cluster:
    """The launchers of one job, one per node."""

    def __init__(self, nodes, tmp_path):
        self.nodes, self.tmp_path, self.running = nodes, tmp_path, {}

    def start(self, node, count, *args, nnodes=None, node_rank=None, **env):
        command = self.nodes.command(
            node, MUSTER, f"--nnodes={nnodes or len(self.nodes.names)}",
            f"--node-rank={node if node_rank is None else node_rank}", f"--master-addr={self.nodes.address(0)}",
            "--master-port=29511", f"--local-addr=host{node}", f"--nproc-per-node={count}", *args)
        process = subprocess.Popen(command, cwd=self.tmp_path, env=clean_environment(NODE=node, **env),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.running[node] = process
        return process

    def finish(self, timeout=60):
        out = {}
        for node, process in self.running.items():
            stdout, stderr = process.communicate(timeout=timeout)
            out[node] = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        return out

    def close(self):
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def cluster(nodes, tmp_path):
    made = []

    def make(count):
        made.append(Cluster(nodes(count), tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()


SHOW = """
import json, os
keys = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
        "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"]
os.write(1, (json.dumps({k: os.environ[k] for k in keys}) + "\\n").encode())  # in one piece: ranks share the stream
"""


def write(tmp_path, name, text):
    return write_at_once(tmp_path / name, text)


def test_ranks_are_contiguous_over_nodes_of_different_size_and_role(cluster, tmp_path):
    job = cluster(3)
    script = write(tmp_path, "show.py", SHOW)
    for node, (count, role) in enumerate([(2, "a"), (1, "b"), (3, "a")]):
        job.start(node, count, f"--role={role}", script)
    results = job.finish()
    workers = []
    for node, result in results.items():
        assert result.returncode == 0, result.stderr
        workers += [json.loads(line) for line in result.stdout.splitlines()]
    workers.sort(key=lambda w: int(w["RANK"]))
    assert [w["RANK"] for w in workers] == list("012345")
    assert [w["LOCAL_RANK"] for w in workers] == list("010012")
    assert [w["GROUP_RANK"] for w in workers] == list("001222")
    assert [w["ROLE_RANK"] for w in workers] == list("010234")
    assert [w["ROLE_WORLD_SIZE"] for w in workers] == list("551555")
    assert {(w["WORLD_SIZE"], w["GROUP_WORLD_SIZE"], w["MASTER_ADDR"], w["MASTER_PORT"], w["TORCHELASTIC_USE_AGENT_STORE"],
             w["TORCHELASTIC_RUN_ID"]) for w in workers} == {("6", "3", "10.77.0.1", "29511", "True", "none")}


def test_a_failure_on_one_node_stops_all_with_the_same_exit_code(cluster, tmp_path):
    job = cluster(2)
    script = write(tmp_path, "fail.py", """
import os, signal, sys
open("pid" + os.environ["RANK"], "w").write(str(os.getpid()))
if os.environ["RANK"] == "2":
    while not all(os.path.exists(f) and os.path.getsize(f) for f in ("pid0", "pid1")): pass
    sys.exit(9)
signal.pause()
""")
    job.start(0, 2, script)
    job.start(1, 1, script)
    results = job.finish()
    assert [results[n].returncode for n in range(2)] == [9, 9]
    assert "node 1: rank 2 (local_rank 0, pid" in results[0].stderr and "host1 exited with code 9" in results[0].stderr
    # The first node tells the whole story, and the node where it began its own part.
    assert all("Root Cause" in results[n].stderr and "host      : host1" in results[n].stderr for n in range(2))
    assert "terminated by muster after the failure: ranks 0-1" in results[0].stderr
    for rank in range(3):
        pid = int((tmp_path / f"pid{rank}").read_text())
        wait_for(lambda: not alive(pid), "workers to be gone")


def test_a_failure_restarts_all_nodes_in_the_same_attempt_with_a_fresh_store_at_the_same_port(cluster, tmp_path):
    job = cluster(2)
    script = write(tmp_path, "restart.py", """
import os, signal, socket, sys
e = os.environ
os.write(1, ("%s %s %s\\n" % (e["RANK"], e["TORCHELASTIC_RESTART_COUNT"], e["MASTER_PORT"])).encode())
socket.create_connection((e["MASTER_ADDR"], int(e["MASTER_PORT"])), 10).close()
if e["TORCHELASTIC_RESTART_COUNT"] == "0":
    if e["RANK"] == "0": sys.exit(0)   # finished early, but the job is not over
    if e["RANK"] == "2": sys.exit(5)
    signal.pause()
""")
    for node in range(2):
        job.start(node, 2, "--max-restarts=1", script)
    results = job.finish()
    lines = [line.split() for r in results.values() for line in r.stdout.splitlines()]
    assert [results[n].returncode for n in range(2)] == [0, 0], results
    assert sorted((rank, attempt) for rank, attempt, _ in lines if attempt == "1") == [(str(r), "1") for r in range(4)]
    ports = {attempt: {p for _, a, p in lines if a == attempt} for attempt in "01"}
    assert ports == {"0": {"29511"}, "1": {"29511"}}  # a firewall may let no other through


def test_after_a_restart_a_node_that_comes_too_late_is_told_so(cluster, tmp_path):
    job = cluster(2)
    script = write(tmp_path, "again.py", """
import os, signal, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": sys.exit(5)
open("again" + os.environ["RANK"], "w").close()
while not os.path.exists("go"): pass
""")
    for node in range(2):
        job.start(node, 1, "--max-restarts=1", script)
    wait_for(lambda: all((tmp_path / f"again{rank}").exists() for rank in range(2)), "the restart")
    first = dict(job.running)
    late = job.start(1, 1, "--max-restarts=1", script)
    _, err = late.communicate(timeout=30)
    (tmp_path / "go").write_text("")
    job.running = first
    results = job.finish()
    assert late.returncode == 78 and "host1 has --node-rank=1, which host1 has already" in err, err
    assert [results[n].returncode for n in range(2)] == [0, 0], results


def test_threads_are_said_by_the_first_node_only(cluster, tmp_path):
    job = cluster(2)
    for node in range(2):
        job.start(node, 2, "--report-bindings", "true", OMP_NUM_THREADS=None, HWLOC_SYNTHETIC="pack:2 numa:1 core:8 pu:1")
    results = job.finish()
    assert [results[n].returncode for n in range(2)] == [0, 0], results
    assert [results[n].stderr.count("OMP_NUM_THREADS is not set: each of the 2 workers gets 8 threads") for n in range(2)] == [1, 0]


def test_the_node_that_serves_the_store_waits_for_the_others(cluster, tmp_path):
    job = cluster(2)
    script = write(tmp_path, "late.py", """
import os, socket, sys, time
if os.environ["RANK"] == "1":
    while not os.path.exists("go"): time.sleep(0.01)
    socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 5).close()
open("done" + os.environ["RANK"], "w").write("")
""")
    first, _ = job.start(0, 1, script), job.start(1, 1, script)
    wait_for((tmp_path / "done0").exists, "rank 0 to finish")
    assert first.poll() is None
    (tmp_path / "go").write_text("")
    assert [r.returncode for r in job.finish().values()] == [0, 0]


def test_missing_nodes_are_named_while_waiting_and_at_the_end(cluster, tmp_path):
    job = cluster(4)
    script = write(tmp_path, "never.py", "open('started', 'w')")
    # The last one speaks when it has waited for 3 s; by then the others are here.
    for node in (0, 2, 1):
        job.start(node, 1, "--rdzv-conf=timeout=8", script)
    seen = job.running.pop(1)
    assert "rendezvous: 3/4 nodes; node rank 3 never connected; giving up in" in seen.stderr.readline()
    seen.kill()
    seen.communicate()
    results = job.finish()
    for node in (0, 2):
        assert results[node].returncode == 69
        assert re.search(r"rendezvous: 2/4 nodes; host1 connected, then dropped: .*; node rank 3 never connected; giving up in \d s",
                         results[node].stderr), results[node].stderr
        assert re.search(r"rendezvous timed out after 8 s: 2 of 4 nodes were ready\n  host1: connection: connected, then dropped: .*\n"
                         r"  node rank 3: never connected; does muster run there, ", results[node].stderr), results[node].stderr
    assert not (tmp_path / "started").exists()


def test_a_node_whose_store_is_not_there_says_so_and_gives_up(cluster, tmp_path):
    job = cluster(2)
    job.start(1, 1, "--rdzv-conf=timeout=4", "true")
    result = job.finish()[1]
    assert result.returncode == 69
    assert re.search(r"waiting for the coordinator at 10.77.0.1:29511 \(node 0\): connect 10.77.0.1:29511: Connection refused", result.stderr), result.stderr
    assert re.search(r"tried for 4\.\d s\); is the coordinator running", result.stderr), result.stderr


@pytest.mark.parametrize("node, program, code", [(0, "gone/run", 127), (1, "gone/run", 127), (1, "plain/run", 126)])
def test_a_node_without_the_program_tells_the_others_and_all_end_with_its_code(cluster, tmp_path, node, program, code):
    job = cluster(2)
    for folder in ("plain", "whole"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "run", "#!/bin/sh\ntouch ran\n")
    (tmp_path / "whole/run").chmod(0o755)
    job.start(1 - node, 1, "whole/run")
    job.start(node, 1, program)
    results = job.finish()
    assert [results[n].returncode for n in range(2)] == [code, code], results
    why = rf"cannot run the program: {program}: "
    assert re.match(rf"muster: host{node} {why}.*; telling the other nodes\n", results[node].stderr), results[node].stderr
    assert re.search(rf"node {node} \(host{node}\) is unhealthy: {why}", results[1 - node].stderr), results[1 - node].stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1"])
def test_a_loopback_address_of_node_0_is_said_to_lead_each_host_to_itself(cluster, tmp_path, address):
    job = cluster(2)
    for node in range(2):
        job.start(node, 1, f"--master-addr={address}", "--rdzv-conf=timeout=5", "true")
    results = job.finish()
    assert [results[n].returncode for n in range(2)] == [69, 69], results
    for node, what in ((0, "rendezvous: 1/2 nodes; "), (1, "waiting for the coordinator at ")):
        assert re.search(f"{what}.*; {address} leads each host to itself; with several hosts, give an address that all reach",
                         results[node].stderr), results[node].stderr


def test_a_node_rank_given_twice_is_refused(cluster, tmp_path):
    job = cluster(3)
    script = write(tmp_path, "show.py", SHOW)
    job.start(0, 1, script)
    job.start(1, 1, script)
    # Whichever of the two came second is refused.
    twin = subprocess.Popen(job.nodes.command(2, MUSTER, "--nnodes=3", "--node-rank=1", "--master-addr=10.77.0.1",
                                              "--master-port=29511", "--local-addr=host2", script), cwd=tmp_path,
                            env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: [p for p in (twin, job.running[1]) if p.poll() is not None], "one of the twins to be refused")
    refused = twin if twin.poll() is not None else job.running[1]
    _, err = refused.communicate(timeout=10)
    assert refused.returncode == 78
    assert re.search(r"host\d has --node-rank=1, which host\d has already; every node needs its own", err), err
    twin.kill()
    twin.communicate()


def test_nodes_that_disagree_about_the_job_are_told(cluster, tmp_path):
    job = cluster(3)
    # Node 0's options count, whoever comes first.
    job.start(1, 1, "true", nnodes=3)
    job.start(0, 1, "--rdzv-conf=timeout=8", "true", nnodes=2)
    results = job.finish()
    assert [results[n].returncode for n in range(2)] == [69, 78], results
    for result in results.values():
        assert "host1 wants --nnodes=3, the job has --nnodes=2" in result.stderr
    assert "host1: settings: wants --nnodes=3, the job has --nnodes=2" in results[0].stderr


def test_a_signal_to_one_node_ends_all(cluster, tmp_path):
    job = cluster(2)
    script = write(tmp_path, "sleep.py", "import os, signal; open('pid' + os.environ['RANK'], 'w').write(str(os.getpid())); signal.pause()")
    for node in range(2):
        job.start(node, 1, script)
    wait_for(lambda: all((tmp_path / f"pid{r}").exists() and (tmp_path / f"pid{r}").read_text() for r in range(2)), "workers")
    # The launcher has replaced "ip netns exec".
    job.running[1].send_signal(signal.SIGTERM)
    results = job.finish()
    assert [results[n].returncode for n in range(2)] == [143, 143]
    assert "job stopped by SIGTERM on host1" in results[0].stderr


RESTARTING = """
import os, signal, sys
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"started{rank}_{attempt}", "w") as file: file.write(str(os.getpid()))
if rank == "0":
    signal.signal(signal.SIGTERM, lambda *_: open("asked", "w").close())
    open("ready", "w").close()
if rank == "1":
    while not os.path.exists("ready"): pass
    sys.exit(7)
while True: signal.pause()
"""


@pytest.mark.parametrize("node", [0, 1])
def test_a_signal_to_one_node_during_a_restart_ends_all(cluster, tmp_path, node):
    job = cluster(2)
    script = write(tmp_path, "restarting.py", RESTARTING)
    for each in range(2):
        job.start(each, 1, "--max-restarts=5", "--shutdown-timeout=1000", script)
    # Node 0's worker takes its time, so node 1 waits for the next attempt already.
    wait_for((tmp_path / "asked").exists, "the stop for the restart")
    job.running[node].send_signal(signal.SIGTERM)
    if node == 1:
        job.running[1].wait(30)
        os.kill(int((tmp_path / "started0_0").read_text()), signal.SIGKILL)
    results = job.finish()
    assert [results[n].returncode for n in range(2)] == [143, 143]
    assert f"job stopped by SIGTERM on host{node}" in results[1 - node].stderr
    assert not list(tmp_path.glob("started*_1"))


def test_a_node_lost_during_a_restart_ends_the_others(cluster, tmp_path):
    job = cluster(3)
    script = write(tmp_path, "restarting.py", RESTARTING)
    for each in range(3):
        job.start(each, 1, "--max-restarts=5", "--shutdown-timeout=1000", script)
    wait_for((tmp_path / "asked").exists, "the stop for the restart")
    job.running[1].kill()
    job.running[1].wait(30)
    os.kill(int((tmp_path / "started0_0").read_text()), signal.SIGKILL)
    results = job.finish(timeout=30)
    for each in (0, 2):
        assert results[each].returncode == 76
        assert "lost node 1 (host1)" in results[each].stderr
    assert not list(tmp_path.glob("started*_1"))


def test_a_node_that_stops_while_waiting_makes_room_for_another(cluster, tmp_path):
    job = cluster(3)
    script = write(tmp_path, "show.py", SHOW)
    first = job.start(1, 2, script)
    job.start(0, 1, script)
    # Node 0 names node 2 alone as missing: node 1 is known to be here.
    said = ""
    while "rendezvous: 2/3 nodes; node rank 2 never connected;" not in said:
        line = job.running[0].stderr.readline()
        assert line, said
        said += line
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 143
    said = ""
    while "rendezvous: 1/3 nodes; node ranks 1-2 never connected;" not in said:
        line = job.running[0].stderr.readline()
        assert line, said
        said += line
    job.start(1, 1, script)
    job.start(2, 1, script)
    results = job.finish()
    assert [results[n].returncode for n in range(3)] == [0, 0, 0], results
    assert sorted(json.loads(line)["RANK"] for r in results.values() for line in r.stdout.splitlines()) == list("012")


def test_a_node_rank_beyond_node_0s_nnodes_is_told_at_once(cluster, tmp_path):
    job = cluster(3)
    job.start(0, 1, "sh", "-c", "until [ -e refused ]; do :; done", nnodes=2)
    job.start(1, 1, "sh", "-c", "true", nnodes=2)
    job.start(2, 1, "sh", "-c", "true", nnodes=3)
    refused = job.running.pop(2)
    _, err = refused.communicate(timeout=30)
    (tmp_path / "refused").write_text("")
    assert refused.returncode == 78
    assert "host2 wants --nnodes=3, the job has --nnodes=2" in err
    assert [r.returncode for r in job.finish().values()] == [0, 0]


def test_node_0_does_not_wait_for_a_lost_node_and_says_at_once_why_it_ends(cluster, tmp_path):
    job = cluster(2)
    script = write(tmp_path, "sleep.py", "import os, signal; open('pid' + os.environ['RANK'], 'w').write(str(os.getpid())); signal.pause()")
    for node in range(2):
        job.start(node, 1, "--shutdown-timeout=1000", script)
    wait_for(lambda: all((tmp_path / f"pid{r}").exists() and (tmp_path / f"pid{r}").read_text() for r in range(2)), "workers")
    job.running[1].kill()
    # It waits for others for the grace period and more.
    results = job.finish(timeout=60)
    assert results[0].returncode == 76
    assert "exit status 76" in results[0].stderr


def test_losing_node_0_stops_the_others(cluster, tmp_path):
    job = cluster(2)
    script = write(tmp_path, "sleep.py", "import os, signal; open('pid' + os.environ['RANK'], 'w').write(str(os.getpid())); signal.pause()")
    for node in range(2):
        job.start(node, 1, script)
    wait_for(lambda: all((tmp_path / f"pid{r}").exists() and (tmp_path / f"pid{r}").read_text() for r in range(2)), "workers")
    job.running[0].kill()
    results = job.finish()
    assert results[1].returncode == 76
    assert "lost the coordinator at 10.77.0.1:29511 (node 0): " in results[1].stderr
    for rank in range(2):
        pid = int((tmp_path / f"pid{rank}").read_text())
        wait_for(lambda: not alive(pid), "workers to be gone")


def test_losing_another_node_stops_node_0(cluster, tmp_path):
    job = cluster(2)
    script = write(tmp_path, "sleep.py", "import os, signal; open('pid' + os.environ['RANK'], 'w').write(str(os.getpid())); signal.pause()")
    for node in range(2):
        job.start(node, 1, script)
    wait_for(lambda: all((tmp_path / f"pid{r}").exists() and (tmp_path / f"pid{r}").read_text() for r in range(2)), "workers")
    job.running[1].kill()
    results = job.finish()
    assert results[0].returncode == 76
    assert "lost node 1 (host1)" in results[0].stderr


FORWARDER = """
import socket, sys, threading
def copy(source, sink):
    while data := source.recv(1 << 16): sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)
server = socket.create_server((sys.argv[1], 29511))
print("ready", flush=True)
while True:
    client, _ = server.accept()
    try:
        ahead = socket.create_connection((sys.argv[2], 29511))
    except ConnectionRefusedError:  # node 0 does not listen yet
        client.close()
        continue
    for ends in ((client, ahead), (ahead, client)): threading.Thread(target=copy, args=ends, daemon=True).start()
"""


def test_a_node_behind_address_translation_takes_part_and_its_loss_is_noticed(cluster, tmp_path):
    """Node 1 reaches node 0 by a gateway's address only, from which node 0 sees it come."""
    job = cluster(3)
    gateway = subprocess.Popen(job.nodes.command(2, sys.executable, "-c", FORWARDER, job.nodes.address(2), job.nodes.address(0)),
                               stdout=subprocess.PIPE, text=True)
    try:
        assert gateway.stdout.readline() == "ready\n"
        script = write(tmp_path, "sleep.py", "import os, signal; open('pid' + os.environ['RANK'], 'w').write(str(os.getpid())); signal.pause()")
        job.start(0, 1, script, nnodes=2)
        job.start(1, 1, f"--master-addr={job.nodes.address(2)}", script, nnodes=2)
        wait_for(lambda: all((tmp_path / f"pid{r}").exists() and (tmp_path / f"pid{r}").read_text() for r in range(2)), "workers")
        job.running[1].kill()
        results = job.finish()
    finally:
        gateway.kill()
        gateway.communicate()
    assert results[0].returncode == 76
    assert "lost node 1 (host1)" in results[0].stderr


def test_a_busy_port_names_its_owner(tmp_path):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        result = subprocess.run([MUSTER, "--nnodes=1", f"--master-port={port}", "--nproc-per-node=2", "touch", tmp_path / "ran"],
                                capture_output=True, text=True, timeout=60, env=clean_environment())
    assert result.returncode == 75
    assert len(result.stderr.strip().splitlines()) == 1
    assert f"127.0.0.1:{port}" in result.stderr and f"held by pid {os.getpid()} (" in result.stderr
    assert not (tmp_path / "ran").exists()
