# SPDX-License-Identifier: Apache-2.0
"""An unmodified PyTorch DDP script on FashionMNIST, launched by muster on one node and on two."""
import pathlib
import re
import subprocess

from launcher_support import MUSTER
from netns import Nodes

SCRIPT = pathlib.Path(__file__).with_name("ddp_fashion_mnist.py")


def check(output, world_size):
    found = re.findall(r"rank (\d)/(\d) first ([\d.]+) last ([\d.]+) parameters ([0-9a-f]{64})", output)
    assert sorted(int(rank) for rank, *_ in found) == list(range(world_size)), output
    assert {int(size) for _, size, *_ in found} == {world_size}
    assert len({digest for *_, digest in found}) == 1, "the ranks' parameters differ"
    for _, _, first, last, _ in found:
        assert float(last) < 0.8 < float(first), output


def test_ddp_trains_on_one_node_through_the_launchers_store(torch):
    result = subprocess.run([MUSTER, "--nproc-per-node=2", SCRIPT], env=torch.environment(), capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    check(result.stdout, 2)


def test_ddp_trains_on_two_nodes(torch):
    nodes = Nodes(2)
    running = []
    try:
        for node in range(2):
            command = nodes.command(node, MUSTER, "--nnodes=2", f"--node-rank={node}", f"--master-addr={nodes.address(0)}",
                                    "--master-port=29517", "--nproc-per-node=1", SCRIPT)
            running.append(subprocess.Popen(command, env=torch.environment(GLOO_SOCKET_IFNAME="eth0"), stdout=subprocess.PIPE,
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
