# SPDX-License-Identifier: Apache-2.0
"""After an attempt muster waits for the driver to take back what the workers and their children held; the driver is the tests'
fake one."""
import re
import signal
import urllib.request

from launcher_support import alive, muster, wait_for  # noqa: F401
from test_launcher_placement import gpus  # noqa: F401

UUID = "GPU-aa 0000:3b:00.0"
# Tells its number and that of a child in a session of its own, then ends or stays.
PARENT = """#!/bin/sh
setsid sleep 1000 &
echo $! > child.new
echo $$ > pid.new
mv child.new child
mv pid.new pid
exec sleep ${1:-1000}
"""


def held_by(inventory, pid):
    draft = inventory.with_name("gpus.new")
    draft.write_text(f"{UUID} 2048 0 0 {pid}\n")
    draft.rename(inventory)


def told(path):
    return wait_for(lambda: path.exists() and path.read_text().strip(), path.name)


def start(muster, gpus, *options, script=PARENT):
    environment = gpus(f"{UUID} 0 0 0 -")
    path = muster.script("stay", script)
    path.chmod(0o755)
    return muster.start("--nproc-per-node=1", *options, "./stay", env=environment)


def test_a_stop_ends_once_the_driver_has_taken_back_what_a_worker_held(muster, gpus):
    process = start(muster, gpus)
    inventory = muster.tmp_path / "gpus"
    held_by(inventory, told(muster.tmp_path / "pid"))
    process.terminate()
    wait_for((muster.tmp_path / "gpus.asked").exists, "NVML to be asked")
    assert process.poll() is None  # for 5 s it would go on asking
    held_by(inventory, 1)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "holds" not in err


def test_while_gpu_memory_is_waited_for_the_status_is_answered_and_another_signal_ends_the_wait(muster, gpus):
    process = start(muster, gpus, "--metrics-addr=127.0.0.1:0")
    address = re.search(r"metrics at (\S+)", process.stderr.readline())[1]
    held_by(muster.tmp_path / "gpus", told(muster.tmp_path / "child"))
    process.terminate()
    wait_for((muster.tmp_path / "gpus.asked").exists, "NVML to be asked")
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert b"muster_" in answer.read()
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "SIGTERM received: not waiting for the GPUs' memory" in err
    assert "holds" not in err


def test_who_still_holds_gpu_memory_is_named_after_a_success_too_and_children_of_workers_are_known(muster, gpus, tmp_path):
    process = start(muster, gpus, script=PARENT.replace("exec sleep ${1:-1000}", "until [ -e go ]; do sleep 0.05; done"))
    child = told(tmp_path / "child")
    held_by(tmp_path / "gpus", child)
    (tmp_path / "go").touch()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, ""), err
    assert f"pid {child}, which a worker started, has ended and still holds 2.0 GiB of GPU 0 (GPU-aa)" in err
    assert not alive(int(child))


def test_a_success_that_leaves_no_gpu_memory_behind_says_nothing(muster, gpus):
    process = start(muster, gpus, script="#!/bin/sh\ntrue\n")
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
    assert (muster.tmp_path / "gpus.asked").exists()
