# SPDX-License-Identifier: Apache-2.0
"""A job that loses a rank in the middle of training and goes on from its checkpoint, launched by muster."""
import pathlib
import re
import subprocess

import pytest

from launcher_support import BIN, MUSTER, clean_environment
from netns import Nodes

SCRIPT = pathlib.Path(__file__).with_name("elastic_training.py")


def test_training_resumes_after_a_rank_died(torch, tmp_path):
    result = subprocess.run([MUSTER, "--nproc-per-node=2", "--max-restarts=1", SCRIPT, tmp_path], env=torch.environment(),
                            capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, result.stderr
    check(result.stdout)


@pytest.mark.parametrize("backend", ["c10d", "muster"])
def test_training_resumes_on_two_nodes_whose_agents_proxy_the_store(torch, tmp_path, backend):
    """MASTER_ADDR is 127.0.0.1 on both; gloo connects by the interface that muster exports. The store is an agent's, or musterd's."""
    nodes, running = Nodes(3), []
    environment = torch.environment(MUSTER_SECRET="a secret of more than sixteen bytes")
    del environment["GLOO_SOCKET_IFNAME"]
    try:
        for node in range(2):
            command = nodes.command(node, MUSTER, "--nnodes=2", f"--node-rank={node}", f"--rdzv-backend={backend}", "--max-restarts=1",
                                    f"--rdzv-endpoint={nodes.address(2 if backend == 'muster' else 0)}:29518", "--nproc-per-node=1",
                                    SCRIPT, tmp_path)
            running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        agents = list(running)
        if backend == "muster":  # it may come after them
            daemon = nodes.command(2, BIN / "musterd", "--unprotected", "--port=29518", "--log-level=warning")
            running.append(subprocess.Popen(daemon, env=clean_environment(MUSTER_SECRET=environment["MUSTER_SECRET"])))
        outputs = [process.communicate(timeout=180) for process in agents]
        assert [process.returncode for process in agents] == [0, 0], outputs
        check("".join(out for out, _ in outputs))
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
        nodes.close()


def check(output):
    begun = sorted(re.findall(r"rank (\d) attempt (\d) begins at step (\d+)", output))
    # Rank 1 died at step 6, without which rank 0 cannot finish that step: step 5 is what was saved last.
    assert begun == [("0", "0", "0"), ("0", "1", "6"), ("1", "0", "0"), ("1", "1", "6")], output
    assert sorted(re.findall(r"rank (\d) attempt 1 is right", output)) == ["0", "1"], output
