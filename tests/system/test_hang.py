# SPDX-License-Identifier: Apache-2.0
"""Workers that hang, seen from outside: who is named, with which evidence, and what follows."""
import glob
import json
import os
import re
import signal
import sys

import pytest

from hang_support import STEPS, TIMEOUT, err, fifos, read_hangs, real_tool, tool, without_tools
from launcher_support import BIN, muster, read_report, wait_for

def start(muster, err, *options, workers=3, stuck=1, env=None):
    return muster.start(f"--nproc-per-node={workers}", TIMEOUT, "--log-dir=logs", *options, BIN / "hang_worker", muster.tmp_path,
                        stuck, stderr=err.file, env=env)


def go(muster, workers=3):
    for rank in range(workers):
        with open(muster.tmp_path / f"go.{rank}", "w") as gate:
            gate.write("x")


def test_the_rank_that_others_wait_for_is_named_with_its_stack_and_the_job_goes_on(muster, err):
    real_tool("gdb")
    process = start(muster, err)
    err.wait(r"all stacks and states: \S+hang\.json\n")
    text = err.text()
    assert re.search(r"^muster: hang on \S+: ranks 0-2 made no progress for \d\S* m?s \(limit 500 ms\); the job goes on", text)
    assert '\n  outlier: rank 1, at the same step, but in "data"\n' in text
    assert re.search(r'\n  rank 1: "epoch 1 step 5/8 data", sleeping in read\(\d+ -> \S+go\.1\), \w+\n    gdb: read <- load_batch <- main\n', text)
    assert re.search(r'\n  ranks 0,2: "epoch 1 step 5/8 all_reduce", sleeping in read.*\n    gdb: read <- all_reduce_of_peers <- main\n', text)
    (hang,) = read_hangs(muster.tmp_path / "logs")
    assert hang["outlier_ranks"] == [1] and "over_after_ms" not in hang
    one = hang["ranks"][1]
    assert (one["rank"], one["tool"], one["source"], one["stalled"]) == (1, "gdb", "progress", True)
    assert one["stacks"][0]["functions"][:3] == ["read", "load_batch", "main"]
    assert one["threads"][0]["call"].startswith("read(") and one["threads"][0]["state"] == "S"

    go(muster)
    assert process.wait(60) == 0
    # They may be through before the next look.
    assert text.count("outlier: ") == err.text().count("outlier: ") == 1


def test_without_tools_the_kernel_says_where_they_wait(muster, err):
    _, env = without_tools(muster.tmp_path)
    process = start(muster, err, env=env)
    err.wait(r"hang\.json\n")
    assert "no stack: neither py-spy nor gdb is in PATH" in err.text()
    (hang,) = read_hangs(muster.tmp_path / "logs")
    assert hang["outlier_ranks"] == [1]
    for rank in hang["ranks"]:
        assert "stacks" not in rank and "tool" not in rank
        assert re.fullmatch(r"read\(\d+ -> \S+/go\.%d\)" % rank["rank"], rank["threads"][0]["call"])
    go(muster)
    assert process.wait(60) == 0


def test_a_tool_that_may_not_trace_is_said_and_the_next_one_is_asked(muster, err):
    folder, env = without_tools(muster.tmp_path)
    tool(folder, "py-spy", "echo 'Permission Denied: try again by elevating your permissions' >&2; exit 1")
    tool(folder, "gdb", 'echo "Thread 1 (LWP 1):"; echo "#0  0x01 in read ()"; echo "#1  0x02 in from_gdb ()"; echo "#2  0x3 in main ()"')
    script = muster.script("train.py", "import os\nos.read(os.pipe()[0], 1)\n")
    process = muster.start("--nproc-per-node=1", "--hang-timeout=1:1", "--on-hang=stop", script, stderr=err.file, env=env)
    assert process.wait(60) == 124
    assert re.search(r"gdb: read <- from_gdb <- main\n", err.text())


def test_a_tool_that_may_not_trace_leaves_what_the_kernel_says(muster, err):
    folder, env = without_tools(muster.tmp_path)
    tool(folder, "gdb", "echo 'ptrace: Operation not permitted.' >&2; exit 1")
    process = start(muster, err, "--on-hang=stop", env=env)
    assert process.wait(60) == 124
    assert "no stack: gdb: ptrace: Operation not permitted." in err.text()
    assert re.search(r"sleeping in read\(\d+ -> \S+go\.1\)", err.text())


