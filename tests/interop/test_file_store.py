# SPDX-License-Identifier: Apache-2.0
"""Our FileStore and PyTorch's on one file."""
import pytest
from launcher_support import BIN
from torch_generations import functions


@pytest.mark.parametrize("check", functions("file_store_checks"))
def test_file_store(torch, tmp_path, check):
    torch.run("file_store_checks", check, tool=str(BIN / "file_store_tool"), folder=str(tmp_path))
