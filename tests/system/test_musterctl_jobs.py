# SPDX-License-Identifier: Apache-2.0
"""musterctl jobs: looking into a musterd, and into the coordinator that an agent embeds."""
import json
import os
import signal
import subprocess

import pytest

from launcher_support import BIN, MUSTER, clean_environment, wait_for
from ports import free_port

SECRET = "a secret of more than sixteen bytes"
CTL = os.path.join(os.path.dirname(MUSTER), "musterctl")
WAIT = "import signal; signal.pause()"


class Cluster:
    """A musterd with what it was started with, and jobs at it."""

    def __init__(self, tmp_path):
        self.tmp_path, self.running, self.port = tmp_path, [], None
        self.script = tmp_path / "wait.py"
        self.script.write_text(WAIT)

    def daemon(self, *options, **env):
        port_file = self.tmp_path / "port"
        self.start(BIN / "musterd", "--host=127.0.0.1", "--port=0", f"--port-file={port_file}", *options, **env)
        self.port = int(wait_for(lambda: port_file.exists() and port_file.read_text(), "a musterd"))

    def start(self, *command, **env):
        with open(self.tmp_path / f"err{len(self.running)}", "w") as err:
            self.running.append(subprocess.Popen([str(word) for word in command], env=clean_environment(**env), stderr=err,
                                                 stdout=subprocess.DEVNULL, cwd=self.tmp_path))
        return self.running[-1]

    def job(self, name, *options, nnodes=1, backend="muster", port=None, **env):
        return self.start(MUSTER, f"--nnodes={nnodes}", f"--rdzv-backend={backend}", f"--rdzv-id={name}",
                          f"--rdzv-endpoint=127.0.0.1:{port or self.port}", "--nproc-per-node=2", *options, self.script, **env)

    def ctl(self, *words, port=None, **env):
        return subprocess.run([CTL, "jobs", f"--endpoint=127.0.0.1:{port or self.port}", *words], env=clean_environment(**env),
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)

    def look(self, *words, **how):
        result = self.ctl("--json", *words, **how)
        return json.loads(result.stdout) if result.returncode == 0 else None

    def when(self, name, state, **how):
        """The job's answer once it is in this state."""
        def there():
            seen = self.look(name, **how)
            return seen and seen["jobs"] and seen["jobs"][0]["state"] == state and seen
        return wait_for(there, f"{name} {state}")

    def close(self):
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait(30)


@pytest.fixture
def cluster(tmp_path):
    out = Cluster(tmp_path)
    yield out
    out.close()


def test_a_daemon_shows_who_gathers_who_runs_and_how_it_ended(cluster):
    cluster.daemon("--keep=60")
    runs = cluster.job("train", "--max-restarts=3", nnodes="1:2", **{"PET_RDZV_CONF": "last_call_timeout=0"})
    cluster.job("next", nnodes=2)
    seen = cluster.when("train", "running")
    (job,), (node,) = seen["jobs"], seen["nodes"]
    assert (job["generation"], job["world_size"], job["max_restarts"], job["members"]) == (0, 2, 3, 1)
    assert job["store_port"] > 0 and job["age_s"] >= 0
    assert (node["state"], node["group_rank"], node["base_rank"], node["ranks"], node["address"]) == ("runs", 0, 0, 2, "127.0.0.1")
    waits = cluster.when("next", "gathering")
    assert waits["jobs"][0]["text"] == "1/2 nodes" and waits["nodes"][0]["state"] == "waits"
    lines = cluster.ctl().stdout.splitlines()
    assert lines[0].split()[:3] == ["JOB", "STATE", "NODES"]
    assert [line.split()[:2] for line in lines[1:]] == [["next", "gathering"], ["train", "running"]]
    runs.send_signal(signal.SIGTERM)
    runs.wait(60)
    ended = cluster.when("train", "ended")
    assert ended["jobs"][0]["exit_code"] != 0 and 0 < ended["jobs"][0]["forgotten_in_s"] <= 60
    assert [node["state"] for node in ended["nodes"]] == ["gone"]
    text = cluster.ctl("train").stdout
    assert text.splitlines()[1].split()[:2] == ["train", "ended"]


def test_an_agents_own_coordinator_can_be_looked_into(cluster):
    port = free_port()
    cluster.job("mine", nnodes="1:2", backend="c10d", port=port, **{"PET_RDZV_CONF": "last_call_timeout=0,is_host=1"})
    seen = cluster.when("mine", "running", port=port)
    assert seen["num_jobs"] == 1 and seen["nodes"][0]["state"] == "runs"
    missing = cluster.ctl("other", port=port)
    assert missing.returncode == 1 and f"127.0.0.1:{port} has no job other" in missing.stderr


def test_with_a_secret_nothing_is_told_to_who_does_not_know_it(cluster):
    secret = cluster.tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    cluster.daemon(f"--secret-file={secret}")
    cluster.job("train", nnodes=2, MUSTER_SECRET=SECRET)
    cluster.when("train", "gathering", MUSTER_SECRET=SECRET)
    for env in ({}, {"MUSTER_SECRET": "another secret of some length"}):
        for words in ((), ("train",)):
            refused = cluster.ctl("--json", *words, **env)
            assert refused.returncode == 78 and refused.stdout == "" and "secret" in refused.stderr
    assert cluster.ctl(f"--secret-file={secret}").stdout.splitlines()[1].startswith("train")


def test_who_cannot_be_reached_is_told_at_once_and_so_is_a_wrong_endpoint(cluster):
    port = free_port()
    refused = cluster.ctl(port=port)
    assert refused.returncode == 69 and "refused" in refused.stderr
    for words in (["--endpoint=:29500"], ["--endpoint=h:0"], ["--endpoint=h:1", "--tls-cert=x"]):
        wrong = subprocess.run([CTL, "jobs", *words], env=clean_environment(), capture_output=True, text=True, timeout=60)
        assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1
