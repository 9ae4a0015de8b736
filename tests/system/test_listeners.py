# SPDX-License-Identifier: Apache-2.0
"""Who can reach what a job opens, over nodes that are network namespaces of this machine."""
import subprocess

import pytest

from elastic_support import PORT, SECRET, SHOW, job, write  # noqa: F401
from launcher_support import BIN, MUSTER, clean_environment, wait_for
from test_store_proxy import STORE, listeners

STAY = STORE + "note('ready%d' % rank, e['MASTER_ADDR'])\nstay()\n"


@pytest.mark.parametrize("options", [
    [],
    ["--standalone"],
    ["--metrics-addr=0"],
    ["--master-addr={own}", "--master-port=29777"],
    ["--rdzv-endpoint={own}:29777"],
    ["--rdzv-backend=c10d", "--rdzv-endpoint={own}:29777"],
    ["--rdzv-backend=muster", "--rdzv-endpoint={other}:%d" % PORT],
    ["--rdzv-backend=muster", "--rdzv-conf=is_host=1", "--rdzv-endpoint={own}:29777"],
], ids=["default", "standalone", "metrics", "static", "static endpoint", "c10d", "musterd", "own coordinator"])
def test_one_node_listens_on_loopback_alone_however_it_is_started(job, tmp_path, options):
    it = job(2)
    if any("{other}" in word for word in options):
        it.spawn("d", 1, BIN / "musterd", "--unprotected", f"--port={PORT}")
        wait_for(lambda: PORT in listeners(it, 1), "the daemon to listen")
    script = write(tmp_path, "stay.py", STAY)
    words = [word.format(own=it.nodes.address(0), other=it.nodes.address(1)) for word in options]
    it.spawn(0, 0, MUSTER, "--nnodes=1", "--nproc-per-node=2", *words, script)
    ready = [tmp_path / f"ready{rank}" for rank in (0, 1)]
    wait_for(lambda: all(path.exists() for path in ready), f"the workers: {it.err(0)}", 30)
    assert listeners(it, 0) == []
    assert {path.read_text() for path in ready} == {"127.0.0.1"}
    (tmp_path / "go").touch()
    assert it.codes(0) == [0], it.err(0)


def test_a_daemon_serves_its_metrics_on_loopback_alone(job, tmp_path):
    it = job(1)
    port_file = tmp_path / "port"
    it.spawn("d", 0, BIN / "musterd", "--host=127.0.0.1", "--port=0", f"--port-file={port_file}", "--metrics-addr=0")
    wait_for(port_file.exists, "the daemon to serve")
    assert "metrics at http://127.0.0.1:" in it.err("d")
    assert listeners(it, 0) == []


def start_static(it, node, *args, **env):
    it.spawn(node, node, MUSTER, "--nnodes=2", f"--node-rank={node}", f"--master-addr={it.nodes.address(0)}",
             f"--master-port={PORT}", "--nproc-per-node=1", *args, env=clean_environment(NODE=node, **env))


def test_static_nodes_with_a_secret_let_nobody_in_who_does_not_know_it(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "stay.py", STAY)
    for node in (0, 1):
        start_static(it, node, script, MUSTER_SECRET=SECRET)
    ready = [tmp_path / f"ready{rank}" for rank in (0, 1)]
    wait_for(lambda: all(path.exists() for path in ready), f"the workers: {it.err(0)} {it.err(1)}", 30)
    assert {path.read_text() for path in ready} == {"127.0.0.1"}
    assert [listeners(it, node) for node in (0, 1)] == [[PORT], []]
    # An unauthenticated PING of the store's protocol.
    ping = ("import socket; s = socket.create_connection(('10.77.0.1', %d), 10); "
            "s.sendall(bytes.fromhex('00cef7853c0d01000000')); print(s.recv(9))" % PORT)
    answer = subprocess.run(it.nodes.command(1, "python3", "-c", ping), capture_output=True, text=True, timeout=30)
    assert answer.stdout.strip() == "b''" or "ConnectionResetError" in answer.stderr, answer
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert "no secret is set" not in it.err(0)


def test_static_nodes_without_a_secret_say_so_once(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    for node in (0, 1):
        start_static(it, node, script)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert [it.err(node).count("no secret is set (MUSTER_SECRET, --secret-file): whoever reaches 10.77.0.1:29433")
            for node in (0, 1)] == [1, 0]


def test_a_store_that_is_opened_beside_a_secret_is_told(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    for node in (0, 1):
        it.start(node, 1, "--no-store-proxy", f"--node-rank={node}", script, MUSTER_SECRET=SECRET)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert [it.err(node).count("--no-store-proxy: the workers' store is open to whoever reaches") for node in (0, 1)] == [1, 0]


FLOOD = """
import resource, socket, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
held = []
for number in range(1500):
    held.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), 30))
    if number % 2: held[-1].sendall(b"\\xabmuster"[:1 + number % 7])  # the beginning of an agent's greeting
open("flooded", "w").close()
sys.stdin.read()
"""


def test_agents_get_in_while_unauthenticated_peers_hold_half_open_connections(job, tmp_path):
    it = job(3)
    it.spawn("d", 2, BIN / "musterd", f"--port={PORT}", env=clean_environment(MUSTER_SECRET=SECRET))
    wait_for(lambda: PORT in listeners(it, 2), "the daemon to listen")
    script = write(tmp_path, "flood.py", FLOOD)
    flood = subprocess.Popen(it.nodes.command(1, "python3", script, it.nodes.address(2), PORT), cwd=tmp_path,
                             stdin=subprocess.PIPE)
    try:
        wait_for(lambda: (tmp_path / "flooded").exists() or flood.poll() is not None, "the flood", 60)
        assert flood.poll() is None
        for node in (0, 1):
            it.start(node, 1, write(tmp_path, "show.py", SHOW), nnodes=2, backend="muster", endpoint=it.nodes.address(2),
                     MUSTER_SECRET=SECRET)
        assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
        assert flood.poll() is None
    finally:
        flood.kill()
        flood.wait()
