# Servers the store benches measure: musterd, a job's store behind its agent, Redis and PyTorch's own. They end with us.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import tempfile
import time
import types

import measure

TORCH_SERVER = pathlib.Path(__file__).with_name("store_torch.py")
TIMEOUT = 60


def descriptor_limit():
    """How many descriptors one process may have; the programs raise their own soft limit as far."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@contextlib.contextmanager
def running(command, env=None, stderr=None):
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _wait_until(condition, what):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise measure.Failed(f"{what} does not come up")
        time.sleep(0.01)


def _answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def musterd(wrapper=(), env=None):
    """`wrapper`: a command that runs it, for example valgrind."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = pathlib.Path(folder, "port")
        command = [*wrapper, measure.program("musterd"), "--host=127.0.0.1", "--port=0", f"--port-file={port_file}", "--log-level=error"]
        with running(command, env) as process:
            _wait_until(port_file.exists, "musterd")
            yield types.SimpleNamespace(pid=process.pid, port=int(port_file.read_text()), protocol="modern", process=process)


@contextlib.contextmanager
def proxied():
    """A worker's store behind its agent (--store-proxy), whose processor time counts; another musterd hosts it."""
    # The worker, which stays until its standard input ends.
    tell = 'echo "$MASTER_PORT"; exec cat'
    with musterd() as head:
        with running([measure.program("muster"), "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{head.port}", "--store-proxy",
                      "--nproc-per-node=1", "sh", "-c", tell]) as process:
            try:
                yield types.SimpleNamespace(pid=process.pid, port=int(process.stdout.readline()), protocol="modern", process=process)
            finally:
                process.terminate()  # with SIGKILL its guardian would have to end the worker
                process.wait(TIMEOUT)


@contextlib.contextmanager
def proxies(head, nodes):
    """The agents of one job at a musterd, each of which proxies its store; with the ports of their proxies."""
    command = [measure.program("muster"), "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{head.port}", "--store-proxy",
               f"--nnodes={nodes}", "--nproc-per-node=1", "--local-addr=127.0.0.1", "sh", "-c", 'echo "$MASTER_PORT"; exec sleep 1000']
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())  # their last words are of no interest
        agents = [stack.enter_context(running(command, stderr=errors)) for _ in range(nodes)]
        try:
            ports = [agent.stdout.readline() for agent in agents]
            if not all(ports):
                errors.seek(0)
                raise measure.Failed(f"an agent's worker did not start: {errors.read()[-1000:].decode(errors='replace')}")
            yield types.SimpleNamespace(pids=[agent.pid for agent in agents], ports=[int(port) for port in ports])
        finally:
            for agent in agents:
                agent.terminate()  # with SIGKILL its guardian would have to end the worker
            for agent in agents:
                agent.wait(TIMEOUT)


@contextlib.contextmanager
def redis(wrapper=()):
    port = _free_port()
    # The generators come from other addresses than 127.0.0.1; nothing is written to disk.
    command = [*wrapper, "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--protected-mode", "no", "--save", "",
               "--appendonly", "no", "--loglevel", "warning", "--maxclients", str(max(64, descriptor_limit() - 64))]
    with running(command) as process:
        _wait_until(lambda: _answers(port), "redis-server")
        yield types.SimpleNamespace(pid=process.pid, port=port, protocol="resp", process=process)


@contextlib.contextmanager
def torch(which):
    python, env = measure.torch_environment(which)
    env["LD_PRELOAD"] = measure.program("numeric_names.so")
    with running([python, str(TORCH_SERVER)], env) as process:
        line = process.stdout.readline().split()
        if len(line) != 2:
            raise measure.Failed(f"{python}: PyTorch's store does not come up")
        version = tuple(int(part) for part in line[0].split(".")[:2])
        yield types.SimpleNamespace(pid=process.pid, port=int(line[1]), protocol="modern" if version >= (2, 2) else "legacy", process=process)


@contextlib.contextmanager
def floor():
    """Answers like a store and stores nothing, for `get` with the generator's default sizes: 24 bytes of key, 64 of value."""
    with running([measure.program("store_floor"), "33", "64"]) as process:
        yield types.SimpleNamespace(pid=process.pid, port=int(process.stdout.readline()), protocol="legacy", process=process)


def versions():
    found = {"musterd": measure.first_line(measure.program("musterd"), "--version")}
    if shutil.which("redis-server"):
        found["redis"] = measure.first_line("redis-server", "--version")
    for which in ("debian", "current"):
        if has_torch(which):
            python, env = measure.torch_environment(which)
            done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], env=env, text=True, capture_output=True)
            found[f"torch {which}"] = done.stdout.strip()
    return found


def has_torch(which):
    if which == "current":
        return (measure.ROOT / ".venv/torch/torch").is_dir()
    return os.path.isdir("/usr/lib/python3/dist-packages/torch")


def available():
    """name -> context manager of a server; says what is left out and how to get it."""
    known = {"musterd": musterd, "proxied": proxied, "floor": floor}
    wanted = {"redis": (shutil.which("redis-server"), redis),
              "torch 1.13": (has_torch("debian"), lambda: torch("debian")),
              "torch libuv": (has_torch("current"), lambda: torch("current"))}
    for name, (there, server) in wanted.items():
        if there:
            known[name] = server
        else:
            print(f"without {name}: scripts/setup --bench installs it")
    return known
