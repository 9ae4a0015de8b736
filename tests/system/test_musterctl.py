# SPDX-License-Identifier: Apache-2.0
"""Detached jobs: muster --detach returns, the job goes on without its terminal, and musterctl finds it."""
import json
import os
import pty
import re
import signal
import stat
import subprocess

import pytest

from launcher_support import MUSTER, alive, clean_environment, let_go, muster, wait_for
from metrics_support import health

CTL = os.path.join(os.path.dirname(MUSTER), "musterctl")

# Says who it is, and ends when the test says so.
WORK = """
import os, sys
print("rank", os.environ["RANK"], "begins", flush=True)
sys.exit(int(open({go!r} + os.environ["RANK"]).read()))
"""


class Detached:
    def __init__(self, muster):
        self.muster = muster
        self.home = muster.tmp_path / "runtime"
        self.environment = clean_environment(MUSTER_RUNTIME_DIR=str(self.home))
        self.go = str(muster.tmp_path / "go")
        for rank in range(2):
            os.mkfifo(f"{self.go}{rank}")

    def script(self):
        return self.muster.script("work.py", WORK.format(go=self.go))

    def start(self, *options, program=None, **kwargs):
        return subprocess.run([MUSTER, "--detach", *map(str, options), program or self.script()], env=self.environment,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, **kwargs)

    def ctl(self, *words):
        return subprocess.run([CTL, *words], env=self.environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60)

    def status(self, name):
        return json.loads(self.ctl("status", "--json", name).stdout)

    def release(self, workers=1, code=0):
        for rank in range(workers):
            let_go(f"{self.go}{rank}", str(code))

    def running(self, name):
        """Its entry; --detach itself waits for 2 s."""
        return wait_for(lambda: (entry := self.status(name))["state"] == "running" and entry, "a job")

    def wait_ended(self, name):
        wait_for(lambda: self.status(name)["state"] == "ended", "a job")

    def stop_all(self):
        for entry in json.loads(self.ctl("ls", "--json").stdout or "[]"):
            self.ctl("stop", "--now", entry["name"])


@pytest.fixture
def detached(muster):
    out = Detached(muster)
    yield out
    out.stop_all()


def test_detach_returns_a_name_and_the_job_goes_on(detached):
    result = detached.start("--nproc-per-node=2")
    assert (result.returncode, result.stderr) == (0, "")
    name = result.stdout.strip()
    assert name.startswith("work-")
    entry = detached.running(name)
    assert entry["world_size"] == 2
    assert [w["rank"] for w in entry["workers"]] == [0, 1]
    assert all(alive(w["pid"]) for w in entry["workers"])
    assert os.getsid(entry["pid"]) == entry["pid"]
    assert [os.readlink(f"/proc/{entry['pid']}/fd/{fd}") for fd in range(3)] == ["/dev/null", entry["output"], entry["output"]]
    for path in (detached.home, detached.home / f"{name}.json", entry["output"]):
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
    listed = detached.ctl("ls").stdout.splitlines()
    assert len(listed) == 2 and listed[1].split()[:2] == [name, "running"] and "work.py" in listed[1]
    wait_for(lambda: sorted(detached.ctl("logs", name).stdout.splitlines()) == ["rank 0 begins", "rank 1 begins"], "both ranks")
    detached.release(2)
    detached.wait_ended(name)
    assert detached.status(name)["exit_status"] == 0
    assert detached.ctl("ls").stdout.splitlines()[1].split()[1:3] == ["ended", "0"]


def test_an_unknown_command_is_refused(detached):
    result = detached.ctl("atach", "x")
    assert result.returncode == 2 and "--help" in result.stderr, result.stderr


def test_at_the_default_place_the_output_is_for_its_owner_only(detached):
    home = detached.muster.tmp_path / "home"
    state = home / ".local/state/muster"
    detached.environment = clean_environment(HOME=home, XDG_STATE_HOME=None, XDG_RUNTIME_DIR=None)
    for name in (f"private-{os.getpid()}", f"tightened-{os.getpid()}"):
        os.chmod(state, 0o755) if state.exists() else None
        assert detached.start("--nproc-per-node=1", f"--job-name={name}", program="true").stdout == f"{name}\n"
        entry = wait_for(lambda: (e := detached.status(name))["state"] == "ended" and e, "the job")
        assert os.path.dirname(entry["output"]) == str(state)
        assert [stat.S_IMODE(os.stat(path).st_mode) for path in (state, entry["output"])] == [0o700, 0o600]
        os.remove(f"/tmp/muster-{os.getuid()}/{name}.json")


