# SPDX-License-Identifier: Apache-2.0
"""What TCPStore clients learnt after 2.0, against a fresh store at (host, port): run with the newest PyTorch."""
import pathlib
import re
import signal
import threading
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from checks_support import client, raises, together


def every_public_method_of_the_client_is_checked(host, port):
    """What a later PyTorch adds shows here, before a user meets it."""
    text = "".join(path.read_text() for path in pathlib.Path(__file__).parent.glob("*store_checks.py"))
    methods = {name for name in dir(dist.TCPStore) if not name.startswith("_")}
    unchecked = {name for name in methods if not re.search(rf"\.{name}\b", text)}
    assert unchecked == {"libuvBackend"}, "of the client itself, nothing to do with a server"
    a = client(host, port)
    assert (a.host, a.port) == (host, port)


def values_are_appended_to_and_read_in_numbers(host, port):
    a, b = client(host, port), client(host, port)
    assert a.has_extended_api()
    a.append("k", "x")
    a.append("k", "yz")
    assert b.get("k") == b"xyz"
    a.multi_set(["m1", "m2", "m3"], ["1", "", "3"])
    assert b.multi_get(["m3", "k", "m2", "m1"]) == [b"3", b"xyz", b"", b"1"]
    many = [f"many{number}" for number in range(1000)]
    a.multi_set(many, many)
    assert b.multi_get(many) == [name.encode() for name in many]


def check_answers_at_once(host, port):
    a = client(host, port)
    a.set("k", "v")
    assert a.check(["k"]) is True
    assert a.check(["k", "missing"]) is False
    assert a.check([]) is True
    a.queue_push("q", "1")
    assert a.check(["q"]) is True
    a.queue_pop("q")
    assert a.check(["q"]) is False


def a_multi_get_waits_for_its_last_key(host, port):
    a, b = client(host, port), client(host, port)
    a.set("early", "1")

    def write():
        b.append("late1", "2")
        b.multi_set(["late2", "late3"], ["3", "4"])

    assert together(lambda: a.multi_get(["early", "late1", "late2", "late3"]), write)[0] == [b"1", b"2", b"3", b"4"]


def keys_are_listed(host, port):
    a = client(host, port, world_size=2)
    a.multi_set(["a", "p/b", "p/c"], ["", "", ""])
    a.queue_push("q", "1")
    assert sorted(a.list_keys()) == ["a", "p/b", "p/c"]
    assert a.num_keys() == 4  # with init/
    assert sorted(dist.PrefixStore("p", a).list_keys()) == ["b", "c"]


def prefix_stores_pass_every_operation_on(host, port):
    a = client(host, port)
    p = dist.PrefixStore("p", a)
    p.append("k", "v")
    p.multi_set(["m"], ["1"])
    p.queue_push("q", "e")
    assert a.multi_get(["p/k", "p/m"]) == p.multi_get(["k", "m"]) == [b"v", b"1"]
    assert a.queue_len("p/q") == 1 and p.queue_pop("q") == b"e"
    assert p.check(["k"]) and not p.check(["p/k"])
    p.barrier("b", 1)  # made of ADD, SET and WAIT: a prefix store does not pass BARRIER itself on
    assert {name for name in a.list_keys() if name.startswith("p/b/")} == {"p/b/num_members", "p/b/last_member"}
    assert p.has_extended_api()


def a_clone_has_a_connection_of_its_own_and_does_not_check_in(host, port):
    a = client(host, port, world_size=2)
    b = a.clone()
    assert b.num_keys() == 1 and a.add("counted", 0) == 0
    a.set("k", "v")
    assert b.get("k") == b"v"
    # One waits while the other works: they do not share a connection.
    assert together(partial(a.get, "late"), lambda: b.set("late", "1"))[0] == b"1"
    del a
    assert b.get("k") == b"v" and b.num_keys() == 4  # init/, counted, k and late


def queues_give_each_element_once_and_oldest_first(host, port):
    a, b = client(host, port), client(host, port)
    assert a.queue_len("q") == 0
    with raises(dist.QueueEmptyError, "empty"):
        a.queue_pop("q", block=False)
    for element in ("1", "", "3"):
        a.queue_push("q", element)
    assert b.queue_len("q") == 3
    assert [b.queue_pop("q"), a.queue_pop("q", block=False), b.queue_pop("q")] == [b"1", b"", b"3"]
    assert a.queue_len("q") == 0
    assert a.num_keys() == 0


