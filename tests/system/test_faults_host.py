# SPDX-License-Identifier: Apache-2.0
"""Hosts whose clock is set, or differs, and a disk that is full under the daemon's log, while a job runs."""
import datetime
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from elastic_support import PORT
from faults_support import check_worlds, heartbeats, stage  # noqa: F401
from launcher_support import alive, wait_for, write_at_once

CONF = "keep_alive_interval=0.3,keep_alive_max_attempt=20,last_call_timeout=600,join_timeout=600"
HEARTBEAT = "--heartbeat-interval=0.2"
YEARS = 10 * 365 * 86400


@pytest.fixture(scope="module")
def stepped_clock(tmp_path_factory):
    library = tmp_path_factory.mktemp("clock") / "stepped_clock.so"
    source = pathlib.Path(__file__).parents[1] / "support/stepped_clock.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def more_heartbeats(stage, node, count=4, before=None, ports=(PORT,)):
    look = lambda: {(port, peer): seen for port in ports for peer, seen in heartbeats(stage.nodes, node, port).items()}
    before = before or wait_for(look, "agents to be connected")
    wait_for(lambda: all(now.get(peer, 0) >= seen + count for now in [look()] for peer, seen in before.items()),
             f"{count} more heartbeats of each agent")


def test_nothing_changes_when_one_host_s_wall_clock_is_set(stage, stepped_clock):
    stage.build(3)
    clock = stage.tmp_path / "clock"
    write_at_once(clock, "0")
    stepped = {"LD_PRELOAD": str(stepped_clock), "MUSTER_TEST_CLOCK": str(clock)}
    daemon = stage.daemon(0, HEARTBEAT)
    running = stage.scene("running", daemon.endpoint, backend="muster", nnodes="2:3", restarts=1, conf=CONF)
    waiting = stage.scene("waiting", daemon.endpoint, backend="muster", nnodes="2:3", restarts=1, conf=CONF)
    for scene in (running, waiting):
        scene.agent(1, "--node-rank=0", **stepped)
        scene.agent(2, "--node-rank=1")
    running.agent(2, "--node-rank=2", name=3)
    pids = running.started("3.0", 0, 1, 2)
    for step in (YEARS, -YEARS, 3600):
        write_at_once(clock, str(step))
        more_heartbeats(stage, daemon.node)
    assert all(alive(pid) for pid in pids)
    waiting.agent(2, "--node-rank=2", name=3)
    waiting.started("3.0", 0, 1, 2)
    write_at_once(clock, str(YEARS))
    running.touch("fail")
    running.started("3.1", 0, 1, 2)
    for scene in (running, waiting):
        assert all("lost" not in scene.err(name) for name in (1, 2, 3))
        scene.succeeds(1, 2, 3)
        check_worlds(scene)


@pytest.mark.parametrize("runs", ["daemon", "agent"])
def test_nothing_changes_when_the_wall_clock_of_the_coordinator_s_host_is_set(stage, stepped_clock, runs, tmp_path):
    nodes = stage.build(3)
    clock = stage.tmp_path / "clock"
    write_at_once(clock, "0")
    stepped = {"LD_PRELOAD": str(stepped_clock), "MUSTER_TEST_CLOCK": str(clock)}
    daemon = stage.daemon(0, HEARTBEAT, f"--state-dir={tmp_path}/state", **stepped) if runs == "daemon" else None
    ports = iter(range(PORT + 10, PORT + 20))

    def new(name, *args, **rules):
        rules = {"restarts": 1, "conf": CONF, **rules}
        scene = stage.scene(name, daemon.endpoint if daemon else f"{nodes.address(0)}:{next(ports)}",
                            **({"backend": "muster"} if daemon else {}), **rules)
        scene.agent(0, "--node-rank=0", *args, name="first", **stepped)
        if not daemon:
            scene.said("first", "this agent runs the coordinator")
        scene.agent(1, "--node-rank=1", *args, name="second")
        return scene

    waiting, running = new("waiting", nnodes="2:3"), new("running", nnodes="2:3")
    restart = new("restart", "--shutdown-timeout=600", nnodes=2)
    running.agent(2, "--node-rank=2", name="third")
    restart.touch("deaf")
    pids = running.started("3.0", 0, 1, 2)
    restart.started("2.0", 0, 1)
    restart.touch("fail")
    wait_for(lambda: (restart.tmp_path / "termed").exists(), "the deaf worker to be stopped")

    for step in (7 * 3600, -7 * 3600, YEARS, -YEARS):
        write_at_once(clock, str(step))
        more_heartbeats(stage, 0, ports={int(scene.endpoint.split(":")[1]) for scene in (waiting, running, restart)})
    if daemon:
        daemon.signal(signal.SIGKILL)
        write_at_once(clock, str(YEARS))
        daemon.start()
        for name in running.running:
            daemon.says(f"job running: host{name} is back, generation 0 goes on")
    assert all(alive(pid) for pid in pids)
    for name in ("first", "second"):
        assert not waiting.places(name) and len(restart.places(name)) == 1
    # And the restarts themselves.
    write_at_once(clock, "7200")
    waiting.agent(2, "--node-rank=2", name="third")
    waiting.started("3.0", 0, 1, 2)
    write_at_once(clock, "-7200")
    restart.touch("release")
    restart.started("2.1", 0, 1)
    running.touch("fail")
    running.started("3.1", 0, 1, 2)
    for scene in (waiting, running, restart):
        assert all("lost node" not in scene.err(name) for name in scene.running)
        scene.succeeds(*scene.running)
        check_worlds(scene)


