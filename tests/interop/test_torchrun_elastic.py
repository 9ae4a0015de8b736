# SPDX-License-Identifier: Apache-2.0
"""Unmodified torchrun agents of elastic jobs, which rendezvous through musterd: what their users get, and that it is no
less than with PyTorch's own server.

What torchrun 2.14 does by itself, at either server:

- By default the first agent with rank 0 serves one store to its workers for as long as it lives, and tells its address under
  the keys of the first round alone. An agent that comes later looks for it under its own round until read_timeout and fails:
  "wait timeout after 60000ms, keys: /torch.rendezvous.<id>.1/MASTER_ADDR"; and so does the job, with status 1. The workers of
  a second attempt find the first one's keys in that store: gloo connects to addresses of the dead ("Gloo connectFullMesh
  failed ... Connection refused") or waits. With TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 each round has a store of its own, and
  both work. muster has neither: a generation has a store of its own.
- Its client of the store does not connect again. A server that is killed ends the agents with status 1 and a
  RendezvousConnectionError as soon as they ask it whether nodes wait, once a second, and they end their workers, which need
  that server no more. What started the agents has to start them again. muster's agents connect again, and workers notice
  nothing (tests/system/test_faults_coordinator.py).
- An agent on the endpoint's own host tries to serve the store itself, and is a client only where the port is taken: while
  musterd is away it takes that port. --rdzv-conf=is_host=0 keeps it from that.
"""
import os
import signal
import socket
import subprocess

import parity_runs
import pytest
import torch_generations
from launcher_support import BIN, alive, wait_for
from parity_runs import HERE, SECONDS
from ports import free_port

