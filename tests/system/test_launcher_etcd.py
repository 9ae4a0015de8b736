# SPDX-License-Identifier: Apache-2.0
"""Gathering over a real etcd (--rdzv-backend=etcd): who meets, who does not, and what is said where it cannot be."""
import base64
import json
import re
import socketserver
import subprocess
import threading

import pytest

from elastic_support import SECRET, STAY, write
from etcd_support import Etcd, EtcdJob, etcd, job  # noqa: F401
from launcher_support import alive, muster, wait_for  # noqa: F401
from ports import free_port

SHOW = """
import json, os
keys = ["RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "NODE"]
os.write(1, (json.dumps({k: os.environ.get(k) for k in keys}) + "\\n").encode())  # in one piece: ranks share the stream
"""

SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
os.write(1, f"sum {total.item():.0f}\\n".encode())
dist.destroy_process_group()
"""


def test_agents_join_over_etcd_and_pytorch_sums(job, etcd, tmp_path):
    script = write(tmp_path, "sum.py", SUM)
    for name, ranks in (("a", 1), ("b", 2)):
        job.start(name, script, nnodes=2, ranks=ranks, PYTHON_EXEC="/usr/bin/python3", GLOO_SOCKET_IFNAME="lo")
    assert job.codes("a", "b") == [0, 0], (job.err("a"), job.err("b"))
    assert (job.out("a") + job.out("b")).split("\n").count("sum 6") == 3
    assert etcd.keys() == []  # it cleans up behind itself


def test_two_jobs_of_one_etcd_do_not_meet_and_the_secret_works(job, etcd, tmp_path):
    script = write(tmp_path, "stay.py", STAY.replace('"pid', 'e["TORCHELASTIC_RUN_ID"].replace("/", "-") + "-pid', 1))
    started = lambda run, *ranks: wait_for(
        lambda: all((tmp_path / f"{run}-pid{rank}_2.0").exists() for rank in ranks), f"job {run}", 40)
    # One id looks like a key below the other's.
    for name, run in (("a", "one"), ("b", "one/nodes"), ("c", "one"), ("d", "one/nodes")):
        job.start(name, script, nnodes=2, options=[f"--rdzv-id={run}"], MUSTER_SECRET=SECRET)
    started("one", 0, 1)
    started("one-nodes", 0, 1)
    assert {key.rsplit("/", 1)[0] for key in etcd.keys()} == {
        "/muster/one", "/muster/one/nodes", "/muster/one%2Fnodes", "/muster/one%2Fnodes/nodes"}
    # An operator sees who is there; an unauthenticated agent is kept out.
    nodes = [json.loads(line) for line in etcd.ctl("get", "--prefix", "/muster/one/nodes/", "--print-value-only").splitlines()]
    assert sorted(node["host"] for node in nodes) == ["host-a", "host-c"]
    values = [base64.b64decode(kv["value"]) for kv in json.loads(etcd.ctl("get", "--prefix", "/", "-w", "json"))["kvs"]]
    assert len(values) == 8 and not any(SECRET.encode() in value for value in values)
    job.start("x", "true", nnodes=2, options=["--rdzv-id=one"], MUSTER_SECRET="another secret of some length")
    assert job.codes("x") == [78]
    assert re.search(r"error: .*secret.*exit status 78", job.err("x")), job.err("x")
    (tmp_path / "go").touch()
    assert job.codes("a", "b", "c", "d") == [0] * 4, job.err("a")
    assert all("no secret is set" not in job.err(name) for name in "abcd")


def test_min_nodes_start_and_a_latecomer_grows_the_world(job, tmp_path):
    script = write(tmp_path, "stay.py", STAY)
    dead = free_port()  # one member of two is away
    for name in "ab":
        job.start(name, script, nnodes="2:3", endpoint=f"127.0.0.1:{dead},{job.endpoint}")
    job.started("2.0", 0, 1)
    job.start("c", script, nnodes="2:3")
    job.started("3.0", 0, 1, 2)
    (tmp_path / "go").touch()
    assert job.codes("a", "b", "c") == [0, 0, 0], job.err("a")


def test_an_etcd_with_tls_is_trusted_by_its_authority_alone(tmp_path):
    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=tmp_path, timeout=60)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    for name in ("server", "agent"):
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        write(tmp_path, f"{name}.ext", "subjectAltName=IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out",
                f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext")
    etcd = Etcd(tmp_path, "--cert-file=server.pem", "--key-file=server.key", "--client-cert-auth",
                "--trusted-ca-file=ca.pem", scheme="https").start()
    job = EtcdJob(tmp_path, etcd.endpoint)
    try:
        tls = "protocol=https,cacert=ca.pem"
        for name in "ab":
            job.start(name, "true", nnodes=2, conf=tls + ",cert=agent.pem,key=agent.key")
        assert job.codes("a", "b") == [0, 0], job.err("a")
        job.start("c", "true", nnodes=2, conf="protocol=https,cacert=agent.pem,join_timeout=5")
        assert job.codes("c") == [69]
        assert re.search(rf"TLS with {etcd.endpoint}: .*certificate", job.err("c")), job.err("c")
        job.start("d", "true", nnodes=2, conf="protocol=https,cacert=ca.pem")  # it shows none
        assert job.codes("d") == [69]
        assert re.search(rf"TLS with {etcd.endpoint}: .*certificate", job.err("d")), job.err("d")
    finally:
        job.close()
        etcd.close()


def test_who_is_missing_at_the_end_of_the_join_timeout_is_told(job, etcd):
    job.start("a", "true", nnodes=2, conf="join_timeout=4")
    assert job.codes("a") == [69]
    assert re.search(r"rendezvous timed out after 4 s: 1 of 2 nodes were ready", job.err("a")), job.err("a")
    # The next job of this id is a new one.
    for name in "bc":
        job.start(name, "true", nnodes=2)
    assert job.codes("b", "c") == [0, 0], job.err("b")


def test_an_etcd_that_is_not_there_is_named_with_what_to_try(muster):
    port = free_port()
    done = muster.run("--nnodes=2", "--rdzv-backend=etcd", f"--rdzv-endpoint=127.0.0.1:{port}",
                      "--rdzv-conf=join_timeout=2", "true")
    assert done.returncode == 69
    assert re.search(rf"error: etcd at 127.0.0.1:{port}: connect 127.0.0.1:{port}: Connection refused \(tried for [2-9]\.\d s\); "
                     r"is it running, and reachable from here\?.*exit status 69", done.stderr), done.stderr


@pytest.mark.parametrize("says, hint", [
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnope\n", "speaks HTTP, but not as the gateway of an etcd does .status 404.; is this the client port"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "the answer is not etcd's"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "not an HTTP response"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "longer than"),
    (b'HTTP/1.1 400 Bad Request\r\nContent-Length: 51\r\n\r\n{"error":"etcdserver: user name is empty","code":3}',
     "muster does not log in"),
])
def test_an_endpoint_that_is_no_etcd_is_refused_at_once(muster, says, hint):
    class OtherServer(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            self.request.sendall(says)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), OtherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        done = muster.run("--nnodes=2", "--rdzv-backend=etcd", f"--rdzv-endpoint=127.0.0.1:{port}", "true")
        server.shutdown()
    assert done.returncode == 69, done.stderr
    assert re.search(rf"error: .*127.0.0.1:{port}.*{hint}.*exit status 69", done.stderr), done.stderr


@pytest.mark.parametrize("options, text", [
    (["--rdzv-backend=etcd"], "needs --rdzv-endpoint"),
    (["--rdzv-backend=etcd-v2", "--rdzv-endpoint=h"], "give --rdzv-backend=etcd"),
    (["--rdzv-backend=etcd", "--rdzv-endpoint=h,,i"], "is not HOST"),
    (["--rdzv-backend=c10d", "--rdzv-endpoint=h,i"], "several endpoints"),
    (["--rdzv-backend=c10d", "--rdzv-endpoint=h", "--rdzv-conf=lease_ttl=5"], "lease_ttl is a key of --rdzv-backend=etcd"),
    (["--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-conf=is_host=1"], "elect"),
    (["--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-conf=protocol=https"], "needs cacert"),
    (["--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-conf=protocol=https,cacert=/no/such/file"], "/no/such/file"),
])
def test_wrong_options_are_refused(muster, options, text):
    done = muster.run("--nnodes=2", *options, "true")
    assert done.returncode == 2
    assert text in done.stderr, done.stderr
