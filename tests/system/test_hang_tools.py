# SPDX-License-Identifier: Apache-2.0
"""The tools that show stacks, themselves: gdb and py-spy, each where it is the only one."""
import os
import sys

import pytest

from hang_support import STEPS, TIMEOUT, err, fifos, read_hangs, real_tool, without_tools
from launcher_support import BIN, muster

def test_gdb_shows_where_a_program_waits(muster, err):
    name = "gdb"
    folder, env = without_tools(muster.tmp_path)
    (folder / name).symlink_to(real_tool(name))
    process = muster.start("--nproc-per-node=2", TIMEOUT, "--on-hang=stop", "--log-dir=logs", BIN / "hang_worker", muster.tmp_path, 1,
                           stderr=err.file, env=env)
    assert process.wait(90) == 124
    (hang,) = read_hangs(muster.tmp_path / "logs")
    one = hang["ranks"][1]
    assert one.get("tool") == name, (one.get("no_stack"), one.get("tool_output"))
    assert one["stacks"][0]["functions"][:3] == ["read", "load_batch", "main"]
    assert f"    {name}: read <- load_batch <- main\n" in err.text()


def test_py_spy_shows_where_a_python_script_waits_and_leaves_it_running(muster, err):
    folder, env = without_tools(muster.tmp_path)
    (folder / "py-spy").symlink_to(real_tool("py-spy"))
    script = muster.script("train.py", STEPS + """
fd = os.open("gate.%d" % rank, os.O_RDWR)
def next_batch():
    os.read(fd, 1)
def all_reduce():
    os.read(fd, 1)
for number in range(1, 61): step(number)
next_batch() if rank == 1 else all_reduce()
""")
    fifos(muster.tmp_path, "step", "gate")
    process = muster.start("--nproc-per-node=2", TIMEOUT, "--log-dir=logs", script, stderr=err.file, env=env)
    err.wait(r"hang\.json\n")
    assert "py-spy: next_batch (train.py:13) <- <module> (train.py:17)" in err.text(), err.text()
    assert "py-spy: all_reduce (train.py:15) <- <module> (train.py:17)" in err.text(), err.text()
    (hang,) = read_hangs(muster.tmp_path / "logs")
    assert hang["ranks"][1]["tool"] == "py-spy"
    for rank in range(2):
        (muster.tmp_path / f"gate.{rank}").write_text("x")
    assert process.wait(60) == 0
