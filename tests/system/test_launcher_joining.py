# SPDX-License-Identifier: Apache-2.0
"""What an agent that joins a job is told, over network namespaces: the way to the others, that it is too late, that it runs
another program, and how long the job waits."""
import re

import pytest

from elastic_support import PORT, SECRET, SHOW, job, write  # noqa: F401
from launcher_support import BIN, clean_environment, wait_for
from netns import ip


class Daemon:
    def __init__(self, it, node, *options, **env):
        self.it, self.endpoint = it, it.nodes.address(node)
        it.spawn("musterd", node, BIN / "musterd", "--unprotected", f"--port={PORT}", "--log-level=info", *options, env=clean_environment(**env))
        it.said("musterd", "listening|serving")

    def says(self, text):
        self.it.said("musterd", text)


def second_network(nodes, *members):
    """ib0, with 10.79.0.(i+1), on these nodes."""
    for node in members:
        ip("-n", nodes.names[node], "link", "add", "ib0", "type", "veth", "peer", "name", f"ib{node}", "netns", nodes.hub)
        ip("-n", nodes.hub, "link", "set", f"ib{node}", "master", "br1")
        ip("-n", nodes.hub, "link", "set", f"ib{node}", "up")
        ip("-n", nodes.names[node], "addr", "add", f"10.79.0.{node + 1}/24", "dev", "ib0")
        ip("-n", nodes.names[node], "link", "set", "ib0", "up")


@pytest.mark.parametrize("proxied", [False, True])
def test_the_first_node_too_exports_the_network_that_reaches_the_others(job, tmp_path, proxied):
    it = job(3)
    secret = {"MUSTER_SECRET": SECRET} if proxied else {}
    second_network(it.nodes, 0, 1)
    # By eth0 both reach the coordinator, and not each other.
    it.nodes.lose(0, 1)
    it.nodes.lose(1, 0)
    daemon = Daemon(it, 2, **secret)
    script = write(tmp_path, "show.py", SHOW)
    for node in (0, 1):
        it.start(node, 1, f"--node-rank={node}", script, nnodes=2, backend="muster", endpoint=daemon.endpoint,
                 NCCL_SOCKET_IFNAME="mine" if node == 0 else None, **secret)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    workers = it.workers(0, 1)
    assert [w["GLOO_SOCKET_IFNAME"] for w in workers] == ["ib0", "ib0"], (it.err(0), it.err(1))
    assert [w["NCCL_SOCKET_IFNAME"] for w in workers] == ["mine", "ib0"]
    assert [w["MASTER_ADDR"] for w in workers] == ["127.0.0.1" if proxied else "10.79.0.1"] * 2
    assert re.search(r"host1 answers at 10\.79\.0\.2 by ib0", it.err(0))


def test_a_first_node_that_reaches_nobody_says_so_and_starts(job, tmp_path):
    it = job(3)
    second_network(it.nodes, 0)
    for node, other in ((0, 1), (1, 0)):
        it.nodes.lose(node, other)
    daemon = Daemon(it, 2, MUSTER_SECRET=SECRET)
    script = write(tmp_path, "show.py", SHOW)
    for node in (0, 1):
        it.start(node, 1, f"--node-rank={node}", script, nnodes=2, backend="muster", endpoint=daemon.endpoint,
                 MUSTER_SECRET=SECRET)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert re.search(r"host0 does not reach host1: .*--iface and --local-addr choose what host1 offers", it.err(0))
    assert [w["GLOO_SOCKET_IFNAME"] for w in it.workers(0, 1)] == ["eth0", "eth0"]


def test_an_interface_that_is_named_is_the_first_node_s_word(job, tmp_path):
    it = job(2)
    second_network(it.nodes, 0, 1)
    script = write(tmp_path, "show.py", SHOW)
    it.start(0, 1, "--node-rank=0", "--iface=ib0", script)
    it.start(1, 1, "--node-rank=1", script)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert [w["GLOO_SOCKET_IFNAME"] for w in it.workers(0, 1)] == ["ib0", "ib0"]
    assert "answers at" not in it.err(0)


def test_who_waits_is_told_the_job_s_time_out_and_its_own_does_not_count(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "never.py", "open('started', 'w')")
    it.start(0, 1, script, conf="join_timeout=6")
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, script, conf="join_timeout=600,last_call_timeout=5")
    it.said(1, r"rendezvous: 2/3 nodes; giving up in [0-3] s")
    assert it.codes(0, 1) == [69, 69]
    assert "timed out after 6 s: 2 of 3 nodes were ready" in it.err(1)
    assert not (tmp_path / "started").exists()


