# SPDX-License-Identifier: Apache-2.0
"""A run of scripts/soak: does its events one after the other, and looks meanwhile whether what muster promises holds."""
import collections
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

from elastic_support import PORT, SECRET
from faults_support import Stage
from launcher_support import alive, children_named, wait_for
from netns import QuickNodes
from soak_jobs import Idle, Jobs, send
from soak_schedule import line
from soak_training import BOUND, Training, final_loss, replay, undisturbed_loss

MOST_UNHEARD = 4    # agents that know nothing yet, before more is done to idle jobs
MOST_REPLAYS = 5    # of each training
HANG_TIMEOUT = 90  # seconds for a stopped worker to be found and ended: the timeout is 20 s, 25 s for the first steps
TRAINED_WITHIN = 180  # seconds for a whole training that nothing disturbs any more


class Soak:
    def __init__(self, folder, disks, seed, events):
        self.folder, self.disks, self.events, self.dice = folder, disks, events, random.Random(seed)
        self.stage = Stage(folder, SECRET if seed % 2 else None)
        self.jobs = Jobs(folder)
        self.checked = self.jobs.checked
        self.done, self.undo, self.hangs, self.replays, self.losses = collections.Counter(), [], [], [], []
        self.num_runs, self.rested_for = 0, 0.0
        self.nodes = self.stage.build(4, QuickNodes)
        self.daemon = self.stage.daemon(0, f"--state-dir={folder}/state", "--keep=600", "--heartbeat-interval=1", "--restart-grace=5")
        writer = pathlib.Path(__file__).with_name("key_writer.py")
        self.writer = self.daemon.job.spawn("writer", 0, sys.executable, "-B", writer, "127.0.0.1", PORT)
        for number in range(2):
            scene = self.stage.scene(f"idle{number}", self.daemon.endpoint)
            self.jobs.add(scene, Idle(scene.tmp_path, number))
        self.train_anew()

    # Trainings, one after the other.

    def train_anew(self):
        self.num_runs += 1
        name = f"train{self.num_runs}"
        self.training = self.stage.scene(name, self.daemon.endpoint)
        self.jobs.add(self.training, Training(self.training.tmp_path, self.disks["checkpoints"] / name, self.disks["logs"], self.checked))
        self.fill()

    def fill(self):
        for place in range(3):
            if not self.jobs.at(self.training, place):
                self.jobs.join(self.training, place)

    def look(self):
        self.undo_due()
        agents = [agent for agent in self.jobs.agents if agent.scene is self.training]
        self.training.kind.look(any(agent.troubled for agent in agents))
        self.jobs.look()
        assert self.writer.poll() is None, f"the writer of keys: {self.daemon.job.out('writer')}{self.daemon.job.err('writer')}"
        assert self.daemon.process.poll() is None, f"musterd ended: {self.daemon.log()[-3000:]}"
        self.look_at_hangs()
        if any(agent.process.returncode == 0 for agent in agents if not agent.alive):
            self.end_training()

    def look_at_hangs(self):
        for pid, deadline in list(self.hangs):
            if not alive(pid):
                self.hangs.remove((pid, deadline))
                self.checked["hangs that ended"] += 1
            else:
                assert time.monotonic() < deadline, f"worker {pid} was stopped, and still is there after {HANG_TIMEOUT} s"

    def end_training(self):
        """One agent said it is done; what came too late is told to go."""
        scene, kind = self.training, self.training.kind
        self.undo_due(everything=True)
        for agent in self.jobs.of(scene):
            agent.tell(signal.SIGTERM)
        wait_for(lambda: (self.jobs.look(), not self.jobs.of(scene))[1], f"the agents of {scene.id} to end", 60)
        scene.over = True
        loss = final_loss(scene)
        if loss is not None:
            self.losses.append(loss)
        found = kind.replays(scene)
        self.replays += self.dice.sample(found, min(MOST_REPLAYS, len(found)))
        print(f"soak: {scene.id} is done: test loss {loss}, {len(scene.running)} agents, {len(kind.saved)} checkpoints seen", flush=True)
        subprocess.run(["rm", "-rf", kind.checkpoints, *kind.logs.iterdir()], check=True)
        self.train_anew()

    # Faults. Each returns False if there was nobody to do it to.

    def later(self, action, seconds):
        if seconds:
            self.undo.append((time.monotonic() + seconds, action))

    def undo_due(self, everything=False):
        due = [entry for entry in self.undo if everything or entry[0] <= time.monotonic()]
        self.undo = [entry for entry in self.undo if entry not in due]
        for _, action in due:
            action()

    def place(self, target):
        job, place = target.split("/")
        scene = self.training if job == "train" else next(each for each in self.jobs.scenes if each.id == job)
        return scene, int(place)

    def join(self, target, _):
        scene, place = self.place(target)
        if self.jobs.at(scene, place):
            return False
        agent = self.jobs.join(scene, place)
        agent.troubled = bool(self.cut & {agent.node})

    def worker_killed(self, pid, _):
        return send(pid, self.dice.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)))

    def worker_stopped(self, pid, seconds):
        self.later(lambda: send(pid, signal.SIGCONT), seconds)
        return send(pid, signal.SIGSTOP)

    def worker_hangs(self, pid, _):
        self.hangs.append((pid, time.monotonic() + HANG_TIMEOUT))
        return send(pid, signal.SIGSTOP)

    def agent_killed(self, agent, _):
        agent.tell(signal.SIGKILL)

    def agent_leaves(self, agent, _):
        agent.tell(self.dice.choice((signal.SIGTERM, signal.SIGINT)))

    def agent_stopped(self, agent, seconds, others=()):
        if agent.frozen:
            return False
        agent.freeze(True, others)
        self.later(lambda: agent.freeze(False, others), seconds)

    def node_stopped(self, agent, seconds):
        return self.agent_stopped(agent, seconds, agent.below())

    def node_killed(self, agent, _):
        agent.tell(signal.SIGKILL)
        for pid in agent.below():
            send(pid, signal.SIGKILL)

    def guardian_killed(self, agent, _):
        return any([send(pid, signal.SIGKILL) for pid in children_named(agent.process.pid, "job-guardian")])

    def store_host_killed(self, _, __):
        for agent in self.jobs.of(self.training):
            if any(record.node == 0 for record in agent.workers().values()):
                return self.node_killed(agent, 0)
        return False

    def musterd_killed(self, _, __):
        self.daemon.signal(signal.SIGKILL)
        self.daemon.start()

    def musterd_stopped(self, _, seconds):
        daemon = self.daemon.process
        daemon.send_signal(signal.SIGSTOP)
        self.later(lambda: daemon.send_signal(signal.SIGCONT), seconds)

    @property
    def cut(self):
        return {node for _, action in self.undo for node in getattr(action, "nodes", ())}

    def of_node(self, target, seconds, fault, undo):
        node = int(target.split()[1])
        if node in self.cut:
            return False
        for agent in self.jobs.living:
            agent.troubled |= agent.node == node
        fault(node)

        def action():
            undo(node)
        action.nodes = (node,)
        self.later(action, seconds)

    def cut_off(self, target, seconds):
        return self.of_node(target, seconds, self.nodes.cut_off, self.nodes.heal)

    def link_down(self, target, seconds):
        return self.of_node(target, seconds, lambda node: self.nodes.link(node, "down"), lambda node: self.nodes.link(node, "up"))

    def drops(self, target, seconds):
        """What the node sends to musterd's goes nowhere."""
        return self.of_node(target, seconds, lambda node: self.nodes.lose(node, 0), lambda node: self.nodes.find(node, 0))

    def slow_link(self, target, seconds):
        try:
            return self.of_node(target, seconds, self.nodes.slow, self.nodes.fast)
        except (FileNotFoundError, subprocess.CalledProcessError):
            self.done["slow-link: no tc or no tbf here"] += 1
            return False

    def disk_full(self, target, seconds):
        """Also full for who saves while it is."""
        filler = self.disks[target] / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
        self.later(lambda: filler.unlink(missing_ok=True), seconds)

    def do(self, event):
        target = event.target
        fault = getattr(self, event.fault.replace("-", "_"))
        if "/" in target and event.fault != "join":
            target = self.jobs.at(*self.place(target))
            if target and event.fault.startswith("worker-"):
                workers = sorted(target.workers())
                target = workers[0] if workers else None
        if target is None:
            return False
        return fault(target, event.seconds) is not False

    def wait(self, at):
        """Until the time of an event; what is idle is not troubled faster than it hears of it."""
        wait_for(lambda: (self.look(), time.monotonic() - self.rested_for >= at)[1], "the next event", 600)

    def rest(self):
        """Nothing is wrong any more, and all places of the training are taken: it has to go on."""
        began = time.monotonic()
        self.undo_due(everything=True)
        self.fill()
        self.go_on_until(self.jobs.at_rest, "all to come to rest", 90)
        self.checked["came to rest"] += 1
        before = (self.num_runs, self.training.kind.step)
        self.go_on_until(lambda: (self.num_runs, self.training.kind.step) > before, "the training to go on", HANG_TIMEOUT)
        self.checked["the training goes on"] += 1
        self.rested_for += time.monotonic() - began
        print(f"soak: rested after {time.monotonic() - began:.1f} s; training {self.num_runs} is at step {self.training.kind.step}; "
              f"{sum(self.done.values())} faults, {sum(self.checked.values())} checks", flush=True)

    def go_on_until(self, condition, what, seconds):
        try:
            wait_for(lambda: (self.look(), self.fill(), condition())[2], what, seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.jobs.describe()}") from None

    def run(self):
        self.rested_for = time.monotonic()
        for event in self.events:
            self.wait(event.at)
            if event.fault == "rest":
                self.rest()
                continue
            if event.target.startswith("idle") and sum(not agent.heard for agent in self.jobs.living) > MOST_UNHEARD:
                continue
            if self.do(event):
                self.done[event.fault] += 1
                if not event.target.startswith("idle"):
                    print(line(event), flush=True)
        self.finish()

    def finish(self):
        self.rest()
        now = self.num_runs
        self.go_on_until(lambda: self.num_runs > now, "the training to end", TRAINED_WITHIN)
        for agent in self.jobs.of(self.training):  # the next one, which nobody waits for
            agent.tell(signal.SIGTERM)
        self.go_on_until_gone()
        self.jobs.finish()
        self.writer.terminate()
        assert self.daemon.job.codes("writer") == [0], self.daemon.job.out("writer")
        self.keys = self.daemon.job.out("writer").splitlines()[-1]
        self.checked["keys"] += int(self.keys.split()[0])
        self.jobs.check_history()
        log = "".join(self.daemon.job.err(f"musterd{i + 1}") for i in range(self.daemon.starts))
        for scene in self.jobs.scenes:
            numbers = [int(n) for n in re.findall(rf"job {scene.id}: generation (\d+) runs", log)]
            assert numbers == sorted(set(numbers)), f"generations of {scene.id} do not only grow"
            self.checked["generations only grow"] += 1
        usual = undisturbed_loss(self.folder / "undisturbed")
        for loss in self.losses:
            assert abs(loss - usual) < BOUND, f"a training ended with test loss {loss}, one that nothing disturbed with {usual}"
            self.checked["final losses"] += 1
        for i, (copies, world, after, digests) in enumerate(self.replays):
            replay(self.folder / f"replay{i}", copies, world, after, digests, self.checked)

    def go_on_until_gone(self):
        wait_for(lambda: (self.jobs.look(), not self.jobs.of(self.training))[1], "the agents of the last training to end", 60)

    def close(self):
        self.undo_due(everything=True)
        self.jobs.close()
        self.stage.close()

    def summary(self, seconds):
        restarts = sum(len(agent.records()) for agent in self.jobs.agents)
        return (f"soak: faults {dict(sorted(self.done.items()))}\n"
                f"soak: {len(self.jobs.agents)} agents, ends {dict(self.jobs.ends)}, {restarts} starts of a worker, "
                f"{self.checked['worlds']} generations, {self.num_runs - 1} trainings, losses {self.losses}, musterd started {self.daemon.starts} times\n"
                f"soak: keys {getattr(self, 'keys', '-')}; checked {dict(self.checked)}; {seconds:.0f} s")
