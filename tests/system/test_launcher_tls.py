# SPDX-License-Identifier: Apache-2.0
"""Nodes that speak TLS with their coordinator (--tls-ca, --tls-cert, --tls-key), over network namespaces."""
import subprocess

import pytest

from elastic_support import PORT, SECRET, SHOW, job, write  # noqa: F401
from launcher_support import BIN, clean_environment


@pytest.fixture
def certificates(tmp_path):
    """head and other, signed by ca for the addresses of nodes 0 and 1; unknown.pem signs nothing."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for name in ("ca", "unknown"):
        openssl("req", "-x509", *key, "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    for name, address in (("head", "10.77.0.1"), ("other", "10.77.0.2")):
        openssl("req", *key, "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{address}", "-keyout", f"{name}.key",
                "-out", f"{name}.csr")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-copy_extensions", "copy", "-out", f"{name}.pem")

    def options(who=None, ca="ca"):
        own = [f"--tls-cert={tmp_path}/{who}.pem", f"--tls-key={tmp_path}/{who}.key"] if who else []
        return [f"--tls-ca={tmp_path}/{ca}.pem", *own]

    return options


def test_with_a_secret_the_coordinator_alone_needs_a_certificate(job, tmp_path, certificates):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    it.start(0, 1, *certificates("head"), script, MUSTER_SECRET=SECRET)
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, *certificates(ca="unknown"), "true", name="deceived", MUSTER_SECRET=SECRET)
    assert it.codes("deceived") == [78]
    assert "its certificate is not accepted" in it.err("deceived")
    it.start(1, 1, script, name="plain", MUSTER_SECRET=SECRET)
    assert it.codes("plain") == [78]
    assert "speaks TLS and the agent does not" in it.err("plain")
    it.start(1, 1, *certificates(), script, MUSTER_SECRET=SECRET)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    # The workers' store has no TLS: it stays behind the agents.
    assert {w["MASTER_ADDR"] for w in it.workers(0, 1)} == {"127.0.0.1"}


def test_without_a_secret_each_node_shows_a_certificate(job, tmp_path, certificates):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    it.start(0, 1, *certificates("head"), script)
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, *certificates(), script, name="nobody")
    assert it.codes("nobody") == [78]
    assert "certificate required" in it.err("nobody")
    it.start(1, 1, *certificates("other"), script)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert "no secret is set" not in it.err(0)
    assert {w["MASTER_ADDR"] for w in it.workers(0, 1)} == {"127.0.0.1"}


def test_nodes_verify_a_musterd(job, tmp_path, certificates):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    it.spawn("d", 0, BIN / "musterd", f"--port={PORT}", *certificates("head")[1:], env=clean_environment(MUSTER_SECRET=SECRET))
    for node in (0, 1):
        it.start(node, 1, *certificates(), script, backend="muster", MUSTER_SECRET=SECRET)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