def a_waiting_pop_is_woken_by_a_push(host, port):
    a, b = client(host, port), client(host, port)

    def serve():
        while (element := a.queue_pop("requests")) != b"end":
            a.queue_push("answers", b"re: " + element)

    def ask():
        answers = []
        for number in range(100):
            b.queue_push("requests", str(number))
            answers.append(b.queue_pop("answers"))
        b.queue_push("requests", "end")
        return answers

    assert together(ask, serve)[0] == [f"re: {number}".encode() for number in range(100)]


def each_of_many_waiting_pops_gets_one_element(host, port):
    clients = [client(host, port) for _ in range(16)]
    feeder = client(host, port)

    def feed():
        for number in range(len(clients)):
            feeder.queue_push("q", str(number))

    def pop(store):
        # It waits for an element, and then asks for it: another client may have come in between, to any server.
        while True:
            try:
                return store.queue_pop("q")
            except dist.QueueEmptyError:
                pass

    got = together(*[lambda store=store: pop(store) for store in clients], feed)[:-1]
    assert sorted(map(int, got)) == list(range(len(clients)))


def a_pop_that_times_out_leaves_the_client_usable(host, port):
    a = client(host, port)
    a.set_timeout(timedelta(milliseconds=50))
    with raises(dist.DistStoreError, "wait timeout after 50ms, keys: /q"):
        a.queue_pop("q")
    a.queue_push("q", "1")
    assert a.queue_pop("q") == b"1"


def a_timeout_names_its_keys_and_the_wait_is_cancelled(host, port):
    a, b = client(host, port), client(host, port)
    with raises(dist.DistStoreError, "wait timeout after 60ms, keys: /x, /y"):
        a.wait(["x", "y"], timedelta(milliseconds=60))
    # The answer to the cancelled wait must not be taken for one to what comes next.
    b.multi_set(["x", "y"], ["1", "2"])
    assert a.check(["nothing"]) is False
    assert a.multi_get(["x", "y"]) == [b"1", b"2"]
    with raises(dist.DistStoreError, "wait timeout after 0ms"):
        a.wait(["never"], timedelta(0))
    assert a.add("n", 1) == 1


def a_wake_up_that_crosses_the_cancel_loses_no_byte(host, port):
    a, b = client(host, port), client(host, port)
    late = 0
    for number in range(300):
        key = f"race{number}"

        def wait():
            try:
                a.wait([key], timedelta(milliseconds=1))
            except dist.DistStoreError:
                return 1
            return 0

        late += together(wait, lambda: b.set(key, "1"))[0]
        assert a.add("sum", 1) == number + 1
        assert a.get(key) == b"1"
    return late  # either outcome is right, and both are likely to have happened


def a_signal_does_not_break_a_wait(host, port):
    a, b = client(host, port), client(host, port)
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        # The waiting is done by the main thread, which signals meet.
        def write():
            with raises(dist.DistStoreError):
                b.wait(["nothing"], timedelta(milliseconds=100))
            b.set("k", "1")

        writer = threading.Thread(target=write)
        writer.start()
        assert a.get("k") == b"1"
        writer.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen


def a_barrier_opens_when_its_last_participant_arrives(host, port):
    clients = [client(host, port) for _ in range(8)]
    for name in ("b1", "b2"):
        together(*[lambda store=store: store.barrier(name, len(clients)) for store in clients])
        assert clients[0].get(name) == b"8"


def a_barrier_that_nobody_joins_times_out_by_name(host, port):
    a = client(host, port)
    with raises(dist.DistStoreError, "barrier timeout after 50ms, key: b"):
        a.barrier("b", 2, timedelta(milliseconds=50))
    a.set("k", "v")
    assert a.get("k") == b"v"


def sixty_four_clients_work_at_the_same_time(host, port):
    clients = [client(host, port, world_size=64) for _ in range(64)]

    def work(rank, store):
        store.barrier("start", len(clients))
        store.set(f"rank{rank}", str(rank))
        right = (rank + 1) % len(clients)
        assert store.get(f"rank{right}") == str(right).encode()
        store.queue_push("done", str(rank))
        store.barrier("end", len(clients))
        return store.add("sum", rank)

    sums = together(*[lambda rank=rank, store=store: work(rank, store) for rank, store in enumerate(clients)])
    assert max(sums) == sum(range(len(clients)))
    assert clients[0].queue_len("done") == len(clients)
    assert clients[0].num_keys() == 1 + len(clients) + 3  # init/, the ranks', two barriers and the sum
