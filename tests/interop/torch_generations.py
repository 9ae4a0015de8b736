# SPDX-License-Identifier: Apache-2.0
"""The generations of PyTorch that the tests meet, and processes that have imported one and run checks on request.

Importing PyTorch takes 1 to 3 s of processor time, a check a few milliseconds: so a peer is kept for the whole test run
and is told, one JSON line at a time, which function of which checks module to call. A peer that does not answer by the
deadline is killed and the next check gets a new one.
"""
import ast
import dataclasses
import json
import os
import pathlib
import select
import subprocess
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CURRENT = ROOT / ".venv/torch"
PACKAGED, NEWEST = "1.13", "2.14"
GENERATIONS = (PACKAGED, NEWEST)
PYTHON = os.environ.get("MUSTER_TORCH_PYTHON", "/usr/bin/python3")
# What a launcher tells its workers; a test says all of it itself.
_LAUNCHER = ("PET_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "TORCH_", "LOGLEVEL")

# Marks for tests of one generation alone.
packaged = pytest.mark.parametrize("torch", [PACKAGED], indirect=True)
newest = pytest.mark.parametrize("torch", [NEWEST], indirect=True)


class CheckFailed(Exception):
    """A check did not hold; the text is the peer's traceback."""


def functions(module):
    """The public functions of a checks module, read without importing it: they are the checks."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    assert names, f"{module} has no checks"
    return names


def missing(generation):
    """Why this generation cannot be had here, or nothing."""
    if generation == PACKAGED or (CURRENT / "torch").is_dir():
        return ""
    return f"no PyTorch {NEWEST} here: scripts/setup installs it"


def environment(generation, **extra):
    """This process' environment without a launcher's, and with what finds this generation."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(_LAUNCHER)}
    env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PYTHONDONTWRITEBYTECODE="1", PYTHON_EXEC=PYTHON)
    # PyTorch asks the name service who 127.0.0.1 is, for its logs, at every connection: an answer that got lost costs 5 s.
    env["RES_OPTIONS"] = "timeout:1 attempts:1"
    if generation == NEWEST:
        # Without a driver nothing of CUDA is called; the libraries must be there to be linked.
        libraries = [str(path) for path in sorted(CURRENT.glob("nvidia/*/lib"))] + ["/usr/local/cuda/lib64"]
        env.update(PYTHONPATH=str(CURRENT), LD_LIBRARY_PATH=":".join(libraries))
    env.update({key: str(value) for key, value in extra.items()})
    return env


@dataclasses.dataclass
class Call:
    """One function of a checks module, with its arguments and what it finds in os.environ."""

    module: str
    check: str
    arguments: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)


class Peer:
    """A process that has imported one PyTorch. One call at a time."""

    def __init__(self, generation, log):
        self.log = log
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen([PYTHON, HERE / "peer.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=stderr, env=environment(generation))

    def begin(self, call):
        self.process.stdin.write(json.dumps(dataclasses.asdict(call)).encode() + b"\n")
        self.process.stdin.flush()

    def end(self, deadline):
        """Waits for the answer of what begin() asked for."""
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, left))
            if not ready:
                self.process.kill()
                self.process.wait()
                raise CheckFailed(f"no answer in time; the process said:\n{self._said()}")
            block = os.read(self.process.stdout.fileno(), 1 << 16)
            if not block:
                raise CheckFailed(f"the process ended with {self.process.wait()}:\n{self._said()}")
            line += block
        answer = json.loads(line)
        if "error" in answer:
            raise CheckFailed(answer["error"])
        return answer["value"]

    def _said(self):
        return self.log.read_text(errors="replace")[-4000:]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Torch:
    """One generation of PyTorch: its environment, and peers that have imported it."""

    def __init__(self, generation, folder):
        self.generation = generation
        self.folder = folder
        self.peers = []

    def environment(self, **extra):
        return environment(self.generation, **extra)

    def run_all(self, calls, seconds=120):
        """Makes every call at the same time, each in a process of its own; the answers in order."""
        self.peers = [peer for peer in self.peers if peer.process.poll() is None]
        while len(self.peers) < len(calls):
            self.peers.append(Peer(self.generation, self.folder / f"peer{len(self.peers)}.log"))
        peers = self.peers[:len(calls)]
        deadline = time.monotonic() + seconds
        for peer, call in zip(peers, calls):
            peer.begin(call)
        answers, failures = [], []
        for number, peer in enumerate(peers):
            try:
                answers.append(peer.end(deadline))
            except CheckFailed as failure:
                failures.append(f"process {number} of {len(calls)}: {failure}")
        if failures:
            raise CheckFailed("\n".join(failures))
        return answers

    def run(self, module, check, **arguments):
        return self.run_all([Call(module, check, arguments)])[0]

    def close(self):
        for peer in self.peers:
            peer.close()
