# SPDX-License-Identifier: Apache-2.0
"""Gathering at a coordinator (--rdzv-backend=c10d, muster), over nodes that are network namespaces of this machine."""
import os
import re
import signal
import socket
import subprocess

import pytest

from elastic_support import PORT, SECRET, SHOW, STAY, job, write  # noqa: F401
from launcher_support import BIN, MUSTER, alive, clean_environment, wait_for
from netns import ip


def test_two_nodes_of_different_size_gather_at_the_agent_of_the_endpoint(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    it.start(1, 3, "--node-rank=1", "--role=b", script, NCCL_SOCKET_IFNAME="mine")
    it.start(0, 1, "--node-rank=0", "--role=a", script)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    workers = it.workers(0, 1)
    assert [w["RANK"] for w in workers] == list("0123")
    assert [w["NODE"] for w in workers] == list("0111")
    assert [w["LOCAL_RANK"] for w in workers] == list("0012")
    assert [w["ROLE_RANK"] for w in workers] == list("0012")
    assert [w["ROLE_WORLD_SIZE"] for w in workers] == list("1333")
    assert [w["NCCL_SOCKET_IFNAME"] for w in workers] == ["eth0", "mine", "mine", "mine"]
    assert {(w["WORLD_SIZE"], w["GROUP_WORLD_SIZE"], w["MASTER_ADDR"], w["GLOO_SOCKET_IFNAME"],
             w["TORCHELASTIC_USE_AGENT_STORE"], w["TORCHELASTIC_RUN_ID"], w["TORCHELASTIC_RESTART_COUNT"])
            for w in workers} == {("4", "2", "10.77.0.1", "eth0", "True", "none", "0")}
    assert len({w["MASTER_PORT"] for w in workers}) == 1
    assert re.search(r"host0 answers at 10.77.0.1:\d+ from 10.77.0.2 \(eth0\)", it.err(1))
    # Said once, by the first node.
    assert [it.err(n).count("no secret is set") for n in (0, 1)] == [1, 0]


def test_nodes_gather_at_a_musterd_that_knows_the_secret(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "show.py", SHOW + "assert 'MUSTER_SECRET' not in os.environ\n")
    it.spawn("d", 2, BIN / "musterd", f"--port={PORT}", "--log-level=info", env=clean_environment(MUSTER_SECRET=SECRET))
    secret = write(tmp_path, "secret", SECRET + "\n")
    secret.chmod(0o600)
    endpoint = it.nodes.address(2)
    it.start(0, 1, script, nnodes=2, backend="muster", endpoint=endpoint, MUSTER_SECRET=SECRET)
    it.start(1, 2, f"--secret-file={secret}", script, nnodes=2, backend="muster", endpoint=endpoint)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert [w["RANK"] for w in it.workers(0, 1)] == list("012")
    assert all("no secret is set" not in it.err(n) and SECRET not in it.err(n) for n in (0, 1))
    # The next job of the same name on the same daemon.
    it.start(0, 1, script, nnodes="1:2", backend="muster", endpoint=endpoint, conf="last_call_timeout=0.1",
             MUSTER_SECRET=SECRET, name="again")
    assert it.codes("again") == [0], it.err("again")
    # It serves on, until it is stopped.
    it.running["d"].terminate()
    assert it.codes("d") == [0]


def test_a_node_without_the_program_tells_those_who_wait_and_another_takes_its_place(job, tmp_path):
    it = job(2)
    it.start(0, 1, "true")
    it.start(1, 1, "gone/true")
    it.said(0, r"rendezvous: 1/2 nodes; host1 is unhealthy: cannot run the program: gone/true: no such file")
    it.start(1, 1, "true", name="other")
    assert it.codes(0, "other", 1) == [0, 0, 127], it.err(1)


def test_nodes_that_all_lack_the_program_end_with_its_code(job):
    it = job(2)
    it.start(0, 1, "gone/true")
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, "gone/true")
    assert it.codes(0, 1) == [127, 127], (it.err(0), it.err(1))


