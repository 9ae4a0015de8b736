# SPDX-License-Identifier: Apache-2.0
"""Coordinators that die in each state of a job, and more than one that would be it, over network namespaces."""
import re
import signal

import pytest

from elastic_support import PORT, SHOW, job, write  # noqa: F401
from faults_support import beating, check_worlds, connected, gone, leaves, stage  # noqa: F401
from launcher_support import alive, wait_for
from test_store_proxy import listeners


def port_of(scene):
    return int(scene.endpoint.split(":")[1])


class States:
    """A job in each state at a daemon on node 0. Node 3's way to node 1 is lost, which keeps an agent there between the
    assignment and the start of its workers."""

    def __init__(self, stage, daemon, conf):
        self.stage, self.daemon, self.conf = stage, daemon, conf
        self.gathering = self.new("gathering")
        self.gathering.agent(1, name="first")
        self.last_call = self.new("last-call", nnodes="1:2", conf="last_call_timeout=600")
        self.last_call.agent(1, name="first")
        self.starting, self.running, self.stopping = self.new("starting"), self.new("running"), self.new("stopping")
        self.leaving = self.new("leaving", nnodes="1:2", conf="last_call_timeout=0.2")
        self.stopping.touch("deaf")
        stage.nodes.lose(3, 1)
        for scene in (self.starting, self.running, self.stopping, self.leaving):
            scene.agent(1, "--node-rank=0", "--shutdown-timeout=3", name="first")
            scene.agent(3 if scene is self.starting else 2, "--node-rank=1", "--shutdown-timeout=3", name="second")
        self.starting.placed("second", 0)
        self.starting.started("2.0", 0)
        for scene in (self.running, self.stopping, self.leaving):
            scene.started("2.0", 0, 1)
        self.pids = self.running.started("2.0", 0, 1)
        for scene in (self.gathering, self.last_call):
            daemon.says(f"job {scene.id}: new")
        self.stopping.touch("fail")
        wait_for(lambda: (self.stopping.tmp_path / "termed").exists(), "the deaf worker to be stopped")
        daemon.signal(signal.SIGSTOP)
        leaves(self.leaving)
        self.authenticating = self.new("authenticating")
        connected(self.authenticating.agent(1, name="first"))
        self.scenes = [self.authenticating, self.gathering, self.last_call, self.starting, self.running, self.stopping,
                       self.leaving]

    def new(self, name, conf="", **rules):
        conf = ",".join(filter(None, [conf, self.conf]))
        return self.stage.scene(name, self.daemon.endpoint, backend="muster",
                                **{"nnodes": 2, "restarts": 1, "conf": conf, **rules})


@pytest.mark.parametrize("keeps", [True, False])
def test_a_daemon_killed_in_any_state_of_a_job_and_started_again_finishes_it(stage, tmp_path, keeps):
    nodes = stage.build(4)
    daemon = stage.daemon(0, *([f"--state-dir={tmp_path}/state"] if keeps else []))
    states = States(stage, daemon, "")
    daemon.signal(signal.SIGKILL)
    daemon.start()

    for scene in (states.authenticating, states.gathering, states.last_call):
        scene.agent(2, name="second")
        scene.started("2.0", 0, 1)
        scene.succeeds("first", "second")
    nodes.find(3, 1)
    states.starting.started("2.0", 0, 1)
    # The restart that was used is remembered by a daemon with a state directory only.
    states.stopping.started("2.1" if keeps else "2.0", 0, 1)
    if keeps:
        assert all(alive(pid) for pid in states.pids)
        assert [p.generation for p in states.running.places("first")] == [0]
    else:
        wait_for(lambda: all(gone(pid) for pid in states.pids), "the workers to start again")
        states.running.placed("second", 1)
    for scene in (states.starting, states.running, states.stopping):
        scene.succeeds("first", "second")
    assert states.leaving.codes("second") == [143]
    states.leaving.placed("first", 1)
    states.leaving.succeeds("first")
    for scene in states.scenes:
        check_worlds(scene)


def test_a_daemon_killed_in_any_state_of_a_job_that_stays_away_ends_it_in_time(stage):
    stage.build(4)
    daemon = stage.daemon(0)
    states = States(stage, daemon, "reconnect_timeout=0.5,read_timeout=5")
    daemon.signal(signal.SIGKILL)
    # Who has never been welcome looks for it until read_timeout, who was for reconnect_timeout.
    expected = {"authenticating": [69], "gathering": [69], "last-call": [69], "starting": [76, 76], "running": [76, 76],
                "stopping": [76, 76], "leaving": [76, 143]}
    for scene in states.scenes:
        assert scene.codes(*scene.running) == expected[scene.id], [scene.err(name) for name in scene.running]
        check_worlds(scene)
    wait_for(lambda: all(gone(pid) for pid in states.pids), "the workers to be gone")


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_job_that_is_stopped_while_its_coordinator_is_silent_does_not_wait_for_it(stage, how):
    stage.build(3)
    daemon = stage.daemon(0)
    scene = stage.scene("stopped", daemon.endpoint, backend="muster", nnodes=2, restarts=1, conf="reconnect_timeout=600")
    for node, name in ((1, "first"), (2, "second")):
        scene.agent(node, f"--node-rank={node - 1}", name=name)
    scene.started("2.0", 0, 1)
    daemon.signal(how)
    for agent in scene.running.values():
        agent.send_signal(signal.SIGTERM)
    assert scene.codes("first", "second") == [143, 143], [scene.err(name) for name in scene.running]


