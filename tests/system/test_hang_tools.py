# SPDX-License-Identifier: Apache-2.0
"""py-spy itself, where it is the only tool. Of gdb test_hang.py shows the same."""
from hang_support import STEPS, TIMEOUT, err, fifos, read_hangs, real_tool, without_tools
from launcher_support import muster


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
