# SPDX-License-Identifier: Apache-2.0
"""Workers in control groups of their own, in a group that the test makes and delegates."""
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import pytest

from launcher_support import MUSTER, alive, children_named, clean_environment, muster, wait_for
from test_launcher_containment import two_nodes
from test_launcher_ends import FAMILY, MEMBERS, read_pid

NOBODY = 65534


def top_of_version_2():
    """Where control groups of version 2 are; mounted for this test where they are not."""
    usual, place = pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/unified")
    for line in open("/proc/self/mountinfo", encoding="utf-8"):
        fields = line.split()
        point = pathlib.Path(fields[4])
        if fields[fields.index("-") + 1] == "cgroup2" and point in (usual, place) and os.access(point, os.W_OK):
            return point, False
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "cgroup2", "cgroup2", place], check=True)
    return place, True


@pytest.fixture
def delegated():
    """A group for the launcher; what is left in it at the end is a mistake, and is ended."""
    top, mounted = top_of_version_2()
    group = top / f"muster-test-{os.getpid()}"
    group.mkdir()
    os.setxattr(group, "user.delegate", b"1")
    yield group
    left = (group / "cgroup.procs").read_text().split() + [path.name for path in group.iterdir() if path.is_dir()]
    (group / "cgroup.kill").write_text("1")
    wait_for(lambda: "populated 0" in (group / "cgroup.events").read_text(), "the group to be empty")
    for path, _, _ in os.walk(group, topdown=False):
        os.rmdir(path)
    if mounted:
        subprocess.run(["umount", top], check=True)
        top.rmdir()
    assert left == []


def inside(group):
    return lambda: (group / "cgroup.procs").write_text("0")


def test_each_worker_has_a_group_of_its_own_and_none_is_left(muster, delegated):
    result = muster.run("--nproc-per-node=2", "--max-restarts=1", "sh", "-c",
                        "grep ^0: /proc/self/cgroup >> group$RANK; exit $((1 - TORCHELASTIC_RESTART_COUNT))",
                        preexec_fn=inside(delegated))
    assert result.returncode == 0, result.stderr
    groups = [line for rank in range(2) for line in (muster.tmp_path / f"group{rank}").read_text().splitlines()]
    assert len(set(groups)) == len(groups) >= 3  # in the first attempt one may be stopped before it has written
    assert all(re.fullmatch(rf"0::.*/{delegated.name}/muster-[0-9a-f-]+/\d+-[01]", group) for group in groups), groups


def family(muster, group, rest, *options):
    script = muster.script("family.py", FAMILY + rest)
    process = muster.start("--nproc-per-node=1", *options, script, "bare", stderr=subprocess.DEVNULL,
                           preexec_fn=inside(group))
    wait_for((muster.tmp_path / "ready").exists, "the family")
    return process, [read_pid(muster.tmp_path / name) for name in MEMBERS + ["bare"]]


def test_a_daemon_that_dropped_its_environment_is_gone_after_sigkill_of_the_launcher_too(muster, delegated):
    process, pids = family(muster, delegated, "signal.pause()")
    process.kill()
    process.wait()
    for pid in pids:
        wait_for(lambda: not alive(pid), f"pid {pid} to be gone")
    wait_for(lambda: not any(path.is_dir() for path in delegated.iterdir()), "the guardian to remove the groups")
    wait_for(lambda: not (delegated / "cgroup.procs").read_text(), "the guardian to end")


def test_a_restart_ends_neither_the_guardian_nor_the_log_writer(muster, delegated):
    """Both live in the launcher's own group, above the workers' groups that are cleared."""
    process = muster.start("--nproc-per-node=1", "--max-restarts=1", "-r3", "--log-dir", muster.tmp_path / "logs", "--log-max-size=1M",
                           "--no-python", "sleep", "1000", stderr=subprocess.DEVNULL, preexec_fn=inside(delegated))

    def other_than(pid, name):
        return wait_for(lambda: [each for each in children_named(process.pid, name) if each != pid and alive(each)], f"another {name}")[0]

    worker = other_than(None, "sleep")
    kept = [other_than(None, "job-guardian"), other_than(None, "job-logs")]
    os.kill(worker, signal.SIGKILL)
    other_than(worker, "sleep")
    assert [alive(pid) for pid in kept] == [True, True]
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    wait_for(lambda: not any(map(alive, kept)), "both to go with the launcher")


