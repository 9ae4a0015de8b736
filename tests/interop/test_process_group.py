# SPDX-License-Identifier: Apache-2.0
"""PyTorch's init_process_group("gloo") with our stores: how ranks meet, and what they do then."""
import pytest
from torch_generations import Call, packaged

WORLD_SIZE = 3
METHODS = ("env", "tcp", "file")


def run(torch, server, check, method="env", restart=0, **arguments):
    """One rank per process; the environment is that of an agent that serves the store."""
    methods = {"env": "env://", "tcp": f"tcp://{server.host}:{server.port}", "file": f"file://{torch.folder}/group{server.port}"}
    calls = []
    for rank in range(WORLD_SIZE):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE), "MASTER_ADDR": server.host,
                       "MASTER_PORT": str(server.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                       "TORCHELASTIC_RESTART_COUNT": str(restart),
                       "TORCH_DIST_INIT_BARRIER": str(int(method == "tcp"))}  # 1.13 always meets in the store afterwards
        # PyTorch 2.14 takes the store for the agent's only where MASTER_ADDR is the host of a tcp:// URL.
        calls.append(Call("group_checks", check, {"rank": rank, "world_size": WORLD_SIZE, "init_method": methods[method],
                                                  **arguments}, environment))
    torch.run_all(calls)


@pytest.mark.parametrize("method", METHODS)
def test_ranks_meet_and_reduce(torch, server, method):
    run(torch, server, "collectives", method)


def test_groups_within_the_world(torch, server):
    run(torch, server, "groups_within_the_world")


def test_monitored_barrier(torch, server):
    run(torch, server, "a_monitored_barrier_names_the_rank_that_is_missing", store=[server.host, server.port])


def test_ddp(torch, server):
    run(torch, server, "ddp_computes_what_one_process_computes")


@packaged
def test_attempts_on_one_server_are_kept_apart_by_the_restart_count(torch, server):
    """PyTorch before 2.6 puts TORCHELASTIC_RESTART_COUNT in front of its keys; later ones need a fresh store."""
    for restart in range(2):
        run(torch, server, "collectives", restart=restart)
