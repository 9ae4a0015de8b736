# SPDX-License-Identifier: Apache-2.0
"""Preemption: workers that save their state and end with 85 are neither failures nor restarts, and go on exactly."""
import json
import os
import re
import signal
import subprocess

import pytest

from launcher_support import BIN, clean_environment, muster, read_report, wait_for
from netns import Nodes

PREEMPTED = 85
# Saves when it is told to stop, by SIGTERM or by SIGUSR1.
SAVER = """
import os, signal, sys
rank = os.environ["RANK"]
def save(*_):
    open(f"saved{rank}", "a").write(os.environ["TORCHELASTIC_RESTART_COUNT"])
    sys.exit(85)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR1, save)
open(f"ready{rank}", "w").close()
while True: signal.pause()
"""


def wait_until_ready(directory, world=2):
    wait_for(lambda: all((directory / f"ready{rank}").exists() for rank in range(world)), "the workers")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGUSR1])
def test_workers_that_save_when_muster_is_asked_to_end_make_it_a_preemption(muster, how):
    script = muster.script("saver.py", SAVER)
    process = muster.start("--nproc-per-node=2", "--max-restarts=3", "--log-dir=logs",
                           "--signals-to-handle=SIGTERM,SIGUSR1", script)
    wait_until_ready(muster.tmp_path)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == PREEMPTED, err
    assert [(muster.tmp_path / f"saved{rank}").read_text() for rank in range(2)] == ["0", "0"]  # no restart was used
    assert re.search(rf"preempted: job stopped by {how.name} on \S+; 2 of 2 workers here exited with code 85; "
                     "start the job again to go on; exit status 85", err)
    assert "FAILED" not in err
    report = read_report(muster.tmp_path / "logs")
    assert (report["exit_status"], report["restarts_used"], report["root_cause"]) == (PREEMPTED, 0, None)
    assert [(worker["label"], worker["cause"]) for worker in report["workers"]] == [("preempted", "preempted")] * 2


def test_a_worker_that_ends_of_a_signal_of_its_own_is_waited_for_by_the_others(muster):
    # As under Slurm, whose signals come to every process: here to one worker, while the other still saves.
    script = muster.script("slow.py", """
import os, signal, sys, time
rank = os.environ["RANK"]
def told(*_): open("told" + rank, "w").close()
signal.signal(signal.SIGTERM, told)
open("pid" + rank + ".new", "w").write(str(os.getpid()))
os.rename("pid" + rank + ".new", "pid" + rank)
if rank == "0":
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(85))
    while True: signal.pause()
while os.path.exists("/proc/" + open("pid0").read() if os.path.exists("pid0") else "/proc"): time.sleep(0.01)
open("saved", "w").close()
sys.exit(85)
""")
    process = muster.start("--nproc-per-node=2", "--max-restarts=3", script)
    for rank in range(2):
        wait_for((muster.tmp_path / f"pid{rank}").exists, "the workers")
    os.kill(int((muster.tmp_path / "pid0").read_text()), signal.SIGUSR1)
    _, err = process.communicate(timeout=60)
    assert process.returncode == PREEMPTED, err
    assert (muster.tmp_path / "saved").exists()
    assert not list(muster.tmp_path.glob("told*"))
    assert re.search(r"preempted: rank 0 \(local_rank 0, pid \d+\) on \S+ exited with code 85; start the job again", err)
    assert "FAILED" not in err and "restart 1" not in err


def test_a_worker_that_was_stopped_without_saving_makes_it_no_preemption(muster):
    script = muster.script("mixed.py", SAVER.replace("signal.signal(signal.SIGTERM, save)",
                                                     "if rank == '0': signal.signal(signal.SIGTERM, save)"))
    process = muster.start("--nproc-per-node=2", script)
    wait_until_ready(muster.tmp_path)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "preempted" not in err


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_signal_to_one_node_preempts_all_of_them(tmp_path, backend):
    script = tmp_path / "saver.py"
    script.write_text(SAVER)
    nodes = Nodes(2)
    running = []
    try:
        place = (["--master-addr=" + nodes.address(0), "--master-port=29511"] if backend == "static" else
                 ["--rdzv-backend=c10d", f"--rdzv-endpoint={nodes.address(0)}:29511", "--rdzv-id=p"])
        for node in range(2):
            running.append(subprocess.Popen(
                nodes.command(node, str(BIN / "muster"), "--nnodes=2", f"--node-rank={node}", *place,
                              "--max-restarts=2", "--nproc-per-node=1", str(script)),
                cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        wait_until_ready(tmp_path)
        running[1].terminate()
        errors = [process.communicate(timeout=60)[1] for process in running]
        assert [process.returncode for process in running] == [PREEMPTED] * 2, errors
        assert [(tmp_path / f"saved{rank}").read_text() for rank in range(2)] == ["0", "0"]
        assert all("1 of 1 workers here exited with code 85" in err for err in errors)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
        nodes.close()


def train(muster, *flags, world=2, epochs=2):
    return ["--standalone", f"--nproc-per-node={world}", BIN / "fashion_mnist", f"--epochs={epochs}", "--batch-size=128",
            "--device=cpu", "--log-every=20", *flags]


def newest(checkpoints):
    return checkpoints / (checkpoints / "LATEST").read_text().strip()


def sha256_of(output):
    return re.search(r"^parameters   sha256 ([0-9a-f]{64})$", output, re.MULTILINE).group(1)


def test_a_run_that_is_preempted_within_epochs_again_and_again_ends_with_the_bits_of_one_that_is_not(muster):
    whole = muster.run(*train(muster, "--checkpoint=whole"), timeout=180)
    assert whole.returncode == 0, whole.stderr
    saved = muster.tmp_path / "run"
    for line in (rb"epoch 1/2 +step +40/", rb"epoch 2/2 +step +100/"):
        resume = ["--resume=run"] if saved.exists() else []
        process = muster.start(*train(muster, "--checkpoint=run", *resume), stdout=subprocess.PIPE)
        os.set_blocking(process.stdout.fileno(), False)
        seen = bytearray()

        def shown():
            try:
                seen.extend(os.read(process.stdout.fileno(), 65536))
            except BlockingIOError:
                pass
            return re.search(line, seen)

        wait_for(shown, f"{line} in {seen}", 120)
        process.terminate()
        _, err = process.communicate(timeout=60)
        assert process.returncode == PREEMPTED, err
        state = json.loads((newest(saved) / "state.json").read_text())["training"]
        assert state["epoch_samples"] > 0 and state["epoch_samples"] % 256 == 0
        assert state["epoch"] == (1 if b"2/2" in line else 0)
    rest = muster.run(*train(muster, "--checkpoint=run", "--resume=run"), timeout=180)
    assert rest.returncode == 0, rest.stderr
    assert sha256_of(rest.stdout) == sha256_of(whole.stdout)
    ours, theirs = ({file.name: file.read_bytes() for file in newest(muster.tmp_path / name).iterdir()} for name in ("run", "whole"))
    assert ours == theirs


def test_a_training_without_a_checkpoint_is_stopped_and_not_called_preempted(muster):
    process = muster.start(*train(muster, "--model=mlp", world=1, epochs=1000), stdout=subprocess.PIPE)
    first = process.stdout.readline() + process.stdout.readline()
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "nothing saved, for want of --checkpoint" in first + out
