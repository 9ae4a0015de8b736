# SPDX-License-Identifier: Apache-2.0
"""Containment comes before diagnosis: the other workers are stopped before what a failed one wrote is searched."""
import json
import pathlib
import subprocess

import pytest

from launcher_support import BIN, clean_environment, muster, read_report, wait_for

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

