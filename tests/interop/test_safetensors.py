# SPDX-License-Identifier: Apache-2.0
"""The files of checkpoints, read and written by the safetensors package and PyTorch."""
import pathlib
import subprocess

import pytest

import torch_generations
from launcher_support import BIN, clean_environment

ROOT = torch_generations.ROOT
PACKAGE = ROOT / ".venv/safetensors"
CHECKS = pathlib.Path(__file__).with_name("safetensors_checks.py")


@torch_generations.newest
def test_safetensors_reads_our_checkpoint_and_we_read_a_converted_state_dict(torch, tmp_path):
    if not PACKAGE.is_dir():
        pytest.skip("no safetensors package here: scripts/setup --full installs it")
    train = [BIN / "fashion_mnist", "--epochs=1", "--batch-size=64", "--lr=0.01", "--device=cpu", "--checkpoint=run"]
    trained = subprocess.run(train, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=120)
    assert trained.returncode == 0, trained.stderr
    step = tmp_path / "run" / (tmp_path / "run/BEST").read_text().strip()
    environment = torch.environment()
    environment["PYTHONPATH"] += f":{PACKAGE}"
    done = subprocess.run([torch_generations.PYTHON, CHECKS, step, BIN / "state_dict_tool", ROOT / "worker_runtime/README.md"],
                          cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
