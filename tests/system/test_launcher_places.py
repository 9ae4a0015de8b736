# SPDX-License-Identifier: Apache-2.0
"""Where a job is, seen from outside: the addresses at which its agents listen."""
import ipaddress
import re
import subprocess

import pytest

from elastic_support import PORT, SHOW, STAY, job, write  # noqa: F401 (job is a fixture)
from netns import ip
from launcher_support import wait_for

BACKENDS = ["c10d", "static"]


def place(it, backend, address=None, port=PORT):
    address = address or it.nodes.address(0)
    if backend == "static":
        return ["--rdzv-backend=static", "--rdzv-endpoint=", f"--master-addr={address}", f"--master-port={port}"]
    return [f"--rdzv-endpoint={f'[{address}]' if ':' in address else address}:{port}"]


def start(it, backend, node, count, *args, conf="", **how):
    """As the fixture does, of either backend; static takes no other keys than its timeout."""
    conf = conf if backend == "static" else ",".join(filter(None, ["cool_down=0", conf]))
    return it.start(node, count, f"--node-rank={node}", *place(it, backend), f"--rdzv-conf={conf}", *args, **how)


def add_second_network(it):
    """ib0 of node i is 10.79.0.(i+1) and fd79::(i+1)."""
    for node, name in enumerate(it.nodes.names):
        ip("-n", name, "link", "add", "ib0", "type", "veth", "peer", "name", f"ib{node}", "netns", it.nodes.hub)
        ip("-n", it.nodes.hub, "link", "set", f"ib{node}", "master", "br1")
        ip("-n", it.nodes.hub, "link", "set", f"ib{node}", "up")
        ip("-n", name, "addr", "add", f"10.79.0.{node + 1}/24", "dev", "ib0")
        ip("-n", name, "addr", "add", f"fd79::{node + 1}/64", "dev", "ib0", "nodad")
        ip("-n", name, "link", "set", "ib0", "up")


def listeners(it, node):
    """Addresses at which anything in the node's namespace listens, as /proc/net says."""
    text = subprocess.run(it.nodes.command(node, "cat", "/proc/net/tcp", "/proc/net/tcp6"), capture_output=True, text=True, check=True).stdout
    found = set()
    for fields in (line.split() for line in text.splitlines()):
        if fields[3] != "0A":
            continue
        word = bytes.fromhex(fields[1].partition(":")[0])
        # Words of 32 bits in this machine's order.
        found.add(str(ipaddress.ip_address(b"".join(word[i:i + 4][::-1] for i in range(0, len(word), 4)))))
    return found


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("wish", ["--iface=ib0", "--local-addr"])
def test_an_agent_listens_at_the_chosen_interface_only(job, tmp_path, wish, v6):
    it = job(2)
    add_second_network(it)
    script = write(tmp_path, "stay.py", STAY)
    address = "fd79::1" if v6 else "10.79.0.1"

    def own(node):
        return wish if "=" in wish else f"{wish}={address[:-1]}{node + 1}"

    it.start(0, 2, "--node-rank=0", *place(it, "c10d", address), own(0), script)
    it.said(0, "this agent runs the coordinator")
    # Through another interface nobody gets in, and is told what was tried.
    it.start(1, 1, "--node-rank=1", *place(it, "c10d", it.nodes.address(0)), own(1), script, conf="join_timeout=1,is_host=0", name="astray")
    assert it.codes("astray") == [69]
    assert re.search(rf"connect {re.escape(it.nodes.address(0))}:{PORT}.*: .*refused", it.err("astray")), it.err("astray")
    it.start(1, 1, "--node-rank=1", *place(it, "c10d", address), own(1), script)
    it.started("3.0", 0, 1, 2)
    found = listeners(it, 0)
    ours = {"10.79.0.1", "fd79::1"} if wish == "--iface=ib0" else {address}
    assert address in found and {one for one in found if not one.startswith("fe80:")} <= ours | {"127.0.0.1"}, found
    theirs = {one[:-1] + "2" for one in ours}
    assert {one for one in listeners(it, 1) if not one.startswith("fe80:")} <= theirs | {"127.0.0.1"}, listeners(it, 1)
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))


