# SPDX-License-Identifier: Apache-2.0
"""What the fault tests share: several jobs at once on the same nodes, a musterd that dies and comes back, a worker that
does as its directory says, and what an agent says about the generations it took part in."""
import collections
import os
import re
import signal
import subprocess

import pytest

from elastic_support import PORT, SECRET, Job, write
from launcher_support import BIN, alive, clean_environment, wait_for
from netns import Nodes

# Tells where it is in a file "pid<rank>_<world size>.<restarts>", as elastic_support.STAY, and stays. In attempt 0 rank 0
# fails when there is a file "fail", and rank 1 is deaf to SIGTERM when there is one "deaf", until there is one "release".
ACT = """
import os, signal, socket, sys
e = os.environ
first = e["TORCHELASTIC_RESTART_COUNT"] == "0"
if first and e["RANK"] == "1" and os.path.exists("deaf"):
    signal.signal(signal.SIGTERM, lambda *_: open("termed", "w").close())
socket.create_connection((e["MASTER_ADDR"], int(e["MASTER_PORT"])), 10).close()
name = "pid%s_%s.%s" % (e["RANK"], e["WORLD_SIZE"], e["TORCHELASTIC_RESTART_COUNT"])
with open(name + ".new", "w") as file: file.write(str(os.getpid()))
os.rename(name + ".new", name)
while not os.path.exists("go"):
    if first and e["RANK"] == "0" and os.path.exists("fail"): sys.exit(7)
    if first and os.path.exists("termed") and os.path.exists("release"): sys.exit(0)
    signal.sigtimedwait([], 0.02)
"""

Place = collections.namedtuple("Place", "generation node nodes first last size")


class Scene(Job):
    """One of several jobs on the same nodes, with a directory, an id and an endpoint of its own."""

    def __init__(self, nodes, tmp_path, name, endpoint, **common):
        (tmp_path / name).mkdir()
        super().__init__(nodes, tmp_path / name)
        self.id, self.endpoint, self.common = name, endpoint, common
        self.script = write(self.tmp_path, "act.py", ACT)

    def agent(self, node, *args, program=None, **kwargs):
        options = {**self.common, **kwargs}
        conf = ",".join(filter(None, [self.common.get("conf"), kwargs.get("conf")]))
        program = [self.script] if program is None else program
        return self.start(node, 1, f"--rdzv-id={self.id}", f"--rdzv-endpoint={self.endpoint}", *args, *program,
                          **{**options, "conf": conf})

    def touch(self, name):
        (self.tmp_path / name).touch()

    def places(self, name):
        """The worlds in which an agent was, in order, as it was told."""
        found = re.findall(r"generation (\d+): node (\d+) of (\d+), ranks (\d+) to (\d+) of (\d+)", self.err(name))
        return [Place(*map(int, each)) for each in found]

    def places_size(self, generation, agents):
        """How many ranks the world of a generation has, as these agents were told."""
        return next(p.size for agent in agents for p in self.places(agent.name) if p.generation == generation)

    def placed(self, name, generation, seconds=30):
        wait_for(lambda: any(p.generation == generation for p in self.places(name)),
                 f"agent {name} to be in generation {generation} of {self.id}, not {self.err(name)!r}", seconds)

    def succeeds(self, *names):
        self.touch("go")
        assert self.codes(*names) == [0] * len(names), [(self.id, name, self.err(name)) for name in names]


def check_worlds(scene):
    """No two worlds with one generation, no two ranks with one number, and generations that only grow."""
    worlds = collections.defaultdict(list)
    for name in scene.running:
        own = scene.places(name)
        assert [p.generation for p in own] == sorted({p.generation for p in own}), (scene.id, name, own)
        for place in own:
            worlds[place.generation].append(place)
    for generation, members in worlds.items():
        assert len({(p.nodes, p.size) for p in members}) == 1, (scene.id, generation, members)
        ranks = [rank for p in members for rank in range(p.first, p.last + 1)]
        assert len(ranks) == len(set(ranks)) and all(rank < members[0].size for rank in ranks), (scene.id, members)
        assert len({p.node for p in members}) == len(members), (scene.id, generation, members)
    return worlds