def test_stop_ends_the_job_with_a_status_of_its_own_and_the_report_names_the_rank(muster, err):
    process = start(muster, err, "--on-hang=stop", "--max-restarts=3")
    assert process.wait(60) == 124
    report = read_report(muster.tmp_path / "logs")
    root = report["root_cause"]
    assert (root["rank"], root["cause"], root["label"], root["progress"]) == (1, "hang", "root cause", "epoch 1 step 5/8 data")
    assert "no progress for" in root["error"] and 'at the same step, but in "data"' in root["error"]
    assert {worker["rank"]: worker["label"] for worker in report["workers"]}[0] == "stopped by muster"
    assert (report["exit_status"], report["restarts_used"]) == (124, 0)
    assert re.search(r"cause     : hang: rank 1 \(local_rank 1, pid \d+\) hangs: no progress", err.text())
    assert re.search(r"; exit status 124; all local workers exited within \d+ ms\n$", err.text())


def test_restart_spends_a_restart_and_the_job_succeeds(muster, err):
    process = start(muster, err, "--on-hang=restart", "--max-restarts=1")
    assert process.wait(60) == 0
    assert re.search(r"rank 1 \(local_rank 1, pid \d+\) hangs: .*; restart 1 of 1\n", err.text())
    assert read_hangs(muster.tmp_path / "logs")[0]["outlier_ranks"] == [1]


def test_a_python_worker_that_writes_lines_of_progress(muster, err):
    folder, env = without_tools(muster.tmp_path)
    tool(folder, "py-spy", """echo "Process $3: python3 train.py"
echo 'Thread 9 (idle): "loader"'; echo '    get (queue.py:171)'
echo "Thread $3 (idle): \\"MainThread\\""; echo '    next_batch (train.py:7)'; echo '    <module> (train.py:12)'""")
    script = muster.script("train.py", STEPS + """
def next_batch():
    os.read(os.pipe()[0], 1)
for number in range(1, 1000):
    if number == 61 and rank == 0: next_batch()
    step(number)
""")
    fifos(muster.tmp_path, "step")
    process = muster.start("--nproc-per-node=2", TIMEOUT, "--on-hang=stop", "--log-dir=logs", script, stderr=err.file, env=env)
    assert process.wait(90) == 124
    (hang,) = read_hangs(muster.tmp_path / "logs")
    assert hang["outlier_ranks"] == [0] and hang["why"] == "behind the others (step 60; the others: step 61)"
    assert (hang["ranks"][0]["progress"], hang["ranks"][0]["tool"]) == ("step 60", "py-spy")
    assert "py-spy: next_batch (train.py:7) <- <module> (train.py:12)" in err.text()
    assert read_report(muster.tmp_path / "logs")["root_cause"]["rank"] == 0


def test_of_a_python_worker_without_py_spy_the_native_stack_is_shown(muster, err):
    folder, env = without_tools(muster.tmp_path)
    (folder / "gdb").symlink_to(real_tool("gdb"))
    script = muster.script("train.py", "import os\nos.read(os.pipe()[0], 1)\n")
    # Nothing is said: its output would be the sign of life.
    process = muster.start("--nproc-per-node=1", "--hang-timeout=4:4", "--on-hang=stop", "--log-dir=logs", script, stderr=err.file, env=env)
    assert process.wait(90) == 124
    (hang,) = read_hangs(muster.tmp_path / "logs")
    (rank,) = hang["ranks"]
    assert rank["source"].startswith("stderr alone") and "read" in rank["stacks"][0]["functions"]
    assert "sign of life: stderr alone (with --view=all muster does not see stdout)\n" in err.text()


def test_output_is_a_sign_of_life_where_muster_sees_it(muster, err):
    script = muster.script("train.py", """
import os, time
for step in range(60):
    print("step", step, flush=True)
    time.sleep(0.02)  # a step
os.read(os.pipe()[0], 1)
""")
    process = muster.start("--nproc-per-node=1", TIMEOUT, "--on-hang=stop", "--log-dir=logs", "-r", "1", script, stderr=err.file)
    assert process.wait(90) == 124
    assert read_hangs(muster.tmp_path / "logs")[0]["ranks"][0]["source"] == "output"


