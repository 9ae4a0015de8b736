# PyTorch's own TCPStore client (any version) against musterd: every operation it offers.
# SPDX-License-Identifier: Apache-2.0
import threading
from datetime import timedelta

import pytest

dist = pytest.importorskip("torch.distributed", reason="PyTorch for this Python: apt install python3-torch")
TIMEOUT = timedelta(seconds=30)


def client(musterd, world_size=None, timeout=TIMEOUT):
    if world_size is None:
        return dist.TCPStore("127.0.0.1", musterd.port, is_master=False, timeout=timeout)
    return dist.TCPStore("127.0.0.1", musterd.port, world_size, False, timeout=timeout)


def test_values_set_by_one_client_are_read_by_another(musterd):
    a, b = client(musterd), client(musterd)
    a.set("k", "v")
    assert b.get("k") == b"v"
    b.set("k", "w")
    assert a.get("k") == b"w"
    a.set("-key", "")
    assert b.get("-key") == b""
    a.set("big", "x" * (8 << 20))
    assert b.get("big") == b"x" * (8 << 20)


def test_counters_are_kept_as_decimal_text(musterd):
    a = client(musterd)
    assert a.add("n", 5) == 5
    assert a.add("n", -7) == -2
    assert a.get("n") == b"-2"
    assert a.add("zero", 0) == 0
    assert a.get("zero") == b"0"


def test_compare_set_follows_the_four_rows(musterd):
    a = client(musterd)
    assert a.compare_set("k", "zz", "q") == b"zz"
    assert a.num_keys() == 0
    assert a.compare_set("k", "", "q") == b"q"
    assert a.compare_set("k", "zz", "r") == b"q"
    assert a.compare_set("k", "q", "r") == b"r"


def test_keys_are_counted_and_deleted(musterd):
    a = client(musterd, world_size=4)
    assert a.num_keys() == 1  # init/
    for key in ("a", "b"):
        a.set(key, "1")
    assert a.num_keys() == 3
    assert a.delete_key("a") is True
    assert a.delete_key("a") is False
    assert a.num_keys() == 2


def test_a_get_that_times_out_says_so_and_a_late_key_does_not_confuse_the_client(musterd):
    a, b = client(musterd, timeout=timedelta(seconds=1)), client(musterd)
    with pytest.raises(RuntimeError, match="(?i)timeout"):
        a.get("late")
    a.set("other", "1")  # from here on the old wait is void
    b.set("late", "2")
    for _ in range(3):
        assert a.get("other") == b"1"
        assert a.get("late") == b"2"
        assert a.add("n", 0) == 0


def test_a_wait_with_its_own_timeout(musterd):
    a, b = client(musterd), client(musterd)
    with pytest.raises(RuntimeError, match="(?i)timeout"):
        a.wait(["x", "y"], timedelta(milliseconds=50))
    b.set("x", "1")
    b.set("y", "1")
    a.wait(["x", "y"], timedelta(seconds=20))


def test_a_waiting_get_is_woken_by_set_add_and_compare_set(musterd):
    b = client(musterd)
    for write in (lambda key: b.set(key, "1"), lambda key: b.add(key, 1), lambda key: b.compare_set(key, "", "1")):
        a = client(musterd)
        key = f"late{id(write)}"
        got = []
        getter = threading.Thread(target=lambda: got.append(a.get(key)))
        getter.start()
        write(key)
        getter.join(20)
        assert got == [b"1"]


def test_prefix_stores_nest_with_the_outermost_prefix_innermost(musterd):
    a = client(musterd)
    nested = dist.PrefixStore("outer", dist.PrefixStore("inner", a))
    nested.set("k", "v")
    assert a.get("inner/outer/k") == b"v"


def test_many_clients_meet_at_one_counter(musterd):
    clients = [client(musterd, world_size=64) for _ in range(64)]
    results = []

    def arrive(store):
        if store.add("arrived", 1) == len(clients):
            store.set("all", "1")
        results.append(store.get("all"))

    threads = [threading.Thread(target=arrive, args=(store,)) for store in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [b"1"] * len(clients)
    assert clients[0].add("arrived", 0) == len(clients)


def test_a_hosting_rank_under_an_agent_store_falls_back_to_being_a_client(musterd, monkeypatch):
    """is_master=True on a port that is taken: PyTorch logs and becomes a client, which needs the bind to fail."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_PORT", str(musterd.port))
    try:
        store = dist.TCPStore("127.0.0.1", musterd.port, 1, True, timeout=timedelta(seconds=5))
    except RuntimeError as error:  # before 2.x there is no such fallback
        assert "address already in use" in str(error).lower()
        return
    store.set("k", "v")
    assert client(musterd).get("k") == b"v"
