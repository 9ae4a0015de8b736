# SPDX-License-Identifier: Apache-2.0
"""THOP itself counts what profile() counts."""
import json
import subprocess

import pytest
import torch_generations
from launcher_support import BIN
from torch_generations import NEWEST, PYTHON, ROOT

THOP = ROOT / ".venv/thop"

# The models of nn::lenet5() and, in tests/unit/worker/profile_test.cc, of the test that names THOP: its sum is repeated here.
COUNT = """
import json
import thop
import torch
from torch.nn import AdaptiveAvgPool2d, AvgPool2d, BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential
def count(shape, *layers):
    return thop.profile(Sequential(*layers), (torch.zeros(1, *shape),), verbose=False)
print(json.dumps({
    "lenet5": count((1, 28, 28), Conv2d(1, 6, 5, padding=2), ReLU(), MaxPool2d(2), Conv2d(6, 16, 5), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(400, 120), ReLU(), Linear(120, 84), ReLU(), Linear(84, 10)),
    "averages": count((4, 12, 12), Conv2d(4, 4, 1), BatchNorm2d(4), AvgPool2d(2), AdaptiveAvgPool2d(2), Flatten(), Linear(16, 3)),
}))
"""


def test_thop_counts_the_same():
    if reason := torch_generations.missing(NEWEST):
        pytest.skip(reason)
    if not THOP.is_dir():
        pytest.skip("no thop here: scripts/setup --full installs it")
    env = torch_generations.environment(NEWEST)
    env["PYTHONPATH"] = f"{THOP}:{env['PYTHONPATH']}"
    done = subprocess.run([PYTHON, "-c", COUNT], text=True, capture_output=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    ours = json.loads(subprocess.run([BIN / "muster-profile", "lenet5", "--json"], capture_output=True, timeout=60).stdout)
    assert counted["lenet5"] == [ours["macs"], ours["parameters"]]
    assert counted["averages"] == [4 * 144 * 4 + 4 * (4 * 144) + 4 * 36 + (3 * 3 + 1) * 16 + 48, 79]