def test_a_port_of_the_kernel_s_choice_is_open_at_the_chosen_interface_only(job, tmp_path):
    it = job(2)
    add_second_network(it)
    script = write(tmp_path, "stay.py", STAY)
    it.start(0, 1, *place(it, "c10d", "10.79.0.1", 0), "--port-file=place", "--iface=ib0", script)
    it.said(0, "start the other nodes with --rdzv-endpoint=10.79.0.1:")
    endpoint = wait_for(lambda: (tmp_path / "place").exists() and (tmp_path / "place").read_text().strip(), "the port")
    it.start(1, 1, f"--rdzv-endpoint={endpoint}", "--iface=ib0", script)
    it.started("2.0", 0, 1)
    assert {one for one in listeners(it, 0) if not one.startswith("fe80:")} == {"10.79.0.1", "fd79::1"}
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))


def test_without_a_choice_an_agent_listens_everywhere(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "stay.py", STAY)
    for node in range(2):
        it.start(node, 1, script)
    it.started("2.0", 0, 1)
    assert "::" in listeners(it, 0)
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0]


def test_the_first_node_of_a_static_job_listens_at_its_address_only(job, tmp_path):
    it = job(2)
    add_second_network(it)
    script = write(tmp_path, "once.py", STAY.replace("while not", "if e['TORCHELASTIC_RESTART_COUNT'] == '0': raise SystemExit(3)\nwhile not"))
    for node in range(2):
        it.start(node, 1, f"--node-rank={node}", *place(it, "static", "10.79.0.1"), "--rdzv-conf=",
                 f"--local-addr=10.79.0.{node + 1}", script, restarts=1)
    it.started("2.1", 0, 1)
    assert listeners(it, 0) == {"10.79.0.1"}, listeners(it, 0)
    assert listeners(it, 1) == set()
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_name_that_leads_past_the_chosen_interface_is_listened_at_and_said(job, tmp_path, backend):
    it = job(2)
    add_second_network(it)
    script = write(tmp_path, "stay.py", STAY)
    name = f"0x{int(ipaddress.ip_address(it.nodes.address(0))):08x}"  # every resolver takes it for that address
    wish = "--iface=ib0" if backend == "c10d" else "--local-addr=10.79.0.1"
    for node in range(2):
        it.start(node, 1, f"--node-rank={node}", *place(it, backend, name), *(["--rdzv-conf="] if backend == "static" else []),
                 wish if node == 0 or backend == "c10d" else "--local-addr=10.79.0.2", script)
    it.started("2.0", 0, 1)
    assert f"{name} is {it.nodes.address(0)} (eth0) on this host" in it.err(0) and f"in spite of {wish}" in it.err(0), it.err(0)
    assert "in spite of" not in it.err(1)
    found = {one for one in listeners(it, 0) if not one.startswith("fe80:")}
    assert found == ({"10.77.0.1", "10.79.0.1", "fd79::1"} if backend == "c10d" else {"10.77.0.1", "10.79.0.1"}), found
    (tmp_path / "go").touch()
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))


def test_folded_lines_of_several_nodes_say_whose_they_are(job, tmp_path):
    it = job(2)
    # Lines fall together that come within 0.3 s of each other: of ten, at least one does so on any machine.
    script = write(tmp_path, "speak.py", """
import os, sys
rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
for i in range(10):
    at = f"{sys.argv[1]}.{i}."
    open(at + rank, "w").close()
    while not all(os.path.exists(at + str(other)) for other in range(world)): pass
    os.write(1, f"alike {i}\\n".encode())
os.write(1, f"rank {rank} alone\\n".encode())
""")
    for node in range(2):
        it.start(node, 2, f"--node-rank={node}", "--view=fold", script, "both")
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    it.start(0, 2, "--view=fold", script, "one", nnodes=1, name="one")
    assert it.codes("one") == [0], it.err("one")

    def check(text, both, each):
        lines = text.splitlines()
        together = [i for i in range(10) if f"[{both}]:alike {i}" in lines]
        assert together, text
        expected = [f"[{both}]:alike {i}" for i in together]
        expected += [f"[{one}]:alike {i}" for one in each.values() for i in range(10) if i not in together]
        assert sorted(lines) == sorted(expected + [f"[{one}]:rank {rank} alone" for rank, one in each.items()])

    for node in range(2):
        check(it.out(node), f"host{node} x2", {rank: f"host{node} {rank}" for rank in (2 * node, 2 * node + 1)})
    check(it.out("one"), "x2", {rank: f"default{rank}" for rank in range(2)})
