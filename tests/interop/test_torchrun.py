# SPDX-License-Identifier: Apache-2.0
"""Unmodified torchrun agents that rendezvous through musterd."""
import pathlib
import re
import subprocess
import time

import pytest
from torch_generations import NEWEST, PYTHON

WORKER = pathlib.Path(__file__).with_name("torchrun_worker.py")


class Agents:
    """torchrun processes, their output in files."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []

    def start(self, torch, musterd, job, *arguments, **environment):
        """One agent of a job of two nodes with a worker each."""
        settings = {"nnodes": 2, "nproc_per_node": 1, "rdzv_backend": "c10d", "rdzv_id": job, "max_restarts": 2,
                    "rdzv_endpoint": f"{musterd.host}:{musterd.port}", "monitor_interval": "0.1",
                    "log_dir": self.folder / "logs"}
        if torch.generation == NEWEST:
            settings["local_addr"] = "127.0.0.1"
        else:  # 1.13 on Python 3.11 misreads its own default, 0, for where output goes
            settings.update(redirects=1, tee=1)
        command = [PYTHON, "-m", "torch.distributed.run", *[f"--{key}={value}" for key, value in settings.items()]]
        with open(self.folder / f"agent{len(self.started)}", "wb") as output:
            self.started.append(subprocess.Popen([*command, WORKER, job, *arguments], env=torch.environment(**environment),
                                                 stdin=subprocess.DEVNULL, stdout=output, stderr=output))

    def finish(self, seconds=200):
        """(job, rank, world size) of every worker that reached its end."""
        deadline = time.monotonic() + seconds
        for process in self.started:
            process.wait(max(0.1, deadline - time.monotonic()))
        text = "".join((self.folder / f"agent{number}").read_text() for number in range(len(self.started)))
        assert [process.returncode for process in self.started] == [0] * len(self.started), text
        return sorted(re.findall(r"job (\w+) rank (\d) of (\d)", text))

    def close(self):
        """An agent that is killed leaves its workers behind: it is asked first."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def agents(tmp_path):
    agents = Agents(tmp_path)
    yield agents
    agents.close()


def test_two_jobs_at_once_on_one_daemon(torch, musterd, agents, tmp_path):
    """Each of two agents; the names that their workers use are the same. A restart of one job is nothing to the other."""
    mark = tmp_path / "failed once"
    for _ in range(2):
        agents.start(torch, musterd, "calm")
        # By default the workers of a second attempt find the first one's keys in their store and can hang.
        agents.start(torch, musterd, "restless", mark, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1)
    assert agents.finish() == [("calm", "0", "2"), ("calm", "1", "2"), ("restless", "0", "2"), ("restless", "1", "2")]
    assert mark.exists()
    keys = torch.run("store_reader", "keys", host=musterd.host, port=musterd.port, names=[
        "torch.rendezvous.calm", "torch.rendezvous.restless"])
    assert not any(keys.values()), keys  # with the last agents


def test_the_id_of_a_job_that_has_ended_is_free(torch, musterd, agents):
    """What it left in the store would tell the next one that its rendezvous is closed."""
    for times in (1, 2):
        for _ in range(2):
            agents.start(torch, musterd, "again")
        assert agents.finish() == [("again", "0", "2")] * times + [("again", "1", "2")] * times
