# SPDX-License-Identifier: Apache-2.0
"""A TCPStore client that writes keys to a daemon that dies and comes back, and remembers which were acknowledged. It
looks for the last ones when the daemon is back, and at SIGTERM for each, and prints how many there were and which are lost or wrong."""
import signal
import socket
import struct
import sys
import time

SET, GET, ADD, CHECK = 1, 3, 4, 5
LOOKED_AT = 1000  # of the last keys, whenever the daemon has come back
HELLO = bytes([0]) + struct.pack("<I", 0x3C85F7CE)


def text(word):
    return struct.pack("<Q", len(word)) + word


class Client:
    def __init__(self, host, port, timeout_s):
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.socket = socket.create_connection((host, port), 10)
                self.socket.sendall(HELLO)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)  # nobody tells when a port is open

    def receive(self, size):
        out = b""
        while len(out) < size:
            piece = self.socket.recv(size - len(out))
            if not piece:
                raise ConnectionError("closed")
            out += piece
        return out

    def add(self, key, amount):
        self.socket.sendall(bytes([ADD]) + text(key) + struct.pack("<q", amount))
        return struct.unpack("<q", self.receive(8))[0]

    def get(self, key):
        self.socket.sendall(bytes([GET]) + text(key))
        return self.receive(struct.unpack("<Q", self.receive(8))[0])

    def has(self, key):
        self.socket.sendall(bytes([CHECK]) + struct.pack("<Q", 1) + text(key))
        return self.receive(1) == b"\0"

    def set(self, key, value):
        """Acknowledged by what is read back."""
        self.socket.sendall(bytes([SET]) + text(key) + text(value))
        return self.get(key) == value


def lost_of(client, kept, count, tries):
    lost = [key for key, value in kept if not client.has(key) or client.get(key) != value]
    return lost if count <= client.add(b"/count", 0) <= tries else [*lost, b"/count"]


def main(host, port):
    stopping, kept, lost, count, tries, looks = [], [], [], 0, 0, 0
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    client = Client(host, port, 60)
    print("ready", flush=True)
    while not stopping and not lost:
        tries += 1
        key, value = b"/k%d" % tries, b"value %d" % tries
        try:
            if client is None:
                client = Client(host, port, 60)
                lost = lost_of(client, kept[-LOOKED_AT:], count, tries)
                looks += 1
            if client.set(key, value):
                kept.append((key, value))
            count = client.add(b"/count", 1)
        except OSError:
            client = None
        time.sleep(0.002)  # a steady writer, not a load test
    lost += lost_of(Client(host, port, 60), kept, count, tries)
    print(f"{len(kept)} acknowledged, {len(lost)} lost {lost[:5]}, {looks} looks after the daemon came back", flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
