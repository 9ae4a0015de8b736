# SPDX-License-Identifier: Apache-2.0
"""Agents, daemons and agents that run the coordinator are killed while a node waits: as a spare, for a checkpoint, in the
pause before a restart, unhealthy, or between two generations. Over network namespaces."""
import re
import signal

import pytest

from elastic_support import PORT
from faults_support import check_worlds, gone, stage  # noqa: F401
from launcher_support import alive, wait_for

UNFIT = {"wrap": ("prlimit", "--nofile=64:64")}
CHECK = "--preflight=quick"
LAST_CALL = "last_call_timeout=0.2"


class Waiting:
    """A job in each of these states. The first agent of each is on node 1, the one that waits on node 2 or 3."""

    def __init__(self, new):
        self.spare = new("spare", restarts=1)
        self.point = new("point", nnodes="1:2")
        self.pause, self.unhealthy, self.between = new("pause", restarts=2), new("unhealthy"), new("between", restarts=1)
        self.scenes = [self.spare, self.point, self.pause, self.unhealthy, self.between]
        self.between.touch("deaf")
        self.spare.agent(1, "--spares=1", "--node-rank=0", name="first")
        self.point.agent(1, "--join-at=safe-point", name="first")
        self.pause.agent(1, "--node-rank=0", name="first")
        self.unhealthy.agent(1, name="first")
        # Its worker is deaf; that of the other fails.
        self.between.agent(1, "--node-rank=1", "--shutdown-timeout=600", name="first")

    def others(self):
        self.spare.agent(2, "--spares=1", "--node-rank=1", name="second")
        self.pause.agent(2, "--node-rank=1", "--restart-backoff=600:600", name="second")
        self.unhealthy.agent(2, CHECK, name="second", **UNFIT)
        self.between.agent(2, "--node-rank=0", name="second")
        self.point.started("1.0", 0)
        self.point.agent(2, "--join-at=safe-point", name="second")
        for scene in (self.spare, self.pause, self.between):
            scene.started("2.0", 0, 1)
        self.spare.agent(3, "--spares=1", name="third")
        for scene in (self.pause, self.between):
            scene.touch("fail")
        self.waited()
        self.pids = {scene.id: scene.started(attempt, *ranks) for scene, attempt, *ranks in (
            (self.spare, "2.0", 0, 1), (self.point, "1.0", 0), (self.pause, "2.1", 0), (self.between, "2.0", 0, 1))}
        return self

    def waited(self):
        self.spare.said("third", "this node has no workers: spare 1 of 1")
        self.point.said("second", "waits for the job's next checkpoint")
        self.pause.said("second", r"restart in 600 s \(--restart-backoff\)")
        self.pause.started("2.1", 0)
        self.unhealthy.said("first", "1/2 nodes; hostsecond is unhealthy: 64 open files are allowed")
        # Its own workers are gone.
        self.between.said("second", "hostfirst is stopping its workers")
        wait_for(lambda: (self.between.tmp_path / "termed").exists(), "the deaf worker to be stopped")

    def release(self):
        """The deaf worker ends."""
        self.between.touch("release")
        wait_for(lambda: gone(self.pids["between"][1]), "the deaf worker to be gone")


@pytest.fixture
def daemon(stage, tmp_path, request):
    stage.build(4)
    return stage.daemon(0, *([f"--state-dir={tmp_path}/state"] if getattr(request, "param", False) else []))


def at_daemon(stage, daemon, conf=LAST_CALL):
    return Waiting(lambda name, **rules: stage.scene(name, daemon.endpoint, backend="muster", conf=conf,
                                                     **{"nnodes": 2, **rules})).others()


def test_an_agent_killed_while_it_waits_keeps_nobody_from_going_on(stage, daemon):
    jobs = at_daemon(stage, daemon)
    spare, point, pause, unhealthy, between = jobs.scenes
    victims = [spare.running["third"], *(scene.running["second"] for scene in (point, pause, unhealthy, between))]
    for victim in victims:
        victim.kill()
    for victim in victims:
        victim.wait()

    # The next spare has the dead one's turn, and takes the place of a member.
    spare.agent(3, "--spares=1", name="fourth")
    spare.said("fourth", "spare 1 of 1")
    assert all(alive(pid) for pid in jobs.pids["spare"])
    spare.running["second"].kill()
    spare.started("2.1", 0, 1)
    spare.succeeds("first", "fourth")
    # In its pause it was a member: that costs a restart.
    pause.agent(3, "--node-rank=1", name="third")
    pause.started("2.2", 0, 1)
    pause.succeeds("first", "third")
    # Between two generations it was none.
    between.agent(3, "--node-rank=0", name="third")
    jobs.release()
    between.started("2.1", 0, 1)
    between.succeeds("first", "third")
    unhealthy.agent(3, name="third")
    unhealthy.started("2.0", 0, 1)
    unhealthy.succeeds("first", "third")
    assert alive(*jobs.pids["point"])
    point.succeeds("first")
    assert len(point.places("first")) == 1
    for scene in jobs.scenes:
        check_worlds(scene)


