# SPDX-License-Identifier: Apache-2.0
"""Containment comes before diagnosis: the other workers are stopped before what a failed one wrote is searched."""
import json
import os
import pathlib
import signal
import subprocess

import pytest

from launcher_support import BIN, clean_environment, muster, read_report, wait_for

WORKER = """
import os, pathlib, signal, sys, time
if os.environ["RANK"] == "0":
    while not pathlib.Path("ready").exists(): time.sleep(0.01)  # the other one handles its signal
    sys.stderr.write("ValueError: the cause\\n")
    sys.exit(7)
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


@pytest.fixture(scope="module")
def unkillable(tmp_path_factory):
    return preload(tmp_path_factory.mktemp("unkillable"), "unkillable")


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
    assert process.wait(60) == 7
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


def test_a_worker_that_was_given_up_may_still_die_while_the_report_is_written(muster, slow_stderr, unkillable):
    # Its end is learnt from its own descriptor, not taken by whoever reaps orphans.
    gate, events = muster.tmp_path / "gate", muster.tmp_path / "events.jsonl"
    script = muster.script("train.py", """
import os, pathlib, signal, sys, time
if os.environ["RANK"] == "0":
    while not pathlib.Path("pid").exists(): time.sleep(0.01)  # the other one ignores its signals
    sys.stderr.write("ValueError: the cause\\n")
    sys.exit(7)
for ignored in (signal.SIGTERM, signal.SIGABRT): signal.signal(ignored, signal.SIG_IGN)
pathlib.Path("pid.part").write_text(str(os.getpid()))
os.rename("pid.part", "pid")
while True: signal.pause()
""")
    err = open(muster.tmp_path / "err", "w")
    process = muster.start("--nproc-per-node=2", "-r", "3", "--log-dir=logs", "--shutdown-timeout=1", f"--events={events}", script,
                           stderr=err,
                           env=clean_environment(TMPDIR=str(muster.tmp_path), LD_PRELOAD=f"{slow_stderr} {unkillable}",
                                                 MUSTER_TEST_GATE=str(gate), MUSTER_TEST_KILLABLE=str(muster.tmp_path / "killable")))
    said = lambda: (muster.tmp_path / "err").read_text()
    wait_for(lambda: (muster.tmp_path / "gate.waits").exists(), "the first search")
    gate.touch()
    wait_for(lambda: ended(events, 0), "the first search to be over")
    gate.unlink()
    # Half a minute after SIGKILL it is given up.
    wait_for(lambda: "does not die of SIGKILL" in said(), "the worker to be given up", 60)
    pid = int((muster.tmp_path / "pid").read_text())
    (muster.tmp_path / "killable").touch()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "its end")
    assert process.poll() is None
    gate.touch()
    assert process.wait(60) == 7, said()
    assert read_report(muster.tmp_path / "logs")["root_cause"]["rank"] == 0