def test_a_rank_that_may_have_been_refused_is_not_said_to_have_never_connected(job, tmp_path):
    it = job(2)
    it.start(0, 1, "--node-rank=0", "true", conf="join_timeout=8", MUSTER_SECRET=SECRET)
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, "--node-rank=1", "true", MUSTER_SECRET="another secret of some length")
    assert it.codes(1, 0) == [78, 69]
    assert re.search(r"1/2 nodes; 10\.77\.0\.2 has another secret.*; node rank 1 did not join; giving up", it.err(0)), it.err(0)
    assert re.search(r"\n  node rank 1: did not join; does muster run there", it.err(0)), it.err(0)


def test_a_wrong_secret_is_refused_and_those_who_wait_are_told(job, tmp_path):
    it = job(2)
    it.start(0, 1, "true", conf="join_timeout=600", MUSTER_SECRET=SECRET)
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, "true", MUSTER_SECRET="another secret of some length")
    assert it.codes(1) == [78]
    assert re.search(r"error: .*secret.*exit status 78", it.err(1)), it.err(1)
    it.said(0, r"rendezvous: 1/2 nodes; 10\.77\.0\.2 has another secret")  # whoever proves nothing chooses no name
    it.start(1, 1, "true", name="other")
    assert it.codes("other") == [78]
    it.start(1, 1, "true", name="friend", MUSTER_SECRET=SECRET)
    assert it.codes(0, "friend") == [0, 0], it.err(0)


def test_another_nnodes_is_refused_with_both(job, tmp_path):
    it = job(2)
    it.start(0, 1, "true", nnodes=2)
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, "true", nnodes=3, name="wrong")
    assert it.codes("wrong") == [78]
    assert "wants --nnodes=3, the job has --nnodes=2" in it.err("wrong")
    it.start(1, 1, "true", nnodes=2)
    assert it.codes(0, 1) == [0, 0]


def test_who_waits_says_who_is_missing_and_the_timeout_ends_in_one_report(job, tmp_path):
    it = job(4)
    script = write(tmp_path, "never.py", "open('started', 'w')")
    for node in (0, 2):
        it.start(node, 1, f"--node-rank={node}", script, conf="join_timeout=8")
    it.said(2, r"rendezvous: 2/4 nodes; node ranks 1, 3 never connected; giving up in [1-7] s")
    assert it.codes(0, 2) == [69, 69]
    for node in (0, 2):
        assert re.search(r"rendezvous timed out after 8 s: 2 of 4 nodes were ready\n"
                         r"  node ranks 1, 3: never connected; does muster run there, .*\n.*exit status 69", it.err(node)), it.err(node)
    assert not (tmp_path / "started").exists()


def test_a_coordinator_that_is_not_there_is_named(job, tmp_path):
    it = job(2)
    it.start(1, 1, "true", conf="join_timeout=5")
    it.said(1, r"waiting for the coordinator at 10.77.0.1:29433: connect 10.77.0.1:29433: Connection refused")
    assert it.codes(1) == [69]
    assert re.search(r"error: rendezvous: connect 10.77.0.1:29433: .*is the coordinator running.*exit status 69", it.err(1))


def test_min_nodes_start_after_the_last_call_and_a_latecomer_grows_the_world(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    for node in (0, 1):
        it.start(node, 1, script, nnodes="2:3", conf="last_call_timeout=0.2")
    it.started("2.0", 0, 1)
    it.start(2, 2, script, nnodes="2:3", conf="last_call_timeout=0.2")
    it.started("4.0", 0, 1, 2, 3)
    for node in (0, 1):
        assert "1 node joined; the workers start again with the nodes that are here" in it.err(node)
        assert "restart 1" not in it.err(node)
    (tmp_path / "go").touch()
    assert it.codes(0, 1, 2) == [0, 0, 0], it.err(2)


def test_a_daemon_that_is_started_anew_is_found_again(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "stay.py", STAY)
    daemon = BIN / "musterd", "--unprotected", f"--port={PORT}"
    it.spawn("d", 2, *daemon)
    for node in range(2):
        it.start(node, 1, f"--log-dir={tmp_path}/logs{node}", script, nnodes=2, backend="muster",
                 endpoint=it.nodes.address(2))
    pids = it.started("2.0", 0, 1)
    it.running["d"].kill()
    it.running["d"].wait()
    it.said(0, "waiting for the coordinator at 10.77.0.3:29433: ")
    for rank in range(2):
        (tmp_path / f"pid{rank}_2.0").unlink()
    it.spawn("d2", 2, *daemon)
    # It remembers nothing: the workers start again, and no restart is used.
    it.started("2.0", 0, 1)
    wait_for(lambda: not any(alive(pid) for pid in pids), "the first workers to be gone")
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], it.err(0)
    assert sorted(p.name for p in (tmp_path / "logs0").glob("*/attempt*")) == ["attempt_0", "attempt_0.1"]


