# SPDX-License-Identifier: Apache-2.0
"""The workers' store behind their agents (--store-proxy), over nodes that are network namespaces of this machine."""
import os
import re
import signal
import subprocess

from elastic_support import PORT, SECRET, SHOW, job, write  # noqa: F401
from launcher_support import BIN, clean_environment, wait_for

# A worker's side of the TCPStore protocol, as PyTorch >= 2.2 speaks it.
STORE = """
import os, signal, socket, struct, time
e = os.environ
rank, size, attempt = int(e["RANK"]), int(e["WORLD_SIZE"]), int(e["TORCHELASTIC_RESTART_COUNT"])
class Store:
    def __init__(self):
        self.socket = socket.create_connection((e["MASTER_ADDR"], int(e["MASTER_PORT"])), 30)
        self.socket.sendall(bytes.fromhex("00cef7853c"))
    def text(self, value): return struct.pack("<Q", len(value)) + value
    def read(self, size):
        out = b""
        while len(out) < size:
            out += (got := self.socket.recv(size - len(out)))
            assert got, "the store closed the connection"
        return out
    def vector(self): return self.read(struct.unpack("<Q", self.read(8))[0])
    def set(self, key, value): self.socket.sendall(b"\\1" + self.text(key) + self.text(value))
    def ask_wait(self, key): self.socket.sendall(b"\\6" + struct.pack("<Q", 1) + self.text(key))
    def wait(self, key):
        self.ask_wait(key)
        assert self.read(1) == b"\\0"
    def get(self, key):
        self.wait(key)
        self.socket.sendall(b"\\3" + self.text(key))
        return self.vector()
    def add(self, key, number):
        self.socket.sendall(b"\\4" + self.text(key) + struct.pack("<q", number))
        return struct.unpack("<q", self.read(8))[0]
    def num_keys(self):
        self.socket.sendall(b"\\7")
        return struct.unpack("<q", self.read(8))[0]
def note(name, text="x"):
    with open(name + ".new", "w") as file: file.write(text)
    os.rename(name + ".new", name)
def stay():
    while not os.path.exists("go"): signal.sigtimedwait([], 0.02)
store = Store()
"""


def listeners(it, node):
    """Ports on which anybody listens beyond loopback."""
    lines = subprocess.run(it.nodes.command(node, "ss", "-Htln"), capture_output=True, text=True, check=True).stdout
    addresses = [line.split()[3] for line in lines.splitlines()]
    return [int(address.rsplit(":", 1)[1]) for address in addresses if not re.match(r"127\.|\[::1\]", address)]


def connections(it, node, port):
    """Addresses that are connected to a port of the node."""
    lines = subprocess.run(it.nodes.command(node, "ss", "-Htn", "state", "established", "sport", "=", f":{port}"),
                           capture_output=True, text=True, check=True).stdout
    return sorted(re.sub(r"[\[\]]|::ffff:", "", line.split()[3]).rsplit(":", 1)[0] for line in lines.splitlines())


def test_with_a_secret_only_the_coordinator_listens_and_each_node_has_one_connection_to_it(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "meet.py", STORE + """
more = [Store() for _ in range(4)]
for each in more: each.ask_wait(b"all")
if store.add(b"n", 1) == size: store.set(b"all", b"here")
for each in more: assert each.read(1) == b"\\0"
big = bytes(range(256)) * 32768
if rank == 0: store.set(b"big", big)
assert store.get(b"big") == big
note("ready%d" % rank)
stay()
""")
    for node in range(3):
        it.start(node, 2, f"--node-rank={node}", script, MUSTER_SECRET=SECRET)
    wait_for(lambda: all((tmp_path / f"ready{rank}").exists() for rank in range(6)),
             f"all ranks to meet: {[it.err(n) for n in range(3)]}", 60)
    assert [listeners(it, node) for node in range(3)] == [[PORT], [], []]
    # The first node's agent comes over loopback.
    assert connections(it, 0, PORT) == ["10.77.0.2", "10.77.0.3", "127.0.0.1"]
    (tmp_path / "go").touch()
    assert it.codes(0, 1, 2) == [0, 0, 0], [it.err(n) for n in range(3)]