def test_the_stepped_clock_is_seen(stage, stepped_clock, tmp_path):
    stage.build(1)
    (tmp_path / "clock").write_text(str(YEARS + 6 * 3600))
    stepped = {"LD_PRELOAD": stepped_clock, "MUSTER_TEST_CLOCK": tmp_path / "clock"}
    daemon = stage.daemon(0, HEARTBEAT, **stepped)
    scene = stage.scene("fails", daemon.endpoint, backend="muster", nnodes=1)
    scene.touch("fail")
    scene.agent(0, name=1, **stepped)
    assert scene.codes(1) == [7]
    years = {int(year) for year in re.findall(r"\b(20\d\d)-\d\d-\d\d_", scene.err(1))}
    assert years and min(years) >= datetime.date.today().year + 9, scene.err(1)
    # musterd writes the time of day alone.
    hour = int(re.search(r"(\d\d):\d\d:\d\d", daemon.log())[1])
    assert (hour - datetime.datetime.now().hour) % 24 in (5, 6, 7), daemon.log()


def test_hosts_that_were_started_at_different_times_make_one_world(stage):
    stage.build(3)
    daemon = stage.daemon(0, HEARTBEAT)
    scene = stage.scene("job", daemon.endpoint, backend="muster", nnodes=3, restarts=1, conf=CONF)
    scene.agent(1, "--node-rank=0")
    for name, shift in ((2, 10**7), (3, 10**5)):
        scene.agent(2, f"--node-rank={name - 1}", name=name,
                    wrap=["unshare", "--time", f"--monotonic={shift}", f"--boottime={shift}", "--fork", "--kill-child"])
    scene.started("3.0", 0, 1, 2)
    more_heartbeats(stage, daemon.node)
    scene.touch("fail")
    scene.started("3.1", 0, 1, 2)
    scene.succeeds(1, 2, 3)
    check_worlds(scene)


def test_a_full_disk_under_the_log_keeps_running_nodes_and_is_waited_for(stage, tmp_path):
    stage.build(3)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    try:
        daemon = stage.daemon(0, f"--state-dir={disk}/state", HEARTBEAT)
        running = stage.scene("running", daemon.endpoint, backend="muster", nnodes=2, restarts=1,
                              conf="keep_alive_interval=0.2,keep_alive_max_attempt=25")
        for node in (1, 2):
            running.agent(node, f"--node-rank={node - 1}")
        pids = running.started("2.0", 0, 1)
        writer = daemon.job.spawn("writer", 0, sys.executable, "-B", pathlib.Path(__file__).with_name("key_writer.py"),
                                  "127.0.0.1", PORT)
        with open(disk / "rubbish", "wb") as file, pytest.raises(OSError):
            while True:
                os.write(file.fileno(), b"x" * 4096)
        daemon.says("error: .*state.log.*(No space left|ENOSPC)")
        before = {(PORT, peer): seen for peer, seen in heartbeats(stage.nodes, daemon.node).items()}
        assert len(before) == 2
        # A new world is told to nobody before it is on the disk, which it cannot be.
        other = stage.scene("other", daemon.endpoint, backend="muster", nnodes=2,
                            conf="keep_alive_interval=0.2,keep_alive_max_attempt=25")
        for node in (1, 2):
            other.agent(node, f"--node-rank={node - 1}")
        more_heartbeats(stage, daemon.node, 26, before)  # longer than a silent agent has
        assert all(alive(pid) for pid in pids)
        assert not other.places(1) and not other.places(2)
        (disk / "rubbish").unlink()
        daemon.says("there is room again")
        other.started("2.0", 0, 1)
        running.touch("fail")
        running.started("2.1", 0, 1)
        daemon.signal(signal.SIGKILL)
        daemon.start()
        for scene in (running, other):
            scene.succeeds(1, 2)
            assert all("lost node" not in scene.err(node) for node in (1, 2))
            check_worlds(scene)
        writer.terminate()
        assert daemon.job.codes("writer") == [0], daemon.job.out("writer")
    finally:
        stage.close()
        subprocess.run(["umount", "-l", disk], check=True)