def test_of_the_first_node_s_addresses_the_one_that_answers_is_used(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "show.py", SHOW)
    it.spawn("d", 2, BIN / "musterd", "--unprotected", f"--port={PORT}")
    for node in range(2):
        ip("-n", it.nodes.names[node], "addr", "add", f"10.78.0.{node + 1}/24", "dev", "eth0")
    # What node 1 sends to node 0's first address goes nowhere, and nobody tells it.
    ip("-n", it.nodes.names[1], "neigh", "replace", "10.77.0.1", "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud",
       "permanent")
    for node in range(2):
        it.start(node, 1, f"--node-rank={node}", script, nnodes=2, endpoint=it.nodes.address(2))
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert re.search(r"host0 answers at 10.78.0.1:\d+ from 10.78.0.2 \(eth0\)", it.err(1))
    assert [w["MASTER_ADDR"] for w in it.workers(0, 1)] == ["10.77.0.1", "10.78.0.1"]


@pytest.mark.parametrize("reachable", [True, False])
def test_behind_a_proxy_too_the_interface_is_one_that_reaches_the_first_node(job, tmp_path, reachable):
    """What node 1 sends to node 0's first address goes nowhere, whatever the routing table says."""
    it = job(3)
    script = write(tmp_path, "show.py", SHOW)
    it.spawn("d", 2, BIN / "musterd", f"--port={PORT}", env=clean_environment(MUSTER_SECRET=SECRET))
    for node in range(2) if reachable else ():
        ip("-n", it.nodes.names[node], "addr", "add", f"10.78.0.{node + 1}/24", "dev", "eth0")
    ip("-n", it.nodes.names[1], "neigh", "replace", "10.77.0.1", "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud",
       "permanent")
    for node in range(2):
        it.start(node, 1, f"--node-rank={node}", script, nnodes=2, endpoint=it.nodes.address(2), MUSTER_SECRET=SECRET)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert [w["MASTER_ADDR"] for w in it.workers(0, 1)] == ["127.0.0.1"] * 2
    if reachable:
        assert [w["GLOO_SOCKET_IFNAME"] for w in it.workers(0, 1)] == ["eth0", "eth0"]
        assert "host0 answers at 10.78.0.1 by eth0" in it.err(1)
    else:
        assert re.search(r"host1 does not reach the first node, host0: .*10\.77\.0\.1.* a firewall between them", it.err(1))


@pytest.mark.parametrize("secret", [None, SECRET])
def test_nodes_without_ipv4_gather(job, tmp_path, secret):
    it = job(2, v6=True)
    script = write(tmp_path, "show.py", SHOW)
    for node in (0, 1):
        it.start(node, 1, f"--node-rank={node}", script, MUSTER_SECRET=secret)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert {(w["MASTER_ADDR"], w["GLOO_SOCKET_IFNAME"]) for w in it.workers(0, 1)} == {
        ("127.0.0.1" if secret else "fd77::1", "eth0")}
    if not secret:
        assert re.search(r"host0 answers at \[fd77::1\]:\d+ from fd77::2 \(eth0\)", it.err(1))


