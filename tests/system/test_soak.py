# SPDX-License-Identifier: Apache-2.0
"""scripts/soak: its faults are the seed's, what it looks for is found, and two minutes of it hold."""
import collections
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import soak_schedule
from launcher_support import BIN, ROOT, clean_environment
from soak_run import Soak
from soak_training import Training, replay

SOAK = ROOT / "scripts/soak"


def test_the_same_seed_has_the_same_faults_and_another_one_has_others(run):
    one, same, other = (run(SOAK, "--list", "--minutes=2", f"--seed={seed}").stdout for seed in (7, 7, 8))
    assert one == same != other
    assert one.splitlines()[:-1] == [soak_schedule.line(event) for event in soak_schedule.schedule(7, 120)]


def test_a_schedule_has_every_fault_and_a_program_for_each():
    events = soak_schedule.schedule(1, 1800)
    faults = {event.fault for event in events}
    assert faults == {"rest"}.union(*(faults for _, faults in soak_schedule.STREAMS))
    assert all(hasattr(Soak, fault.replace("-", "_")) for fault in faults)
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert sum(event.fault == "rest" for event in events) == 1800 // soak_schedule.REST_EVERY


def test_no_node_disk_or_daemon_has_two_faults_at_once():
    until = collections.defaultdict(float)
    for event in soak_schedule.schedule(3, 1800):
        if "/" not in event.target:
            assert event.at >= until[event.target] - 0.01, event
            until[event.target] = event.at + event.seconds


@pytest.fixture
def training(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return Training(tmp_path, tmp_path / "checkpoints", tmp_path / "logs", collections.Counter())


def save(training, step, content=b"parameters", world=2):
    folder = training.checkpoints / f"step-{step:08}"
    folder.mkdir()
    for name in ("model.safetensors", "optim.safetensors"):
        (folder / name).write_bytes(content)
    (folder / "state.json").write_text(json.dumps({"training": {"step": step, "world_size": world}}))
    (training.checkpoints / "LATEST").write_text(folder.name + "\n")
    training.look(late_writer=False)


class Ran:
    """A scene with what its only agent printed."""
    running = ["a"]

    def __init__(self, text):
        self.out = lambda name: text


def test_a_checkpoint_of_a_lower_step_is_found(training):
    save(training, 500)
    with pytest.raises(AssertionError, match="went back from step 500 to 250"):
        save(training, 250)


def test_a_resumption_from_an_older_checkpoint_than_the_newest_is_found(training):
    good = Ran("soak: rank 0 of 2 starts after step-00000250\nresumed run in epoch 1 after step 250\n")
    assert training.resumptions(good) == [(250, 2)]
    with pytest.raises(AssertionError, match="resumed step 250, and 500 was saved"):
        training.resumptions(Ran(good.out("a").replace("step-00000250", "step-00000500")))


def test_parameters_that_do_not_follow_from_the_checkpoint_are_found(training, tmp_path):
    done = subprocess.run([BIN / "fashion_mnist", "--epochs=1", "--batch-size=200", "--device=cpu", "--checkpoint=first", "--checkpoint-every=250"],
                          cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AssertionError, match="1 ranks went on from step 250 and had other parameters at step 500"):
        replay(tmp_path / "replay", [tmp_path / "first/step-00000250"], 1, 500, {"another"}, collections.Counter())


class Hung:
    """What Soak.look_at_hangs knows: one worker that is to be gone by now."""
    def __init__(self, pid):
        self.hangs, self.checked = [(pid, time.monotonic())], collections.Counter()


def test_a_stopped_worker_that_is_still_there_after_its_deadline_is_found_and_one_that_has_ended_is_not():
    worker = subprocess.Popen(["sleep", "1000"])
    try:
        worker.send_signal(signal.SIGSTOP)
        with pytest.raises(AssertionError, match=f"worker {worker.pid} was stopped, and still is there"):
            Soak.look_at_hangs(Hung(worker.pid))
    finally:
        worker.kill()
        worker.wait()
    over = Hung(worker.pid)
    Soak.look_at_hangs(over)
    assert over.hangs == [] and over.checked == {"hangs that ended": 1}


@pytest.mark.timeout(900)
def test_two_minutes_of_faults_leave_no_orphan_no_hang_no_wrong_world_and_lose_no_key(tmp_path):
    environment = clean_environment(MUSTER_BIN=BIN, TMPDIR=tmp_path)
    soak = subprocess.Popen([sys.executable, "-B", SOAK, "--minutes=2", "--seed=5"], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        said, _ = soak.communicate(timeout=800)
    finally:
        if soak.poll() is None:
            os.killpg(soak.pid, signal.SIGKILL)
    assert soak.returncode == 0 and "invariants checked, 0 violated" in said, said[-20000:]
    assert "no tc or no tbf here" not in said, said[-20000:]
    faults = json.loads(re.findall(r"faults (\{.*?\})", said)[-1].replace("'", '"'))
    assert all(faults.get(fault) for fault in ("disk-full", "slow-link")), faults