def test_attach_shows_the_output_and_ends_with_the_jobs_status(detached):
    name = detached.start("--job-name=mine", "--nproc-per-node=1").stdout.strip()
    assert name == "mine"
    follower = subprocess.Popen([CTL, "attach", "mine"], env=detached.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
    assert follower.stdout.readline() == "rank 0 begins\n"
    detached.release(code=7)
    out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 7
    assert "work.py" in out  # the report of the failure
    assert detached.status("mine")["exit_status"] == 7


def test_whoever_follows_may_go_and_the_job_stays(detached):
    name = detached.start().stdout.strip()
    follower = subprocess.Popen([CTL, "attach", name], env=detached.environment, stdout=subprocess.PIPE, text=True)
    assert follower.stdout.readline() == "rank 0 begins\n"
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=60)
    assert follower.returncode == -signal.SIGINT
    follower = subprocess.Popen([CTL, "logs", "-f", name], env=detached.environment, stdout=subprocess.PIPE, text=True)
    assert follower.stdout.readline() == "rank 0 begins\n"
    follower.stdout.close()  # as "| head" does; noticed without another line
    assert follower.wait(timeout=60) == 0
    assert detached.status(name)["state"] == "running"


def test_the_last_lines_of_a_long_log_are_found_from_its_end(detached):
    name = detached.start("--nproc-per-node=1", program="true").stdout.strip()
    entry = wait_for(lambda: (e := detached.status(name))["state"] == "ended" and e, "the job")
    tail = f"{'a' * 70_000}\n{'b' * 65_535}\n\nd\n"
    with open(entry["output"], "r+") as output:
        output.truncate(256 << 30)  # a hole: it takes minutes to read from its beginning
        output.seek(0, os.SEEK_END)
        output.write("\n" + tail)
    assert detached.ctl("logs", "-n", "4", name).stdout == tail
    assert detached.ctl("logs", "-n", "1", name).stdout == "d\n"
    with open(entry["output"], "w") as output:
        output.write("first\nlast, not ended")
    assert [detached.ctl("logs", "-n", n, name).stdout for n in ("1", "2", "9")] == ["last, not ended"] + ["first\nlast, not ended"] * 2


def test_stop_ends_the_job_and_waits_for_it(detached):
    name = detached.start("--nproc-per-node=2").stdout.strip()
    workers = [w["pid"] for w in detached.running(name)["workers"]]
    result = detached.ctl("stop", name)
    assert (result.returncode, result.stdout) == (0, f"{name}: ended 143\n")
    assert not any(alive(pid) for pid in workers)
    again = detached.ctl("stop", name)
    assert again.returncode == 0 and "does not run: ended 143" in again.stderr
    assert detached.ctl("rm", name).returncode == 0
    assert json.loads(detached.ctl("ls", "--json").stdout) == []
    assert os.listdir(detached.home) == [".lock"]


def test_stop_says_when_the_job_still_runs_and_now_kills(detached):
    stubborn = detached.muster.script("stubborn.py", """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
""")
    name = detached.start(program=stubborn).stdout.strip()
    wait_for(lambda: detached.ctl("logs", name).stdout == "ready\n", "a job")
    result = detached.ctl("stop", "--timeout=0.1", name)
    assert result.returncode == 4 and "still runs after 0.1 s; --now kills" in result.stderr
    assert detached.ctl("stop", "--now", name).returncode == 0


def test_the_job_survives_its_terminal(detached):
    """A shell in a pseudo-terminal starts it; then the terminal goes, as when an ssh connection breaks."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve("/bin/sh", ["sh", "-c", f"{MUSTER} --detach --job-name=survivor {detached.script()}; read wait"],
                  detached.environment)
    seen = b""
    while b"survivor\r\n" not in seen:
        seen += os.read(terminal, 4096)
    entry = detached.running("survivor")
    os.close(terminal)
    os.waitpid(pid, 0)
    os.kill(entry["pid"], signal.SIGHUP)  # what a login manager may send besides
    assert detached.status("survivor")["state"] == "running"
    detached.release()
    detached.wait_ended("survivor")
    assert detached.status("survivor")["exit_status"] == 0


def test_a_job_that_ends_at_once_is_told_to_who_started_it(detached):
    result = detached.start("--job-name=bad", "--log-dir=/proc/1/logs")
    assert result.returncode == 2 and result.stdout == ""
    assert "--log-dir=/proc/1/logs: " in result.stderr and "bad ended within 2 s with exit status 2" in result.stderr
    assert detached.status("bad")["state"] == "ended"
    missing = detached.start(program="no-such-program")
    assert missing.returncode == 127 and "no-such-program" in missing.stderr


def test_a_name_is_used_once_at_a_time(detached):
    assert detached.start("--job-name=one").returncode == 0
    second = detached.start("--job-name=one")
    assert second.returncode == 2 and "a job of this name runs already" in second.stderr
    assert detached.start("--job-name=../one").returncode == 2
    detached.ctl("stop", "one")
    assert detached.start("--job-name=one").returncode == 0


def test_a_killed_agent_is_recognised(detached):
    name = detached.start().stdout.strip()
    entry = detached.running(name)
    os.kill(entry["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(entry["pid"]), "a job")
    assert detached.status(name)["state"] == "lost"
    assert detached.ctl("status", name).stdout.splitlines()[0] == f"{name}: lost"
    wait_for(lambda: not alive(entry["workers"][0]["pid"]), "a job")
    assert detached.ctl("attach", name).returncode == 71


def test_a_restart_shows_in_the_entry(detached):
    name = detached.start("--max-restarts=1").stdout.strip()
    detached.release(code=3)
    wait_for(lambda: detached.status(name)["restarts"] == 1 and detached.status(name)["state"] == "running", "a job")
    detached.release()
    detached.wait_ended(name)


def test_status_tells_of_each_rank_how_far_it_is(detached):
    end = detached.muster.tmp_path / "end"
    program = detached.muster.script("far.py", """
