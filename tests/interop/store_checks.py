# SPDX-License-Identifier: Apache-2.0
"""What every TCPStore client of PyTorch since 1.13 can ask for, against a fresh store at (host, port)."""
import os
from datetime import timedelta

import torch.distributed as dist

from checks_support import TIMEOUT, client, raises, together


def values_set_by_one_client_are_read_by_another(host, port):
    a, b = client(host, port), client(host, port)
    a.set("k", "v")
    assert b.get("k") == b"v"
    b.set("k", "w")
    assert a.get("k") == b"w"
    a.set("-key", "")
    assert b.get("-key") == b""
    a.set("big", "x" * (8 << 20))
    assert b.get("big") == b"x" * (8 << 20)


def counters_are_kept_as_decimal_text(host, port):
    a = client(host, port)
    assert a.add("n", 5) == 5
    assert a.add("n", -7) == -2
    assert a.get("n") == b"-2"
    assert a.add("zero", 0) == 0
    assert a.get("zero") == b"0"
    a.set("text", "41")
    assert a.add("text", 1) == 42


def compare_set_follows_the_four_rows(host, port):
    a = client(host, port)
    assert a.compare_set("k", "zz", "q") == b"zz"
    assert a.num_keys() == 0
    assert a.compare_set("k", "", "q") == b"q"
    assert a.compare_set("k", "zz", "r") == b"q"
    assert a.compare_set("k", "q", "r") == b"r"


def keys_are_counted_and_deleted(host, port):
    a = client(host, port, world_size=4)
    assert a.num_keys() == 1  # init/
    for key in ("a", "b"):
        a.set(key, "1")
    assert a.num_keys() == 3
    assert a.delete_key("a") is True
    assert a.delete_key("a") is False
    assert a.num_keys() == 2


def a_get_that_times_out_says_so_and_a_late_key_does_not_confuse_the_client(host, port):
    a, b = client(host, port, timeout=1), client(host, port)
    with raises(RuntimeError, "(?i)timeout"):
        a.get("late")
    a.set_timeout(timedelta(seconds=TIMEOUT))
    a.set("other", "1")  # from here on the old wait is void
    b.set("late", "2")
    for _ in range(3):
        assert a.get("other") == b"1"
        assert a.get("late") == b"2"
        assert a.add("n", 0) == 0


def a_wait_has_its_own_timeout(host, port):
    a, b = client(host, port), client(host, port)
    with raises(RuntimeError, "(?i)timeout"):
        a.wait(["x", "y"], timedelta(milliseconds=50))
    b.set("x", "1")
    b.set("y", "1")
    a.wait(["x", "y"], timedelta(seconds=20))


def a_changed_timeout_holds_for_later_waits(host, port):
    a = client(host, port)
    a.set_timeout(timedelta(milliseconds=50))
    assert a.timeout == timedelta(milliseconds=50)
    with raises(RuntimeError, "(?i)timeout"):
        a.get("never")


def a_waiting_get_is_woken_by_set_add_and_compare_set(host, port):
    b = client(host, port)
    for key, write in (("set", lambda: b.set("set", "1")), ("add", lambda: b.add("add", 1)),
                       ("cas", lambda: b.compare_set("cas", "", "1"))):
        a = client(host, port)
        assert together(lambda: a.get(key), write)[0] == b"1"


def prefix_stores_nest_with_the_outermost_prefix_innermost(host, port):
    a = client(host, port)
    nested = dist.PrefixStore("outer", dist.PrefixStore("inner", a))
    nested.set("k", "v")
    assert a.get("inner/outer/k") == b"v"
    assert nested.add("n", 2) == 2 and a.get("inner/outer/n") == b"2"
    assert nested.compare_set("k", "v", "w") == b"w"
    assert nested.delete_key("k") is True
    assert a.num_keys() == nested.num_keys() == 1


def many_clients_meet_at_one_counter(host, port):
    clients = [client(host, port, world_size=64) for _ in range(64)]

    def arrive(store):
        if store.add("arrived", 1) == len(clients):
            store.set("all", "1")
        return store.get("all")

    assert together(*[lambda store=store: arrive(store) for store in clients]) == [b"1"] * len(clients)
    assert clients[0].add("arrived", 0) == len(clients)


def clients_that_come_and_go_leave_their_keys(host, port):
    for number in range(50):
        client(host, port).set(f"k{number}", str(number))
    reader = client(host, port)
    assert [reader.get(f"k{number}") for number in range(50)] == [str(number).encode() for number in range(50)]


def a_hosting_rank_under_an_agent_store_falls_back_to_being_a_client(host, port):
    """is_master=True on a port that is taken: PyTorch logs and becomes a client, which needs the bind to fail."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    os.environ["MASTER_PORT"] = str(port)
    try:
        store = dist.TCPStore(host, port, 1, True, timeout=timedelta(seconds=5))
    except RuntimeError as error:  # before 2.x there is no such fallback
        assert "address already in use" in str(error).lower()
        return
    store.set("k", "v")
    assert client(host, port).get("k") == b"v"