def test_an_agent_that_runs_the_coordinator_killed_in_any_state_ends_the_others_in_time(stage):
    nodes = stage.build(4)
    ports = iter(range(PORT + 10, PORT + 20))

    def new(name, **rules):
        return stage.scene(name, f"{nodes.address(1)}:{next(ports)}", **{"nnodes": 2, "restarts": 1, **rules})

    quick = "keep_alive_interval=0.1,keep_alive_max_attempt=200"
    authenticating, starting = new("authenticating"), new("starting", nnodes=3)
    gathering = new("gathering", nnodes=3, conf=quick)
    last_call = new("last-call", nnodes="2:3", conf=f"last_call_timeout=600,{quick}")
    running, stopping, leaving = new("running"), new("stopping"), new("leaving")
    stopping.touch("deaf")
    nodes.lose(3, 2)
    scenes = [gathering, last_call, starting, running, stopping, leaving]
    for scene in [*scenes, authenticating]:
        scene.agent(1, "--node-rank=2" if scene is starting else "--node-rank=0", "--shutdown-timeout=2", name="host")
        scene.said("host", "this agent runs the coordinator")
    authenticating.running["host"].send_signal(signal.SIGSTOP)
    connected(authenticating.agent(2, conf="read_timeout=60", name="other"), port_of(authenticating))
    starting.agent(2, "--node-rank=0", name="first")
    for scene in scenes:
        scene.agent(3 if scene is starting else 2, "--node-rank=1", "--shutdown-timeout=2", name="other")
    for scene in (running, stopping, leaving):
        scene.started("2.0", 0, 1)
    starting.placed("other", 0)
    pids = running.started("2.0", 0, 1)
    stopping.touch("fail")
    wait_for(lambda: (stopping.tmp_path / "termed").exists(), "the deaf worker to be stopped")
    for scene in (gathering, last_call):
        beating(nodes, 1, port_of(scene))
    # It waits for the other, which has not read yet that all is done.
    leaving.running["other"].send_signal(signal.SIGSTOP)
    leaving.touch("go")
    leaving_workers = leaving.started("2.0", 0, 1)
    wait_for(lambda: not any(alive(pid) for pid in leaving_workers), "the workers to be done")

    for scene in [*scenes, authenticating]:
        scene.running["host"].kill()
        scene.running["host"].wait()
    leaving.running["other"].send_signal(signal.SIGCONT)
    expected = {"gathering": 69, "last-call": 69, "starting": 76, "running": 76, "stopping": 76, "leaving": 76}
    for scene in scenes:
        assert scene.codes("other") == [expected[scene.id]], (scene.id, scene.err("other"))
        assert re.search(rf"{re.escape(scene.endpoint)}.*exit status {expected[scene.id]}", scene.err("other")), (scene.id, scene.err("other"))
        check_worlds(scene)
    wait_for(lambda: all(gone(pid) for pid in pids), "the workers to be gone")
    # Nobody had joined yet: another agent of that host takes the seat.
    authenticating.agent(1, name="host again")
    authenticating.started("2.0", 0, 1)
    authenticating.succeeds("other", "host again")


def test_of_many_agents_that_start_at_once_on_two_hosts_one_runs_the_coordinator(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    names = [f"{node}-{i}" for i in range(4) for node in (1, 0)]
    for name in names:
        it.start(int(name[0]), 1, script, nnodes=len(names), name=name)
    assert it.codes(*names) == [0] * len(names), [it.err(name) for name in names]
    heads = [name for name in names if "this agent runs the coordinator" in it.err(name)]
    assert len(heads) == 1 and heads[0].startswith("0-")
    assert [int(w["RANK"]) for w in it.workers(*names)] == list(range(len(names)))
    assert len({(w["MASTER_ADDR"], w["MASTER_PORT"]) for w in it.workers(*names)}) == 1


def test_two_jobs_whose_agents_race_for_one_endpoint_have_a_world_each(stage):
    nodes = stage.build(2)
    scenes = [stage.scene(name, f"{nodes.address(0)}:{PORT}", nnodes=4) for name in ("a", "b")]
    for i in range(2):
        for node in (1, 0):
            for scene in scenes:
                scene.agent(node, name=f"{node}-{i}")
    pids = [pid for scene in scenes for pid in scene.started("4.0", 0, 1, 2, 3)]
    assert len(set(pids)) == 8
    heads = [(scene.id, name) for scene in scenes for name in scene.running
             if "this agent runs the coordinator" in scene.err(name)]
    assert len(heads) == 1 and heads[0][1].startswith("0-"), heads
    for scene in scenes:
        worlds = check_worlds(scene)
        assert {generation: sorted(p.first for p in members) for generation, members in worlds.items()} == {0: [0, 1, 2, 3]}
    for scene in scenes:
        scene.touch("go")
    for scene in scenes:
        scene.succeeds(*scene.running)


@pytest.mark.parametrize("stage", [None], indirect=True)  # with a secret no agent has a port for a store
def test_no_agent_takes_the_port_of_a_daemon_that_is_started_anew(stage):
    stage.build(1)
    daemon = stage.daemon(0)
    scene = stage.scene("job", daemon.endpoint, backend="muster", nnodes=2)
    scene.agent(0, name="first")
    daemon.says("job job: new")
    daemon.signal(signal.SIGKILL)
    # It comes while the port is free, and finds that it is on the host of the endpoint.
    scene.agent(0, name="second")
    wait_for(lambda: len(set(listeners(scene, 0))) >= 2, "both agents to have a port for a store")
    daemon.start()
    scene.started("2.0", 0, 1)
    scene.succeeds("first", "second")
