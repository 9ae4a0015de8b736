# SPDX-License-Identifier: Apache-2.0
"""How processes end: every exit code and signal, what workers leave behind, and what must not be touched."""
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from launcher_support import MUSTER, alive, clean_environment, muster, wait_for

# Those whose default is to end a process; 32 and 33 belong to the C library, which is no reason for the kernel.
HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP, signal.SIGTSTP,
            signal.SIGTTIN, signal.SIGTTOU}
DEADLY = [number for number in range(1, 65) if number not in HARMLESS]


def assert_gone(pids):
    for pid in pids:
        wait_for(lambda: not alive(pid), f"pid {pid} to be gone")


def read_pid(path):
    return wait_for(lambda: path.exists() and path.read_text().strip(), f"{path.name}") and int(path.read_text())


def test_all_256_exit_codes_of_a_worker_are_the_launchers(muster):
    script = muster.script("code", "#!/bin/sh\nexit $1\n")
    script.chmod(0o755)
    running = {}
    for code in range(256):
        running[code] = muster.start("--nproc-per-node=1", "./code", code, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
        if len(running) % 8 == 0:  # no more than so many at once
            for process in running.values():
                process.wait(60)
    assert {code: process.wait(60) for code, process in running.items()} == {code: code for code in range(256)}


def test_every_deadly_signal_of_a_worker_is_128_plus_n_and_named(muster):
    script = muster.script("die", "#!/bin/sh\nulimit -c 0\nkill -$1 $$\n")
    script.chmod(0o755)
    for number in DEADLY:
        result = muster.run("--nproc-per-node=1", "./die", number)
        assert result.returncode == 128 + number, (number, result.stderr)
        assert f"exitcode  : -{number} (pid: " in result.stderr
        names = {name for name, value in vars(signal).items() if name.startswith("SIG") and value == number}
        named = re.search(r"on \S+ was killed by (SIG\w+)", result.stderr).group(1)
        assert named in names or (number > 31 and named == f"SIG{number}"), number
        crash = number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP,
                           signal.SIGSYS)
        assert ("cause     : crash" if crash else "cause     : signal from outside") in result.stderr


