# SPDX-License-Identifier: Apache-2.0
"""An unmodified PyTorch DDP script on FashionMNIST, launched by muster on one node and on two."""
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))

from launcher_support import MUSTER, clean_environment  # noqa: E402
from netns import Nodes  # noqa: E402

SCRIPT = HERE / "ddp_fashion_mnist.py"
PYTHON = os.environ.get("MUSTER_TORCH_PYTHON", "/usr/bin/python3")


def environment(**extra):
    return clean_environment(PYTHON_EXEC=PYTHON, **extra)


def check(output, world_size):
    found = re.findall(r"rank (\d)/(\d) first ([\d.]+) last ([\d.]+) parameters ([0-9a-f]{64})", output)
    assert sorted(int(rank) for rank, *_ in found) == list(range(world_size)), output
    assert {int(size) for _, size, *_ in found} == {world_size}
    assert len({digest for *_, digest in found}) == 1, "the ranks' parameters differ"
    for _, _, first, last, _ in found:
        assert float(last) < 0.8 < float(first), output


def test_ddp_trains_on_one_node_through_the_launchers_store():
    result = subprocess.run([MUSTER, "--nproc-per-node=2", SCRIPT], env=environment(), capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    check(result.stdout, 2)


def test_ddp_trains_on_two_nodes():
    nodes = Nodes(2)
    running = []
    try:
        for node in range(2):
            command = nodes.command(node, MUSTER, "--nnodes=2", f"--node-rank={node}", f"--master-addr={nodes.address(0)}",
                                    "--master-port=29517", "--nproc-per-node=1", SCRIPT)
            running.append(subprocess.Popen(command, env=environment(GLOO_SOCKET_IFNAME="eth0"), stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, text=True))
        outputs = [process.communicate(timeout=240) for process in running]
        assert [process.returncode for process in running] == [0, 0], outputs
        check("".join(out for out, _ in outputs), 2)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
        nodes.close()
