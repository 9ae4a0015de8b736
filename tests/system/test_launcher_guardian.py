# SPDX-License-Identifier: Apache-2.0
"""What sees to the end of workers where the launcher cannot: the guardian, the parent-death signal, SIGCONT for who is stopped."""
import os
import pathlib
import signal

from launcher_support import alive, child_named, muster, wait_for
from test_launcher_life import assert_gone, start_sleepers


# Each with a child that is in no group or session of the worker's.
FAMILY = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open(sys.argv[1] + "/child" + os.environ["RANK"], "w").write(str(child.pid))
open(sys.argv[1] + "/" + os.environ["RANK"] + ".pid", "w").write(str(os.getpid()))
signal.pause()
"""


def contents(path):
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_worker_that_is_stopped_goes_on_to_heed_the_signal(muster):
    body = """
import os, signal, sys
def end(*_):
    open(sys.argv[1] + "/saved" + os.environ["RANK"], "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1] + "/" + os.environ["RANK"] + ".pid", "w").write(str(os.getpid()))
if os.environ["RANK"] == "1": os.kill(os.getpid(), signal.SIGSTOP)
while True: signal.pause()
"""
    process, pids = start_sleepers(muster, 2, "--shutdown-timeout=60", body=body)
    wait_for(lambda: any("State:\tT" in pathlib.Path(f"/proc/{pid}/status").read_text() for pid in pids), "the stop")
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert sorted(path.name for path in muster.tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_workers_end_with_the_launcher_where_the_guardian_cannot_act(muster):
    """By their parent-death signal: the guardian is stopped until they are gone."""
    process, pids = start_sleepers(muster, 3, "--cgroup=off")
    guardian = child_named(process.pid, "job-guardian")
    os.kill(guardian, signal.SIGSTOP)
    try:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert_gone(pids)
        assert alive(guardian)
    finally:
        os.kill(guardian, signal.SIGCONT)
    assert_gone([guardian])


def test_whoever_kills_all_processes_with_the_scripts_name_leaves_nothing(muster):
    """As `pkill -9 -f train.py` does: the guardian is muster's copy, but does not have its command line."""
    process, pids = start_sleepers(muster, 2, "--cgroup=off", body=FAMILY)
    children = [int(p.read_text()) for p in muster.tmp_path.glob("child*")]
    assert len(children) == 2
    script = str(muster.tmp_path / "sleeper.py").encode()
    named = [int(p.parent.name) for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if script in contents(p)]
    assert sorted(named) == sorted([process.pid, *pids])
    for pid in named:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert_gone(pids + children)


def test_whoever_kills_all_processes_of_the_launchers_name_leaves_nothing(muster):
    """As `pkill -9 muster` does, and `killall -9 muster`."""
    process, pids = start_sleepers(muster, 2, "--cgroup=off", "-r3", body=FAMILY)
    children = [int(p.read_text()) for p in muster.tmp_path.glob("child*")]
    assert len(children) == 2
    forked = [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert set(pids) < set(forked)
    for pid in [process.pid, *forked]:
        if b"muster" in contents(pathlib.Path(f"/proc/{pid}/comm")):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    assert_gone(pids + children)
