# SPDX-License-Identifier: Apache-2.0
"""Nodes as network namespaces joined by a bridge: node i has 10.77.0.(i+1) or fd77::(i+1) alone on eth0, and some may have a bad line. Needs
root and iproute2."""
import itertools
import json
import os
import pathlib
import subprocess
import sys

_serial = itertools.count()


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True)


def shape(namespace, device, delay, loss):
    """True if the kernel has netem, which now delays and loses what leaves by the device."""
    command = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "netem", "delay", f"{delay * 1000:g}ms", "loss", f"{loss * 100:g}%"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def shaped_packets(namespace, device):
    text = subprocess.run(["tc", "-s", "-j", "-n", namespace, "qdisc", "show", "dev", device], check=True, capture_output=True).stdout
    (found,) = [entry for entry in json.loads(text) if entry["kind"] == "netem"]
    return found["packets"], found["drops"]


class Nodes:
    def __init__(self, count, bad_lines=(), delay=0.2, loss=0.05, seed=1, v6=False, mtu=1500):
        self.v6 = v6
        tag = f"{os.getpid() % 100000}s{next(_serial)}"
        self.names = [f"mu{tag}n{i}" for i in range(count)]
        self.hub = f"mu{tag}h"
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        ip("-n", self.hub, "link", "set", "br0", "up")
        ip("-n", self.hub, "link", "add", "br1", "type", "bridge")
        ip("-n", self.hub, "link", "set", "br1", "up")
        self.lines, self.shaped = [], []  # bad lines of the proxy, and of the kernel
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            if i in bad_lines:
                self.add_bad_line(name, f"p{i}", delay, loss, seed + i)
            else:
                self.add_line(name, f"p{i}")
            for end in ((name, "eth0"), (self.hub, f"p{i}")):
                ip("-n", end[0], "link", "set", end[1], "mtu", str(mtu))
            # Without duplicate address detection, which takes a second.
            ip("-n", name, "addr", "add", *([f"{self.address(i)}/64", "dev", "eth0", "nodad"] if v6 else
                                            [f"{self.address(i)}/24", "dev", "eth0"]))
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", self.hub, "link", "set", f"p{i}", "master", "br0")
            ip("-n", self.hub, "link", "set", f"p{i}", "up")

    def address(self, node):
        return f"fd77::{node + 1}" if self.v6 else f"10.77.0.{node + 1}"

    def add_line(self, name, port):
        ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", self.hub)

    def add_bad_line(self, name, port, delay, loss, seed):
        """By the kernel's netem where it has that, else by a proxy between two devices."""
        ends = [(name, "eth0"), (self.hub, port)]
        self.add_line(name, port)
        if all(shape(*end, delay, loss) for end in ends):
            self.shaped += ends
            return
        ip("-n", name, "link", "del", "eth0")
        command = [sys.executable, "-B", pathlib.Path(__file__).with_name("bad_line.py"), f"{name}:eth0", f"{self.hub}:{port}"]
        line = subprocess.Popen([*command, f"--delay={delay}", f"--loss={loss}", f"--seed={seed}"], stdout=subprocess.PIPE, text=True)
        self.lines.append(line)
        assert line.stdout.readline() == "ready\n"

    @property
    def bad_lines_by(self):
        return "netem" if self.shaped else "a proxy"

    def end_bad_lines(self):
        """How many packets they carried, and how many they lost."""
        ended = [shaped_packets(*end) for end in self.shaped]
        for line in self.lines:
            line.terminate()
            words = line.communicate(timeout=30)[0].split()
            ended.append((int(words[0]), int(words[2])))
        self.lines = []
        return [sum(column) for column in zip(*ended)]

    def cut_off(self, *nodes):
        """These nodes reach each other and no others; nobody is told."""
        for node in nodes:
            ip("-n", self.hub, "link", "set", f"p{node}", "master", "br1")

    def heal(self, *nodes):
        for node in nodes:
            ip("-n", self.hub, "link", "set", f"p{node}", "master", "br0")

    def lose(self, node, other):
        """What `node` sends to `other` goes nowhere, and nobody is told; until find()."""
        ip("-n", self.names[node], "neigh", "replace", self.address(other), "lladdr", "02:00:00:00:00:99", "dev", "eth0",
           "nud", "permanent")

    def find(self, node, other):
        ip("-n", self.names[node], "neigh", "del", self.address(other), "dev", "eth0")

    def link(self, node, state):
        """Down: the node's device loses its carrier."""
        ip("-n", self.hub, "link", "set", f"p{node}", state)

    def slow(self, node, rate="4mbit"):
        """In both directions, with a queue of half a second; what does not fit is lost. Needs the kernel's tbf; until fast()."""
        for end in ((self.names[node], "eth0"), (self.hub, f"p{node}")):
            subprocess.run(["tc", "-n", end[0], "qdisc", "replace", "dev", end[1], "root", "tbf", "rate", rate, "burst", "8kb",
                            "latency", "500ms"], check=True, capture_output=True)

    def fast(self, node):
        for end in ((self.names[node], "eth0"), (self.hub, f"p{node}")):
            subprocess.run(["tc", "-n", end[0], "qdisc", "del", "dev", end[1], "root"], check=True, capture_output=True)

    def command(self, node, *args):
        return ["ip", "netns", "exec", self.names[node], *map(str, args)]

    def close(self):
        for line in self.lines:
            line.kill()
            line.wait()
        for name in [*self.names, self.hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class QuickNodes(Nodes):
    def command(self, node, *args):  # without the mounts of ip netns exec
        return ["nsenter", f"--net=/run/netns/{self.names[node]}", *map(str, args)]