def test_a_touch_of_the_progress_file_is_a_sign_of_life(muster, err):
    script = muster.script("train.py", """
import os, pathlib, time
progress = pathlib.Path(os.environ["MUSTER_PROGRESS_FILE"])
progress.write_text("training")
for step in range(60):
    progress.touch()
    time.sleep(0.02)  # a step
os.read(os.pipe()[0], 1)
""")
    process = muster.start("--nproc-per-node=1", TIMEOUT, "--on-hang=stop", "--log-dir=logs", script, stderr=err.file)
    assert process.wait(90) == 124
    assert read_hangs(muster.tmp_path / "logs")[0]["ranks"][0]["source"] == "progress"


def test_who_is_stopped_by_a_signal_is_the_outlier_and_its_hang_ends_when_it_goes_on(muster, err):
    script = muster.script("train.py", """
import os, time
step = 0
while not os.path.exists("done"):
    step += 1
    if step == 60: open("pid" + os.environ["RANK"], "w").write(str(os.getpid()))
    with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write(f"step {step}\\n")
    time.sleep(0.02)  # a step
""")
    process = muster.start("--nproc-per-node=2", TIMEOUT, "--log-dir=logs", script, stderr=err.file)
    pid = int(wait_for(lambda: (muster.tmp_path / "pid1").exists() and (muster.tmp_path / "pid1").read_text(), "the worker"))
    os.kill(pid, signal.SIGSTOP)
    err.wait(r"outlier: rank 1, stopped by a signal \(SIGSTOP\)\n")
    err.wait(r"hang\.json\n")
    os.kill(pid, signal.SIGCONT)
    err.wait(r"the hang is over after \d\S* m?s\n")
    assert read_hangs(muster.tmp_path / "logs")[0]["over_after_ms"] > 0
    (muster.tmp_path / "done").touch()
    assert process.wait(60) == 0


def test_a_slow_first_step_is_no_hang(muster):
    script = muster.script("train.py", """
import os, time
with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write("step 1\\n")
time.sleep(1)  # it compiles
""")
    result = muster.run("--nproc-per-node=2", "--hang-timeout=0.2:60", "--on-hang=stop", script)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("options,named", [
    (["--hang-timeout=soon"], "--hang-timeout=soon: not auto, off, SECONDS or SECONDS:START"),
    (["--on-hang=kill"], "--on-hang=kill: not one of report, restart, stop"),
    (["--hang-timeout=off", "--on-hang=stop"], "with --hang-timeout=off no hang is seen"),
])
def test_what_cannot_be_meant_is_refused(muster, options, named):
    result = muster.run(*options, "true")
    assert result.returncode == 2 and named in result.stderr


def test_the_runtime_tells_epoch_step_and_phase(muster):
    process = muster.start("--nproc-per-node=2", "--log-dir=logs", BIN / "fashion_mnist", "--epochs=50", "--device=cpu")
    line = wait_for(process.stdout.readline, "the first line")
    assert "FashionMNIST" in line

    def children():
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            return [pid for pid in map(int, file.read().split()) if open(f"/proc/{pid}/cmdline").read().startswith(str(BIN / "fashion_mnist"))]

    def training():
        return [path for path in glob.glob("/dev/shm/muster_*/attempt_0.*") if owned(path) and steps(path) > 0]

    def owned(path):
        return any(f"MUSTER_PROGRESS_FILE={path}\0".encode() in open(f"/proc/{pid}/environ", "rb").read() for pid in children())

    def steps(path):
        with open(path, "rb") as file:
            return int.from_bytes(file.read(512)[32:40], sys.byteorder)

    wait_for(lambda: len(training()) == 2, "both ranks to train")
    os.kill(children()[0], signal.SIGKILL)
    process.communicate(timeout=60)
    workers = read_report(muster.tmp_path / "logs")["workers"]
    words = [worker["progress"] for worker in workers]
    assert len(words) == 2
    for word in words:
        assert re.fullmatch(r"epoch \d+ step \d+/7500 \w[\w ]*", word), word