def settled(agents):
    """Every agent of a job is in its last world, or knows that it is outside."""
    worlds = {agent.name: agent.scene.places(agent.name) for agent in agents}
    last = max((places[-1].generation for places in worlds.values() if places), default=-1)
    members = [name for name, places in worlds.items() if places and places[-1].generation == last]
    size = max((worlds[name][-1].nodes for name in members), default=0)
    outside = [a for a in agents if a.name not in members
               and re.search(r"has no workers|the workers start again", a.scene.err(a.name))]
    return len(members) == size == min(4, len(agents)) and len(members) + len(outside) == len(agents)


class Daemon:
    """A musterd on a node, which can be killed and started again on the same port."""

    def __init__(self, nodes, tmp_path, node, *options, wrap=(), **env):
        self.job, self.node, self.starts, self.env = Job(nodes, tmp_path), node, 0, clean_environment(**env)
        self.command = [*wrap, BIN / "musterd", "--unprotected", f"--port={PORT}", "--log-level=info", *options]
        self.endpoint = f"{nodes.address(node)}:{PORT}"

    def start(self):
        self.starts += 1
        self.process = self.job.spawn(self.name, self.node, *self.command, env=self.env)
        self.says(r"listening|serving")

    @property
    def name(self):
        return f"musterd{self.starts}"

    def log(self):
        return self.job.err(self.name)

    def says(self, text, seconds=30):
        wait_for(lambda: re.search(text, self.log()), f"musterd to say {text!r}, not {self.log()!r}", seconds)

    def signal(self, number):
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()


class Stage:
    """The nodes of a test with all that runs on them. With a secret the agents prove themselves and carry their workers' store."""

    def __init__(self, tmp_path, secret=None):
        self.tmp_path, self.jobs, self.nodes = tmp_path, [], None
        self.env = {"MUSTER_SECRET": secret} if secret else {}

    def build(self, count, kind=Nodes, **options):
        self.nodes = kind(count, **options)
        return self.nodes

    def daemon(self, node, *options, **kwargs):
        daemon = Daemon(self.nodes, self.tmp_path, node, *options, **{**self.env, **kwargs})
        self.jobs.append(daemon.job)
        daemon.start()
        return daemon

    def scene(self, name, endpoint, **common):
        self.jobs.append(Scene(self.nodes, self.tmp_path, name, endpoint, **{**self.env, **common}))
        return self.jobs[-1]

    def close(self):
        for job in self.jobs:
            for process in job.running.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
            job.close()
        if self.nodes:
            self.nodes.close()


@pytest.fixture(params=[None, SECRET], ids=["", "secret"])
def stage(tmp_path, request):
    one = Stage(tmp_path, request.param)
    yield one
    one.close()


def connections(pid, port):
    """The TCP connections to or from `port` in the network namespace of a process: state and retransmissions."""
    rows = [line.split() for line in open(f"/proc/{pid}/net/tcp").read().splitlines()[1:]]
    return [(int(row[3], 16), int(row[6], 16)) for row in rows
            if port in (int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16))]


def heartbeats(nodes, node, port=PORT):
    """How many segments each agent elsewhere has sent to a port of a node; while nothing happens these are heartbeats."""
    text = subprocess.run(nodes.command(node, "ss", "-tinHO", "state", "established", f"sport = :{port}"), check=True,
                          capture_output=True, text=True).stdout
    own = re.escape(nodes.address(node))
    return {peer: int(found[1]) for line in text.splitlines() for peer in [line.split()[3]]
            if not re.search(rf"\b({own}|127\.0\.0\.1)\b", peer) and (found := re.search(r"data_segs_in:(\d+)", line))}


def beating(nodes, node, port=PORT, agents=1):
    """Waits for agents elsewhere that have joined: they send no heartbeat before."""
    wait_for(lambda: [n for n in heartbeats(nodes, node, port).values() if n > 8][agents - 1:], f"{agents} agents to join")


ESTABLISHED = 1


def connected(process, port=PORT):
    wait_for(lambda: any(state == ESTABLISHED for state, _ in connections(process.pid, port)),
             f"process {process.pid} to be connected to port {port}")


def leaves(scene):
    """The second agent of two is told to go, and has stopped its worker: that it leaves is what it says next."""
    _, worker = scene.started("2.0", 0, 1)
    scene.running["second"].send_signal(signal.SIGTERM)
    scene.said("second", "SIGTERM received")
    wait_for(lambda: not os.path.exists(f"/proc/{worker}"), "its worker to be gone")


def gone(pid):
    return not alive(pid)  # whoever adopts orphans may reap them late