@pytest.mark.parametrize("daemon", [True, False], indirect=True, ids=["keeps", "forgets"])
def test_a_daemon_killed_while_nodes_wait_and_started_again_finishes_their_jobs(stage, daemon, request):
    keeps = request.node.callspec.params["daemon"]
    jobs = at_daemon(stage, daemon)
    spare, point, pause, unhealthy, between = jobs.scenes
    if not keeps:  # then all begin anew, and no restart was used
        point.succeeds("first", "second")  # else whoever comes first may be a world of its own: MIN is 1
        jobs.scenes.remove(point)
        for scene in (spare, pause, between):
            for path in [*scene.tmp_path.glob("pid*"), *scene.tmp_path.glob("fail")]:
                path.unlink()
    daemon.signal(signal.SIGKILL)
    for scene in jobs.scenes:
        scene.said("first", "waiting for the coordinator at")
    if keeps:  # who waits outside says so within its quiet time, before the daemon is back
        spare.said("third", "waiting for the coordinator at")
        point.said("second", "waiting for the coordinator at")
    else:
        jobs.release()
        for name in ("termed", "release"):
            (between.tmp_path / name).unlink()
    daemon.start()
    unhealthy.said("first", r"(?s)waiting for the coordinator at.*1/2 nodes; hostsecond is unhealthy")
    unhealthy.agent(3, name="third")
    unhealthy.started("2.0", 0, 1)
    assert unhealthy.codes("second") == [74]
    unhealthy.succeeds("first", "third")
    if keeps:
        for scene, name, text in ((spare, "third", "spare 1 of 1"), (point, "second", "the job's next checkpoint")):
            scene.said(name, rf"(?s){text}.*waiting for the coordinator at.*{text}")
        for scene in (spare, point):
            assert all(alive(pid) for pid in jobs.pids[scene.id])
        # The spare is one yet, and the pause is one.
        spare.running["second"].kill()
        spare.started("2.1", 0, 1)
        spare.succeeds("first", "third")
        point.succeeds("first", "second")
        assert len(point.places("first")) == 1
        assert alive(*jobs.pids["pause"])
        pause.running["second"].terminate()
        assert pause.codes("first", "second") == [143, 143], pause.err("first")
        jobs.release()
        between.started("2.1", 0, 1)
    else:
        for scene in (spare, pause, between):
            scene.started("2.0", 0, 1)
        # A third of them is the spare now.
        spare.succeeds("first", "second", "third")
        pause.succeeds("first", "second")
    between.succeeds("first", "second")
    for scene in jobs.scenes:
        check_worlds(scene)
        wait_for(lambda: all(gone(pid) for pid in jobs.pids.get(scene.id, [])), "the workers to be gone")


def test_a_daemon_killed_while_nodes_wait_that_stays_away_ends_them_in_time(stage, daemon):
    jobs = at_daemon(stage, daemon, f"{LAST_CALL},reconnect_timeout=0.5,read_timeout=5")
    daemon.signal(signal.SIGKILL)
    lost(jobs, daemon.endpoint, {scene.id: list(scene.running) for scene in jobs.scenes})


def test_an_agent_that_runs_the_coordinator_killed_while_others_wait_ends_them_in_time(stage):
    nodes = stage.build(4)
    ports = iter(range(PORT + 10, PORT + 20))

    def new(name, **rules):
        return stage.scene(name, f"{nodes.address(1)}:{next(ports)}", conf=LAST_CALL, **{"nnodes": 2, **rules})

    jobs = Waiting(new)
    # Here the one that is unhealthy runs it, and the others do not wait.
    hosts = new("unhealthy-host")
    hosts.agent(1, CHECK, name="first", **UNFIT)
    for scene in (*jobs.scenes, hosts):
        scene.said("first", "this agent runs the coordinator")
    for node, name in ((2, "second"), (3, "third")):
        hosts.agent(node, name=name)
    jobs.others()
    jobs.scenes.append(hosts)
    jobs.pids["unhealthy-host"] = hosts.started("2.0", 0, 1)
    for scene in jobs.scenes:
        scene.running["first"].kill()
    lost(jobs, None, {scene.id: [name for name in scene.running if name != "first"] for scene in jobs.scenes})


def lost(jobs, endpoint, names):
    """All end with a line that names where the coordinator was, and leave no worker."""
    for scene in jobs.scenes:
        if scene is jobs.between:
            jobs.release()
        for name in names[scene.id]:
            ends_at = re.escape(endpoint or scene.endpoint)
            (code,) = scene.codes(name)
            said = scene.err(name)
            # Who has had no place has lost none.
            expected = 76 if scene.places(name) else 74 if name == "second" and scene.id == "unhealthy" else 69
            assert code == expected, (scene.id, name, code, said)
            assert re.search(rf"error: .*{ends_at}", said), (scene.id, name, said)
        check_worlds(scene)
    wait_for(lambda: all(gone(pid) for pids in jobs.pids.values() for pid in pids), "the workers to be gone")


def test_a_node_between_two_generations_takes_part_in_the_next_of_a_daemon_that_knows_none(stage, daemon):
    scene = stage.scene("job", daemon.endpoint, backend="muster", nnodes=2, restarts=1)
    for node, name in ((1, "first"), (2, "second")):
        scene.agent(node, f"--node-rank={node - 1}", name=name)
    scene.started("2.0", 0, 1)
    scene.running["second"].kill()
    scene.said("first", r"1/2 nodes; hostsecond connected, then dropped")
    daemon.signal(signal.SIGKILL)
    daemon.start()
    for path in scene.tmp_path.glob("pid*"):
        path.unlink()
    scene.agent(3, "--node-rank=1", name="third")
    scene.started("2.0", 0, 1)
    scene.succeeds("first", "third")
    # No number is used twice.
    assert set(check_worlds(scene)) == {0, 1}