def test_no_signal_to_the_launcher_leaves_a_worker(muster):
    script = muster.script("stay", "#!/bin/sh\necho $$ > pid$1\nexec sleep 1000\n")
    script.chmod(0o755)
    for number in DEADLY:
        process = muster.start("--nproc-per-node=1", "--shutdown-timeout=20", "./stay", number, env=clean_environment(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pid = read_pid(muster.tmp_path / f"pid{number}")
        process.send_signal(number)
        handled = number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
        # A reader that is gone or a file that is full is no reason to end.
        if number in (signal.SIGPIPE, signal.SIGXFSZ):
            process.terminate()
            assert process.wait(30) == 128 + signal.SIGTERM
        else:
            assert process.wait(30) == (128 + number if handled else -number)
        assert_gone([pid])


# A worker whose children leave it in each way there is; their pids are in files with these names.
FAMILY = """
import ctypes, os, signal, subprocess, sys
def note(name):
    with open(name + ".new", "w") as file: file.write(str(os.getpid()))
    os.rename(name + ".new", name)
def stay(name):
    for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
    note(name)
    while True: signal.pause()
def start(name, *steps):
    if os.fork(): return
    for step in steps: step()
    stay(name)
def forget():
    if os.fork(): os._exit(0)
note("worker")
start("child")
start("own_group", os.setpgrp)
start("own_session", os.setsid)
start("daemon", os.setsid, forget)
start("adopter", lambda: ctypes.CDLL(None).prctl(36, 1, 0, 0, 0), os.setsid, forget)
start("nameless", os.setsid, forget, lambda: ctypes.CDLL(None).prctl(15, b") S 1 (", 0, 0, 0))
if "bare" in sys.argv:
    subprocess.Popen(["env", "-i", "setsid", "sh", "-c", "echo $$ > bare.new; mv bare.new bare; exec sleep 1000"])
names = ["child", "own_group", "own_session", "daemon", "adopter", "nameless"] + (["bare"] if "bare" in sys.argv else [])
while not all(map(os.path.exists, names)): pass
open("ready", "w").close()
"""
MEMBERS = ["worker", "child", "own_group", "own_session", "daemon", "adopter", "nameless"]


def family(muster, rest, *options, bare=True):
    script = muster.script("family.py", FAMILY + rest)
    process = muster.start("--nproc-per-node=1", *options, script, *(["bare"] if bare else []), stderr=subprocess.DEVNULL)
    wait_for((muster.tmp_path / "ready").exists, "the family")
    return process, [read_pid(muster.tmp_path / name) for name in MEMBERS + (["bare"] if bare else [])]


@pytest.mark.parametrize("code", [0, 5])
def test_whatever_a_worker_leaves_behind_is_gone_before_the_launcher_is(muster, code):
    process, pids = family(muster, f"os._exit({code})")
    assert process.wait(30) == code
    assert [pid for pid in pids if alive(pid)] == []


def test_whatever_a_worker_started_is_gone_after_a_stop(muster):
    process, pids = family(muster, "signal.pause()")
    process.terminate()
    assert process.wait(30) == 143
    assert [pid for pid in pids if alive(pid)] == []


def test_whatever_a_worker_started_is_gone_before_a_restart(muster):
    script = muster.script("again.py", FAMILY + """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": os._exit(3)
""")
    again = muster.script("first.py", f"""
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    pids = [int(open(name).read()) for name in {MEMBERS!r}]
    sys.exit(sum(os.path.exists(f"/proc/{{pid}}") for pid in pids))
os.execv(sys.executable, [sys.executable, {str(script)!r}])
""")
    result = muster.run("--nproc-per-node=1", "--max-restarts=1", again)
    assert result.returncode == 0, result.stderr


def test_whatever_a_worker_started_is_gone_after_sigkill_of_the_launcher(muster):
    # Without its environment a process cannot be known any more: "bare" is left out.
    process, pids = family(muster, "signal.pause()", bare=False)
    process.kill()
    process.wait()
    assert_gone(pids)


def test_a_launcher_below_a_launcher_leaves_nothing_either(muster):
    script = muster.script("family.py", FAMILY + "signal.pause()")
    process = muster.start("--nproc-per-node=1", MUSTER, "--nproc-per-node=1", script, stderr=subprocess.DEVNULL)
    wait_for((muster.tmp_path / "ready").exists, "the family")
    pids = [read_pid(muster.tmp_path / name) for name in MEMBERS]
    process.kill()
    process.wait()
    assert_gone(pids)


def test_a_signal_after_the_end_of_the_job_makes_no_other_end_of_it(muster):
    muster.script("talk", "#!/bin/sh\nhead -c 199999 /dev/zero | tr '\\0' x\necho\ntouch told\nexit 7\n").chmod(0o755)
    process = muster.start("--nproc-per-node=1", "--tee=1", "./talk", stderr=subprocess.DEVNULL)
    wait_for((muster.tmp_path / "told").exists, "the worker")

    def handled():
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(re.search(r"^SigCgt:\s*(\w+)", status, re.M)[1], 16) >> (signal.SIGTERM - 1) & 1

    wait_for(lambda: not handled(), "the launcher's last lines, which nobody reads yet")
    process.send_signal(signal.SIGTERM)
    assert len(process.communicate(timeout=20)[0]) == 200000 + len("[default0]:")
    assert process.returncode == 7


def test_processes_that_the_launcher_did_not_start_are_left_alone(muster):
    # The shell becomes muster, so these are children of muster, and one of them is an orphan that it is given.
    command = f"""
sleep 1000 > /dev/null 2>&1 & echo $! > before
sh -c 'sleep 1000 > /dev/null 2>&1 & echo $! > orphan; until [ -e started ]; do sleep 0.01; done' &
until [ -s orphan ]; do sleep 0.01; done
exec {MUSTER} --nproc-per-node=1 sh -c '(setsid sleep 1000 & echo $! > mine); touch started;
  while [ -d /proc/$(cat orphan)/task ] && [ "$(ps -o ppid= -p $(cat orphan) | tr -d " ")" != "$PPID" ]; do sleep 0.01; done'
"""
    result = subprocess.run(["sh", "-c", command], cwd=muster.tmp_path, env=clean_environment(), timeout=60,
                            capture_output=True, text=True)
    others = [read_pid(muster.tmp_path / name) for name in ("before", "orphan")]
    try:
        assert result.returncode == 0, result.stderr
        assert [alive(pid) for pid in others] == [True, True]
        assert not alive(read_pid(muster.tmp_path / "mine"))
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)


def test_orphans_that_end_while_the_job_runs_do_not_stay_as_zombies(muster):
    script = muster.script("orphans.py", """
import os, time
if os.fork() == 0:
    for _ in range(20):
        if os.fork() == 0: os._exit(0)
    os._exit(0)
os.wait()
muster = os.getppid()
def zombies():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: stat = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        except OSError: continue
        if stat[0] == "Z" and int(stat[1]) == muster: found.append(pid)
    return found
deadline = time.monotonic() + 20
while zombies(): assert time.monotonic() < deadline
""")
    result = muster.run("--nproc-per-node=1", script)
    assert result.returncode == 0, result.stderr


def test_a_stop_is_told_to_the_workers_and_not_to_their_children(muster):
    script = muster.script("ask.py", """
import os, signal, subprocess, sys
child = subprocess.Popen(["sh", "-c", "trap 'touch child_was_asked' TERM; touch child_ready; while :; do sleep 0.01; done"])
def asked(*_):
    open("worker_was_asked", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, asked)
while not os.path.exists("child_ready"): pass
open("ready", "w").close()
while True: signal.pause()
""")
    process = muster.start("--nproc-per-node=1", script)
    wait_for((muster.tmp_path / "ready").exists, "the worker")
    process.terminate()
    process.communicate(timeout=30)
    assert (muster.tmp_path / "worker_was_asked").exists()
    assert not (muster.tmp_path / "child_was_asked").exists()


def test_a_worker_that_does_not_heed_the_stop_can_say_where_it_hangs_before_it_is_killed(muster):
    script = muster.script("hang.py", """
import faulthandler, os, resource, signal
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.enable()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("ready", "w").close()
def hang_here():
    while True: signal.pause()
hang_here()
""")
    process = muster.start("--nproc-per-node=1", "--shutdown-timeout=10", script)
    wait_for((muster.tmp_path / "ready").exists, "the worker")
    process.terminate()
    _, err = process.communicate(timeout=60)  # of the 10 s the last is left to it for its words
    assert process.returncode == 143
    assert "Fatal Python error: Aborted" in err and "in hang_here" in err


def test_a_worker_finds_three_descriptors_and_default_signals(muster):
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)

    def spoil():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])

    result = muster.run("--nproc-per-node=2", "sh", "-c",
                        "ls -l /proc/self/fd > fds$RANK; grep -E '^Sig(Blk|Ign)' /proc/self/status > signals$RANK",
                        preexec_fn=spoil, pass_fds=(writer,))
    os.close(reader)
    os.close(writer)
    assert result.returncode == 0, result.stderr
    for rank in range(2):
        listed = re.findall(r" (\d+) -> (\S+)", (muster.tmp_path / f"fds{rank}").read_text())
        assert [number for number, to in listed if not to.startswith("/proc/")] == ["0", "1", "2"]
        masks = dict(line.split(":\t") for line in (muster.tmp_path / f"signals{rank}").read_text().splitlines())
        assert {name: int(mask, 16) for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}
