# SPDX-License-Identifier: Apache-2.0
"""Failures, stops, restarts and what is left behind, seen from outside."""
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess

import pytest

from launcher_support import MUSTER, alive, clean_environment, muster, wait_for

SLEEP = "import signal, sys\nopen(sys.argv[1] + '/' + __import__('os').environ['RANK'] + '.pid', 'w').write(str(__import__('os').getpid()))\nsignal.pause()\n"


def start_sleepers(muster, count, *options, body=SLEEP, **kwargs):
    script = muster.script("sleeper.py", body)
    process = muster.start(f"--nproc-per-node={count}", *options, script, muster.tmp_path, **kwargs)

    def pids():
        texts = [p.read_text() for p in muster.tmp_path.glob("*.pid")]
        return sorted(map(int, texts)) if len(texts) == count and all(texts) else None

    return process, wait_for(pids, "all workers to run")


def assert_gone(pids):
    for pid in pids:
        wait_for(lambda: not alive(pid), f"pid {pid} to be gone")


@pytest.mark.parametrize("code", [1, 2, 7, 42, 126, 127, 128, 255])
def test_a_workers_exit_code_is_the_launchers(muster, code):
    assert muster.run("--nproc-per-node=2", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGUSR1", "SIGABRT"])
def test_a_worker_killed_by_a_signal_gives_128_plus_n(muster, name):
    # $$ of an argument becomes $, as with torchrun; a script file keeps what is in it.
    result = muster.run("--nproc-per-node=1", "sh", "-c", f"ulimit -c 0; kill -{name[3:]} $$$$")
    assert result.returncode == 128 + getattr(signal, name)
    script = muster.script("die.py", f"import os, signal; os.kill(os.getpid(), signal.{name})")
    result = muster.run("--nproc-per-node=1", script)
    assert result.returncode == 128 + getattr(signal, name)
    assert f"was killed by {name}" in result.stderr


def test_success_is_silent_and_leaves_nothing(muster):
    temporary = muster.tmp_path / "temporary"
    temporary.mkdir()
    result = muster.run("--nproc-per-node=4", "sh", "-c", "env > environment$RANK; echo hello", env=clean_environment(TMPDIR=temporary))
    assert (result.returncode, result.stdout, result.stderr) == (0, "hello\n" * 4, "")
    assert list(temporary.iterdir()) == []
    told = "".join((muster.tmp_path / f"environment{rank}").read_text() for rank in range(4))
    used = set(re.findall(rf"=((?:{re.escape(str(temporary))}|/dev/shm)/muster_\w+)", told))
    assert used and not any(map(os.path.exists, used))


def test_the_first_failure_stops_the_others_and_is_reported(muster):
    script = muster.script("fail.py", """
import os, signal, sys
open(sys.argv[1] + "/" + os.environ["RANK"] + ".pid", "w").write(str(os.getpid()))
if os.environ["RANK"] == "1":
    import time
    written = lambda f: f.endswith(".pid") and os.path.getsize(sys.argv[1] + "/" + f) > 0
    while len([f for f in os.listdir(sys.argv[1]) if written(f)]) < 3: time.sleep(0.01)
    for i in range(30): print("line", i, file=sys.stderr)
    sys.exit(7)
signal.pause()
""")
    result = muster.run("--nproc-per-node=3", script, muster.tmp_path)
    assert result.returncode == 7
    pids = {p.stem: int(p.read_text()) for p in muster.tmp_path.glob("*.pid")}
    assert_gone(pids.values())
    err = result.stderr
    assert re.search(rf"rank      : 1 \(local_rank: 1\)\n  exitcode  : 7 \(pid: {pids['1']}\)", err)
    assert "fail.py FAILED" in err
    assert "<NO_OTHER_FAILURES>" in err
    assert "terminated by muster after the failure: ranks 0,2" in err
    tail = err[err.index("last 20 lines"):]
    assert "    line 10\n" in tail and "    line 29\n" in tail and "    line 9\n" not in tail
    assert err.count("line 0\n") == 1, "stderr is passed through once"


def test_error_files_of_record_reach_the_report_and_the_outer_error_file(muster):
    script = muster.script("recorded.py", """
import json, os, sys
os.chdir("/")
json.dump({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback\\n  boom", "timestamp": "1795240837"}}},
          open(os.environ["TORCHELASTIC_ERROR_FILE"], "w"))
sys.exit(3)
""")
    outer = muster.tmp_path / "outer.json"
    result = muster.run("--nproc-per-node=1", script, env=clean_environment(TORCHELASTIC_ERROR_FILE=outer))
    assert result.returncode == 3
    assert "traceback : Traceback\n    boom" in result.stderr
    assert "error_file: <N/A>" in result.stderr  # it is gone with its directory: what it said is above
    message = json.loads(outer.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: boom", 3)
    for options in (["--log-dir=logs"], ["-r", "3"]):
        result = muster.run("--nproc-per-node=1", *options, script)
        named = re.search(r"error_file: (.*/attempt_0/0/error.json)", result.stderr).group(1)
        assert "ValueError: boom" in (muster.tmp_path / named).read_text()


def test_sigkill_of_the_launcher_leaves_no_worker_nor_its_children(muster):
    body = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
open(sys.argv[1] + "/child" + os.environ["RANK"], "w").write(str(child.pid))
open(sys.argv[1] + "/" + os.environ["RANK"] + ".pid", "w").write(str(os.getpid()))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pause()
"""
    process, pids = start_sleepers(muster, 3, body=body)
    children = [int(p.read_text()) for p in muster.tmp_path.glob("child*")]
    assert len(children) == 3
    folder = re.search(rb"TORCHELASTIC_ERROR_FILE=(\S+?/muster_\w+)", open(f"/proc/{pids[0]}/environ", "rb").read()).group(1)
    assert os.path.isdir(folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert_gone(pids + children)
    wait_for(lambda: not os.path.exists(folder), "the temporary directory to be removed")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_signal_is_passed_on_and_ends_everything(muster, name):
    body = """
import os, signal, sys
def got(number, frame):
    open(sys.argv[1] + "/got" + os.environ["RANK"], "w").write(signal.Signals(number).name)
    sys.exit(0)
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT): signal.signal(s, got)
open(sys.argv[1] + "/" + os.environ["RANK"] + ".pid", "w").write(str(os.getpid()))
while True: signal.pause()
"""
    process, pids = start_sleepers(muster, 2, body=body)
    number = getattr(signal, name)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert [(muster.tmp_path / f"got{r}").read_text() for r in range(2)] == [name, name]
    assert_gone(pids)
    assert f"{name} received" in err


STUBBORN = """
import os, signal, sys
for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
open(sys.argv[1] + "/" + os.environ["RANK"] + ".pid", "w").write(str(os.getpid()))
while True: signal.pause()
"""


def test_after_the_grace_period_comes_sigkill(muster):
    process, pids = start_sleepers(muster, 2, "--shutdown-timeout=0.3", body=STUBBORN)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert_gone(pids)


def test_a_second_signal_skips_the_grace_period(muster):
    process, pids = start_sleepers(muster, 2, "--shutdown-timeout=1000", body=STUBBORN)
    process.send_signal(signal.SIGINT)
    line = process.stderr.readline()
    assert "SIGINT received" in line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert_gone(pids)


def test_a_signal_while_workers_are_stopped_for_a_restart_ends_the_job(muster):
    script = muster.script("restart.py", """
import os, signal, sys
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
if rank == "0":
    signal.signal(signal.SIGTERM, lambda *_: open("asked", "w").close())
open(f"started{rank}_{attempt}", "w").close()
if rank == "1":
    while not os.path.exists("started0_" + attempt): pass
    sys.exit(7)
while True: signal.pause()
""")
    process = muster.start("--nproc-per-node=2", "--max-restarts=5", "--shutdown-timeout=1000", script)
    wait_for((muster.tmp_path / "asked").exists, "the stop for the restart")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "job stopped by SIGTERM on " in err
    assert "exitcode  : 7" in err, "the failure that came first is reported"
    assert not (muster.tmp_path / "started0_1").exists()


def test_children_that_outlive_their_worker_are_ended(muster):
    script = muster.script("leave.py", """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
open(sys.argv[1] + "/child", "w").write(str(child.pid))
sys.exit(int(sys.argv[2]))
""")
    for code in (0, 5):
        result = muster.run("--nproc-per-node=1", script, muster.tmp_path, code)
        assert result.returncode == code
        assert_gone([int((muster.tmp_path / "child").read_text())])


def test_restarts_count_up_to_the_limit_with_a_fresh_store_each_at_one_port(muster):
    script = muster.script("restart.py", """
import os, socket, struct, sys
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
store = socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])), 30)
key = struct.pack("<Q", 5) + b"stale"
store.sendall(b"\\x00" + struct.pack("<I", 0x3C85F7CE) + b"\\x04" + key + struct.pack("<Q", 1))  # ADD of 1
count = struct.unpack("<q", store.recv(8, socket.MSG_WAITALL))[0]
print(os.environ["RANK"], attempt, os.environ["MASTER_PORT"], count, flush=True)
sys.exit(0 if attempt == sys.argv[1] else 9)
""")
    result = muster.run("--nproc-per-node=1", "--max-restarts=3", script, 2)
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [(rank, attempt, count) for rank, attempt, _, count in lines] == [("0", n, "1") for n in "012"]
    assert len({port for _, _, port, _ in lines}) == 1
    assert result.stderr.count("; restart ") == 2

    result = muster.run("--nproc-per-node=1", "--max-restarts=1", script, 9)
    assert result.returncode == 9
    assert len(result.stdout.splitlines()) == 2


def test_a_process_that_escaped_and_writes_for_ever_does_not_keep_the_launcher(muster):
    process = muster.start("--nproc-per-node=1", "sh", "-c", "setsid sh -c 'touch escaped; exec yes >&2' & until [ -e escaped ]; do :; done")
    out, err = process.communicate(timeout=30)  # the writer dies of SIGPIPE once its reader is gone
    assert process.returncode == 0
    assert out == "" and err.strip("y\n") == ""


def test_a_failure_of_exec_is_not_retried(muster):
    program = muster.tmp_path / "bad"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    result = muster.run("--nproc-per-node=2", "--max-restarts=5", "./bad")
    assert result.returncode == 127
    assert "restart" not in result.stderr
    assert "rank 0 (local_rank 0)" in result.stderr and "No such file or directory" in result.stderr


def test_ctrl_c_on_a_terminal_reaches_the_workers_through_the_launcher(muster):
    script = muster.script("tty.py", """
