# SPDX-License-Identifier: Apache-2.0
"""Jobs that go through the faults of scripts/soak, and what holds meanwhile: no process outlives its agent for long, no two
ranks have one number, no generation has two worlds, and all comes to rest once there are no faults."""
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
echo "$RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $$" >>"$SOAK_RECORD"
wait
"""
CONF = "cool_down=0,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"
RULES = ["--max-restarts=1000000", "--shutdown-timeout=2"]
ORPHAN_TIMEOUT = 20  # seconds for all below an agent to be gone after it: far more than it takes on a loaded machine
PREEMPTED = 85
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
        at = re.search(rb"(?:^|\0)SOAK_RECORD=([^\0]*)", environ)
        if at and at[1].decode().startswith(f"{folder}/") and alive(entry.name):
            found[at[1].decode()].add(int(entry.name))
    return found


STANDINGS = re.compile(r"generation \d+: node|has no workers|the workers start again|waiting for the (?:next generation|coordinator)")


class Idle:
    """Jobs whose workers wait: up to four nodes with two ranks each, and a spare."""
    most, ranks, can_be_preempted = 4, 2, False
    options = ["--nnodes=1:4", "--spares=1", f"--rdzv-conf=last_call_timeout=0.05,{CONF}"]

    def __init__(self, folder, number):
        self.backend = ("muster", "c10d")[number % 2]
        self.command = ["sh", write(folder, "worker.sh", WORKER)]

    def options_of(self, name):
        return self.options


class Agent:
    """At a place of its job, on the node of that place. What it runs and with which rules is `scene.kind`'s."""

    def __init__(self, scene, name, place):
        self.scene, self.name, self.place, self.record = scene, name, place, scene.tmp_path / f"{name}.record"
        self.node = 1 + place % 3
        self.frozen, self.troubled, self.told, self.ended = False, False, set(), None
        kind = scene.kind
        self.process = scene.spawn(name, self.node, MUSTER, f"--rdzv-backend={kind.backend}", f"--rdzv-id={scene.id}",
                                   f"--rdzv-endpoint={scene.endpoint}", f"--nproc-per-node={kind.ranks}", f"--local-addr=host{name}",
                                   *RULES, *kind.options_of(name), *kind.command,
                                   env=clean_environment(LOGLEVEL="INFO", SOAK_RECORD=self.record, **scene.common))

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
        for record in self.records()[-2 * self.scene.kind.ranks:]:
            try:
                own = f"SOAK_RECORD={self.record}".encode() in pathlib.Path(f"/proc/{record.pid}/environ").read_bytes()
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
        self.scene.told |= number in (signal.SIGTERM, signal.SIGINT)
        self.process.send_signal(number)

    def freeze(self, frozen, others=()):
        self.frozen, self.troubled = frozen, True
        for pid in others:
            send(pid, signal.SIGSTOP if frozen else signal.SIGCONT)
        if self.alive:
            self.process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def below(self):
        """Its guardian, workers and what they started."""
        return marked(self.scene.tmp_path).get(str(self.record), set()) - {self.process.pid}

    def check_end(self):
        """It ended as it was told to, or because it was away."""
        code, said = self.process.returncode, self.scene.err(self.name)
        if code == 69 and "the job is over" in said:
            return "came as its job ended"
        if self.scene.kind.can_be_preempted:  # a signal to one node asks the workers of all to save, and ends the job
            if code == PREEMPTED and self.scene.told:
                return "preempted"
            if code == 0 and self.scene.kind.is_over(self.scene):
                return "done"
            if self.scene.told and re.search(rf"error: job stopped by SIG\w+ on \S+; exit status {code}\b", said):
                return "stopped with its job"  # fewer than MIN nodes were left by one that was told to go
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

    def __init__(self, folder):
        self.folder, self.scenes, self.agents, self.living = folder, [], [], []
        self.ends, self.checked, self.buried = collections.Counter(), collections.Counter(), []

    def add(self, scene, kind):
        scene.kind, scene.told, scene.over = kind, False, False
        self.scenes.append(scene)

    def join(self, scene, place):
        self.agents.append(Agent(scene, f"a{len(self.agents)}", place))
        self.living.append(self.agents[-1])
        return self.agents[-1]

    def of(self, scene):
        return [agent for agent in self.living if agent.scene is scene]

    def at(self, scene, place):
        return next((agent for agent in self.of(scene) if agent.place == place), None)

    def look(self):
        """Takes note of agents that ended; those that did so a while ago have left no process."""
        for agent in [agent for agent in self.living if not agent.alive]:
            self.ends[agent.check_end()] += 1
            self.checked["exit codes"] += 1
            agent.ended = time.monotonic()
            self.living.remove(agent)
            self.buried.append(agent)
        if not self.buried:
            return
        here = marked(self.folder)
        for agent in list(self.buried):
            if left := here.get(str(agent.record)):
                late = time.monotonic() - agent.ended > ORPHAN_TIMEOUT
                assert not late, f"{agent.name} of {agent.scene.id} has ended ({agent.process.returncode}) and left {describe(left)}"
            else:
                self.buried.remove(agent)
                self.checked["agents without orphans"] += 1

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
            if not members or not len(members) == latest[members[0]].nodes == min(scene.kind.most, len(agents)):
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
        wait_for(lambda: not marked(self.folder), "no process to be left", ORPHAN_TIMEOUT)

    def close(self):
        for pid in set().union(*marked(self.folder).values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check_history(self):
        """Of all that ever were."""
        self.checked["worlds"] += sum(len(check_worlds(scene)) for scene in self.scenes)
        for agent in self.agents:
            attribute(agent)
            self.checked["starts of a worker"] += len(agent.records())


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


def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def describe(pids):
    out = []
    for pid in pids:
        try:
            out.append((pid, pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200],
                        pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]))
        except OSError:
            pass
    return out