def test_an_agent_that_comes_after_its_job_hears_of_it_and_a_new_job_of_the_name_runs(job, tmp_path):
    it = job(3)
    daemon = Daemon(it, 2, "--keep=0")
    eth0 = lambda state: ip("-n", it.nodes.names[1], "link", "set", "eth0", state)
    common = {"nnodes": "1:2", "backend": "muster", "endpoint": daemon.endpoint, "conf": "last_call_timeout=0.2"}
    eth0("down")
    it.start(1, 1, "--rdzv-id=one", "false", name="late", **common)
    it.said("late", "waiting for the coordinator at 10.77.0.3")
    it.start(0, 1, "--rdzv-id=one", "true", **common)
    assert it.codes(0) == [0]
    daemon.says("job one: forgotten")
    eth0("up")
    assert it.codes("late") == [69]
    assert re.search(r"job one: hostlate: the job is over: it succeeded, \d+\.\d s ago, when this agent had been started "
                     r"already; nothing was run here\.", it.err("late")), it.err("late")
    for node in (0, 1):
        it.start(node, 1, "--rdzv-id=one", "true", name=f"new{node}", **{**common, "nnodes": 2})
    assert it.codes("new0", "new1") == [0, 0], (it.err("new0"), it.err("new1"))


def test_jobs_without_a_name_that_meet_are_told_apart_by_their_programs(job, tmp_path):
    it = job(2)
    one, other = (write(tmp_path, name, "import sys; print(sys.argv[1:])") for name in ("train.py", "eval.py"))
    (tmp_path / "copy").mkdir()
    copy = write(tmp_path / "copy", "train.py", one.read_text())
    it.start(0, 1, one, "--key=wherever", "--rank=0")
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, other, name="second")
    assert it.codes("second") == [78]
    assert re.search(r'hostsecond runs eval\.py, and host0 runs train\.py: two jobs have met under the run id "none", .*'
                     r"give each its own --rdzv-id", it.err("second"))
    it.said(0, r"1/2 nodes; hostsecond runs eval\.py, and host0 runs train\.py")
    # Where the program lies and what it is told may differ.
    it.start(1, 1, copy, "--rank=1")
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert not any("wherever" in it.err(name) for name in (0, 1, "second"))


def test_under_a_name_of_their_own_nodes_may_run_what_they_like(job, tmp_path):
    it = job(2)
    it.start(0, 1, "--rdzv-id=mine", "--node-rank=0", "true")
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, "--rdzv-id=mine", "--node-rank=1", write(tmp_path, "head.py", "pass"))
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert it.err(1).count("host1 runs head.py, and host0 runs true in the same job, mine; if that is not meant") == 1


@pytest.mark.parametrize("named", [False, True])
def test_static_jobs_without_a_name_are_told_apart_too(job, tmp_path, named):
    it = job(2)
    programs = [write(tmp_path, name, "pass") for name in ("train.py", "eval.py")]
    for node in (0, 1):
        command = [BIN / "muster", "--nnodes=2", f"--node-rank={node}", f"--master-addr={it.nodes.address(0)}", "--master-port=29511",
                   f"--local-addr=host{node}", "--rdzv-conf=timeout=8", *(["--rdzv-id=mine"] if named else []), programs[node]]
        it.spawn(node, node, *command)
        if node == 0:  # whoever comes second is refused
            it.said(0, "rendezvous: 1/2 nodes")
    codes = it.codes(0, 1)
    if named:
        assert codes == [0, 0], (it.err(0), it.err(1))
        return
    assert codes == [69, 78], (it.err(0), it.err(1))
    for node in (0, 1):
        assert re.search(r"host1:? (settings: )?runs eval\.py, and host0 runs train\.py", it.err(node)), it.err(node)


def test_the_first_node_takes_any_port_and_tells_the_others(job, tmp_path):
    it = job(2)
    place = it.nodes.address(0)
    it.start(0, 1, f"--rdzv-endpoint={place}:0", "--port-file=place", "true")
    endpoint = wait_for(lambda: (tmp_path / "place").exists() and (tmp_path / "place").read_text(), "the port")
    assert re.fullmatch(rf"{re.escape(place)}:[1-9]\d*\n", endpoint)
    assert f"job none listens; start the other nodes with --rdzv-endpoint={endpoint}" in it.err(0)
    it.start(1, 1, f"--rdzv-endpoint={place}:0", "true", name="blind")
    assert it.codes("blind") == [2]
    assert "--rdzv-endpoint=10.77.0.1:0: the agent on 10.77.0.1, which runs the coordinator, has logged its port" in it.err("blind")
    it.start(1, 1, f"--rdzv-endpoint={endpoint.strip()}", "true")
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))


def test_a_port_file_that_cannot_be_written_ends_the_start(job, tmp_path):
    it = job(1)
    it.start(0, 1, "--port-file=nowhere/place", "touch", "ran", nnodes=2)
    assert it.codes(0) == [71]
    assert "--port-file=nowhere/place: No such file or directory" in it.err(0)
    assert not (tmp_path / "ran").exists()
