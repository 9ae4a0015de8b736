# SPDX-License-Identifier: Apache-2.0
"""Jobs that go through random faults of workers, agents, nodes and the daemon; and the promises that hold meanwhile: no
process outlives its agent for long, no two ranks with one number, no two worlds with one generation, no hang."""
import collections
import contextlib
import os
import pathlib
import re
import signal
import time

from elastic_support import write
from faults_support import check_worlds
from launcher_support import MUSTER, alive, clean_environment, wait_for

# A worker with a loader of data and a daemon. It tells where it is in one write, and stays.
WORKER = """
trap 'exit 3' USR1
trap 'exit 0' USR2
sleep 6007 &
setsid sleep 6008 &
echo "$RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $$" >>"$CHAOS_RECORD"
wait
"""
RULES = ["--nnodes=1:4", "--spares=1", "--max-restarts=1000000", "--shutdown-timeout=2",
         "--rdzv-conf=last_call_timeout=0.05,cool_down=0,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"]
RANKS = 2           # of each agent
ORPHAN_PATIENCE = 20  # seconds for all below an agent to be gone after it: far more than it takes on a loaded machine
FATAL = {signal.SIGKILL: "killed", signal.SIGTERM: "told to go", signal.SIGINT: "interrupted"}

Record = collections.namedtuple("Record", "rank size node nodes pid")


def marked(folder):
    """{record file: pids} of all processes of all agents of a test: these, guardians, workers and what they started."""
    found = collections.defaultdict(set)
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        at = re.search(rb"(?:^|\0)CHAOS_RECORD=([^\0]*)", environ)
        if at and at[1].decode().startswith(f"{folder}/") and alive(entry.name):
            found[at[1].decode()].add(int(entry.name))
    return found


STANDINGS = re.compile(r"generation \d+: node|outside the world|the workers start again|waiting for the (?:next generation|coordinator)")


class Agent:
    def __init__(self, scene, name, node):
        self.scene, self.name, self.node, self.record = scene, name, node, scene.tmp_path / f"{name}.record"
        self.frozen, self.troubled, self.told, self.ended = False, False, set(), None
        self.process = scene.spawn(name, node, MUSTER, "--rdzv-backend=muster", f"--rdzv-id={scene.id}",
                                   f"--rdzv-endpoint={scene.endpoint}", f"--nproc-per-node={RANKS}", f"--local-addr=host{name}",
                                   *RULES, "sh", scene.script, env=clean_environment(LOGLEVEL="INFO", CHAOS_RECORD=self.record, **scene.common))

    @property
    def alive(self):
        return self.process.poll() is None

    @property
    def heard(self):
        return not self.alive or self.frozen or os.path.getsize(self.scene.tmp_path / f"{self.name}.err") > 0

    def records(self):
        return [Record(*map(int, line.split())) for line in self.record.read_text().splitlines()] if self.record.exists() else []

    def workers(self):
        """The live ones, by pid."""
        out = {}
        for record in self.records()[-2 * RANKS:]:
            try:
                own = f"CHAOS_RECORD={self.record}".encode() in pathlib.Path(f"/proc/{record.pid}/environ").read_bytes()
            except OSError:
                continue
            if own and alive(record.pid):
                out[record.pid] = record
        return out

    @property
    def outside(self):
        """It knows that it is in no world, and is not looking for the daemon."""
        words = STANDINGS.findall(self.scene.err(self.name))
        return bool(words) and "node" not in words[-1] and "coordinator" not in words[-1]

    def tell(self, number):
        self.told.add(number)
        self.process.send_signal(number)

    def freeze(self, frozen):
        self.frozen, self.troubled = frozen, True
        if self.alive:
            self.process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def check_end(self):
        """It ended as it was told to, or because it was away."""
        code, said = self.process.returncode, self.scene.err(self.name)
        if code == 69 and "the job is over" in said:
            return "came as its job ended"
        allowed = {-signal.SIGKILL, *(128 + n for n in self.told), *(-n for n in self.told)} if self.told else set()
        if signal.SIGKILL not in self.told:
            allowed.discard(-signal.SIGKILL)
        if self.troubled:
            allowed.add(76)
            # Nobody knew whether it was still there when the last of the others was told to stop: the job was over.
            allowed |= {int(status) for status in re.findall(r"error: job stopped by SIG\w+ on \S+; exit status (\d+)", said)}
        assert code in allowed, (code, self.scene.id, self.name, self.told, self.troubled, said[-3000:])
        return next((word for number, word in FATAL.items() if code in (-number, 128 + number)), "lost")


