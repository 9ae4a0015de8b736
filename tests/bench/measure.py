# What every bench shares: commands timed from outside, medians with their spread, the machine, results as JSON.
# SPDX-License-Identifier: Apache-2.0
import datetime
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests/bench/results"
LOAD_BEFORE = os.getloadavg()[0]  # before this process measures anything


class Failed(Exception):
    """A measured command failed: its figure would be meaningless."""


def wall_ms(command, seconds=300, env=None):
    """Milliseconds from starting `command` to its end, its output thrown away; Failed unless it exits with 0."""
    sink = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, sink, fd) for fd in (0, 1, 2)]
    start = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, env or os.environ, file_actions=actions, setpgroup=0)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - start
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.close(sink)
    if code := os.waitstatus_to_exitcode(status):
        raise Failed(f"{' '.join(command)}: exit status {code} after {took:.1f} s")
    return took * 1000


def json_line(command, seconds=300, env=None):
    """The JSON object a measured program prints as its last line."""
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: exit status {done.returncode}: {done.stderr.strip()[-1000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def summary(values):
    ordered = sorted(values)
    quarter = statistics.quantiles(ordered, n=4) if len(ordered) > 1 else [ordered[0]] * 3
    return {"median": statistics.median(ordered), "p25": quarter[0], "p75": quarter[2], "min": ordered[0],
            "max": ordered[-1], "runs": len(ordered), "samples": list(values)}


def paired_ratio(top, bottom):
    """Ratio of medians, and the spread of the ratios of runs made next to each other."""
    pairs = [a / b for a, b in zip(top, bottom)]
    return {"of_medians": statistics.median(top) / statistics.median(bottom), "min": min(pairs), "max": max(pairs)}


def first_line(*command):
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=60)
        return (done.stdout + done.stderr).strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return ""


def machine():
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return {
        "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "load_before": LOAD_BEFORE, "load_during": os.getloadavg()[0],
        "kernel": platform.release(), "system": platform.freedesktop_os_release().get("PRETTY_NAME", "?"),
        "compiler": first_line("c++", "--version"), "commit": first_line("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        # Whether the tree had changes that the commit does not have; results of an earlier run are none.
        "dirty": bool(first_line("git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":!tests/bench/results")),
        "date": datetime.date.today().isoformat(),
    }


def program(name):
    """A program of the release build, else of the dev build."""
    for preset in ("release", "dev"):
        path = ROOT / "build" / preset / "bin" / name
        if path.exists():
            return str(path)
    sys.exit(f"bench: {name} is not built; cmake --preset release -DMUSTER_BENCHMARKS=ON && cmake --build --preset release")


def torch_environment(which):
    """(interpreter, environment) of Debian's PyTorch, or of the current one that scripts/setup installs."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if which == "current":
        torch = ROOT / ".venv/torch"
        if not (torch / "torch").is_dir():
            sys.exit("bench: no current PyTorch; scripts/setup installs it")
        libraries = [str(path) for path in sorted(torch.glob("nvidia/*/lib"))] + ["/usr/local/cuda/lib64"]
        env["PYTHONPATH"] = str(torch)
        env["LD_LIBRARY_PATH"] = ":".join(libraries)
    return "/usr/bin/python3", env


def save(name, result):
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    print(f"saved {path.relative_to(ROOT)}")
