# SPDX-License-Identifier: Apache-2.0
"""Our FileStore and PyTorch's on one file."""
import datetime
import os
import pathlib
import subprocess
import sys

import torch.distributed as dist

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("MUSTER_BIN_DIR") or os.environ.get("MUSTER_BIN") or ROOT / "build/dev/bin")

ADDER = """
import sys
import torch.distributed as dist
store = dist.FileStore(sys.argv[1], -1)
for _ in range(int(sys.argv[2])):
    store.add("n", 1)
"""


def start(path, *operations, world_size=-1):
    return subprocess.Popen([BIN / "file_store_tool", path, str(world_size), *map(str, operations)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.splitlines()


def ours(path, *operations, world_size=-1):
    return finish(start(path, *operations, world_size=world_size))


def open_torch(path, world_size=-1):
    store = dist.FileStore(str(path), world_size)
    store.set_timeout(datetime.timedelta(seconds=30))
    return store


def test_each_reads_what_the_other_wrote(tmp_path):
    path = tmp_path / "store"
    torch_store = open_torch(path)
    torch_store.set("theirs", "value")
    torch_store.add("n", 5)
    assert ours(path, "get", "theirs", "add", "n", 2, "set", "ours", "1 2", "count") == ["value", "7", "ok", "3"]
    assert torch_store.get("ours") == b"1 2"
    assert torch_store.add("n", 0) == 7
    assert ours(path, "delete", "theirs", "compare_set", "new", "", "first", "count") == ["true", "first", "3"]
    assert torch_store.num_keys() == 3
    assert torch_store.compare_set("new", "first", "second") == b"second"
    assert ours(path, "get", "new") == ["second"]
    assert torch_store.delete_key("new")
    assert ours(path, "count") == ["2"]


def test_each_wakes_the_other(tmp_path):
    path = tmp_path / "store"
    torch_store = open_torch(path)
    waiting = start(path, "set", "started", "1", "get", "later")
    assert torch_store.get("started") == b"1"
    torch_store.set("later", "now")
    assert finish(waiting) == ["ok", "now"]


def test_additions_of_both_are_all_counted(tmp_path):
    path = tmp_path / "store"
    theirs = [subprocess.Popen([sys.executable, "-c", ADDER, str(path), "100"]) for _ in range(2)]
    mine = [start(path, "repeat_add", "n", 1, 100) for _ in range(2)]
    for process in mine:
        finish(process)
    for process in theirs:
        assert process.wait(60) == 0
    assert ours(path, "add", "n", 0) == ["400"]


def test_the_last_of_both_kinds_of_users_deletes_the_file(tmp_path):
    path = tmp_path / "store"
    torch_store = open_torch(path, 2)
    torch_store.set("k", "v")
    assert ours(path, "get", "k", world_size=2) == ["v"]
    assert path.exists()
    del torch_store
    assert not path.exists()
    torch_store = open_torch(path, 2)
    torch_store.set("k", "v")
    del torch_store
    assert path.exists()
    assert ours(path, "get", "k", world_size=2) == ["v"]
    assert not path.exists()
