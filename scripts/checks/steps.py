# One step of scripts/test: a command with a deadline in a session of its own, whose left-over processes are found.
# SPDX-License-Identifier: Apache-2.0
import ctypes
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "results"
# Namespaces of its own: what a test mounts or binds is gone with it, and nothing of it needs root on the host. `ip netns` writes
# to /run; a /tmp/muster-0 of the host's root would be taken for the tests' own.
ALONE = ["unshare", "--user", "--map-root-user", "--mount", "--net", "sh", "-c",
         "ip link set lo up && mount -t tmpfs -o mode=755 tmpfs /run && "
         "{ ! [ -e /tmp/muster-0 ] || mount -t tmpfs -o mode=700 tmpfs /tmp/muster-0; } && exec \"$@\"", "sh"]
_PR_SET_CHILD_SUBREAPER = 36
_PROGRESS_S = 25
_SHOWN_LINES = 60  # of a quiet step that failed
_NEEDED_GB = {"the build trees": (ROOT, 5), "the tests' files": (pathlib.Path(tempfile.gettempdir()), 2)}  # from nothing


@dataclasses.dataclass
class Step:
    name: str
    code: int  # exit status; 124 after the deadline
    seconds: float
    problem: str = ""  # why it failed, in one line; empty: it did not
    output: str = ""
    left: tuple = ()  # processes that it left behind, as they were called

    @property
    def ok(self):
        return self.code == 0 and not self.problem


def prepare():
    """Orphans of every step become children of this process, so that none can be overlooked."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # nohup and a shell's & leave these ignored, and muster respects that: the tests send them and need their effect.
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(ignored) == signal.SIG_IGN:
            signal.signal(ignored, signal.SIG_DFL)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for old in RESULTS.glob("*.xml"):
        old.unlink()
    for what, (folder, needed) in _NEEDED_GB.items():
        free = shutil.disk_usage(folder).free / 1e9
        if free < needed:
            print(f"== warning: {folder} has {free:.1f} GB free; {what} need up to {needed} GB there", flush=True)


def _children():
    return [int(pid) for pid in pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _describe(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return f"{pid} ({b' '.join(words).decode(errors='replace').strip()[:120]})"
    except OSError:
        return str(pid)


def _is_zombie(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def _reap_orphans():
    """Kills and reaps what the step left running; returns how it was called. Orphans of orphans arrive here, too."""
    left = []
    for _ in range(1000):
        children = _children()
        if not children:
            break
        for pid in children:
            if not _is_zombie(pid):
                left.append(_describe(pid))
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return left


def _kill_group(process):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue


def _wait(process, seconds, name, log):
    """Waits; while a quiet step runs, a line of its output is shown at least every 30 s."""
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        try:
            return process.wait(max(0, min(_PROGRESS_S, left)))
        except subprocess.TimeoutExpired:
            if left <= _PROGRESS_S:
                raise
        if log:
            with open(log.name, "rb") as written:
                written.seek(max(0, os.path.getsize(log.name) - 4096))
                lines = written.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines[:-1]) if line.strip()), "")
            print(f"   {name}: {last.strip()[:140]}", flush=True)


def run(name, command, seconds, quiet=False, **environment):
    """Runs `command`; a quiet step's output is shown only if it fails."""
    print(f"== {name}: {' '.join(map(str, command))}", flush=True)
    start = time.monotonic()
    log = open(RESULTS / (re.sub(r"[^\w.]+", "-", name)[-200:] + ".log"), "w+b") if quiet else None
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT if quiet else None)
    problem = ""
    try:
        code = _wait(process, seconds, name, log)
        if code:
            problem = f"exit status {code}"
    except subprocess.TimeoutExpired:
        code, problem = 124, f"not finished after {seconds} s"
        _kill_group(process)
    except KeyboardInterrupt:
        _kill_group(process)
        _reap_orphans()
        sys.exit(130)
    left = tuple(_reap_orphans())
    if left:
        problem += f"{'; ' if problem else ''}left processes behind: {', '.join(left)}"
    output = ""
    if log:
        log.seek(0)
        output = log.read().decode(errors="replace")
        log.close()
        if problem:
            print("\n".join(output.splitlines()[-_SHOWN_LINES:]))
    took = time.monotonic() - start
    print(f"== {name}: {problem or 'done'} ({took:.1f} s)", flush=True)
    return Step(name, code, took, problem, output, left)
