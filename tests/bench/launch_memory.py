# What the agent weighs while its workers run: of the whole agent and of its guardian, from /proc/PID/smaps_rollup.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import measure
from launch_tools import free_port

FIELDS = ("Rss", "Pss", "Private_Clean", "Private_Dirty", "Shared_Clean", "Shared_Dirty")
TIMEOUT = 60


def weight(pid):
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {field.lower(): int(re.search(rf"^{field}:\s+(\d+) kB", text, re.M)[1]) for field in FIELDS}


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def as_installed(program, folder):
    """A copy that is read from the disk. Of a file that was linked or written just now whole folios are mapped where a page is
    touched: the same agent had 6500 kB as installed and 8300 to 8900 after the link."""
    copy = pathlib.Path(folder, "muster")
    shutil.copy(program, copy)
    with open(copy, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return copy


@contextlib.contextmanager
def agents(nodes, ranks, *options, env=None):
    """The pids of a job's agents, all of whose workers have started."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, open(os.devnull, "r+b") as sink:
        command = [as_installed(measure.program("muster"), folder), "--no-python", f"--nproc-per-node={ranks}", *options, "sh", "-c",
                   f'echo >>{folder}/started; exec sleep 1000']
        started = [subprocess.Popen(command, stdin=sink, stdout=sink, stderr=sink, env=env) for _ in range(nodes)]
        try:
            deadline, path = time.monotonic() + TIMEOUT, pathlib.Path(folder, "started")
            while not path.exists() or path.stat().st_size < nodes * ranks:
                if time.monotonic() > deadline or any(agent.poll() is not None for agent in started):
                    raise measure.Failed(f"{' '.join(map(str, command))}: its workers did not start")
                time.sleep(0.01)
            yield [agent.pid for agent in started]
        finally:
            for agent in started:
                agent.send_signal(signal.SIGTERM)
            for agent in started:
                agent.wait(TIMEOUT)


def guardian(pid):
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:  # it names itself, and other children may end
        for child in children(pid):
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == "job-guardian":
                    return child
        time.sleep(0.01)
    raise measure.Failed(f"agent {pid} has no guardian")


def measure_all(sizes):
    kinds = [(f"{size} ranks", (1, size, "--standalone"), None) for size in sizes]
    c10d = ["--nnodes=8", "--rdzv-backend=c10d"]
    endpoint = lambda: f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    secret = {**os.environ, "MUSTER_SECRET": "a secret of the bench"}
    kinds += [("8 nodes of 8, c10d", (8, 8, *c10d, endpoint()), None), ("the same, with a secret", (8, 8, *c10d, endpoint()), secret)]
    print("\nmemory of an agent while its workers run, in kB; of several the largest")
    print(f"{'':26}{'RSS':>8}{'PSS':>8}{'private':>9}   its guardian: {'RSS':>6}{'PSS':>8}{'private':>9}")
    out = {}
    for title, (nodes, ranks, *options), env in kinds:
        with agents(nodes, ranks, *options, env=env) as pids:
            own, its = (max((weight(pid) for pid in found), key=lambda each: each["rss"])
                        for found in (pids, [guardian(pid) for pid in pids]))
        private = [each["private_clean"] + each["private_dirty"] for each in (own, its)]
        print(f"{title:26}{own['rss']:8}{own['pss']:8}{private[0]:9}{its['rss']:23}{its['pss']:8}{private[1]:9}")
        out[title] = {"agent_kb": own, "guardian_kb": its}
    return out
