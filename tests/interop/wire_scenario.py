# SPDX-License-Identifier: Apache-2.0
"""What record_wire.py records: a server of PyTorch, and clients that use it one after the other.

Usage: wire_scenario.py serve libuv|threaded      prints its port, serves until standard input ends
       wire_scenario.py store 1.13|libuv|threaded PORT
       wire_scenario.py group RANK PORT
"""
import os
import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from checks_support import client, raises


def serve(kind):
    old = not hasattr(dist.TCPStore, "append")
    options = {} if old else {"use_libuv": kind == "libuv"}
    store = dist.TCPStore("127.0.0.1", 0, None, True, **options)
    print(store.port, flush=True)
    sys.stdin.read()


def passed(text):
    """Returns once a client's bytes with this text have passed the proxy."""
    print(text, flush=True)
    sys.stdin.readline()


def woken_by(wait, name, write):
    """Runs `wait` in a thread, `write` once its request has passed, and returns when both are done."""
    thread = threading.Thread(target=wait)
    thread.start()
    passed(name)
    write()
    thread.join()


def every_version(port):
    a = client("127.0.0.1", port, world_size=2)
    b = client("127.0.0.1", port)
    a.set("k", "v")
    a.compare_set("k", "v", "w")
    a.compare_set("k", "zz", "q")
    a.compare_set("nk", "zz", "q")
    a.compare_set("nk", "", "q")
    a.get("k")
    a.add("a", 5)
    a.add("a", -7)
    a.get("a")
    a.add("zero", 0)
    a.set("empty", "")
    a.get("empty")
    a.set("-dash", "x" * 3000)
    a.get("-dash")
    a.wait(["k", "nk"])
    a.num_keys()
    a.delete_key("a")
    a.delete_key("a")
    a.num_keys()
    woken_by(lambda: a.get("late-set"), "late-set", lambda: b.set("late-set", "1"))
    woken_by(lambda: a.get("late-add"), "late-add", lambda: b.add("late-add", 1))
    woken_by(lambda: a.wait(["late-1", "late-2"]), "late-2", lambda: (b.set("late-2", "1"), b.set("late-1", "1")))
    nested = dist.PrefixStore("outer", dist.PrefixStore("inner", a))
    nested.set("k", "v")
    nested.get("k")
    nested.add("n", 1)
    return a, b


def newer(a, b, queues):
    a.append("k", "xy")
    a.append("appended", "1")
    a.multi_set(["m1", "m2"], ["x", ""])
    a.multi_get(["k", "m2", "m1"])
    a.check(["k", "nope"])
    a.check(["k", "m1"])
    a.check([])
    a.set("late-list", "1")
    with raises(dist.DistStoreError):
        a.wait(["never", "k"], timedelta(milliseconds=20))
    a.get("k")
    woken_by(lambda: a.get("late-append"), "late-append", lambda: b.append("late-append", "1"))
    woken_by(lambda: a.multi_get(["late-m1", "late-m2"]), "late-m2", lambda: b.multi_set(["late-m1", "late-m2"], ["1", "2"]))
    c = a.clone()
    c.get("k")
    a.list_keys()
    dist.PrefixStore("inner", a).list_keys()
    woken_by(lambda: a.barrier("bar", 2), "bar", lambda: b.barrier("bar", 2))
    b.get("bar")
    a.barrier("bar", 2)
    with raises(dist.DistStoreError):
        a.barrier("alone", 2, timedelta(milliseconds=20))
    a.get("alone")
    woken_by(lambda: dist.PrefixStore("p", a).barrier("pb", 2), "p/pb/last", lambda: dist.PrefixStore("p", b).barrier("pb", 2))
    if not queues:
        return
    woken_by(lambda: a.get("late-cas"), "late-cas", lambda: b.compare_set("late-cas", "", "1"))
    a.queue_len("q")
    with raises(dist.QueueEmptyError):
        a.queue_pop("q", block=False)
    for element in ("1", "", "three"):
        a.queue_push("q", element)
    a.queue_len("q")
    a.check(["q"])
    b.queue_pop("q")
    a.queue_pop("q", block=False)
    b.queue_pop("q")
    a.check(["q"])
    a.num_keys()
    woken_by(lambda: a.queue_pop("late-q"), "late-q", lambda: b.queue_push("late-q", "1"))
    dist.PrefixStore("p", a).queue_push("q", "1")
    dist.PrefixStore("p", a).queue_pop("q")


def group(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="3")
    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    inner = dist.new_group([0, 1])
    dist.all_reduce(value, group=inner)
    dist.barrier()
    dist.destroy_process_group()


what, *arguments = sys.argv[1:]
if what == "serve":
    serve(arguments[0])
elif what == "store":
    version, port = arguments[0], int(arguments[1])
    stores = every_version(port)
    if version != "1.13":
        newer(*stores, queues=version == "libuv")
else:
    group(int(arguments[0]), int(arguments[1]))
