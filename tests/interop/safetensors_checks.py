# What test_safetensors.py runs where PyTorch and safetensors are: our checkpoint read by safetensors, and a state_dict of
# PyTorch's, converted by the lines of worker_runtime/README.md, read and written by ours.
# SPDX-License-Identifier: Apache-2.0
# Usage: safetensors_checks.py <checkpoint of one step> <state_dict_tool> <README.md>; in an empty directory
import gzip
import json
import pathlib
import re
import subprocess
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.nn import functional

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
checkpoint, tool, readme = map(pathlib.Path, sys.argv[1:])


class GarmentClassifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 6, 5), torch.nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = torch.nn.Linear(256, 120), torch.nn.Linear(120, 84), torch.nn.Linear(84, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(x.flatten(1))))))


def test_set():
    def values(name, header):
        packed = next(path for path in DATA.iterdir() if path.name.startswith(name))
        content = gzip.open(packed).read() if packed.suffix == ".gz" else packed.read_bytes()
        return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8)
    return values("t10k-images", 16).reshape(-1, 1, 28, 28).float() / 255, values("t10k-labels", 8).long()


def check_ours():
    """Our weights in PyTorch's model are right as often as the run that wrote them says."""
    model = GarmentClassifier()
    model.load_state_dict(load_file(checkpoint / "model.safetensors"), strict=True)
    images, labels = test_set()
    with torch.no_grad():
        correct = (model((images - 0.5) / 0.5).argmax(1) == labels).sum().item()
    state = json.loads((checkpoint / "state.json").read_text())["training"]
    assert abs(correct - 10000 * state["best_metric"]) <= 2, (correct, state)  # a tie may fall either way
    momentum = load_file(checkpoint / "optim.safetensors")
    assert {name: tensor.shape for name, tensor in momentum.items()} \
        == {f"momentum.{name}": tensor.shape for name, tensor in model.state_dict().items()}
    with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def check_theirs():
    model = GarmentClassifier().to(memory_format=torch.channels_last)
    torch.save(model.state_dict(), "weights.pth")
    lines = re.search(r"```python\n(.*?)```", readme.read_text(), re.DOTALL).group(1)
    assert len(lines.strip().splitlines()) == 3, lines
    exec(lines, {})  # noqa: S102
    subprocess.run([tool, "weights.safetensors", "again.safetensors"], check=True)
    again = load_file("again.safetensors")
    assert again.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again[name], tensor), name


check_ours()
check_theirs()
