# SPDX-License-Identifier: Apache-2.0
"""Networks that are cut, slow or lossy, and addresses that are not to be used, over network namespaces."""
import re

import pytest

from elastic_support import PORT, SHOW, job, write  # noqa: F401
from faults_support import check_worlds, connections, gone, stage  # noqa: F401
from launcher_support import alive, wait_for
from netns import Nodes, ip

SHORT = "keep_alive_interval=0.5,keep_alive_max_attempt=8,last_call_timeout=0.2"


def resends(process, port=PORT):
    """Data that nobody has acknowledged is sent again and again."""
    return any(again >= 2 for _, again in connections(process.pid, port))


def test_hosts_that_are_cut_off_are_counted_out_and_never_make_a_world_of_their_own(stage):
    nodes = stage.build(5)
    daemon = stage.daemon(0)
    hosted = f"{nodes.address(1)}:{PORT + 1}"
    new = lambda name, endpoint, conf, **rules: stage.scene(
        name, endpoint, **{"nnodes": "2:4", "restarts": 3, "conf": conf, **rules})
    # All are cut off for the same time, which is longer than some are patient and shorter than others are.
    ends = new("ends", daemon.endpoint, f"{SHORT},reconnect_timeout=0.5", backend="muster")
    returns = new("returns", daemon.endpoint, f"{SHORT},reconnect_timeout=600", backend="muster")
    unmoved = new("unmoved", daemon.endpoint, "keep_alive_interval=1,keep_alive_max_attempt=120", backend="muster")
    embedded = new("embedded", hosted, SHORT)
    fixed = new("fixed", daemon.endpoint, f"{SHORT},reconnect_timeout=0.5", backend="muster", nnodes=4, restarts=0)
    scenes = [ends, returns, unmoved, embedded, fixed]
    for scene in scenes:
        for node in (1, 2, 3, 4):
            scene.agent(node, f"--node-rank={node - 1}")
    pids = {scene.id: scene.started("4.0", 0, 1, 2, 3) for scene in scenes}

    before = {scene.id: scene.places(3) for scene in scenes}
    nodes.cut_off(3, 4)
    # The side with the coordinator goes on where MIN allows, else ends.
    for scene in (ends, returns, embedded):
        for node in (1, 2):
            scene.said(node, r"lost node \d \(host[34]\): no heartbeat for")
            wait_for(lambda: scene.places(node)[-1].nodes == 2, "the rest to go on")
            assert scene.places(node)[-1].size == 2
    # The other side ends, or looks for the coordinator, and is in no other world.
    for scene in (ends, embedded, fixed):
        assert scene.codes(3, 4) == [76, 76], (scene.err(3), scene.err(4))
        for node in (3, 4):
            assert re.search(r"lost the coordinator at 10\.77\.0\.\d:\d+: .*; exit status 76", scene.err(node))
        wait_for(lambda: all(gone(pid) for pid in pids[scene.id][2:]), "the workers that were cut off to be gone")
    assert fixed.codes(1, 2) == [76, 76], fixed.err(1)
    wait_for(lambda: all(resends(unmoved.running[node]) for node in (3, 4)), "the cut to be felt by all")

    for scene in scenes:
        assert scene.places(3) == before[scene.id] and scene.places(4)[-1].generation == before[scene.id][-1].generation
    nodes.heal(3, 4)
    # Who looked for it all the time comes back into a later generation.
    for node in (3, 4):
        returns.said(node, f"this node was away: generation {before['returns'][-1].generation} is over")
    wait_for(lambda: all(returns.places(n)[-1].nodes == 4 for n in (1, 2, 3, 4)), "all to be back")
    wait_for(lambda: all(gone(pid) for pid in pids["returns"]), "the workers of the first generation to be gone")
    # Who was patient noticed nothing.
    assert all(alive(pid) for pid in pids["unmoved"])
    unmoved.succeeds(1, 2, 3, 4)
    assert all("lost" not in unmoved.err(node) and unmoved.places(node)[-1].generation == before["unmoved"][-1].generation
               for node in (1, 2, 3, 4))
    returns.succeeds(1, 2, 3, 4)
    for scene in (ends, embedded):
        scene.succeeds(1, 2)
    for scene in scenes:
        check_worlds(scene)


