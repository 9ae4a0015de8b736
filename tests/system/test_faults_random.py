# SPDX-License-Identifier: Apache-2.0
"""A thousand joins and leaves at random, with real agents, workers and a daemon that is killed and started again. The
seed is printed; MUSTER_SEED repeats a run, as far as the operating system does."""
import collections
import os
import pathlib
import random
import re
import signal
import sys
import time

from elastic_support import PORT, write
from faults_support import check_worlds, settled, stage  # noqa: F401
from launcher_support import MUSTER, clean_environment, wait_for
from netns import QuickNodes

STEPS = 1000  # joins and leaves together
KILLS = 5     # of the daemon among them
JOBS, MOST_ALIVE, MOST_UNHEARD = 4, 12, 4
# A worker tells where it is in one write, and stays.
WORKER = 'echo "$RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $$" >>"$RECORD"; exec sleep 6007'
ENDINGS = {-signal.SIGKILL: "killed", 143: "stopped", -signal.SIGTERM: "stopped before it began", 76: "lost",
           69: "came as its job ended"}


class Agent:
    def __init__(self, scene, name, node, rules):
        self.scene, self.name, self.record = scene, name, scene.tmp_path / f"{name}.record"
        self.process = scene.spawn(name, node, MUSTER, "--rdzv-backend=muster", f"--rdzv-id={scene.id}",
                                   f"--rdzv-endpoint={scene.endpoint}", "--nproc-per-node=1", f"--local-addr=host{name}",
                                   *rules, "sh", scene.script, env=clean_environment(LOGLEVEL="INFO", RECORD=self.record, **scene.common))

    @property
    def alive(self):
        return self.process.poll() is None

    @property
    def heard(self):
        """It has an assignment, knows why it has none, or is gone."""
        return not self.alive or os.path.getsize(self.scene.tmp_path / f"{self.name}.err") > 0

    def records(self):
        return [tuple(map(int, line.split())) for line in self.record.read_text().splitlines()] if self.record.exists() else []

    def kill_worker(self):
        for *_, pid in self.records()[-1:]:
            try:
                if b"sleep\0" + b"6007" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it is gone already


def test_a_thousand_joins_and_leaves_at_random_break_no_promise(stage, tmp_path):
    seed = int(os.environ.get("MUSTER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"MUSTER_SEED={seed}")
    dice, began = random.Random(seed), time.monotonic()
    stage.build(4, QuickNodes)
    daemon = stage.daemon(0, f"--state-dir={tmp_path}/state", "--keep=600")
    writer = daemon.job.spawn("writer", 0, sys.executable, "-B", pathlib.Path(__file__).with_name("key_writer.py"),
                              "127.0.0.1", PORT)
    rules = ["--nnodes=1:4", "--spares=1", "--max-restarts=1000000", "--shutdown-timeout=5",
             "--rdzv-conf=last_call_timeout=0.05,cool_down=0,join_timeout=60,keep_alive_interval=4"]
    scenes = [stage.scene(f"job{i}", daemon.endpoint) for i in range(JOBS)]
    for scene in scenes:
        scene.script = write(scene.tmp_path, "worker.sh", WORKER)
    agents, living = [], []
    done = collections.Counter()
    num_dead = 0

    def look():
        nonlocal num_dead
        ended = [agent for agent in living if not agent.alive]
        for agent in ended:
            code, said = agent.process.returncode, agent.scene.err(agent.name)
            assert code in ENDINGS and (code != 69 or "the job is over" in said), (code, agent.scene.id, said)
            done[ENDINGS[code]] += 1
            living.remove(agent)
        num_dead += len(ended)
        return len(ended)

    def unheard():
        look()
        return sum(not agent.heard for agent in living)

    kills = sorted(dice.sample(range(50, STEPS - 50), KILLS))
    while len(agents) + num_dead < STEPS:
        if kills and len(agents) + num_dead >= kills[0]:
            kills.pop(0)
            daemon.signal(signal.SIGKILL)
            daemon.start()
        wait_for(lambda: unheard() <= MOST_UNHEARD, "agents to be in a world, or to hear why they are in none", 60)
        kind = dice.random()
        if len(living) < 4 or (kind < 0.5 and len(living) < MOST_ALIVE):
            scene = dice.choice(scenes)
            agents.append(Agent(scene, f"a{len(agents)}", dice.randrange(1, 4), rules))
            living.append(agents[-1])
            continue
        victim = dice.choice(living)
        if kind < 0.75:
            victim.process.kill()
        elif kind < 0.92:
            victim.process.terminate()
        else:
            victim.kill_worker()
            continue
        wait_for(lambda: not victim.alive, f"{victim.name} of {victim.scene.id} to end", 60)

    # No hang: what is left comes to rest in one world for each job, and ends when it is told to.
    def rest():
        look()
        by_job = collections.defaultdict(list)
        for agent in living:
            by_job[agent.scene.id].append(agent)
        return all(settled(members) for members in by_job.values())

    wait_for(rest, "all to come to rest", 60)
    for agent in living:
        agent.process.terminate()
    wait_for(lambda: (look(), not living)[1], "all to end", 60)
    writer.terminate()
    assert daemon.job.codes("writer") == [0], daemon.job.out("writer")

    worlds = sum(len(check_worlds(scene)) for scene in scenes)
    for agent in agents:
        # A worker runs where its agent was told to be, and in that order.
        places = iter([(p.first, p.size, p.node, p.nodes) for p in agent.scene.places(agent.name)])
        assert all(record[:4] in places for record in agent.records()), (agent.scene.id, agent.name)
    log = "".join(daemon.job.err(f"musterd{i + 1}") for i in range(daemon.starts))
    for scene in scenes:
        numbers = [int(n) for n in re.findall(rf"job {scene.id}: generation (\d+) runs", log)]
        assert numbers == sorted(set(numbers)), f"generations of {scene.id} do not only grow"
    print(f"{len(agents)} joins, {num_dead} leaves ({dict(done)}), {worlds} worlds, {KILLS} daemons killed, "
          f"{daemon.job.out('writer').splitlines()[-1]}; {time.monotonic() - began:.1f} s")
