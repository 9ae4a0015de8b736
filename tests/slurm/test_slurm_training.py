# Training programs under srun: muster's own and PyTorch's, with an agent per node and with --exec.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import re

import pytest

from launcher_support import BIN

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


@pytest.mark.parametrize("srun, flags", [(["-N2", "--ntasks-per-node=1"], ["--nproc-per-node=1"]), (["-N2", "-n2"], ["--exec"])],
                         ids=["agents", "exec"])
def test_a_pytorch_script_meets_over_gloo(slurm, srun, flags):
    env = slurm.environment(PYTHON_EXEC="/usr/bin/python3", OMP_NUM_THREADS="1", RES_OPTIONS="timeout:1 attempts:1")
    if flags == ["--exec"]:
        env["GLOO_SOCKET_IFNAME"] = "lo"  # else gloo asks for this machine's name, which no name server need know
    done = slurm.muster(srun, *flags, GLOO, env=env, seconds=150)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0/2 on node 0 sum 3", "rank 1/2 on node 1 sum 3"]
