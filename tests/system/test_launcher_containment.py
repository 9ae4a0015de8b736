# SPDX-License-Identifier: Apache-2.0
"""Containment comes before diagnosis: the other workers are stopped before what a failed one wrote is searched, and nothing that
can last keeps an agent from its heartbeats."""
import json
import os
import pathlib
import signal
import subprocess

import pytest

from launcher_support import BIN, alive, child_named, clean_environment, muster, read_report, wait_for
from ports import free_port

WORKER = """
import os, pathlib, signal, time
if os.environ["RANK"] == "0":
    while not pathlib.Path("ready").exists(): time.sleep(0.01)  # the other one handles its signal
    raise ValueError("the cause")
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
pathlib.Path("ready").touch()
signal.pause()
"""


def preload(folder, name):
    library = folder / f"{name}.so"
    source = pathlib.Path(__file__).parents[1] / f"support/{name}.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def slow_stderr(tmp_path_factory):
    return preload(tmp_path_factory.mktemp("slow"), "slow_stderr")


def events_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ended(path, rank):
    return [e for e in events_of(path) if e["event"] == "worker_ended" and e["rank"] == rank]


def test_the_others_are_stopped_while_the_failed_workers_stderr_cannot_be_read(muster, slow_stderr):
    gate, events = muster.tmp_path / "gate", muster.tmp_path / "events.jsonl"
    script = muster.script("train.py", WORKER)
    process = muster.start("--nproc-per-node=2", "-r", "3", "--log-dir=logs", f"--events={events}", script,
                           env=clean_environment(TMPDIR=str(muster.tmp_path), LD_PRELOAD=str(slow_stderr), MUSTER_TEST_GATE=str(gate)))
    # The loop goes on meanwhile: it signals rank 1 and learns of its end.
    wait_for(lambda: (muster.tmp_path / "gate.waits").exists(), "the search to begin")
    wait_for(lambda: ended(events, 1), "the end of rank 1")
    assert [e["event"] for e in events_of(events)].count("stop") == 1
    assert not ended(events, 0) and process.poll() is None
    gate.touch()
    assert process.wait(60) == 1
    (failed,) = ended(events, 0)
    assert (failed["cause"], failed["error"]) == ("exception", "ValueError: the cause")
    assert read_report(muster.tmp_path / "logs")["root_cause"]["rank"] == 0


def test_a_restart_that_depends_on_the_cause_waits_for_it(muster, slow_stderr):
    gate = muster.tmp_path / "gate"
    script = muster.script("train.py", """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.stderr.write("torch.cuda.OutOfMemoryError: CUDA out of memory.\\n")
    sys.exit(1)
""")
    process = muster.start("--nproc-per-node=1", "-r", "3", "--max-restarts=1", "--restart-on=oom", script,
                           env=clean_environment(TMPDIR=str(muster.tmp_path), LD_PRELOAD=str(slow_stderr), MUSTER_TEST_GATE=str(gate)))
    wait_for(lambda: (muster.tmp_path / "gate.waits").exists(), "the search to begin")
    assert process.poll() is None
    gate.touch()
    assert process.wait(60) == 0



def two_nodes(*options):
    """The options of each. Node 0 runs the coordinator, and gives up a node whose heartbeats it misses for half a second."""
    common = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}",
              "--rdzv-conf=keep_alive_interval=0.1,keep_alive_max_attempt=5", *options]
    return [[*common, f"--node-rank={node}", f"--local-addr=host{node}"] for node in range(2)]


def test_other_nodes_stop_their_workers_while_the_failed_workers_stderr_cannot_be_read(muster, slow_stderr):
    gate, events = muster.tmp_path / "gate", muster.tmp_path / "events.jsonl"
    script = muster.script("train.py", WORKER)
    first, second = two_nodes()
    failing = muster.start(*first, "-r", "3", "--log-dir=logs", script,
                           env=clean_environment(TMPDIR=str(muster.tmp_path), LD_PRELOAD=str(slow_stderr), MUSTER_TEST_GATE=str(gate)))
    other = muster.start(*second, f"--events={events}", script)
    wait_for(lambda: (muster.tmp_path / "gate.waits").exists(), "the search to begin")
    wait_for(lambda: ended(events, 1), "the end of rank 1", seconds=10)  # after 20 s the search is given up
    assert failing.poll() is None and other.poll() is None
    gate.touch()
    assert failing.wait(60) == other.wait(60) == 1
    assert "ValueError: the cause" in other.stderr.read()


FAILS_AT_A_SIGN = """
import os, pathlib, subprocess, sys, time
if os.environ["RANK"] == "0": time.sleep(600)
if os.environ.get("DAEMON") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": subprocess.run(["setsid", "-f", "sh", "-c", "echo $$ > daemon; exec sleep 600"])
while not pathlib.Path("fail").exists(): time.sleep(0.01)
sys.exit(7)
"""


def test_a_log_writer_that_does_not_answer_stops_no_heartbeat(muster):
    script = muster.script("train.py", FAILS_AT_A_SIGN)
    first, second = two_nodes()
    other = muster.start(*first, script)
    failing = muster.start(*second, "-t", "3", "--log-max-size=1M", "--log-dir=logs", script)
    writer = child_named(failing.pid, "job-logs")
    os.kill(writer, signal.SIGSTOP)
    (muster.tmp_path / "fail").touch()
    try:
        assert other.wait(60) == failing.wait(60) == 7  # 76, had node 1 been lost
    finally:
        os.kill(writer, signal.SIGCONT)
    assert "exited with code 7" in other.stderr.read()
    assert "the log files are not complete yet" in failing.stderr.read()


def test_an_orphan_that_does_not_die_stops_no_heartbeat(muster, tmp_path_factory):
    script = muster.script("train.py", FAILS_AT_A_SIGN)
    first, second = two_nodes("--max-restarts=1")  # between two generations the coordinator expects heartbeats, too
    other = muster.start(*first, script)
    failing = muster.start(*second, "--cgroup=off", script, env=clean_environment(
        TMPDIR=str(muster.tmp_path), DAEMON="1", LD_PRELOAD=str(preload(tmp_path_factory.mktemp("immortal"), "immortal"))))
    daemon = muster.tmp_path / "daemon"
    pid = int(wait_for(lambda: daemon.exists() and daemon.read_text().strip(), "the daemon"))
    try:
        (muster.tmp_path / "fail").touch()
        assert other.wait(60) == failing.wait(60) == 7  # 76, had node 1 been lost
        errors = failing.stderr.read()
    finally:
        if alive(pid): os.kill(pid, signal.SIGKILL)
    assert f"pid {pid}, which a worker started, does not die of SIGKILL" in errors
