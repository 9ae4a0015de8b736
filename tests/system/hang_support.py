# SPDX-License-Identifier: Apache-2.0
"""What the tests of workers that hang share: the launcher's words while it goes on, fake tools and what was kept."""
import json
import os
import re
import shutil

import pytest

from launcher_support import ROOT, clean_environment, wait_for

# The first steps have all the time they want on a busy machine; the limit is for those that come after.
TIMEOUT = "--hang-timeout=0.5:60"

# Of a job of two Python workers: step(number) tells of itself and returns when both have taken it.
STEPS = """
import os, time
rank = int(os.environ["RANK"])
own, other = (os.open("step.%d" % of, os.O_RDWR) for of in (rank, 1 - rank))
def step(number):
    with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write("step %d\\n" % number)
    os.write(other, b"x")
    os.read(own, 1)
    time.sleep(0.02)  # a step
"""


class Err:
    """The standard error of a launcher that goes on."""

    def __init__(self, tmp_path, name="err"):
        self.path = tmp_path / name
        self.file = open(self.path, "w")

    def text(self):
        return self.path.read_text()

    def wait(self, pattern, seconds=60):
        return wait_for(lambda: re.search(pattern, self.text()), f"{pattern!r} in {self.text()!r}", seconds)


@pytest.fixture
def err(tmp_path):
    err = Err(tmp_path)
    yield err
    err.file.close()


def fifos(folder, *names):
    for name in names:
        for rank in range(2):
            os.mkfifo(folder / f"{name}.{rank}")


def read_hangs(log_dir, attempt=0):
    (path,) = log_dir.glob(f"*/attempt_{attempt}/hang.json")
    text = json.loads(path.read_text())
    assert text["version"] == 1
    return text["hangs"]


def tool(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def without_tools(tmp_path, **tools):
    """An environment with the given tools, scripts, and no others: neither gdb nor py-spy."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name, text in tools.items():
        tool(folder, name.replace("_", "-"), text)
    return folder, clean_environment(PATH=str(folder), TMPDIR=str(tmp_path))


def real_tool(name):
    """Where it is. Without it there is nothing to test, and nobody would know."""
    found = shutil.which(name)
    own = ROOT / ".venv" / name / "bin" / name
    if not found and own.exists():
        found = str(own)
    if not found:
        pytest.fail(f"{name} is not installed; scripts/setup does that")
    return os.path.realpath(found)