@pytest.mark.parametrize("way", ["to the coordinator", "from it"])
@pytest.mark.parametrize("stage", [None], indirect=True, ids=[""])
def test_a_node_whose_line_is_dead_one_way_is_counted_out_and_ends(stage, way):
    nodes = stage.build(4)
    daemon = stage.daemon(0)
    scene = stage.scene("job", daemon.endpoint, backend="muster", nnodes="2:3", restarts=1, conf=f"{SHORT},reconnect_timeout=0.5")
    for node in (1, 2, 3):
        scene.agent(node, f"--node-rank={node - 1}")
    pids = scene.started("3.0", 0, 1, 2)
    # Whoever came after the last call made a world of two one of three.
    before = scene.places(1)[-1].generation
    last = scene.places(3)
    nodes.lose(*((3, 0) if way == "to the coordinator" else (0, 3)))
    scene.started("2.1", 0, 1)
    for node in (1, 2):
        assert re.search(r"lost node 2 \(host3\): .*; restart 1 of 1", scene.err(node)), scene.err(node)
    assert scene.codes(3) == [76], scene.err(3)
    wait_for(lambda: all(gone(pid) for pid in pids), "the workers of the first generation to be gone")
    scene.succeeds(1, 2)
    assert max(check_worlds(scene)) == before + 1 and scene.places(3) == last


def test_a_job_gathers_restarts_and_ends_over_lines_of_200_ms_that_lose_5_percent(stage):
    nodes = stage.build(4, bad_lines=(1, 2, 3), delay=0.2, loss=0.05)
    daemon = stage.daemon(0)
    scene = stage.scene("far", daemon.endpoint, backend="muster", nnodes="2:3", restarts=1, conf="last_call_timeout=60")
    for node in (1, 2, 3):
        scene.agent(node, f"--node-rank={node - 1}")
    scene.started("3.0", 0, 1, 2, seconds=60)
    scene.touch("fail")
    scene.started("3.1", 0, 1, 2, seconds=60)
    assert all(re.search("exited with code 7; restart 1 of 1", scene.err(node)) for node in (1, 2, 3))
    assert all("lost node" not in scene.err(node) for node in (1, 2, 3))
    scene.succeeds(1, 2, 3)
    assert set(check_worlds(scene)) == {0, 1}
    carried, lost = nodes.end_bad_lines()
    print(f"{nodes.bad_lines_by}: {carried} packets carried, {lost} lost")
    assert lost > 0 and carried > 10 * lost


def test_bad_lines_are_netem_s_where_the_kernel_has_it_and_a_proxy_s_elsewhere(monkeypatch, tmp_path):
    """A tc that says yes stands for such a kernel, one that says no for the others."""
    said = tmp_path / "said"
    shown = '[{"kind": "netem", "packets": 90, "drops": 5}]'
    for code, by in ((0, "netem"), (2, "a proxy")):
        write(tmp_path, "tc", f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> {said}\n[ $1 = -s ] && echo '{shown}' && exit\nexit {code}\n").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        nodes = Nodes(2, bad_lines=(1,), delay=0.2, loss=0.05)
        try:
            assert nodes.bad_lines_by == by
            assert len(nodes.lines) == (by == "a proxy")
            ended = nodes.end_bad_lines()
            assert ended == [180, 10] if by == "netem" else len(ended) == 2
        finally:
            nodes.close()
    ends = [f"-n {name} qdisc replace dev {device} root netem delay 200ms loss 5%"
            for name, device in ((r"mu\d+s\d+n1", "eth0"), (r"mu\d+s\d+h", "p1"))]
    asked = [line for line in said.read_text().splitlines() if "replace" in line]
    assert len(asked) == 3 and all(re.fullmatch(end, line) for end, line in zip(ends, asked)) and re.fullmatch(ends[0], asked[2])


def test_an_interface_that_is_named_is_the_only_one_that_others_try(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    for node in range(2):
        ip("-n", it.nodes.names[node], "link", "add", "ib0", "type", "veth", "peer", "name", f"ib{node}", "netns",
           it.nodes.hub)
        ip("-n", it.nodes.hub, "link", "set", f"ib{node}", "master", "br1")
        ip("-n", it.nodes.hub, "link", "set", f"ib{node}", "up")
        ip("-n", it.nodes.names[node], "addr", "add", f"10.79.0.{node + 1}/24", "dev", "ib0")
        ip("-n", it.nodes.names[node], "link", "set", "ib0", "up")
    # The agents reach the coordinator over eth0.
    it.start(1, 1, "--node-rank=0", "--iface=ib0", script)
    it.start(0, 1, "--node-rank=1", "--local-addr=10.79.0.1", script)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert [w["MASTER_ADDR"] for w in it.workers(0, 1)] == ["10.79.0.2"] * 2
    assert [w["GLOO_SOCKET_IFNAME"] for w in it.workers(0, 1)] == ["ib0"] * 2


def test_another_heartbeat_timeout_than_the_job_s_is_refused_with_both(job, tmp_path):
    it = job(2)
    it.start(0, 1, "true", conf="keep_alive_interval=1")
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, "true", name="wrong")
    assert it.codes("wrong") == [78]
    assert re.search(r"wants a heartbeat timeout .*keep_alive_interval.* of 15000 ms, the job has a heartbeat timeout .* of 3000 ms", it.err("wrong"))
    it.start(1, 1, "true", conf="keep_alive_interval=1")
    assert it.codes(0, 1) == [0, 0]
