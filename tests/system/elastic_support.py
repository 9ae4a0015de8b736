# SPDX-License-Identifier: Apache-2.0
"""What tests of jobs with a coordinator share: a job's launchers over network namespaces, and worker programs."""
import json
import re
import subprocess

import pytest

from launcher_support import MUSTER, clean_environment, wait_for, write_at_once
from netns import Nodes

PORT = 29433
SECRET = "a secret of more than sixteen bytes"


class Job:
    """The launchers of one job, one per node; what they print goes to files that tests can watch."""

    def __init__(self, nodes, tmp_path):
        self.nodes, self.tmp_path, self.running, self.files = nodes, tmp_path, {}, []

    def start(self, node, count, *args, nnodes=None, backend="c10d", endpoint=None, restarts=0, conf="", name=None,
              wrap=(), **env):
        conf = ",".join(filter(None, ["cool_down=0", conf]))
        name = node if name is None else name
        place = endpoint or self.nodes.address(0)
        options = [f"--nnodes={nnodes or len(self.nodes.names)}", f"--rdzv-backend={backend}",
                   f"--rdzv-endpoint={f'[{place}]' if ':' in place else place}:{PORT}", f"--max-restarts={restarts}",
                   f"--rdzv-conf={conf}", f"--local-addr=host{name}", f"--nproc-per-node={count}"]
        environment = clean_environment(NODE=node, LOGLEVEL="INFO", **env)
        return self.spawn(name, node, *wrap, MUSTER, *options, *args, env=environment)

    def spawn(self, name, node, *command, env=None):
        out, err = (open(self.tmp_path / f"{name}.{kind}", "w") for kind in ("out", "err"))
        self.files += [out, err]
        self.running[name] = subprocess.Popen(self.nodes.command(node, *command), cwd=self.tmp_path, stdout=out,
                                              stderr=err, env=clean_environment() if env is None else env)
        return self.running[name]

    def out(self, name):
        return (self.tmp_path / f"{name}.out").read_text()

    def err(self, name):
        return (self.tmp_path / f"{name}.err").read_text()

    def workers(self, *names):
        """What workers printed as JSON lines, by rank."""
        lines = [json.loads(line) for name in names for line in self.out(name).splitlines() if line.startswith("{")]
        return sorted(lines, key=lambda worker: int(worker["RANK"]))

    def said(self, name, text, seconds=30):
        wait_for(lambda: re.search(text, self.err(name)), f"node {name} to say {text!r}, not {self.err(name)!r}", seconds)

    def started(self, attempt, *ranks, seconds=30):
        """Waits for workers that wrote their pid; their pids."""
        paths = [self.tmp_path / f"pid{rank}_{attempt}" for rank in ranks]
        wait_for(lambda: all(p.exists() and p.read_text() for p in paths), f"ranks {ranks} of attempt {attempt}", seconds)
        return [int(p.read_text()) for p in paths]

    def forget(self, attempt):
        """Workers of a former world of that size, which a latecomer made larger, count no more."""
        for path in self.tmp_path.glob(f"pid*_{attempt}"):
            path.unlink()

    def codes(self, *names, timeout=60):
        return [self.running[name].wait(timeout) for name in names]

    def close(self):
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for file in self.files:
            file.close()


@pytest.fixture
def job(tmp_path):
    made = []

    def make(count, **how):
        nodes = Nodes(count, **how)
        made.append((nodes, Job(nodes, tmp_path)))
        return made[-1][1]

    yield make
    for nodes, one in made:
        one.close()
        nodes.close()


SHOW = """
import json, os, socket
keys = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
        "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NODE"]
socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 10).close()
os.write(1, (json.dumps({k: os.environ.get(k) for k in keys}) + "\\n").encode())  # in one piece: ranks share the stream
"""

# Every generation's workers write their pid to "pid<rank>_<world size>.<restarts>" and "pid-of-<node>", and stay.
STAY = """
import os, signal, socket
e = os.environ
socket.create_connection((e["MASTER_ADDR"], int(e["MASTER_PORT"])), 10).close()
name = "pid%s_%s.%s" % (e["RANK"], e["WORLD_SIZE"], e["TORCHELASTIC_RESTART_COUNT"])
for each in (name + ".new", "pid-of-" + e["NODE"]):
    with open(each, "w") as file: file.write(str(os.getpid()))
os.rename(name + ".new", name)
while not os.path.exists("go"): signal.sigtimedwait([], 0.02)
"""


def write(tmp_path, name, text):
    return write_at_once(tmp_path / name, text)
