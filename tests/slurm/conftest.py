# One Slurm for all tests of the folder.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "system")]

import cluster  # noqa: E402
import tell_tasks  # noqa: E402
from launcher_support import wait_for  # noqa: E402


@pytest.fixture(scope="session")
def slurm_session():
    if missing := cluster.missing():
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    started = cluster.Cluster()
    yield started
    started.close()
    wait_for(lambda: not started.processes(), "the cluster's processes to be gone")


@pytest.fixture
def slurm(slurm_session):
    """No test leaves a job to the next one."""
    yield slurm_session
    slurm_session.cancel_all()


@pytest.fixture(scope="session")
def tell(slurm_session):
    return slurm_session.script("tell.py", tell_tasks.TELL)
