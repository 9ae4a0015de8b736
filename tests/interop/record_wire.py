#!/usr/bin/env python3
# Records what PyTorch's TCPStore clients and servers say to each other, through a proxy, into tests/data/wire.
# SPDX-License-Identifier: Apache-2.0
#
#   unshare --uts sh -c 'hostname node0; exec tests/interop/record_wire.py'   (the host's name is in what gloo stores)
#
# For each recording NAME.bin has the bytes of both directions, in the order in which they passed, and NAME.index says whose
# they are; tests/data/wire/README.md describes both. Needs both generations of PyTorch (scripts/setup).
import pathlib
import re
import select
import selectors
import socket
import subprocess
import sys

from torch_generations import NEWEST, PACKAGED, PYTHON, ROOT, environment

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = ROOT / "tests/data/wire"
TIMEOUT = 60


class Recording:
    """Passes bytes between clients and one server and writes down which passed when. One thread."""

    def __init__(self, server_port):
        self.server = ("127.0.0.1", server_port)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.events = []  # (connection, direction, bytes); direction ">" to the server, "<" from it, "x" the client closed
        self.num_connections = 0
        self.servers = []  # the far side of every connection
        self.awaited = None  # (bytes, process to tell)

    @property
    def port(self):
        return self.listener.getsockname()[1]

    def _accept(self):
        client, _ = self.listener.accept()
        server = socket.create_connection(self.server)
        number = self.num_connections
        self.num_connections += 1
        self.servers.append(server)
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(client, selectors.EVENT_READ, lambda: self._pass(number, ">", client, server))
        self.selector.register(server, selectors.EVENT_READ, lambda: self._pass(number, "<", server, client))

    def _pass(self, number, direction, source, sink):
        try:
            data = source.recv(1 << 16)
        except ConnectionError:
            data = b""
        if data:
            self.events.append((number, direction, data))
            sink.sendall(data)
            if direction == ">":
                self._let_the_server_answer()
            self._look()
            return
        if direction == ">":
            self.events.append((number, "x", b""))
        for side in (source, sink):
            if side in self.selector.get_map():
                self.selector.unregister(side)
            side.close()

    def _let_the_server_answer(self):
        """So that the order in which requests passed is the order in which the server took them."""
        while answers := select.select([server for server in self.servers if server.fileno() >= 0], [], [], 0.005)[0]:
            for server in answers:
                self.selector.get_key(server).data()

    def _look(self):
        if self.awaited and any(direction == ">" and self.awaited[0] in data for _, direction, data in self.events):
            print(file=self.awaited[1].stdin, flush=True)
            self.awaited = None

    def run(self, processes):
        """Until every process has ended. A line that one of them prints is bytes that it wants to have passed."""
        def hear(process):
            line = process.stdout.readline()
            if line:
                self.awaited = (line.strip().encode(), process)
                self._look()
            else:
                self.selector.unregister(process.stdout)
                running.remove(process)

        running = list(processes)
        for process in processes:
            self.selector.register(process.stdout, selectors.EVENT_READ, lambda process=process: hear(process))
        while running:
            ready = self.selector.select(TIMEOUT)
            if not ready:
                sys.exit("record_wire: nothing passes any more")
            for key, _ in ready:
                key.data()
        for process in processes:
            if process.wait(TIMEOUT):
                sys.exit("record_wire: a client failed")
        # What was closed on the way out.
        while ready := self.selector.select(0.2):
            for key, _ in ready:
                key.data()

    def save(self, name, what):
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.bin").write_bytes(without_padding(b"".join(data for _, _, data in self.events)))
        lines = [f"# {what}", "# connection, direction, bytes"]
        lines += [f"{number} {direction} {len(data)}" for number, direction, data in self.events]
        (FOLDER / f"{name}.index").write_text("\n".join(lines) + "\n")
        print(f"{name}: {self.num_connections} connections, {sum(len(data) for _, _, data in self.events)} bytes")


def without_padding(data):
    """gloo stores a sockaddr_storage of 128 bytes, of which an IPv4 address fills 8: the rest is what lay on its stack."""
    return re.sub(rb"(\x02\x00..\x7f\x00\x00\x01).{120}", lambda found: found[1] + bytes(120), data, flags=re.DOTALL)


def start(generation, *arguments):
    return subprocess.Popen([PYTHON, HERE / "wire_scenario.py", *map(str, arguments)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, bufsize=1, env=environment(generation))


def record(name, what, generation, server_kind, clients):
    server = start(generation, "serve", server_kind)
    recording = Recording(int(server.stdout.readline()))
    recording.run([start(generation, *client, recording.port) for client in clients])
    recording.save(name, what)
    server.stdin.close()
    server.wait(TIMEOUT)


record("torch-1.13-store", "PyTorch 1.13.1: every operation of its TCPStore", PACKAGED, "threaded", [["store", "1.13"]])
record("torch-1.13-group", "PyTorch 1.13.1: init_process_group of two ranks over gloo, and a group within", PACKAGED, "threaded",
       [["group", 0], ["group", 1]])
record("torch-2.14-store", "PyTorch 2.14.0, libuv server: every operation of its TCPStore", NEWEST, "libuv",
       [["store", "libuv"]])
record("torch-2.14-threaded-store", "PyTorch 2.14.0, threaded server: every operation but queues", NEWEST, "threaded",
       [["store", "threaded"]])
record("torch-2.14-group", "PyTorch 2.14.0: init_process_group of two ranks over gloo, and a group within", NEWEST, "libuv",
       [["group", 0], ["group", 1]])
