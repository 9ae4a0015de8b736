# A store of either kind per test, and the generations of PyTorch that meet it.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "system")]

import parity_runs  # noqa: E402
import torch_generations  # noqa: E402
from stores import EmbeddedStore, Musterd, ProxiedStore  # noqa: E402


def serve(kind, folder):
    store = kind(folder)
    try:
        yield store
        store.stop()
    finally:
        store.kill()


@pytest.fixture
def musterd(tmp_path):
    yield from serve(Musterd, tmp_path)


@pytest.fixture(params=[Musterd, EmbeddedStore, ProxiedStore], ids=["musterd", "embedded", "proxied"])
def server(request, tmp_path):
    """A fresh store of each kind, with host and port."""
    yield from serve(request.param, tmp_path)


@pytest.fixture(scope="session")
def torches(tmp_path_factory):
    """The generations that were asked for, with the processes that have imported them."""
    found = {}

    def find(generation):
        if generation not in found:
            found[generation] = torch_generations.Torch(generation, tmp_path_factory.mktemp("torch"))
        return found[generation]

    yield find
    for torch in found.values():
        torch.close()


@pytest.fixture(params=torch_generations.GENERATIONS)
def torch(request, torches):
    """One generation of PyTorch; every test that uses it runs once with each."""
    if reason := torch_generations.missing(request.param):
        pytest.skip(reason)
    return torches(request.param)


@pytest.fixture(scope="session")
def torchruns(tmp_path_factory):
    """The newest torchrun, without the wait for PyTorch's import at every run."""
    if reason := torch_generations.missing(torch_generations.NEWEST):
        pytest.skip(reason)
    server = parity_runs.Server(tmp_path_factory.mktemp("torchrun") / "log")
    yield server
    server.close()


@pytest.fixture
def both(torchruns, tmp_path):
    """Makes runs, of torchrun and of muster."""
    made = []

    def make(name=""):
        pair = [parity_runs.Run(torchruns, launcher, tmp_path / f"{launcher}{name}") for launcher in ("torchrun", "muster")]
        made.extend(pair)
        return pair

    yield make
    for run in made:
        run.close()
