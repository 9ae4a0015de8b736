# Training programs under srun: muster's own and PyTorch's, with an agent per node and with --exec.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import re

import pytest

from cluster import NODES, PATH
from guide_support import GUIDES, blocks, differences
from image_folders import MISSING, make_image_folders
from launcher_support import BIN, MUSTER

GLOO = pathlib.Path(__file__).with_name("gloo_sum.py")
TRAIN = ["--epochs=1", "--batch-size=256", "--device=cpu", "--log-every=50"]


def digests(*results):
    """The sums over the trained parameters."""
    found = [re.search(r"parameters +sha256 ([0-9a-f]{64})", done.stdout) for done in results]
    assert all(found), [done.stdout for done in results]
    return {match[1] for match in found}


def test_fashion_mnist_trains_on_two_nodes_with_two_ranks_each(slurm):
    agents = slurm.muster(["-N2", "--ntasks-per-node=1"], "--nproc-per-node=2", BIN / "fashion_mnist", *TRAIN)
    assert agents.returncode == 0, agents.stderr
    assert "4 ranks" in agents.stdout
    tasks = slurm.muster(["-N2", "-n4"], "--exec", BIN / "fashion_mnist", *TRAIN)
    assert tasks.returncode == 0, tasks.stderr
    assert "4 ranks" in tasks.stdout
    # The same ranks in the same places learn the same.
    assert len(digests(agents, tasks)) == 1


@pytest.mark.skipif(bool(MISSING), reason=MISSING or "")
def test_imagenet_train_trains_under_srun_alone_and_with_agents(slurm, tmp_path):
    images = make_image_folders(tmp_path)
    train = [BIN / "imagenet_train", images, "--image-size=32", "-b5", "-p2", "--lr=0.01", "-j1", "--epochs=1", "--device=cpu"]
    tasks = slurm.run("srun", "-N2", "-n2", *train)
    assert tasks.returncode == 0, tasks.stderr
    assert "2 ranks" in tasks.stdout and len(re.findall(r" \* Acc@1 ", tasks.stdout)) == 1
    agents = slurm.muster(["-N2", "--ntasks-per-node=1"], "--nproc-per-node=1", *train)
    assert agents.returncode == 0, agents.stderr
    assert len(digests(tasks, agents)) == 1


@pytest.mark.parametrize("srun, flags", [(["-N2", "--ntasks-per-node=1"], ["--nproc-per-node=1"]), (["-N2", "-n2"], ["--exec"])],
                         ids=["agents", "exec"])
def test_a_pytorch_script_meets_over_gloo(slurm, srun, flags):
    env = slurm.environment(PYTHON_EXEC="/usr/bin/python3", OMP_NUM_THREADS="1", RES_OPTIONS="timeout:1 attempts:1")
    if flags == ["--exec"]:
        env["GLOO_SOCKET_IFNAME"] = "lo"  # else gloo asks for this machine's name, which no name server need know
    done = slurm.muster(srun, *flags, GLOO, env=env, seconds=150)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0/2 on node 0 sum 3", "rank 1/2 on node 1 sum 3"]


def test_a_preempted_training_goes_on_where_it_was_and_ends_with_the_same_bits(slurm):
    # Long enough that the signal finds it at work.
    train = [BIN / "fashion_mnist", "--epochs=2", "--batch-size=64", "--device=cpu", "--log-every=20"]
    srun = ["-N2", "--ntasks-per-node=1"]
    whole = slurm.muster(srun, "--nproc-per-node=1", *train)
    assert whole.returncode == 0, whole.stderr
    saved = slurm.folder / "preempted"
    process = slurm.start("srun", *srun, "--job-name=to-preempt", MUSTER, "--nproc-per-node=1", *train,
                          f"--checkpoint={saved}")
    seen = ""
    while not re.search(r"step +20/", seen):
        line = process.stdout.readline()
        assert line, seen[-3000:] + process.communicate()[1]
        seen += line
    # To every process of the step: agents and workers.
    assert slurm.run("scancel", "--name=to-preempt", "--signal=TERM").returncode == 0
    _, err = process.communicate(timeout=60)
    assert process.returncode == 85, err
    assert "start the job again to go on; exit status 85" in err
    rest = slurm.muster(srun, "--nproc-per-node=1", *train, f"--checkpoint={saved}", f"--resume={saved}")
    assert rest.returncode == 0, rest.stderr
    assert len(digests(whole, rest)) == 1


def test_a_program_that_srun_starts_itself_is_one_world(slurm):
    done = slurm.run("srun", "-N2", "-n4", BIN / "all_reduce")
    assert done.returncode == 0, done.stderr
    assert sorted(line.split(" over ")[0] for line in done.stdout.splitlines()) == [f"rank {rank} of 4: sum 10" for rank in range(4)]
    alone = slurm.run("srun", "-N2", "-n2", BIN / "all_reduce", env=slurm.environment(RANK=0, WORLD_SIZE=1))
    assert alone.stdout.count("rank 0 of 1: sum 1 ") == 2, alone.stderr


def test_a_task_that_cannot_know_its_head_says_what_to_run(slurm):
    hosts = slurm.script("hosts", f"{NODES[1]}\n{NODES[0]}\n")
    srun = ["srun", "-N2", "-n2", "-m", "arbitrary"]
    env = slurm.environment(SLURM_HOSTFILE=hosts)
    done = slurm.run(*srun, BIN / "all_reduce", env=env)
    assert done.returncode == 2  # as of every program where what it was given is wrong
    assert done.stderr.count("run: srun ... muster --exec --master-addr=HOST PROGRAM") == 2, done.stderr
    done = slurm.run(*srun, MUSTER, "--exec", f"--master-addr={NODES[1]}", BIN / "all_reduce", env=env)
    assert done.stdout.count(" of 2: sum 3 ") == 2, done.stderr


def test_the_commands_of_the_guide_print_what_it_says(slurm):
    (block,) = [block for block in blocks(GUIDES["en"]) if block.marker == "slurm"]
    commands = slurm.script("guide.sh", "\n".join(block.commands))
    done = slurm.run("bash", commands, env=slurm.environment(PATH=f"{BIN}:{PATH}"))
    assert not differences(block, done.stdout), done.stdout + done.stderr