def test_workers_find_their_store_on_loopback_and_the_interface_to_the_others(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    for node in (0, 1):
        it.start(node, 1 + node, f"--node-rank={node}", script, MUSTER_SECRET=SECRET)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert [(w["RANK"], w["MASTER_ADDR"], w["GLOO_SOCKET_IFNAME"], w["TORCHELASTIC_USE_AGENT_STORE"])
            for w in it.workers(0, 1)] == [(rank, "127.0.0.1", "eth0", "True") for rank in "012"]


def test_all_nodes_proxy_or_none(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    it.start(0, 1, "--no-store-proxy", script, MUSTER_SECRET=SECRET)
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, script, name="other", MUSTER_SECRET=SECRET)
    assert it.codes("other") == [78]
    assert "hostother proxies its workers' store (--store-proxy, the default with a secret), host0 does not" in it.err("other")
    it.start(1, 1, "--no-store-proxy", script, MUSTER_SECRET=SECRET)
    assert it.codes(0, 1) == [0, 0], it.err(0)
    assert {w["MASTER_ADDR"] for w in it.workers(0, 1)} == {"10.77.0.1"}


def test_a_worker_that_dies_while_it_waits_and_a_new_generation_with_an_empty_store(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "again.py", STORE + """
if attempt == 0:
    store.set(b"old%d" % rank, b"x")
    if store.add(b"n", 1) == size: store.set(b"all", b"")
    store.wait(b"all")
    store.ask_wait(b"never")
    note("waits%d" % rank, str(os.getpid()))
    store.read(1)
else:
    # Nothing of the former generation is left.
    if rank == 0:
        assert store.num_keys() == 0
        store.set(b"checked", b"")
    store.wait(b"checked")
    os.write(1, b"rank %d again\\n" % rank)  # in one piece: ranks share the stream
""")
    for node in (0, 1):
        it.start(node, 2, f"--node-rank={node}", script, restarts=1, MUSTER_SECRET=SECRET)
    waits = [tmp_path / f"waits{rank}" for rank in range(4)]
    wait_for(lambda: all(path.exists() for path in waits), f"all to wait: {it.err(0)}", 30)
    os.kill(int(waits[3].read_text()), signal.SIGKILL)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert sorted((it.out(0) + it.out(1)).splitlines()) == [f"rank {rank} again" for rank in range(4)]
    assert "SIGKILL" in it.err(0) or "killed by signal 9" in it.err(0), it.err(0)


def test_workers_notice_nothing_of_a_daemon_that_is_killed_again_and_again(job, tmp_path):
    it = job(3)
    # In step: each waits for all others at each step, until rank 0 says that it is the last one.
    script = write(tmp_path, "outlive.py", STORE + """
def delete(key):
    store.socket.sendall(b"\\x08" + store.text(key))
    return struct.unpack("<q", store.read(8))[0]
assert not os.path.exists("met%d" % rank)
note("met%d" % rank)
more = Store()
more.ask_wait(b"end")
step, last, done = 0, 0, False
while not done:
    step += 1
    value = b"x" * (step * 7919 % 200000)
    store.set(b"%d/%d" % (rank, step), value)
    store.set(b"word%d/%d" % (rank, step), b"last" if rank == 0 and os.path.exists("go") else b"on")
    for other in range(size):
        assert store.get(b"%d/%d" % (other, step)) == value
        done |= store.get(b"word%d/%d" % (other, step)) == b"last"
    now = store.add(b"n", 1)
    assert now > last, (now, last)
    last = now
    if step > 2: assert delete(b"%d/%d" % (rank, step - 2)) == delete(b"word%d/%d" % (rank, step - 2)) == 1
    note("step%d" % rank, str(step))
if store.add(b"out", 1) == size: store.set(b"end", b"")
assert more.read(1) == b"\\0"
assert store.add(b"n", 0) == size * step, (store.add(b"n", 0), step)
assert store.num_keys() == 3 + 2 * 2 * size  # n, out, end, and what was not deleted of two steps
""")

    def serve(name):
        it.spawn(name, 2, BIN / "musterd", f"--port={PORT}", f"--state-dir={tmp_path}/state",
                 "--state-rewrite-min-bytes=1000000", env=clean_environment(MUSTER_SECRET=SECRET))

    def steps():
        return [int((tmp_path / f"step{rank}").read_text()) if (tmp_path / f"step{rank}").exists() else 0 for rank in range(4)]

    def go_on():
        before = min(steps())
        wait_for(lambda: min(steps()) > before + 3, f"the workers to go on: {it.err(0)} {it.err(1)}", 60)

    serve("d0")
    for node in (0, 1):
        it.start(node, 2, script, nnodes=2, backend="muster", endpoint=it.nodes.address(2), restarts=0, MUSTER_SECRET=SECRET)
    go_on()
    for number in range(5):
        it.running[f"d{number}"].kill()
        it.running[f"d{number}"].wait()
        serve(f"d{number + 1}")
        go_on()
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert "generation 1" not in it.err(0) + it.err(1)


def test_two_jobs_at_one_daemon_have_stores_of_their_own(job, tmp_path):
    it = job(3)
    it.spawn("d", 2, BIN / "musterd", f"--port={PORT}", env=clean_environment(MUSTER_SECRET=SECRET))
    script = write(tmp_path, "own.py", STORE + """
own = e["TORCHELASTIC_RUN_ID"].encode()
if rank == 0: store.set(b"name", own)
assert store.get(b"name") == own
assert store.add(b"met" , 1) <= size
note("%s%d" % (own.decode(), rank))
stay()
assert store.get(b"name") == own and store.add(b"met", 0) == size and store.num_keys() == 2
""")
    for node in (0, 1):
        for name in ("a", "b"):
            it.start(node, 1, f"--node-rank={node}", f"--rdzv-id={name}", script, nnodes=2, backend="muster",
                     endpoint=it.nodes.address(2), name=f"{name}{node}", MUSTER_SECRET=SECRET)
    names = [f"{name}{node}" for name in "ab" for node in (0, 1)]
    wait_for(lambda: all((tmp_path / name).exists() for name in names), f"all to meet: {it.err('a0')}", 60)
    (tmp_path / "go").touch()
    assert it.codes(*names) == [0] * 4, [it.err(name) for name in names]


def test_the_worker_runtime_meets_behind_the_proxy(job, tmp_path):
    it = job(2)
    for node in (0, 1):
        it.start(node, 2, f"--node-rank={node}", BIN / "all_reduce", MUSTER_SECRET=SECRET, MUSTER_HOST_ID=f"host{node}")
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    said = sorted((it.out(0) + it.out(1)).splitlines())
    assert [line.split(" over ")[0] for line in said] == [f"rank {rank} of 4: sum 10" for rank in range(4)]