import os, signal
with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write("epoch 2 step 14%s loss 0.3" % os.environ["RANK"])
print("ready", flush=True)
while not os.path.exists({end!r}): signal.sigtimedwait([], 0.02)
""".format(end=str(end)))
    name = detached.start("--nproc-per-node=2", "--metrics-addr=0", program=program).stdout.strip()
    wait_for(lambda: detached.ctl("logs", name).stdout.count("ready") == 2, "both ranks")
    ranks = detached.status(name)["workers"]
    assert [(r["rank"], r["state"], r["epoch"], r["step"], r["progress"]) for r in ranks] == [
        (rank, "running", 2, 140 + rank, f"epoch 2 step 14{rank} loss 0.3") for rank in (0, 1)]
    assert all(r["resident_bytes"] > 1 << 20 and r["cpu_seconds"] >= 0 for r in ranks)
    assert health(detached.status(name)["metrics"])["state"] == "running"
    text = detached.ctl("status", name).stdout
    assert "  metrics   http://127.0.0.1:" in text and "generation 0, 0 restarts" in text
    assert "step 141 loss 0.3" in text
    assert [line.split()[3:5] for line in text.splitlines() if line.startswith("  rank ")] == [
        [str(r["pid"]), "running"] for r in ranks]
    os.kill(ranks[1]["pid"], signal.SIGSTOP)
    wait_for(lambda: detached.status(name)["workers"][1]["state"] == "paused", "the stopped rank")
    os.kill(ranks[1]["pid"], signal.SIGCONT)
    end.touch()
    wait_for(lambda: detached.ctl("status", name).stdout.startswith(f"{name}: ended 0\n"), "the job's end")


def test_names_may_be_cut_where_that_is_clear(detached):
    for name in ("alpha-1", "alpha-2", "beta"):
        assert detached.start(f"--job-name={name}").returncode == 0
    assert detached.ctl("status", "b").returncode == 0
    assert "2 jobs begin with alpha" in detached.ctl("status", "alpha").stderr
    assert "no job gamma" in detached.ctl("status", "gamma").stderr


@pytest.mark.parametrize("words", [(), ("dance",), ("status",), ("stop", "--timeout=x", "a")])
def test_wrong_usage_is_one_clear_complaint(detached, words):
    result = detached.ctl(*words)
    assert result.returncode == 2 and result.stdout == "" and result.stderr


@pytest.mark.parametrize("words, says", [
    (["logs", "--lines=x", "job"], "--lines: Value x not in range 0 to 1000000000"), (["stop", "--timeout=soon", "job"], "--timeout: Value soon not in range 0 to 1000000"),
    (["stop", "--timeout=-1", "job"], "--timeout: Value -1 not in range 0 to 1000000"), (["ls", "--all"], "unknown argument --all")])
def test_wrong_arguments_are_one_line(words, says):
    done = subprocess.run([CTL, *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"musterctl: {says}; see musterctl --help\n")


@pytest.mark.parametrize("words", [["musterctl", "--help"], ["musterctl", "--version"], ["musterctl", "ls"], ["musterctl", "ls", "--json"],
                                   ["musterd", "--help"], ["musterd", "--version"]])
def test_what_was_asked_for_and_cannot_be_written_is_no_success(words):
    program = os.path.join(os.path.dirname(MUSTER), words[0])
    with open("/dev/full", "w") as full:
        done = subprocess.run([program, *words[1:]], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 71
    assert re.fullmatch(rf"{words[0]}: stdout: (write: )?No space left on device \(ENOSPC\)\n", done.stderr), done.stderr
