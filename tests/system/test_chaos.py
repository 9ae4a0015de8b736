# SPDX-License-Identifier: Apache-2.0
"""Everything at once, at random: workers die of signals and exit codes, agents are killed, told to go, frozen and come
back, nodes are cut off, the daemon is killed and frozen, agents join. For MUSTER_CHAOS_SECONDS (default 20); the seed is
printed, and MUSTER_SEED repeats a run as far as the operating system does."""
import os
import random
import signal
import time

from chaos_support import Jobs
from faults_support import stage  # noqa: F401
from launcher_support import wait_for
from netns import QuickNodes

JOBS, NODES, MOST_ALIVE, MOST_UNHEARD = 3, 3, 10, 4
PACE = 0.15         # seconds between two faults, on average
CALM_AFTER = 10     # seconds of faults; then all has to come to rest
PAUSES = (0.1, 1, 4.5)  # of what is frozen or cut off; a node is lost after 3 s


class Chaos:
    def __init__(self, stage, tmp_path, dice):
        self.dice, self.tmp_path = dice, tmp_path
        self.nodes = stage.build(NODES + 1, QuickNodes)
        # An agent that died while the daemon was away is waited for so long.
        self.daemon = stage.daemon(0, f"--state-dir={tmp_path}/state", "--keep=600", "--heartbeat-interval=1", "--restart-grace=5")
        self.jobs = Jobs(tmp_path, [stage.scene(f"job{i}", self.daemon.endpoint) for i in range(JOBS)])
        self.undo, self.counts, self.busy = [], {}, set()
        self.kinds = {self.join: 25, self.worker_dies: 24, self.worker_freezes: 6, self.agent_killed: 12, self.agent_told: 8,
                      self.agent_freezes: 9, self.node_cut_off: 6, self.daemon_killed: 4, self.daemon_freezes: 4}

    def later(self, action, pause):
        self.undo.append((time.monotonic() + pause, action))

    def undo_due(self, everything=False):
        due = [entry for entry in self.undo if everything or entry[0] <= time.monotonic()]
        self.undo = [entry for entry in self.undo if entry not in due]
        for _, action in due:
            action()

    def fault(self):
        lonely = [scene for scene in self.jobs.scenes if not self.jobs.of(scene)]
        kind = self.join if lonely else self.dice.choices(list(self.kinds), self.kinds.values())[0]
        if kind(*lonely[:1]) is not False:
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1

    # Each returns False if there was nobody to do it to.

    def join(self, scene=None):
        if len(self.jobs.living) >= MOST_ALIVE:
            return False
        scene = scene or self.dice.choice(self.jobs.scenes)
        node = self.dice.randrange(1, NODES + 1)
        agent = self.jobs.join(scene, node)
        agent.troubled = node in self.busy

    def some_worker(self):
        agent = self.dice.choice(self.jobs.living)
        workers = sorted(agent.workers())
        return self.dice.choice(workers) if workers else None

    def worker_dies(self):
        pid = self.some_worker()
        return bool(pid and send(pid, self.dice.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1, signal.SIGABRT))))

    def worker_freezes(self):
        pid = self.some_worker()
        if not pid or not send(pid, signal.SIGSTOP):
            return False
        self.later(lambda: send(pid, signal.SIGCONT), self.dice.choice(PAUSES))

    def agent_killed(self):
        self.dice.choice(self.jobs.living).tell(signal.SIGKILL)

    def agent_told(self):
        self.dice.choice(self.jobs.living).tell(self.dice.choice((signal.SIGTERM, signal.SIGINT)))

    def agent_freezes(self):
        agent = self.dice.choice(self.jobs.living)
        if agent.frozen:
            return False
        agent.freeze(True)
        self.later(lambda: agent.freeze(False), self.dice.choice(PAUSES))

    def node_cut_off(self):
        node = self.dice.randrange(1, NODES + 1)
        if node in self.busy:
            return False
        self.busy.add(node)
        for agent in self.jobs.living:
            agent.troubled |= agent.node == node
        self.nodes.cut_off(node)
        self.later(lambda: (self.nodes.heal(node), self.busy.discard(node)), self.dice.choice(PAUSES))

    def daemon_killed(self):
        if 0 in self.busy:
            return False
        self.daemon.signal(signal.SIGKILL)
        self.daemon.start()

    def daemon_freezes(self):
        if 0 in self.busy:
            return False
        self.busy.add(0)
        self.daemon.signal(signal.SIGSTOP)
        self.later(lambda: (self.daemon.signal(signal.SIGCONT), self.busy.discard(0)), self.dice.choice(PAUSES))

    def go_on(self, until):
        """Faults until then; never more at once than agents have heard of."""
        while time.monotonic() < until:
            next_one = time.monotonic() + self.dice.expovariate(1 / PACE)
            wait_for(lambda: (self.undo_due(), time.monotonic() >= next_one)[1], "the next fault", 60)
            self.jobs.look()
            if sum(not agent.heard for agent in self.jobs.living) <= MOST_UNHEARD:
                self.fault()

    def calm(self):
        self.undo_due(everything=True)
        self.jobs.rest()


def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def test_random_faults_leave_no_orphan_no_hang_and_no_wrong_world(stage, tmp_path):
    seed = int(os.environ.get("MUSTER_SEED") or random.SystemRandom().randrange(1 << 32))
    end = time.monotonic() + float(os.environ.get("MUSTER_CHAOS_SECONDS") or 20)
    print(f"MUSTER_SEED={seed}", flush=True)
    chaos = Chaos(stage, tmp_path, random.Random(seed))
    calms = 0
    try:
        while time.monotonic() < end:
            chaos.go_on(min(end, time.monotonic() + CALM_AFTER))
            chaos.calm()
            calms += 1
        chaos.jobs.finish()
    finally:
        chaos.jobs.close()
    worlds = chaos.jobs.check_history()
    print(f"{chaos.counts}; {len(chaos.jobs.agents)} agents, ends {dict(chaos.jobs.ends)}, {worlds} worlds, came to rest {calms} times")
