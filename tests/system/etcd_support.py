# SPDX-License-Identifier: Apache-2.0
"""What tests over a real etcd share: one member on loopback with a data folder of its own, and launchers that use it."""
import json
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from launcher_support import MUSTER, clean_environment, wait_for
from ports import free_ports

LEASE = 3  # seconds; what a test that waits for the end of a lease costs


class Etcd:
    def __init__(self, folder, *options, scheme="http"):
        self.folder, self.options, self.scheme, self.process = folder, options, scheme, None
        self.port, self.peer_port = free_ports(2)
        self.log = open(folder / "etcd.log", "a")

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        client, peer = f"{self.scheme}://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
             "--unsafe-no-fsync", *self.options], stdout=self.log, stderr=self.log, cwd=self.folder)
        if self.scheme == "http":
            wait_for(self.healthy, "etcd to serve", 30)
        else:
            wait_for(lambda: "ready to serve client requests" in (self.folder / "etcd.log").read_text() or
                     "serving client requests" in (self.folder / "etcd.log").read_text(), "etcd to serve", 30)
        return self

    def healthy(self):
        assert self.process.poll() is None, (self.folder / "etcd.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=5) as answer:
                return json.load(answer)["health"] == "true"
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def ctl(self, *words):
        return subprocess.run(["etcdctl", f"--endpoints={self.endpoint}", *words], check=True, timeout=20, text=True,
                              capture_output=True, env={**clean_environment(), "ETCDCTL_API": "3"}).stdout

    def coordinator(self):
        """The launcher that runs job none's coordinator now."""
        return json.loads(self.ctl("get", "/muster/none/coordinator", "--print-value-only"))["host"].removeprefix("host-")

    def keys(self):
        return self.ctl("get", "--prefix", "/", "--keys-only").split()

    def close(self):
        if self.process and self.process.poll() is None:
            self.kill()
        self.log.close()


class Cluster:
    """Three members, each on a host of its own: node i of `nodes` runs member i."""

    def __init__(self, folder, nodes):
        self.nodes, self.logs, self.members = nodes, [], []
        hosts = [nodes.address(i) for i in range(3)]
        self.endpoints = [f"{host}:2379" for host in hosts]
        peers = [f"http://{host}:2380" for host in hosts]
        for i in range(3):
            client = f"http://{self.endpoints[i]}"
            self.logs.append(open(folder / f"etcd{i}.log", "a"))
            self.members.append(subprocess.Popen(nodes.command(
                i, "etcd", f"--name=m{i}", f"--data-dir={folder}/etcd{i}", f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}", f"--listen-peer-urls={peers[i]}",
                f"--initial-advertise-peer-urls={peers[i]}", "--unsafe-no-fsync", "--heartbeat-interval=50",
                "--election-timeout=500", "--initial-cluster=" + ",".join(f"m{j}={peers[j]}" for j in range(3))),
                stdout=self.logs[i], stderr=self.logs[i], cwd=folder))
        wait_for(lambda: all(self.healthy(i) for i in range(3)), "three members to serve", 60)

    def ctl(self, member, *words):
        """Through that member alone."""
        return subprocess.run(
            self.nodes.command(member, "etcdctl", f"--endpoints={self.endpoints[member]}", *words), timeout=20, text=True,
            capture_output=True, env={**clean_environment(), "ETCDCTL_API": "3"})

    def healthy(self, member):
        return self.ctl(member, "endpoint", "health").returncode == 0

    def leader(self):
        status = json.loads(self.ctl(0, "endpoint", "status", "--cluster", "-w", "json").stdout)
        leads, = [one["Endpoint"] for one in status if one["Status"]["leader"] == one["Status"]["header"]["member_id"]]
        return self.endpoints.index(leads.removeprefix("http://"))

    def isolate(self, member):
        """It and its peers hear nothing of each other; its clients notice nothing."""
        for other in {0, 1, 2} - {member}:
            self.nodes.lose(member, other)
            self.nodes.lose(other, member)
        wait_for(lambda: not self.healthy(member), "the member to be without a leader", 30)

    def close(self):
        for member in self.members:
            member.kill()
            member.wait()
        for log in self.logs:
            log.close()


class EtcdJob:
    """Launchers on this host, one per node; what they print goes to files that tests can watch."""

    def __init__(self, tmp_path, endpoint):
        self.tmp_path, self.endpoint, self.running, self.files = tmp_path, endpoint, {}, []

    def start(self, name, script, *, nnodes, restarts=0, conf="", ranks=1, endpoint=None, options=(), wrap=(), **env):
        conf = ",".join(filter(None, [f"lease_ttl={LEASE}", "cool_down=0", "last_call_timeout=0.3", conf]))
        command = [*wrap, MUSTER, f"--nnodes={nnodes}", "--rdzv-backend=etcd", f"--rdzv-endpoint={endpoint or self.endpoint}",
                   f"--max-restarts={restarts}", f"--rdzv-conf={conf}", f"--local-addr=host-{name}",
                   f"--nproc-per-node={ranks}", *options, script]
        out, err = (open(self.tmp_path / f"{name}.{kind}", "w") for kind in ("out", "err"))
        self.files += [out, err]
        self.running[name] = subprocess.Popen(command, cwd=self.tmp_path, stdout=out, stderr=err,
                                              env=clean_environment(NODE=name, LOGLEVEL="INFO", **env))
        return self.running[name]

    def out(self, name):
        return (self.tmp_path / f"{name}.out").read_text()

    def err(self, name):
        return (self.tmp_path / f"{name}.err").read_text()

    def said(self, name, text, seconds=40):
        wait_for(lambda: re.search(text, self.err(name)), f"{name} to say {text!r}, not {self.err(name)!r}", seconds)

    def started(self, attempt, *ranks, seconds=60):
        """Waits for workers that wrote their pid; their pids."""
        paths = [self.tmp_path / f"pid{rank}_{attempt}" for rank in ranks]
        wait_for(lambda: all(p.exists() and p.read_text() for p in paths),
                 f"ranks {ranks} of attempt {attempt}; " + "; ".join(self.err(n) for n in self.running), seconds)
        return [int(p.read_text()) for p in paths]

    def forget(self, attempt):
        """Workers of a former world of that size, which a latecomer made larger, count no more."""
        for path in self.tmp_path.glob(f"pid*_{attempt}"):
            path.unlink()

    def codes(self, *names, timeout=90):
        return [self.running[name].wait(timeout) for name in names]

    def close(self):
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for file in self.files:
            file.close()


@pytest.fixture
def etcd(tmp_path):
    if not shutil.which("etcd"):
        pytest.skip("etcd is not installed; scripts/setup does that")
    one = Etcd(tmp_path).start()
    yield one
    one.close()


@pytest.fixture
def job(tmp_path, etcd):
    one = EtcdJob(tmp_path, etcd.endpoint)
    yield one
    one.close()
