# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own TCPStore client against musterd and against the launcher's store: every operation it offers."""
import pytest
from stores import Musterd
from torch_generations import functions, newest


@pytest.mark.parametrize("check", functions("store_checks"))
def test_store(torch, server, check):
    torch.run("store_checks", check, host=server.host, port=server.port)


@newest
@pytest.mark.parametrize("check", functions("newest_store_checks"))
def test_newer_operations(torch, server, check):
    torch.run("newest_store_checks", check, host=server.host, port=server.port)


@newest
@pytest.mark.parametrize("check", functions("refused_client_checks"))
def test_refused_clients(torch, tmp_path, check):
    """One line of the log for each client that is refused, and no harm to others."""
    daemon = Musterd(tmp_path)
    try:
        torch.run("refused_client_checks", check, host=daemon.host, port=daemon.port)
        daemon.stop(warnings=1)
    finally:
        daemon.kill()
