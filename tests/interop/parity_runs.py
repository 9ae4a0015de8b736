# SPDX-License-Identifier: Apache-2.0
"""The same command line under torchrun and under muster, and what can be seen of it: status, workers, files, console.

What must differ from run to run (suffixes of directories, free ports, times, process ids) is made equal here; what else
differs is for parity_table.py to explain.
"""
import dataclasses
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import time

import torch_generations
from launcher_support import MUSTER, alive, wait_for
from torch_generations import NEWEST, PYTHON

HERE = pathlib.Path(__file__).resolve().parent
WORKER = HERE / "parity_worker.py"
SECONDS = 120  # PyTorch alone took 49 s to import on a machine with load 17


class Server:
    """torchrun_server.py: real torchruns that need not import PyTorch each."""

    def __init__(self, log):
        with open(log, "ab") as errors:
            self.process = subprocess.Popen([PYTHON, HERE / "torchrun_server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=errors, env=torch_generations.environment(NEWEST))
        self.log = log
        self.pids, self.answers, self.count, self.rest = {}, {}, 0, b""

    def ask(self, **request):
        self.count += 1
        self.process.stdin.write(json.dumps({"number": self.count, **request}).encode() + b"\n")
        self.process.stdin.flush()
        return self.count

    def wait(self, number, kind):
        """The pid or the status (or another answer) of a request."""
        known = self.pids if kind == "pid" else self.answers
        deadline = time.monotonic() + SECONDS
        while number not in known:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            block = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not block:
                raise AssertionError(f"torchrun {number}: no {kind} in {SECONDS} s: {self.log.read_text(errors='replace')[-2000:]}")
            *lines, self.rest = (self.rest + block).split(b"\n")
            for line in map(json.loads, lines):
                if "pid" in line:
                    self.pids[line["number"]] = line["pid"]
                else:
                    self.answers[line["number"]] = line["answer"]
        return known[number]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@dataclasses.dataclass
class Agent:
    """One launcher of a run, of either kind."""

    stdout: pathlib.Path
    stderr: pathlib.Path
    environment: dict
    process: subprocess.Popen = None  # muster
    server: Server = None  # torchrun
    number: int = 0

    def pid(self):
        return self.process.pid if self.process else self.server.wait(self.number, "pid")

    def ended(self):
        return self.process.poll() is not None if self.process else self.number in self.server.answers

    def wait(self):
        return self.process.wait(SECONDS) if self.process else self.server.wait(self.number, "answer")


class Run:
    """One command line under one launcher, on one node or several; its files are in a directory of its own."""

    def __init__(self, server, launcher, folder):
        self.server, self.launcher, self.folder = server, launcher, folder
        self.agents = []
        (folder / "told").mkdir(parents=True, exist_ok=True)
        (folder / "tmp").mkdir()

    def start(self, arguments, environment=None, main="torchrun", alone=False):
        """`alone`: a torchrun that is started anew."""
        node = len(self.agents)
        agent = Agent(self.folder / f"stdout{node}", self.folder / f"stderr{node}", torch_generations.environment(
            NEWEST, PARITY_DIR=self.folder / "told", PARITY_NODE=node, TMPDIR=self.folder / "tmp",
            # A host's name need not lead to it; where it is the subject, the case says so.
            PET_LOCAL_ADDR="127.0.0.1", PET_LOG_DIR=self.folder / "logs" / str(node)))
        for name, value in (environment or {}).items():
            if value is None:
                agent.environment.pop(name, None)
            else:
                agent.environment[name] = str(value).replace("{folder}", str(self.folder))
        words = [str(word).replace("{folder}", str(self.folder)) for word in arguments]
        if self.launcher == "torchrun" and not alone:
            agent.server = self.server
            agent.number = self.server.ask(launcher=main, arguments=words, environment=agent.environment,
                                           directory=str(HERE), stdout=str(agent.stdout), stderr=str(agent.stderr))
        else:
            with open(agent.stdout, "wb") as out, open(agent.stderr, "wb") as err:
                command = [PYTHON, "-m", "torch.distributed.run"] if alone else [MUSTER]
                agent.process = subprocess.Popen([*command, *words], env=agent.environment, cwd=HERE, stdin=subprocess.DEVNULL,
                                                 stdout=out, stderr=err)
        self.agents.append(agent)
        return agent

    def told(self, name):
        """What a worker wrote down, once it has."""
        path = self.folder / "told" / name
        wait_for(path.exists, f"{name} under {self.launcher}", SECONDS)
        return json.loads(path.read_text())

    def release(self, name):
        (self.folder / "told" / name).write_text("")

    def errors(self):
        return "\n".join(agent.stderr.read_text(errors="replace") for agent in self.agents if agent.stderr.exists())

    def heard(self, text):
        """Waits until the launchers have said so."""
        wait_for(lambda: text in self.errors(), f"{self.launcher} to say {text}", SECONDS)

    def kill_workers(self):
        for path in (self.folder / "told").glob("*.*.*.*"):
            if path.suffix not in (".json", ".signal", ".part"):
                try:
                    pid = int(path.read_text())
                    # By now the number may be another process'.
                    if f"PARITY_DIR={self.folder}/told\0".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                        os.kill(pid, signal.SIGKILL)
                except (OSError, ValueError):
                    pass

    def kill(self):
        """Launchers and what they may leave behind."""
        for agent in self.agents:
            if not agent.ended() and alive(agent.pid()):
                os.kill(agent.pid(), signal.SIGKILL)
            agent.wait()
        self.kill_workers()

    def forget_workers(self):
        """Where one launcher refuses and the other starts some, how they were is not compared."""
        for path in (self.folder / "told").iterdir():
            path.unlink()
        return {}

    def close(self):
        self.kill()

    def observe(self, ports=()):
        """Aspect -> value, of a run that has ended. `ports`: the ones that were asked for by number."""
        seen = {f"status of node {number}": agent.wait() for number, agent in enumerate(self.agents)}
        ended_well = not any(seen.values())
        for path in sorted((self.folder / "told").iterdir()):
            node, rank, attempt, kind = path.name.split(".") if path.name.count(".") == 3 else [None] * 4
            if kind == "signal":
                seen[f"signal to node {node}, rank {rank}"] = json.loads(path.read_text())
            elif kind == "json":
                worker = json.loads(path.read_text())
                who = f"of node {node}, rank {rank}, attempt {attempt}"
                given = self.agents[int(node)].environment
                theirs = worker.pop("environment")
                for name in sorted(given.keys() | theirs.keys()):
                    if given.get(name) != theirs.get(name):
                        seen[f"{name} {who}"] = self._plain(name, theirs.get(name), ports)
                for name, value in worker.items():
                    seen[f"{name} {who}"] = self._plain(name, value, ports)
        for number, agent in enumerate(self.agents):
            seen[f"stdout of node {number}"] = sorted(self._same(agent.stdout.read_text()).splitlines())
            text = agent.stderr.read_text()
            if ended_well:
                # The launcher's own remarks are in nobody's contract.
                seen[f"stderr of node {number}"] = sorted(line for line in text.splitlines() if "said" in line)
            else:
                seen.update((f"{name} of node {number}", value) for name, value in self._report(text).items())
        logs = self.folder / "logs"
        for path in sorted(logs.rglob("*")) if logs.is_dir() else []:
            if path.is_file():
                seen[f"file {self._same(str(path.relative_to(logs)))}"] = self._content(path)
        seen["files left in TMPDIR"] = sorted(
            self._same(path.name) for path in (self.folder / "tmp").iterdir()
            if not path.name.startswith(("torchinductor_", "pytorch-errorfile-")))  # PyTorch's, not torchrun's
        return seen

    def _same(self, text):
        text = text.replace(str(self.folder), "FOLDER")
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
        return re.sub(r"((?:torchelastic|muster|/\w[\w-]*|^\w[\w-]*))_\w{8}(?=/|$)", r"\1_X", text)

    def _plain(self, name, value, ports):
        if name == "MASTER_PORT" and value and int(value) not in ports:
            return "a free port"
        return self._same(value) if isinstance(value, str) else value

    def _content(self, path):
        text = path.read_text()
        if path.suffix == ".json":
            try:
                error = json.loads(text)
            except ValueError:
                return text
            if isinstance(error, dict) and isinstance(error.get("message"), dict):
                info = error["message"]["extraInfo"]
                info["timestamp"] = re.sub(r"\d+", "now", info["timestamp"])
                info["py_callstack"] = info["py_callstack"].splitlines()[::len(info["py_callstack"].splitlines()) - 1]
            return error
        return sorted(text.splitlines()) if path.name.startswith("filtered") else text

    def _report(self, text):
        """The failures in the report at the end, by what both print."""
        match = re.search(r"^(.*) FAILED\n-+\n(?s:(.*))", text, re.M)
        if not match:
            return {}
        others, _, root = match.group(2).partition("Root Cause")
        entries = {"others": [], "root": []}
        for kind, part in (("others", others), ("root", root)):
            for entry in re.split(r"^\[\d+\]:$", part, flags=re.M)[1:]:
                fields = dict(re.findall(r"^  (\w+) *: (.*?) *$", entry, re.M))
                entries[kind].append({
                    "rank": fields["rank"], "exitcode": re.sub(r"pid: \d+", "pid: N", " ".join(fields["exitcode"].split())),
                    "error_file": self._same(fields["error_file"]), "traceback": re.sub(r"PID \d+", "PID N", fields["traceback"])})
        return {"title": os.path.basename(match.group(1)), "root cause": entries["root"], "other failures": entries["others"]}


def differences(theirs, ours):
    """Aspect -> (torchrun's value, muster's), where they are not the same."""
    return {aspect: (theirs.get(aspect), ours.get(aspect)) for aspect in sorted(theirs.keys() | ours.keys())
            if theirs.get(aspect) != ours.get(aspect)}