@pytest.mark.parametrize("how", ["stop", "end"])
def test_whatever_a_worker_started_is_gone_with_it(muster, delegated, how):
    process, pids = family(muster, delegated, "os._exit(5)" if how == "end" else "signal.pause()")
    if how == "stop":
        process.terminate()
    assert process.wait(30) == (5 if how == "end" else 128 + signal.SIGTERM)
    assert [pid for pid in pids if alive(pid)] == []


PTRACE_DETACH, PTRACE_SEIZE, PTRACE_O_TRACEEXIT = 17, 0x4206, 0x40

FAILS_AND_LEAVES_A_DAEMON = """
import os, pathlib, subprocess, sys, time
if os.environ["RANK"] == "0": time.sleep(600)
subprocess.run(["env", "-i", "setsid", "-f", "sh", "-c", "echo $$ > daemon; exec sleep 600"])
while not pathlib.Path("fail").exists(): time.sleep(0.01)
sys.exit(7)
"""


def test_a_process_in_a_worker_s_group_that_does_not_end_stops_no_heartbeat(muster, delegated):
    """This process traces a daemon that only its group knows: at SIGKILL it stops on its way out, and the group is not empty."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long] * 4
    script = muster.script("train.py", FAILS_AND_LEAVES_A_DAEMON)
    first, second = two_nodes("--max-restarts=1")  # between two generations the coordinator expects heartbeats, too
    other = muster.start(*first, "--cgroup=off", script)
    failing = muster.start(*second, script, preexec_fn=inside(delegated))
    daemon = muster.tmp_path / "daemon"
    pid = int(wait_for(lambda: daemon.exists() and daemon.read_text().strip(), "the daemon"))
    if ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT) != 0:
        pytest.skip(f"needs CAP_SYS_PTRACE: ptrace: {os.strerror(ctypes.get_errno())}")
    try:
        (muster.tmp_path / "fail").touch()
        assert other.wait(60) == failing.wait(60) == 7  # 76, had node 1 been lost
    finally:
        ptrace(PTRACE_DETACH, pid, 0, 0)
        if alive(pid): os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "populated 0" in (delegated / "cgroup.events").read_text(), "the daemon and the guardian to end")
    for path, _, _ in os.walk(delegated, topdown=False):  # the launcher could not
        if path != str(delegated): os.rmdir(path)
    assert f"pid {pid}, in a worker's control group, does not die of SIGKILL" in failing.stderr.read()


def test_off_makes_none_and_a_dry_run_says_which_way_it_is(muster, delegated):
    result = muster.run("--cgroup=off", "--nproc-per-node=1", "cat", "/proc/self/cgroup", preexec_fn=inside(delegated))
    assert re.search(rf"^0::.*/{delegated.name}$", result.stdout, re.MULTILINE)
    for mode, said in (("auto", f"one for each worker, below .*/{delegated.name}\n"), ("off", "none .--cgroup=off.\n")):
        result = muster.run(f"--cgroup={mode}", "--dry-run", "true", preexec_fn=inside(delegated))
        assert re.search(f"^control groups: {said}", result.stdout), result.stdout


def test_who_may_not_make_groups_runs_without_them_unless_they_are_required(delegated):
    def run(mode):
        return subprocess.run([program, f"--cgroup={mode}", "--nproc-per-node=1", "cat", "/proc/self/cgroup"], cwd="/",
                              env=clean_environment(), capture_output=True, text=True, timeout=60,
                              preexec_fn=lambda: (inside(delegated)(), os.setgid(NOBODY), os.setuid(NOBODY)))

    with tempfile.TemporaryDirectory() as place:  # where everybody may go
        os.chmod(place, 0o755)
        program = shutil.copy(MUSTER, place)
        result = run("auto")
        assert result.returncode == 0 and not result.stderr, result.stderr
        assert re.search(rf"^0::.*/{delegated.name}$", result.stdout, re.MULTILINE)
        result = run("required")
        assert result.returncode == 2
        assert re.search(r"^muster: --cgroup=required: \S+ was not delegated to this user", result.stderr), result.stderr
