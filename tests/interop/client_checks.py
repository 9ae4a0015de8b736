# SPDX-License-Identifier: Apache-2.0
"""Our blocking client (`tool`, tests/interop/tcp_store_tool.cc) against PyTorch's servers, which run in this process."""
import subprocess
from datetime import timedelta

import torch.distributed as dist

from checks_support import same, together


def _server(kind):
    return dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=30), use_libuv=kind == "libuv")


def _ours(tool, store, kind, *operations):
    result = subprocess.run([tool, str(store.port), "patient", *map(str, operations)],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def what_every_server_knows(tool, kind):
    theirs = _server(kind)
    theirs.set("theirs", "value")
    same(_ours(tool, theirs, kind, "get", "theirs", "set", "ours", "1", "add", "n", 5, "add", "n", -7, "count"), [
        "value", "ok", "5", "-2", "4"])  # with init/
    assert theirs.get("ours") == b"1" and theirs.get("n") == b"-2"
    same(_ours(tool, theirs, kind, "compare_set", "k", "zz", "q", "compare_set", "k", "", "q", "compare_set", "k", "q", "r"), [
        "zz", "q", "r"])
    same(_ours(tool, theirs, kind, "check", "k", "check", "no", "delete", "k", "delete", "k", "check", "k"), [
        "true", "false", "true", "false", "false"])
    same(_ours(tool, theirs, kind, "multi_set", "a", "1", "b", "", "multi_get", "b", "a", "get", "b"), ["ok", ",1,", ""])


def waits_that_end_and_waits_that_do_not(tool, kind):
    theirs = _server(kind)
    same(_ours(tool, theirs, kind, "wait", "k", 50, "set", "k", "1", "wait", "k", 20000, "wait", "never", 0, "get", "k"), [
        "error: Timeout", "ok", "ok", "error: Timeout", "1"])

    def write():
        theirs.wait(["started"])
        theirs.set("late", "now")

    same(together(lambda: _ours(tool, theirs, kind, "set", "started", "1", "get", "late", "clone", "get", "late"), write)[0], [
        "ok", "now", "now"])


def what_later_servers_know(tool, kind):
    theirs = _server(kind)
    if kind == "1.13":
        same(_ours(tool, theirs, kind, "append", "k", "v", "push", "q", "1", "list", "barrier", "b", 1, "count"), [
            "error: Unsupported"] * 4 + ["1"])
        return
    theirs.append("k", "x")
    same(_ours(tool, theirs, kind, "append", "k", "y", "list", "barrier", "b", 1, "get", "b"), ["ok", "k,", "ok", "1"])
    assert theirs.get("k") == b"xy"
    if kind == "libuv":
        theirs.queue_push("q", "1")
        same(_ours(tool, theirs, kind, "pop", "q", "try_pop", "q", "push", "q", "2", "length", "q"), [
            "1", "error: NotFound", "ok", "1"])
        assert theirs.queue_pop("q") == b"2"
    else:  # the threaded server closes the connection at what it does not know, and later calls say so
        same(_ours(tool, theirs, kind, "length", "q", "count"), ["error: PeerGone", "error: PeerGone"])


def both_meet_at_a_barrier(tool, kind):
    theirs = _server(kind)
    if kind == "1.13":  # of ADD, SET and WAIT, as programs without BARRIER make one
        theirs.add("n", 1)
        same(_ours(tool, theirs, kind, "add", "n", 1, "set", "all", "1"), ["2", "ok"])
        theirs.wait(["all"])
        return
    same(together(lambda: _ours(tool, theirs, kind, "barrier", "b", 2), lambda: theirs.barrier("b", 2))[0], ["ok"])
