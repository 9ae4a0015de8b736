# From a rank's death to "all stopped" and to "all restarted": ranks kill themselves and say when on CLOCK_MONOTONIC
# (stamps.c); the others obey SIGTERM. "stopped": the last of the old processes is gone, as this process sees it through
# pidfds. "restarted": the last of the new workers has begun its main().
# SPDX-License-Identifier: Apache-2.0
import collections
import os
import pathlib
import random
import select
import signal
import statistics
import subprocess
import tempfile
import time

import measure
from launch_tools import free_port

TIMEOUT = 60


class Stamped:
    """A job of stamping workers."""

    def __init__(self, folder, command, starts, ranks):
        self.path, self.ranks = pathlib.Path(folder, "stamps"), ranks
        self.said = collections.defaultdict(dict)  # (what, attempt): {rank: (pid, ns)}
        os.mkfifo(self.path)
        self.fifo = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)  # so that it never ends
        self.rest = b""
        self.log = open(pathlib.Path(folder, "log"), "wb")
        whole = [*command, measure.program("stamps"), str(self.path)]
        self.agents = [subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log) for _ in range(starts)]

    def read(self, what, attempt, ranks):
        """Until so many ranks have said it: {rank: (pid, ns)}. Looks at each line once: the processor is the job's."""
        deadline = time.monotonic() + TIMEOUT
        while len(said := self.said[what, attempt]) < ranks:
            ready, *_ = select.select([self.fifo], [], [], 0.2)
            if ready:
                *whole, self.rest = (self.rest + os.read(self.fifo, 65536)).split(b"\n")
                for line in whole:
                    word, rank, number, pid, ns = line.decode().split()
                    self.said[word, int(number)][int(rank)] = int(pid), int(ns)
            elif time.monotonic() > deadline or any(agent.poll() not in (None, 0) for agent in self.agents):
                raise measure.Failed(f"waited for {what} of {ranks} workers of attempt {attempt}: {pathlib.Path(self.log.name).read_text()[-1000:]}")
        return said

    def started(self, attempt):
        return self.read("start", attempt, self.ranks)

    def die(self, attempt, victim):
        """Milliseconds until the old workers were gone, until they were asked to go, and until the new ones ran."""
        workers = self.started(attempt)
        handles = [os.pidfd_open(pid) for rank, (pid, _) in workers.items() if rank != victim]
        os.kill(workers[victim][0], signal.SIGUSR1)
        for handle in handles:
            if not select.select([handle], [], [], TIMEOUT)[0]:
                raise measure.Failed("a worker was not stopped")
            os.close(handle)
        stopped = time.monotonic_ns()
        again = max(ns for _, ns in self.started(attempt + 1).values())
        (_, dies), = self.read("dies", attempt, 1).values()
        asked = max((ns for _, ns in self.said["term", attempt].values()), default=dies)
        return [(at - dies) / 1e6 for at in (asked, stopped, again)]

    def end(self, attempt):
        for pid, _ in self.started(attempt).values():
            os.kill(pid, signal.SIGUSR2)
        for agent in self.agents:
            if code := agent.wait(TIMEOUT):
                raise measure.Failed(f"exit status {code}")

    def close(self):
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        os.close(self.fifo)
        self.log.close()


def p95(values):
    return statistics.quantiles(values, n=20)[-1] if len(values) > 1 else values[0]


def contestants():
    muster = [measure.program("muster"), "--no-python"]
    c10d = lambda nodes: [*muster, f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    yield "muster, 8 ranks", [*muster, "--standalone", "--nproc-per-node=8"], 1, 8, None
    yield "muster, 64 ranks", [*muster, "--standalone", "--nproc-per-node=64"], 1, 64, None
    yield "muster, 256 ranks", [*muster, "--standalone", "--nproc-per-node=256"], 1, 256, None
    yield "muster, 8 nodes of 2", [*c10d(8), "--nproc-per-node=2"], 8, 16, None
    yield "muster, 8 nodes of 8", [*c10d(8), "--nproc-per-node=8"], 8, 64, None
    if (measure.ROOT / ".venv/torch/torch").is_dir():
        python, env = measure.torch_environment("current")
        run = ["env", *(f"{name}={env[name]}" for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")), python,
               "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node=8"]
        yield "torchrun, 8 ranks", run, 1, 8, 3


def measure_all(rounds):
    print(f"\nms from a rank's death until the others were asked to stop, were gone, and all ran again: median, p95 of {rounds}")
    out, dice = {}, random.Random(1)
    for title, command, starts, ranks, most in contestants():
        deaths = min(rounds, most or rounds)
        with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
            job = Stamped(folder, [*command, f"--max-restarts={deaths}"], starts, ranks)
            try:
                runs = [job.die(attempt, dice.randrange(ranks)) for attempt in range(deaths)]
                job.end(deaths)
            finally:
                job.close()
        columns = dict(zip(("asked", "stopped", "restarted"), zip(*runs)))
        out[title] = {name: {**measure.summary(values), "p95": p95(values)} for name, values in columns.items()}
        print(f"{title:24}" + "".join(f"   {name} {s['median']:7.1f}, {s['p95']:7.1f}" for name, s in out[title].items()), flush=True)
    return out
