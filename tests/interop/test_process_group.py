# PyTorch's init_process_group("gloo") with musterd as its store, two processes, an all_reduce.
# SPDX-License-Identifier: Apache-2.0
import pytest

pytest.importorskip("torch.distributed", reason="PyTorch for this Python: apt install python3-torch")


def environment(musterd, rank, **more):
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(musterd.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
            "TORCHELASTIC_RESTART_COUNT": "0", **more}


def test_env_init_method_with_an_agent_store(musterd, workers):
    outputs = workers("process_group_worker.py", [environment(musterd, rank) for rank in range(2)])
    assert [output.splitlines()[-1] for output in outputs] == ["rank 0 of 2: 3.0", "rank 1 of 2: 3.0"]
    assert musterd.log().count("closed") >= 2


def test_tcp_init_method(musterd, workers):
    url = f"tcp://127.0.0.1:{musterd.port}"
    outputs = workers("process_group_worker.py", [environment(musterd, rank, INIT_METHOD=url) for rank in range(2)])
    assert [output.splitlines()[-1] for output in outputs] == ["rank 0 of 2: 3.0", "rank 1 of 2: 3.0"]


def test_two_jobs_one_after_the_other_on_one_server(musterd, workers):
    """A restart of the workers: PyTorch keeps attempts apart by TORCHELASTIC_RESTART_COUNT (before 2.6)."""
    for attempt in range(2):
        outputs = workers("process_group_worker.py", [
            environment(musterd, rank, TORCHELASTIC_RESTART_COUNT=str(attempt)) for rank in range(2)])
        assert [output.splitlines()[-1] for output in outputs] == ["rank 0 of 2: 3.0", "rank 1 of 2: 3.0"]
