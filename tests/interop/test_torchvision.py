# SPDX-License-Identifier: Apache-2.0
"""ImageFolder and the transforms against the real torchvision: order, labels and every value of the tensors."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch_generations
from launcher_support import BIN

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import data  # noqa: E402

CHECKS = str(pathlib.Path(__file__).with_name("torchvision_checks.py"))


@pytest.fixture(scope="module")
def torchvision():
    if reason := torch_generations.missing(torch_generations.NEWEST):
        pytest.skip(reason)
    python, env = data.environment()
    return lambda *arguments: subprocess.run([python, CHECKS, *map(str, arguments)], env=env, text=True, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def images(torchvision, tmp_path_factory):
    root = tmp_path_factory.mktemp("torchvision") / "images"
    made = torchvision("make", root)
    assert made.returncode == 0, made.stderr
    return root


@pytest.mark.parametrize("pipeline", ["train", "evaluate"])
@pytest.mark.parametrize("decode", ["exact", "scaled"])
def test_the_loader_hands_out_what_torchvision_makes_of_the_folder(torchvision, images, tmp_path, decode, pipeline):
    tensors, lines = tmp_path / "tensors", tmp_path / "lines"
    dumped = subprocess.run([BIN / "data_load", "dump", images, tensors, decode, pipeline], text=True, capture_output=True, timeout=120)
    assert dumped.returncode == 0, dumped.stderr
    lines.write_text(dumped.stdout)
    compared = torchvision("compare", images, tensors, lines, decode, pipeline)
    os.remove(tensors)
    assert compared.returncode == 0, compared.stderr[-2000:]
    if decode == "scaled":
        answer = json.loads(compared.stdout)
        least, mean = answer["psnr"]
        assert least > 30 and mean > 35, f"PSNR {least:.1f} dB at least, {mean:.1f} dB on average"
        count, least = answer["scaled"]
        assert count > 3 and least > 25, f"{count} images of a smaller decode, PSNR {least:.1f} dB at least"
