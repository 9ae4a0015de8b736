# SPDX-License-Identifier: Apache-2.0
"""musterd as other hosts see it: with a secret they are served as agents or not at all."""
import os
import re
import signal
import subprocess
import sys

import pytest

from netns import Nodes

SECRET = "0123456789abcdef0123456789abcdef"
VALIDATE = bytes.fromhex("00cef7853c")
PREAMBLE = b"\xabmuster\x05\x05"
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


@pytest.fixture
def nodes():
    made = Nodes(2)
    yield made
    made.close()


@pytest.fixture
def daemon(nodes, bin_dir):
    running = []

    def start(*options, **env):
        command = nodes.command(0, bin_dir / "musterd", "--port=0", *options)
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


def talk(nodes, node, address, port, send, wanted):
    command = nodes.command(node, sys.executable, "-c", CLIENT, address, port, send.hex(), wanted)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return bytes.fromhex(done.stdout.strip())


def test_with_a_secret_other_hosts_are_agents_and_this_one_has_the_store(nodes, daemon):
    process = daemon(MUSTER_SECRET=SECRET)
    head = nodes.address(0)
    assert talk(nodes, 0, "127.0.0.1", process.port, VALIDATE + PING, 4) == PING[1:]
    assert talk(nodes, 0, "::1", process.port, VALIDATE + PING, 4) == PING[1:]
    for hello in (VALIDATE + PING, b"\x05\x01", b"GET / HTTP/1.1\r\n\r\n"):
        assert talk(nodes, 1, head, process.port, hello, 4) == b""
    # The host's own outer address is no loopback address either.
    assert talk(nodes, 0, head, process.port, VALIDATE + PING, 4) == b""
    assert talk(nodes, 1, head, process.port, PREAMBLE, 9) == PREAMBLE
    log = log_of(process)
    refused = re.findall(r"closed (\S+):\d+: the store is served to this host alone", log)
    assert sorted(refused) == [head, *[nodes.address(1)] * 3]
    assert "no secret" not in log


def test_with_a_secret_a_silent_host_is_let_go(nodes, daemon):
    process = daemon("--handshake-timeout=1", MUSTER_SECRET=SECRET)
    for beginning in (b"", PREAMBLE):
        talk(nodes, 1, nodes.address(0), process.port, beginning, 1000)
    log = log_of(process)
    assert re.search(rf"closed {nodes.address(1)}:\d+: it said nothing for 1000 ms", log)
    assert re.search(rf"closed {nodes.address(1)}:\d+: it proved nothing within 1000 ms", log)


def test_without_a_secret_other_hosts_use_the_store(nodes, daemon):
    process = daemon()
    assert talk(nodes, 1, nodes.address(0), process.port, VALIDATE + PING, 4) == PING[1:]
    assert "no secret" in log_of(process)