import os, signal, sys
print("isatty", os.isatty(1), os.isatty(2), flush=True)
try:
    print("colour", file=sys.stderr, flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("worker interrupted", flush=True)
    sys.exit(0)
""")
    pid, master = pty.fork()
    if pid == 0:
        os.execve(MUSTER, [MUSTER, "--nproc-per-node=1", str(script)], clean_environment())
    output = b""

    def read_until(text):
        nonlocal output
        while text not in output:
            ready, _, _ = select.select([master], [], [], 20)
            assert ready, output
            try:
                chunk = os.read(master, 4096)
            except OSError:
                chunk = b""
            assert chunk, output
            output += chunk

    read_until(b"colour\r\n")
    assert b"isatty True True" in output
    os.write(master, b"\x03")
    read_until(b"worker interrupted")
    read_until(b"exit status 130")
    _, status = os.waitpid(pid, 0)
    os.close(master)
    assert os.waitstatus_to_exitcode(status) == 130


def test_a_reader_that_goes_away_does_not_stop_the_workers(muster):
    command = f"{MUSTER} --nproc-per-node=2 sh -c 'i=0; while [ $i -lt 2000 ]; do echo a line of text >&2; i=$((i+1)); done; touch done$RANK' 2>&1 | head -1"
    result = subprocess.run(command, shell=True, cwd=muster.tmp_path, env=clean_environment(), capture_output=True, timeout=60)
    assert result.stdout == b"a line of text\n"
    wait_for(lambda: (muster.tmp_path / "done0").exists() and (muster.tmp_path / "done1").exists(), "both workers to finish")


def test_a_closed_standard_error_is_no_obstacle(muster):
    result = subprocess.run(f"{MUSTER} --nproc-per-node=2 sh -c 'echo out; echo err >&2; exit 3' 2>&-", shell=True,
                            env=clean_environment(), capture_output=True, timeout=60)
    assert result.returncode == 3
    assert result.stdout == b"out\nout\n" or result.stdout == b"out\n"


def test_the_launcher_is_small(muster):
    process, _ = start_sleepers(muster, 8)
    status = open(f"/proc/{process.pid}/status").read()
    rss_kb = int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1))
    threads = int(re.search(r"Threads:\s+(\d+)", status).group(1))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert rss_kb < 8192
    assert threads == 1


def test_the_binary_needs_glibc_only():
    libraries = subprocess.run(["ldd", MUSTER], capture_output=True, text=True).stdout
    names = set(re.findall(r"^\s*(?:/\S*/)?(\S+?)\s", libraries, re.M))
    allowed = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
    assert names <= allowed, names
