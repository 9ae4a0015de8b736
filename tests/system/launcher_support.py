# SPDX-License-Identifier: Apache-2.0
"""What the launcher's tests from outside share: running it with a deadline, and waiting for conditions."""
import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("MUSTER_BIN_DIR") or os.environ.get("MUSTER_BIN") or ROOT / "build/dev/bin").resolve()
MUSTER = str(BIN / "muster")


def clean_environment(**extra):
    """This process' environment without what a launcher or a worker reads, and with `extra`; None: is not set."""
    drop = ("PET_", "SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_",
            "OMP_NUM_THREADS", "TORCH_", "CUDA_", "MUSTER_", "HWLOC_", "PYTHON_EXEC", "VIRTUAL_ENV", "LOGLEVEL")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    # Without OMP_NUM_THREADS the launcher says which it gives, which depends on the machine.
    env.update(PYTHON_EXEC=sys.executable, OMP_NUM_THREADS="1")
    env.update({k: str(v) for k, v in extra.items() if v is not None})
    return {k: v for k, v in env.items() if k not in extra or extra[k] is not None}


def wait_for(condition, what, seconds=20.0):
    """The value of `condition()` once it is true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)  # between looks at a condition, never instead of one


def let_go(fifo, text="", seconds=60.0):
    """Writes to the process that waits, or soon will, in open() of a FIFO. One FIFO for each such process: opening it wakes all
    that wait, and who reads late reads nothing, or waits for good."""
    def opened():
        try:
            return os.fdopen(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "w")
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            return None

    with wait_for(opened, f"a reader of {fifo}", seconds) as pipe:
        pipe.write(text)


def write_at_once(path, text):
    """Whoever reads the file meanwhile, a worker of another job, reads all of it or of the former one, never nothing."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    if path.exists():
        new.chmod(path.stat().st_mode)
    return new.rename(path)


def alive(pid):
    """A process that is not a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_named(parent, name):
    """Process numbers; the name is the one that a process gave itself."""
    out = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            before, after = stat.read_text().rsplit(")", 1)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if before.split("(", 1)[1] == name and int(after.split()[1]) == parent:
            out.append(int(stat.parent.name))
    return out


def child_named(parent, name):
    """The one process of that name, which it gives itself some time after it was started."""
    (pid,) = wait_for(lambda: children_named(parent, name), name)
    return pid


def rotated(path):
    """All files of a rotated log as one, the oldest first. A writer that is killed while it rotates may leave an empty FILE.new."""
    older = sorted(path.parent.glob(path.name + ".[0-9]*"), key=lambda p: -int(p.suffix[1:]))
    return b"".join(p.read_bytes() for p in [*older, path])


def read_report(log_dir):
    """The one report.json below a --log-dir, after a look at what every one must have."""
    (path,) = log_dir.glob("*/report.json")
    report = json.loads(path.read_text())
    assert report["version"] == 1
    assert sum(worker["label"] == "root cause" for worker in report["workers"]) == (report["root_cause"] is not None)
    for worker in report["workers"]:
        assert worker["label"] in ("succeeded", "root cause", "failed too", "consequence", "stopped by muster", "preempted")
        assert ("exit_code" in worker) != ("signal" in worker)
        assert worker["node"] in [node["node"] for node in report["nodes"]]
    ranks = [worker["rank"] for worker in report["workers"]]
    assert len(ranks) == len(set(ranks))
    return report


class Launcher:
    """Runs muster; kills what is left of it at the end of the test."""

    def __init__(self, tmp_path):
        self.tmp_path = tmp_path
        self.started = []

    def start(self, *args, env=None, **kwargs):
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("stderr", subprocess.PIPE)
        env = {"TMPDIR": str(self.tmp_path), **(clean_environment() if env is None else env)}
        process = subprocess.Popen([MUSTER, *map(str, args)], env=env,
                                   cwd=kwargs.pop("cwd", self.tmp_path), text=True, **kwargs)
        self.started.append(process)
        return process

    def run(self, *args, timeout=60, **kwargs):
        process = self.start(*args, **kwargs)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def script(self, name, text):
        return write_at_once(self.tmp_path / name, text)

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


@pytest.fixture
def muster(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()
