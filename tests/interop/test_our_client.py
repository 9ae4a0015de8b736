# SPDX-License-Identifier: Apache-2.0
"""Our blocking client against PyTorch's servers: the two of 2.14; that of 1.13 is too old for it."""
import pytest
from launcher_support import BIN
from torch_generations import NEWEST, functions, packaged

SERVERS = [pytest.param(NEWEST, "libuv", id="2.14-libuv"), pytest.param(NEWEST, "threaded", id="2.14-threaded")]


@pytest.mark.parametrize("check", functions("client_checks"))
@pytest.mark.parametrize("torch,kind", SERVERS, indirect=["torch"])
def test_our_client(torch, kind, check):
    torch.run("client_checks", check, tool=str(BIN / "tcp_store_tool"), kind=kind)


@packaged
@pytest.mark.parametrize("check", functions("old_server_checks"))
def test_server_that_is_too_old(torch, check):
    torch.run("old_server_checks", check, tool=str(BIN / "tcp_store_tool"))
