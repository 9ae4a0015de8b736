# SPDX-License-Identifier: Apache-2.0
"""Our blocking client (`tool`), which takes every server for one of 2.2 or later, at one of PyTorch 1.13."""
import resource
import subprocess
from datetime import timedelta

import torch.distributed as dist


def a_server_that_is_too_old_is_named_and_not_harmed(tool):
    server = dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=30))
    result = subprocess.run([tool, str(server.port), "brief", "count"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "PyTorch before 2.2" in result.stderr, result.stderr
    server.set("k", "v")
    assert server.get("k") == b"v"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak < 4 << 20, f"{peak} KiB"  # what VALIDATE and a CHECK make it allocate is 22 GB
