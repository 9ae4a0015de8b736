# What every bench shares: commands timed from outside, medians with their spread, the machine, results as JSON; and what the
# two GPU benches share: their options, a result file that is kept current, programs that are timed in turn.
# SPDX-License-Identifier: Apache-2.0
import argparse
import datetime
import glob
import json
import os
import pathlib
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests/bench/results"
LOAD_BEFORE = os.getloadavg()[0]  # before this process measures anything


class Failed(Exception):
    """A measured command failed: its figure would be meaningless."""


class Unsupported(Failed):
    """What is compared with cannot do this here: recorded, and no failure of ours."""


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
    print(f"saved {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def has_gpu():
    return bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")


def gpu_options(purpose, arguments, add=lambda parser: None, programs=("train_steps", "gpu_kernel_bench")):
    """The options of a GPU bench; exits with 77 where there is no GPU and the rehearsal on the CPU was not asked for."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build folder; its bin/ holds the programs")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the result file")
    parser.add_argument("--machine", type=pathlib.Path, help="a JSON file that describes the machine")
    parser.add_argument("--resume", action="store_true", help="leave out what the result file has")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds for all of it")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a rehearsal with small sizes")
    parser.add_argument("--only", default="", help="measure the rows whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sample", type=float, default=0.3, help="seconds of one sample of a step rate")
    add(parser)
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not has_gpu():
        print("SKIP: no GPU here")
        sys.exit(77)
    if missing := [name for name in programs if not (options.build / "bin" / name).exists()]:
        sys.exit(f"{options.build}/bin has no {', '.join(missing)}; configure with MUSTER_BENCHMARKS=ON and build them")
    return options


def gpu_cases(device):
    """(name, model, batch size, options of train_steps and train_torch.py) of what the GPU benches train."""
    if device == "cpu":
        sizes = [("garment", batch, 2048, []) for batch in (4, 64, 1024)]
        sizes += [(model, 8, 32, ["--image=64", "--autocast=bf16"]) for model in ("resnet18", "resnet50")]
    else:
        sizes = [("garment", batch, 60000, []) for batch in (4, 64, 1024)]
        sizes += [(model, 256, 1024, ["--image=224", "--autocast=bf16"]) for model in ("resnet18", "resnet50")]
    return [(f"{model} batch {batch}", model, batch, [f"--device={device}", f"--model={model}", f"--batch-size={batch}",
                                                      f"--samples={samples}", "--serve", *more]) for model, batch, samples, more in sizes]


class Rows:
    """The rows of a GPU bench's result file, written after each of them; a reader finds the old file or the new one."""

    def __init__(self, options):
        self.options, self.end = options, time.monotonic() + options.deadline
        self.machine = {**machine(), "device": options.device}
        if options.machine:
            self.machine |= json.loads(options.machine.read_text())
        elif (info := options.build / "bin/gpu_info").exists() and options.device == "cuda":
            self.machine |= json_line([str(info)])
        self.rows, earlier = [], []
        if options.resume and options.output.exists():
            earlier = json.loads(options.output.read_text())["results"]
        if options.device == "cpu":
            print("a rehearsal on the CPU: figures and aims say nothing about a GPU", flush=True)
        self.done = {row["name"]: row for row in earlier if row["status"] in ("ok", "unsupported")}

    def left(self):
        return self.end - time.monotonic()

    def chosen(self, name):
        return self.options.only in name

    def add(self, name, work):
        """work() returns what to keep of a row; its status is "failed" or "unsupported" if that is what it raises."""
        if not self.chosen(name):
            return None
        row = self.done.get(name)
        if row is None and self.left() < 1:
            row = {"name": name, "status": "not run"}
        elif row is None:
            try:
                row = {"name": name, "status": "ok", **work()}
            except (Failed, OSError, subprocess.TimeoutExpired) as error:
                late, theirs = self.left() <= 0, isinstance(error, Unsupported)
                row = {"name": name, "status": "not run" if late else "unsupported" if theirs else "failed", "error": str(error)}
        self.rows.append(row)
        self.write()
        print(f"{row['status']:11} {name}: {row.get('text') or row.get('error', '')[-300:]}", flush=True)
        return row

    def write(self, **more):
        draft = self.options.output.with_name(self.options.output.name + ".part")
        draft.write_text(json.dumps({"machine": self.machine, "results": self.rows, **more}, indent=1) + "\n")
        draft.rename(self.options.output)

    def exit_code(self):
        return 0 if self.rows and all(row["status"] in ("ok", "unsupported") for row in self.rows) else 1


class Served:
    """A program that answers each line with a line of JSON, until close() kills it. `failure` is what a missing answer, or one
    that is an error, raises; left() says how many seconds there are for all answers."""

    def __init__(self, command, left, failure=Failed):
        self.command, self.left, self.failure = command, left, failure
        self.errors, self.rest = tempfile.TemporaryFile(), b""
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, bufsize=0)

    def ask(self, request, seconds=240.0):
        end = time.monotonic() + min(seconds, self.left())
        try:
            self.process.stdin.write(f"{request}\n".encode())
        except BrokenPipeError:
            pass  # its end is found below
        while True:
            line, found, rest = self.rest.partition(b"\n")
            if found:
                self.rest = rest
                answer = json.loads(line) if line.startswith(b"{") else None
                if answer and "error" in answer:
                    raise self.failure(answer["error"])
                if answer:
                    return answer
                continue
            if not select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise self.failure(f"{self.command[0]}: no answer to {request} within {seconds:.0f} s")
            part = os.read(self.process.stdout.fileno(), 65536)
            if not part:
                self.errors.seek(0)
                text = self.errors.read().decode(errors="replace").strip()
                raise self.failure(f"{' '.join(self.command)}: exit status {self.process.wait()}: {text[-1000:]}")
            self.rest += part

    def rate(self, steps):
        line = self.ask(steps)
        return line["steps"] / line["seconds"]

    def close(self):
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            file.close()


def in_turn(sides, options):
    """Step rates of several Served programs, timed A B A B ...; each sample takes about options.sample seconds."""
    steps = {}
    for name, side in sides.items():
        side.rate(2)  # the capture
        count = 2
        while (rate := side.rate(count)) * options.sample > 4 * count:  # a guess from less than a quarter of a sample
            count = min(50 * count, int(rate * options.sample / 2) + 1)
        steps[name] = max(1, int(options.sample * rate))
    rates = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in sides.items():
            rates[name].append(side.rate(steps[name]))
    return rates
