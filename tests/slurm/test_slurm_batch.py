# What muster does in a batch script, in the shell of salloc and with --no-slurm, under a real Slurm.
# SPDX-License-Identifier: Apache-2.0
import os
import re
import shlex

import pytest

from cluster import NODES
from launcher_support import MUSTER, alive, wait_for
from tell_tasks import column, told


def own_srun(out):
    """The command that a warning gives, as words, with this build's muster."""
    found = re.search(r"run: (muster .*?); or give --standalone", out)
    assert found, out
    return shlex.join(str(MUSTER) if word == "muster" else word for word in shlex.split(found[1]))


def test_a_batch_script_without_srun_is_told_of_its_idle_nodes_with_a_command_that_uses_them(slurm, tell):
    code, out = slurm.batch(f"{MUSTER} --nproc-per-node=2 {tell}\n", "-N2", "--ntasks-per-node=2", "-c2")
    assert code == 0, out
    assert out.count("Slurm gave this job 2 nodes, but without srun only this node takes part") == 1
    assert column(told(out), "WORLD_SIZE") == ["2", "2"]
    code, out = slurm.batch(own_srun(out) + "\n", "-N2", "--ntasks-per-node=2", "-c2")
    assert code == 0, out
    assert column(told(out), "SLURM_NODEID") == ["0", "0", "1", "1"]
    assert "without srun" not in out


@pytest.mark.parametrize("word", ["--standalone", "--nnodes=1", "--no-slurm"])
def test_one_node_of_several_is_no_mistake_where_it_is_said(slurm, tell, word):
    code, out = slurm.batch(f"{MUSTER} {word} --nproc-per-node=1 {tell}\n", "-N2")
    assert code == 0, out
    assert "muster:" not in out
    assert column(told(out), "WORLD_SIZE") == ["1"]


def test_no_slurm_leaves_a_step_aside_for_nodes_given_by_hand(slurm, tell):
    code, out = slurm.batch(f"""port=$((19000 + SLURM_JOB_ID % 900))
srun sh -c "exec {MUSTER} --no-slurm --nnodes=2 --node-rank=\\$((1 - SLURM_PROCID)) --rdzv-id=mine \\
  --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:$port --nproc-per-node=1 {tell}"
""", "-N2", "--ntasks-per-node=1")
    assert code == 0, out
    workers = told(out)
    assert column(workers, "RANK") == ["0", "1"]
    assert column(workers, "SLURM_NODEID") == ["1", "0"]
    assert set(column(workers, "TORCHELASTIC_RUN_ID")) == {"mine"}


def test_srun_is_called_once_for_all_nodes_of_the_job(slurm, tell):
    # A job that was asked for as a task per worker, which srun finds in the environment.
    code, out = slurm.batch(f"{MUSTER} --srun --nproc-per-node=2 {tell} -- --not-ours\nexit $?\n", "-N2", "--ntasks-per-node=4", "-c2")
    assert code == 0, out
    workers = told(out)
    assert column(workers, "RANK") == ["0", "1", "2", "3"]
    assert column(workers, "SLURM_NODEID") == ["0", "0", "1", "1"]
    assert column(workers, "SLURM_PROCID") == ["0", "0", "1", "1"]
    done = slurm.run("salloc", "-N2", MUSTER, "--srun", "--nnodes=1", "--nproc-per-node=1", "sh", "-c", "echo on $SLURM_NODEID; exit 9")
    assert done.returncode == 9, done.stderr
    assert done.stdout.split() == ["on", "0"]


def test_srun_leaves_no_process_between_and_its_signals_reach_the_workers(slurm):
    pid = slurm.folder / "fan-out.pid"
    pid.unlink(missing_ok=True)
    script = slurm.script("fan-out.sh", f"#!/bin/sh\n[ $RANK = 1 ] && echo $$ > {pid}.new && mv {pid}.new {pid}\nexec sleep 600\n")
    process = slurm.start("salloc", "-N2", "--job-name=fan-out", MUSTER, "--srun", "--nproc-per-node=1", script)
    wait_for(lambda: pid.exists() or process.poll() is not None, "two workers", 60)
    assert process.poll() is None, process.communicate()
    worker = int(pid.read_text())
    assert slurm.run("scancel", "--name=fan-out").returncode == 0
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0, err
    wait_for(lambda: not alive(worker), "the worker to be gone", 30)


def test_srun_is_refused_outside_of_a_job_and_within_a_step(slurm):
    done = slurm.run(MUSTER, "--srun", "true")
    assert done.returncode == 2
    assert "--srun needs a Slurm job, and there is none; run: srun -N NODES --ntasks-per-node=1 muster true" in done.stderr
    done = slurm.muster(["-N1", "-n1"], "--srun", "true")
    assert done.returncode == 2
    assert "leave --srun out: srun muster true" in done.stderr


def test_folded_lines_in_a_step_say_their_node(slurm):
    speak = slurm.script("speak.sh", "#!/bin/sh\necho alike\n")
    done = slurm.muster(["-N2", "--ntasks-per-node=1"], "--view=fold", "--nproc-per-node=2", speak)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{node} x2]:alike" for node in NODES], done.stdout


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one CPU cannot be a part of them")
def test_workers_that_share_the_cpu_of_a_task_are_told_what_srun_needs(slurm):
    cpu = min(os.sched_getaffinity(0))
    done = slurm.run("srun", "-N1", "-n1", "taskset", "-c", cpu, MUSTER, "--nproc-per-node=4", "true")
    assert done.returncode == 0, done.stderr
    assert "4 workers share 1 of the node's" in done.stderr
    assert "ask both sbatch and srun for --cpus-per-task=4" in done.stderr
