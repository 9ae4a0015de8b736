# What tests from outside share: where the built programs are, and a run() with a deadline.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def build():
    """A configured and built tree: scripts/test says which."""
    return pathlib.Path(os.environ.get("MUSTER_BUILD", ROOT / "build/dev"))


@pytest.fixture(scope="session")
def bin_dir():
    return pathlib.Path(os.environ.get("MUSTER_BIN", ROOT / "build/dev/bin"))


@pytest.fixture
def run():
    def run_command(*command, seconds=60, **options):
        return subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=seconds,
                              stdin=subprocess.DEVNULL, **options)

    return run_command
