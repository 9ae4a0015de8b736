# SPDX-License-Identifier: Apache-2.0
"""Our FileStore (`tool`) and PyTorch's on one file, in an empty folder."""
import pathlib
import subprocess
import sys
from datetime import timedelta

import torch.distributed as dist

ADDER = """
import sys
import torch.distributed as dist
store = dist.FileStore(sys.argv[1], -1)
for _ in range(int(sys.argv[2])):
    store.add("n", 1)
"""


def _start(tool, path, *operations, world_size=-1):
    return subprocess.Popen([tool, path, str(world_size), *map(str, operations)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def _finish(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.splitlines()


def _ours(tool, path, *operations, world_size=-1):
    return _finish(_start(tool, path, *operations, world_size=world_size))


def _theirs(path, world_size=-1):
    store = dist.FileStore(str(path), world_size)
    store.set_timeout(timedelta(seconds=30))
    return store


def each_reads_what_the_other_wrote(tool, folder):
    path = pathlib.Path(folder) / "store"
    theirs = _theirs(path)
    theirs.set("theirs", "value")
    theirs.add("n", 5)
    assert _ours(tool, path, "get", "theirs", "add", "n", 2, "set", "ours", "1 2") == ["value", "7", "ok"]
    internal = theirs.num_keys() - 3  # users are counted in the file, too
    assert theirs.get("ours") == b"1 2"
    assert theirs.add("n", 0) == 7
    assert theirs.num_keys() == internal + 3
    assert _ours(tool, path, "delete", "theirs", "compare_set", "new", "", "first") == ["true", "first"]
    assert theirs.num_keys() == internal + 3
    assert theirs.compare_set("new", "first", "second") == b"second"
    assert _ours(tool, path, "get", "new") == ["second"]
    assert theirs.delete_key("new")
    assert theirs.num_keys() == internal + 2


def each_wakes_the_other(tool, folder):
    path = pathlib.Path(folder) / "store"
    theirs = _theirs(path)
    waiting = _start(tool, path, "set", "started", "1", "get", "later")
    assert theirs.get("started") == b"1"
    theirs.set("later", "now")
    assert _finish(waiting) == ["ok", "now"]


def additions_of_both_are_all_counted(tool, folder):
    path = pathlib.Path(folder) / "store"
    theirs = subprocess.Popen([sys.executable, "-c", ADDER, str(path), "100"])
    mine = [_start(tool, path, "repeat_add", "n", 1, 100) for _ in range(2)]
    for process in mine:
        _finish(process)
    assert theirs.wait(60) == 0
    assert _ours(tool, path, "add", "n", 0) == ["300"]


def the_last_of_both_kinds_of_users_deletes_the_file(tool, folder):
    path = pathlib.Path(folder) / "store"
    theirs = _theirs(path, 2)
    theirs.set("k", "v")
    assert _ours(tool, path, "get", "k", world_size=2) == ["v"]
    assert path.exists()
    del theirs
    assert not path.exists()
    theirs = _theirs(path, 2)
    theirs.set("k", "v")
    del theirs
    assert path.exists()
    assert _ours(tool, path, "get", "k", world_size=2) == ["v"]
    assert not path.exists()