WORKER = HERE / "elastic_worker.py"
OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Server:
    """Something with a TCPStore on a port that stays the same."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        folder.mkdir()

    def listening(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False


class KeptMusterd(Server):
    def start(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([BIN / "musterd", "--host=127.0.0.1", f"--port={self.port}",
                                             f"--state-dir={self.folder}/state", "--log-level=debug"], stderr=log)
        wait_for(self.listening, "musterd", SECONDS)

    def kill(self):
        self.process.kill()
        self.process.wait()


class PyTorchServer(Server):
    """In a fork of the process that has imported it."""

    def __init__(self, folder, torchruns):
        super().__init__(folder)
        self.torchruns = torchruns

    def start(self):
        self.number = self.torchruns.ask(
            launcher="store", arguments=[str(self.port)], environment=torch_generations.environment(torch_generations.NEWEST),
            directory=str(self.folder), stdout=str(self.folder / "out"), stderr=str(self.folder / "err"))
        self.pid = self.torchruns.wait(self.number, "pid")
        wait_for(self.listening, "PyTorch's server", SECONDS)

    def kill(self):
        if self.number not in self.torchruns.answers:
            os.kill(self.pid, signal.SIGKILL)
        self.torchruns.wait(self.number, "answer")


class Job(parity_runs.Run):
    """torchruns of one job with a worker each, at a server."""

    def __init__(self, torchruns, folder, server):
        super().__init__(torchruns, "torchrun", folder)
        self.store = server

    def join(self, nnodes="2", conf="", meet=False, environment=None, max_restarts=2):
        arguments = [f"--nnodes={nnodes}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=job", "--monitor-interval=0.1",
                     f"--rdzv-endpoint=127.0.0.1:{self.store.port}", f"--max-restarts={max_restarts}"]
        if conf:
            arguments.append(f"--rdzv-conf={conf}")
        return self.start([*arguments, WORKER, self.folder / "told", *(["meet"] if meet else [])], environment)

    def workers(self, *names):
        """Their pids, once those workers, and no fewer, have begun. RANK.WORLD_SIZE.RESTART_COUNT."""
        paths = [self.folder / "told" / f"worker.{name}" for name in names]
        wait_for(lambda: all(path.exists() for path in paths), f"workers {names}: {self.errors()}", SECONDS)
        return [int(path.read_text()) for path in paths]

    def touch(self, name):
        (self.folder / "told" / name).touch()


@pytest.fixture
def at_musterd(torchruns, tmp_path):
    yield from serve(torchruns, tmp_path / "at_musterd", KeptMusterd(tmp_path / "musterd"))


@pytest.fixture
def at_pytorch(torchruns, tmp_path):
    yield from serve(torchruns, tmp_path / "at_pytorch", PyTorchServer(tmp_path / "pytorch", torchruns))


def serve(torchruns, folder, server):
    server.start()
    job = Job(torchruns, folder, server)
    try:
        yield job
    finally:
        job.close()
        server.kill()


def test_after_the_last_call_a_job_runs_with_fewer_nodes_and_a_full_one_at_once(at_musterd):
    job = at_musterd
    alone = job.join("1:2", "last_call_timeout=1")
    job.workers("0.1.0")
    job.touch("go")
    assert alone.wait() == 0, job.errors()
    (job.folder / "told/go").unlink()
    agents = [job.join("1:2", "last_call_timeout=600") for _ in range(2)]
    job.workers("0.2.0", "1.2.0")
    job.touch("go")
    assert [agent.wait() for agent in agents] == [0, 0], job.errors()


def test_a_late_agent_makes_a_larger_world_which_is_no_restart(at_musterd):
    job = at_musterd
    settings = {"nnodes": "1:2", "conf": "last_call_timeout=1", "meet": True, "environment": OWN_STORES, "max_restarts": 1}
    first = job.join(**settings)
    (alone,) = job.workers("0.1.0")
    late = job.join(**settings)
    job.workers("0.2.0", "1.2.0")
    assert not alive(alone)
    job.touch("go")
    assert [first.wait(), late.wait()] == [0, 0], job.errors()


def test_where_workers_share_the_agents_store_a_late_agent_fails_at_both_servers(at_musterd, at_pytorch):
    """Should this PyTorch have learnt it, the advice above is to go."""
    agents = []
    for job in (at_musterd, at_pytorch):
        agents.append([job.join("1:2", "last_call_timeout=1,read_timeout=5")])
    for job, started in zip((at_musterd, at_pytorch), agents):
        job.workers("0.1.0")
        started.append(job.join("1:2", "last_call_timeout=1,read_timeout=5"))
    for job, started in zip((at_musterd, at_pytorch), agents):
        assert [agent.wait() for agent in started] == [1, 1], job.errors()
        assert "wait timeout after 5000ms, keys: /torch.rendezvous.job.1/MASTER_ADDR" in job.errors()


def test_all_workers_start_again_when_one_fails_and_the_failure_is_one_of_its_agents_restarts(at_musterd):
    job = at_musterd
    agents = [job.join() for _ in range(2)]
    before = job.workers("0.2.0", "1.2.0")
    job.touch("fail")
    # The other agent sees that nodes wait, which is no restart of its own; ranks go by address and pid and stay.
    (again,) = job.workers("1.2.1")
    wait_for(lambda: job.workers("0.2.0") != before[:1], "the other worker to start again", SECONDS)
    assert not any(map(alive, before)) and alive(again)
    job.touch("go")
    assert [agent.wait() for agent in agents] == [0, 0], job.errors()


def test_agents_whose_server_is_killed_end_and_the_same_commands_begin_anew_at_once(at_musterd, at_pytorch):
    jobs = (at_musterd, at_pytorch)
    # Nobody is taken for dead while this test runs.
    first = [[job.join(conf="keep_alive_interval=1000") for _ in range(2)] for job in jobs]
    workers = [pid for job in jobs for pid in job.workers("0.2.0", "1.2.0")]
    for job in jobs:
        job.store.kill()
        job.store.start()
    for job, agents in zip(jobs, first):
        assert [agent.wait() for agent in agents] == [1, 1], job.errors()
        assert all("RendezvousConnectionError" in agent.stderr.read_text() for agent in agents), job.errors()
    wait_for(lambda: not any(map(alive, workers)), "the workers to be gone", SECONDS)
    for job in jobs:
        job.forget_workers()
    # musterd remembers what it was told, and that nobody of this job is left: else they would wait until the heartbeats of the
    # dead are missed.
    second = [[job.join(conf="keep_alive_interval=1000") for _ in range(2)] for job in jobs]
    for job, agents in zip(jobs, second):
        job.workers("0.2.0", "1.2.0")
        job.touch("go")
        assert [agent.wait() for agent in agents] == [0, 0], job.errors()