def test_a_first_node_that_cannot_be_reached_ends_the_job_with_the_reason_on_all(job, tmp_path):
    it = job(3)
    it.spawn("d", 2, BIN / "musterd", "--unprotected", f"--port={PORT}")
    ip("-n", it.nodes.names[1], "route", "add", "blackhole", "10.77.0.1")
    for node in range(2):
        it.start(node, 1, f"--node-rank={node}", "--iface=eth0", "sleep", 1000, nnodes=2, endpoint=it.nodes.address(2))
    assert it.codes(0, 1) == [69, 69], (it.err(0), it.err(1))
    for node in range(2):
        assert re.search(r"host1 cannot reach the first node, host0, .*: connect 10.77.0.1:\d+.*exit status 69", it.err(node))


def test_a_signal_while_others_are_waited_for_makes_room(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "show.py", SHOW)
    it.start(0, 1, "--node-rank=0", script)
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, "--node-rank=1", script)
    it.said(0, r"rendezvous: 2/3 nodes; node rank 2 never connected")
    it.running[1].send_signal(signal.SIGTERM)
    assert it.codes(1) == [143]
    it.said(0, r"rendezvous: 1/3 nodes; node ranks 1-2 never connected")
    it.start(1, 2, "--node-rank=1", script, name="new")
    it.start(2, 1, "--node-rank=2", script)
    assert it.codes(0, "new", 2) == [0, 0, 0], it.err(0)
    assert [w["RANK"] for w in it.workers(0, "new", 2)] == list("0123")


def test_two_agents_of_the_endpoint_s_host_agree_on_one_coordinator(job, tmp_path):
    it = job(1)
    script = write(tmp_path, "show.py", SHOW)
    for name in ("a", "b", "c"):
        it.start(0, 1, script, nnodes=3, name=name)
    assert it.codes("a", "b", "c") == [0, 0, 0], [it.err(n) for n in "abc"]
    assert [w["RANK"] for w in it.workers("a", "b", "c")] == list("012")
    assert sum("this agent runs the coordinator" in it.err(n) for n in "abc") == 1


def test_an_endpoint_port_held_by_something_else_names_its_owner(tmp_path):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        endpoint = f"127.0.0.1:{busy.getsockname()[1]}"
        command = [MUSTER, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
        result = subprocess.run([*command, "--rdzv-conf=join_timeout=2", "touch", tmp_path / "ran"],
                                capture_output=True, text=True, timeout=60, env=clean_environment())
        hosted = subprocess.run([*command, "--rdzv-conf=is_host=true", "touch", tmp_path / "ran"],
                                capture_output=True, text=True, timeout=60, env=clean_environment())
        for each in (result, hosted):
            assert each.returncode == 75, each.stderr
            assert f"held by pid {os.getpid()} (" in each.stderr
        # Who waits for long hears it with the first word, not with the last.
        waiting = subprocess.Popen([*command, "touch", tmp_path / "ran"], stderr=subprocess.PIPE, text=True, env=clean_environment())
        try:
            line = next(line for line in waiting.stderr if "waiting for the coordinator" in line)
        finally:
            waiting.kill()
            waiting.communicate()
        assert re.search(rf"no answer in time; the port is held by pid {os.getpid()} \(.*\); end that process or choose another port, on all nodes$", line)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("options,text", [
    (["--nnodes=2", "--rdzv-backend=c10d"], "needs --rdzv-endpoint=HOST[:PORT]"),
    (["--nnodes=1:2"], "a range needs a coordinator"),
    (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--rdzv-conf=join_timeuot=3"], "nearest is join_timeout"),
    (["--nnodes=2", "--rdzv-backend=muster", "--rdzv-endpoint=h:0"], "port 0"),
    (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=192.0.2.7:0"], "the agent on 192.0.2.7, which runs the coordinator, has logged its port"),
    (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:1", "--rdzv-conf=is_host=0", "--iface=nope"],
     "--iface=nope: this host has no such interface"),
    (["--nnodes=2", "--master-addr=192.0.2.7", "--iface=nope"], "--iface=nope: this host has no such interface"),
    (["--iface=nope"], "--iface=nope: this host has no such interface"),
])
def test_what_cannot_work_is_refused_before_anything_starts(tmp_path, options, text):
    result = subprocess.run([MUSTER, *options, "true"], capture_output=True, text=True, timeout=60, env=clean_environment())
    assert result.returncode == 2
    assert text in result.stderr