class Jobs:
    """All jobs, their agents, and what has to hold at any time."""

    def __init__(self, folder, scenes):
        self.folder, self.scenes, self.agents, self.living = folder, scenes, [], []
        self.ends, self.buried = collections.Counter(), []
        for scene in scenes:
            scene.script = write(scene.tmp_path, "worker.sh", WORKER)

    def join(self, scene, node):
        self.agents.append(Agent(scene, f"a{len(self.agents)}", node))
        self.living.append(self.agents[-1])
        return self.agents[-1]

    def of(self, scene):
        return [agent for agent in self.living if agent.scene is scene]

    def look(self):
        """Takes note of agents that ended; those that did so a while ago have left no process."""
        for agent in [agent for agent in self.living if not agent.alive]:
            self.ends[agent.check_end()] += 1
            agent.ended = time.monotonic()
            self.living.remove(agent)
            self.buried.append(agent)
        if not self.buried:
            return
        here = marked(self.folder)
        for agent in list(self.buried):
            if left := here.get(str(agent.record)):
                late = time.monotonic() - agent.ended > ORPHAN_PATIENCE
                assert not late, f"{agent.name} of {agent.scene.id} has ended ({agent.process.returncode}) and left {describe(left)}"
            else:
                self.buried.remove(agent)

    def at_rest(self):
        """Every job has one world, each of whose ranks runs once; nothing else of any job runs."""
        self.look()
        if self.buried or any(agent.told for agent in self.living):  # who was told to go is still on its way
            return False
        for scene in self.scenes:
            agents = self.of(scene)
            if not agents:
                continue
            # Read once: an agent may get a place in a newer world at any time.
            latest = {agent: (scene.places(agent.name) or [None])[-1] for agent in agents}
            last = max((place.generation for place in latest.values() if place), default=None)
            members = [agent for agent in agents if latest[agent] and latest[agent].generation == last]
            if not members or not len(members) == latest[members[0]].nodes == min(4, len(agents)):
                return False
            if any(not agent.outside for agent in agents if agent not in members):
                return False
            ranks = []
            for agent in agents:
                place = latest[agent]
                workers = agent.workers().values()
                if place is None or place.generation != last:
                    if workers:
                        return False
                    continue
                if any((w.size, w.node, w.nodes) != (place.size, place.node, place.nodes) for w in workers):
                    return False
                ranks += [worker.rank for worker in workers]
            if sorted(ranks) != list(range(scene.places_size(last, agents))):
                return False
        return True

    def describe(self):
        return [(scene.id, agent.name, agent.frozen, scene.places(agent.name)[-2:], agent.workers(), scene.err(agent.name)[-600:])
                for scene in self.scenes for agent in self.of(scene)]

    def rest(self, seconds=60):
        try:
            wait_for(self.at_rest, "all to come to rest", seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}: {[agent.name for agent in self.buried]} {self.describe()}") from None

    def finish(self):
        """All workers succeed, and with them their agents."""
        for agent in self.living:
            for pid in agent.workers():
                os.kill(pid, signal.SIGUSR2)
        agents = list(self.living)
        wait_for(lambda: all(not agent.alive for agent in agents), "all jobs to end", 60)
        for agent in agents:
            said = agent.scene.err(agent.name)
            # More than there are places and spares; 76: it had been a member before it was lost.
            surplus = agent.process.returncode in (69, 76) and "which was one more than" in said
            assert agent.process.returncode == 0 or surplus, (agent.scene.id, agent.name, said[-3000:])
        wait_for(lambda: not marked(self.folder), "no process to be left", ORPHAN_PATIENCE)

    def close(self):
        for pid in set().union(*marked(self.folder).values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check_history(self):
        """How many worlds there were."""
        worlds = sum(len(check_worlds(scene)) for scene in self.scenes)
        for agent in self.agents:
            attribute(agent)
        return worlds


def attribute(agent):
    """Every worker that ever ran had a rank of a world in which its agent was, in that order, and each rank once."""
    places = iter(agent.scene.places(agent.name))
    place, used = None, set()
    for record in agent.records():
        def fits(at):
            return at and (at.size, at.node, at.nodes) == (record.size, record.node, record.nodes) and at.first <= record.rank <= at.last
        while not fits(place) or record.rank in used:
            place, used = next(places, None), set()
            assert place, f"{agent.name} of {agent.scene.id}: {record} is of no world in {agent.scene.places(agent.name)}"
        used.add(record.rank)


def describe(pids):
    out = []
    for pid in pids:
        try:
            out.append((pid, pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200],
                        pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]))
        except OSError:
            pass
    return out
