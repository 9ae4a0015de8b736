# SPDX-License-Identifier: Apache-2.0
"""Agents that die, freeze or cannot go on, in each state of a job, over nodes that are network namespaces."""
import re
import signal
import subprocess

import pytest

from elastic_support import PORT, job, write  # noqa: F401
from faults_support import ACT, Scene, beating, check_worlds, connected, leaves, stage  # noqa: F401
from launcher_support import wait_for


def test_an_agent_killed_in_any_state_keeps_nobody_from_going_on(stage):
    nodes = stage.build(4)
    # Node 3's way to the first node of a job, on node 1, is lost, so that its agent stays between the assignment and the
    # start of its workers. The daemon is on node 0.
    daemon = stage.daemon(0)
    new = lambda name, **rules: stage.scene(name, daemon.endpoint, backend="muster",
                                            **{"nnodes": 2, "restarts": 1, **rules})
    starting = new("starting")
    nodes.lose(3, 1)
    starting.agent(1, "--node-rank=0", name="first")
    starting.agent(3, "--node-rank=1", name="second")
    starting.placed("second", 0)
    starting.started("2.0", 0)

    gathering = new("gathering")
    gathering.agent(2)
    daemon.says("job gathering: new")
    last_call = new("last-call", nnodes="2:3", conf="last_call_timeout=600")
    last_call.agent(2)
    last_call.agent(1)
    daemon.says("job last-call: new")

    running, stopping, leaving = new("running"), new("stopping"), new("leaving", nnodes="1:2", conf="last_call_timeout=0.2")
    stopping.touch("deaf")
    for scene in (running, stopping, leaving):
        scene.agent(2, "--node-rank=0", name="first")
        scene.agent(1, "--node-rank=1", name="second")
    for scene in (running, stopping, leaving):
        scene.started("2.0", 0, 1)
    stopping.touch("fail")
    wait_for(lambda: (stopping.tmp_path / "termed").exists(), "the deaf worker to be stopped")

    daemon.signal(signal.SIGSTOP)
    authenticating = new("authenticating")
    connected(authenticating.agent(2, name="first"))
    leaves(leaving)
    connecting = stage.scene("connecting", f"{nodes.address(0)}:{PORT + 1}", backend="muster", nnodes=2)
    connecting.agent(2, name="first")

    victims = [starting.running["second"], gathering.running[2], last_call.running[2], running.running["first"],
               stopping.running["second"], leaving.running["second"], authenticating.running["first"],
               connecting.running["first"]]
    for victim in victims:
        victim.kill()
    daemon.signal(signal.SIGCONT)
    for victim in victims:
        victim.wait()

    # Others take the places of the dead; where MIN are left, nobody has to.
    connecting.endpoint = daemon.endpoint
    for scene in (gathering, authenticating, connecting):
        scene.agent(1, name="third")
        scene.agent(2, name="fourth")
        scene.started("2.0", 0, 1)
        scene.succeeds("third", "fourth")
    for name in ("third", "fourth"):
        last_call.agent(2, name=name)
    last_call.started("3.0", 0, 1, 2)
    last_call.succeeds(1, "third", "fourth")
    for scene, here in ((starting, "first"), (running, "second"), (stopping, "first")):
        scene.agent(2, name="third")
        scene.started("2.1", 0, 1)
        scene.succeeds(here, "third")
    leaving.started("1.0", 0)
    leaving.succeeds("first")
    for scene in stage.jobs:
        if isinstance(scene, Scene):
            check_worlds(scene)


def test_two_signals_at_once_while_others_wait_still_tell_them_why(job):
    it = job(2)
    conf = "keep_alive_interval=0.1,keep_alive_max_attempt=200"
    it.start(0, 1, "true", nnodes=3, conf=conf)
    it.said(0, "this agent runs the coordinator")
    it.start(1, 1, "true", nnodes=3, conf=conf)
    beating(it.nodes, 0)
    # Both are there before the host has taken up the first.
    it.running[0].send_signal(signal.SIGSTOP)
    it.running[0].send_signal(signal.SIGTERM)
    it.running[0].send_signal(signal.SIGINT)
    it.running[0].send_signal(signal.SIGCONT)
    codes = it.codes(0, 1)
    assert codes in ([143, 143], [130, 130]), (it.err(0), it.err(1))
    assert re.search("job stopped by SIG(TERM|INT) on host0; exit status", it.err(1))


@pytest.mark.parametrize("nnodes, codes", [("2", [71, 71]), ("1:2", [0, 71])])
def test_a_node_that_cannot_start_its_workers_tells_the_others(job, tmp_path, nnodes, codes):
    it = job(2)
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=3", "tmpfs", full], check=True)
    try:
        script = write(tmp_path, "act.py", ACT)
        conf = "join_timeout=600,last_call_timeout=0.2"
        it.start(0, 1, "--node-rank=0", script, nnodes=nnodes, conf=conf)
        it.said(0, "this agent runs the coordinator")
        it.start(1, 1, "--node-rank=1", f"--log-dir={full}", script, nnodes=nnodes, conf=conf)
        assert it.codes(1) == codes[1:], it.err(1)
        (tmp_path / "go").touch()
        assert it.codes(0) == codes[:1], it.err(0)
        assert re.search(r"create .*/full/.*No space left on device.*exit status 71", it.err(1)), it.err(1)
        assert re.search(r"host1: create .*/full/.*No space left on device", it.err(0)), it.err(0)
    finally:
        subprocess.run(["umount", "-l", full], check=True)
