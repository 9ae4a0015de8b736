# SPDX-License-Identifier: Apache-2.0
"""Whom musterd serves who has proven nothing: other hosts, and other users of its own."""
import concurrent.futures
import os
import re
import signal
import struct
import subprocess
import sys

import pytest

from launcher_support import wait_for
from netns import Nodes

SECRET = "0123456789abcdef0123456789abcdef"
VALIDATE = bytes.fromhex("00cef7853c")
PREAMBLE = b"\xabmuster\x07\x07"
PING = b"\x0d\x0a\x0b\x0c\x0d"  # answered by its four bytes

# Connects, sends argv[3], and prints what comes until the other side closes or argv[4] bytes are there.
CLIENT = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30)
s.sendall(bytes.fromhex(sys.argv[3]))
out = b""
try:
    while len(out) < int(sys.argv[4]):
        got = s.recv(4096)
        if not got: break
        out += got
except ConnectionResetError:
    pass
print(out.hex())
"""
OTHER = 65534  # a user besides root
AS_OTHER = ("setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups")
# In a user namespace of one user there is no other.
needs_other = pytest.mark.skipif(subprocess.run([*AS_OTHER, "true"], capture_output=True).returncode != 0, reason="needs root: a second user")


def set_request(key, value):
    return b"\x01" + b"".join(struct.pack("<q", len(part)) + part for part in (key, value))


def get_request(key):
    return b"\x03" + struct.pack("<q", len(key)) + key


@pytest.fixture
def nodes():
    made = Nodes(2)
    yield made
    made.close()


@pytest.fixture
def daemon(nodes, bin_dir):
    running = []

    def start(*options, by=(), **env):
        command = nodes.command(0, *by, bin_dir / "musterd", "--port=0", *options)
        # Unbuffered: communicate() does not return what readline() took beyond its line.
        process = subprocess.Popen(command, env={**os.environ, **env}, stderr=subprocess.PIPE, bufsize=0)
        running.append(process)
        process.port = int(re.search(r"listening on .*:(\d+)$", process.stderr.readline().decode().rstrip())[1])
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


def log_of(process):
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=60)[1].decode()


def talk(nodes, node, address, port, send, wanted, by=()):
    command = nodes.command(node, *by, sys.executable, "-c", CLIENT, address, port, send.hex(), wanted)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return bytes.fromhex(done.stdout.strip())


def is_served(nodes, node, address, process, by=()):
    got = talk(nodes, node, address, process.port, VALIDATE + PING, 4, by)
    assert got in (b"", PING[1:])
    return bool(got)


def refused(log, why):
    return sorted(re.findall(rf"closed (\S+):\d+: {why}", log))


def test_with_a_secret_other_hosts_are_agents_and_this_one_has_the_store(nodes, daemon):
    process = daemon(MUSTER_SECRET=SECRET)
    head = nodes.address(0)
    # The host's own outer address is this host's as well.
    for address in ("127.0.0.1", "::1", head):
        assert is_served(nodes, 0, address, process)
    for hello in (VALIDATE + PING, b"\x05\x01", b"GET / HTTP/1.1\r\n\r\n"):
        assert talk(nodes, 1, head, process.port, hello, 4) == b""
    assert talk(nodes, 1, head, process.port, PREAMBLE, 9) == PREAMBLE
    log = log_of(process)
    assert refused(log, "the store is served to this host alone") == [nodes.address(1)] * 3
    assert "serving agents that prove who they are, and TCPStore clients on this host of root and user 0" in log


def test_with_a_secret_a_silent_host_is_let_go(nodes, daemon):
    process = daemon(MUSTER_SECRET=SECRET)
    with concurrent.futures.ThreadPoolExecutor() as pool:  # 10 s each
        list(pool.map(lambda beginning: talk(nodes, 1, nodes.address(0), process.port, beginning, 1000), (b"", PREAMBLE)))
    log = log_of(process)
    assert re.search(rf"closed {nodes.address(1)}:\d+: it said nothing for 10000 ms", log)
    assert re.search(rf"closed {nodes.address(1)}:\d+: it did not authenticate within 10000 ms", log)


@needs_other
def test_without_a_secret_this_host_alone_is_served_and_others_are_told_why(nodes, daemon):
    process = daemon()
    head = nodes.address(0)
    for address in ("127.0.0.1", "::1", head):
        assert is_served(nodes, 0, address, process)
        assert is_served(nodes, 0, address, process, by=AS_OTHER)  # any user of it
        assert talk(nodes, 0, address, process.port, PREAMBLE, 9) == PREAMBLE
    assert not is_served(nodes, 1, head, process)
    # The agent has the reason in the same words as the log.
    why = b"this musterd serves its own host alone, since it has neither a secret nor TLS"
    assert why in talk(nodes, 1, head, process.port, PREAMBLE, 1000)
    log = log_of(process)
    assert refused(log, "the store is served to this host alone") == [nodes.address(1)]
    assert refused(log, why.decode()) == [nodes.address(1)]
    assert "serving this host alone" in log


@pytest.mark.parametrize("how", ["--unprotected", "--host", "--listen-fd"])
def test_without_a_secret_other_hosts_are_served_where_somebody_decided_so(nodes, daemon, how):
    by, options = (), [how]
    if how == "--host":
        options = [f"--host={nodes.address(0)}"]
    if how == "--listen-fd":  # a socket that is bound within the daemon's network namespace
        by = (sys.executable, "-c", "import os, socket, sys; s = socket.socket(); s.bind(('', 0)); os.dup2(s.fileno(), 9); "
              "os.set_inheritable(9, True); os.execv(sys.argv[1], sys.argv[1:])")
        options = ["--listen-fd=9"]
    process = daemon(*options, by=by)
    assert is_served(nodes, 1, nodes.address(0), process)
    assert talk(nodes, 1, nodes.address(0), process.port, PREAMBLE, 9) == PREAMBLE
    assert "serving everybody who reaches" in log_of(process)


@needs_other
def test_with_a_secret_other_users_of_this_host_have_no_store(nodes, daemon):
    process = daemon(MUSTER_SECRET=SECRET)
    addresses = ["127.0.0.1", "::1", nodes.address(0)]
    for address in addresses:
        assert is_served(nodes, 0, address, process)
        assert not is_served(nodes, 0, address, process, by=AS_OTHER)
        # An agent's proof counts, whoever runs it.
        assert talk(nodes, 0, address, process.port, PREAMBLE, 9, by=AS_OTHER) == PREAMBLE
    log = log_of(process)
    assert refused(log, r"the store is served to root and user 0 \(--allow-uid\), and it belongs to user 65534") == \
        sorted(address if ":" not in address else f"[{address}]" for address in addresses)


@needs_other
def test_the_servers_own_user_and_those_that_are_allowed_have_the_store(nodes, daemon):
    process = daemon(f"--allow-uid={OTHER}", MUSTER_SECRET=SECRET)
    assert is_served(nodes, 0, "127.0.0.1", process, by=AS_OTHER)
    assert f"of root and user 0 and user {OTHER}" in log_of(process)
    process = daemon(by=AS_OTHER, MUSTER_SECRET=SECRET)
    third = ("setpriv", "--reuid=65533", "--clear-groups")
    assert [is_served(nodes, 0, "::1", process, by) for by in (AS_OTHER, (), third)] == [True, True, False]


@needs_other
@pytest.mark.parametrize("parting", ["close", "shut", "reset"])
def test_who_has_gone_before_it_is_looked_up_is_nobody(nodes, daemon, parting):
    """A socket that was closed is shown as root's."""
    process = daemon(MUSTER_SECRET=SECRET)
    talked = VALIDATE + set_request(b"/stolen", b"1")
    go = {"close": "s.close()", "shut": "s.shutdown(socket.SHUT_WR)",
          "reset": "s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()"}[parting]
    script = (f"import socket, struct, sys; s = socket.create_connection(('127.0.0.1', {process.port})); "
              f"s.sendall(bytes.fromhex('{talked.hex()}')); {go}; print(flush=True); sys.stdin.read()")
    process.send_signal(signal.SIGSTOP)
    client = subprocess.Popen(nodes.command(0, *AS_OTHER, sys.executable, "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdout.readline()
    process.send_signal(signal.SIGCONT)
    # Whoever comes next is served after it.
    assert talk(nodes, 0, "127.0.0.1", process.port, VALIDATE + get_request(b"/stolen"), 8) == bytes(8)
    client.communicate()
    log = log_of(process)
    # A reset connection may be gone before it is accepted.
    assert parting == "reset" or re.search("its owner cannot be determined: no process of this host holds its other end", log)


@needs_other
def test_behind_an_agent_its_own_user_alone_has_the_workers_store(nodes, daemon, bin_dir, tmp_path):
    process = daemon(MUSTER_SECRET=SECRET)
    port_file = tmp_path / "port"
    command = nodes.command(0, bin_dir / "muster", "--nnodes=1", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{process.port}",
                            "--store-proxy", "--no-python", "sh", "-c", f"echo $MASTER_PORT > {port_file}.new; mv {port_file}.new {port_file}; read line")
    agent = subprocess.Popen(command, env={**os.environ, "MUSTER_SECRET": SECRET}, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(port_file.exists, "the worker", 60)
        port = int(port_file.read_text())
        for by, answer in (((), PING[1:]), (AS_OTHER, b"")):
            assert talk(nodes, 0, "127.0.0.1", port, VALIDATE + PING, 4, by) == answer
    finally:
        agent.terminate()
        err = agent.communicate(timeout=60)[1]
    assert "it is no worker: it belongs to user 65534" in err
