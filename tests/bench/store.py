# `scripts/bench store`: operations a second of musterd, Redis and PyTorch's stores under the same load generator, one
# server after another in every round, so that all see the same machine.
# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import measure
import store_servers

OPERATIONS = ["set", "get", "wait_get", "add", "multi_get", "fan_out"]
MEANING = {
    "set": "a SET and the word that it was done", "get": "a plain GET", "wait_get": "WAIT, then GET: PyTorch's get(); Redis: EXISTS, GET",
    "add": "ADD / INCRBY", "multi_get": "MULTI_GET / MGET of 16 keys, which PyTorch 1.13 has not",
    "fan_out": "wake-ups by one SET; Redis: PUBLISH"}


def load(server, operation, connections, *more):
    command = [measure.program("store_load"), f"--port={server.port}", f"--protocol={server.protocol}", f"--operation={operation}",
               f"--connections={connections}", f"--server-pid={server.pid}", *map(str, more)]
    return measure.json_line(command)


def speaks(name, server, operation):
    """The floor answers GETs alone, one at a time; PyTorch's old protocol has no MULTI_GET."""
    return operation == "get" if name == "floor" else operation != "multi_get" or server.protocol != "legacy"


def measure_loads(servers, options, operations, idle, in_flight=1):
    results = {}
    for operation in operations:
        print(f"\n{operation}: {MEANING[operation]}; operations a second [p25, p75], of one processor second of the server, p50 us" +
              (f"; beside {idle} idle connections" if idle else "") + (f"; {in_flight} requests in flight on each" if in_flight > 1 else ""))
        for connections in options.connections:
            runs = {name: [] for name, server in servers.items()
                    if speaks(name, server, operation) and (in_flight == 1 or name != "floor")}
            for _ in range(options.rounds):
                for name in runs:
                    runs[name].append(load(servers[name], operation, connections, f"--seconds={options.seconds}", f"--idle={idle}",
                                            f"--in-flight={in_flight}"))
            cell = results.setdefault(operation, {}).setdefault(str(connections), {})
            for name, values in runs.items():
                cell[name] = {
                    "per_second": measure.summary([v["per_second"] for v in values]),
                    "per_cpu_second": measure.summary([1e6 / v["server_us"] for v in values]),
                    "p50_us": measure.summary([v["p50_us"] for v in values]),
                    "p99_us": measure.summary([v["p99_us"] for v in values]),
                    "bytes": {key: values[0][key] for key in ("bytes_out", "bytes_in") if key in values[0]},
                    "musterd_is": measure.paired_ratio([v["per_second"] for v in runs["musterd"]], [v["per_second"] for v in values]),
                    "musterd_is_per_cpu": measure.paired_ratio([1 / v["server_us"] for v in runs["musterd"]], [1 / v["server_us"] for v in values]),
                }
                show(connections, name, cell[name])
    return results


def show(connections, name, cell):
    rate, cpu = cell["per_second"], cell["per_cpu_second"]
    ratio, cpu_ratio = cell["musterd_is"], cell["musterd_is_per_cpu"]
    verdict = "" if name == "musterd" else (f"   musterd is {ratio['of_medians']:.2f}x [{ratio['min']:.2f}, {ratio['max']:.2f}], "
                                            f"per processor second {cpu_ratio['of_medians']:.2f}x [{cpu_ratio['min']:.2f}, {cpu_ratio['max']:.2f}]")
    print(f"{connections:5} connections  {name:12}{rate['median']:10.0f} [{rate['p25']:.0f}, {rate['p75']:.0f}]{cpu['median']:10.0f}"
          f"{cell['p50_us']['median']:9.1f}{verdict}", flush=True)


def counted(start, read, operation, few=960, many=4960):
    """What one operation costs, by the difference of two runs that are alike but for its number."""
    figures = []
    for operations in (few, many):
        with start() as server:
            load(server, operation, 32, f"--operations={operations}")
            figures.append(read(server))
    return {key: (figures[1].get(key, 0) - figures[0].get(key, 0)) / (many - few) for key in figures[1]}


@contextlib.contextmanager
def traced(server_of):
    with server_of() as server, tempfile.NamedTemporaryFile() as out:
        tracer = subprocess.Popen(["strace", "-f", "-c", "-o", out.name, "-p", str(server.pid)], stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 10
            while f"TracerPid:\t{tracer.pid}" not in open(f"/proc/{server.pid}/status").read():
                if time.monotonic() > deadline:
                    raise measure.Failed("strace cannot attach")
                time.sleep(0.01)
            server.tracer, server.trace = tracer, out.name
            yield server
        finally:
            tracer.kill()
            tracer.wait()


def read_calls(server):
    server.tracer.send_signal(signal.SIGINT)
    server.tracer.wait(20)
    calls = {}
    for line in open(server.trace):
        words = line.split()
        if len(words) >= 5 and words[0].replace(".", "").isdigit() and words[-1] != "total":
            calls[words[-1]] = int(words[3])
    return calls


def read_instructions(server):
    server.process.send_signal(signal.SIGTERM)
    text = server.process.stdout.read()
    server.process.wait(60)
    return {"instructions": int(re.search(r"Collected : (\d+)", text)[1])}


def measure_instructions(name, operation):
    """User space alone, by valgrind's emulator, in which PyTorch's servers take minutes to start."""
    start = {"musterd": store_servers.musterd, "redis": store_servers.redis}.get(name)
    if start is None or not shutil.which("valgrind"):
        return {}
    wrapper = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1"]
    return counted(lambda: start(wrapper), read_instructions, operation)


def measure_costs(servers, options):
    """System calls (all servers) and instructions in user space (musterd and redis) of one operation."""
    known, out = store_servers.available(), {}
    print("\ncost of one operation at 32 connections, of fan_out one wake-up with its WAIT: bytes in and out, user space instructions\n"
          "(callgrind), system calls")
    for name in servers:
        for operation in [o for o in options.operations if speaks(name, servers[name], o)]:
            cell = out.setdefault(name, {}).setdefault(operation, {})
            cell["bytes"] = load(servers[name], operation, 32, "--operations=960")
            cell["bytes"] = {key: cell["bytes"][key] for key in ("bytes_out", "bytes_in")}
            if shutil.which("strace"):
                calls = counted(lambda: traced(known[name]), read_calls, operation)
                cell["calls"] = {call: round(n, 2) for call, n in calls.items() if n >= 0.01}
            cell.update(measure_instructions(name, operation))
            instructions = f"{cell['instructions']:8.0f}" if "instructions" in cell else f"{'-':>8}"
            print(f"{name:12} {operation:10} {cell['bytes']['bytes_out']:6.0f} {cell['bytes']['bytes_in']:6.0f}  {instructions}  "
                  f"{cell.get('calls', {})}", flush=True)
    return out


def words(text):
    return text.split(",")


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench store")
    parser.add_argument("--operations", type=words, default=OPERATIONS)
    parser.add_argument("--connections", type=lambda text: [int(n) for n in words(text)], default=[1, 8, 32, 256])
    parser.add_argument("--idle", type=int, default=4000, help="connections that say nothing in a last table; 0: no such table")
    parser.add_argument("--in-flight", type=int, default=16, help="requests that a client sends before it waits, in a table of its own; 1: no such table")
    parser.add_argument("--servers", type=words, help="names, as printed [all that are installed]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one run")
    parser.add_argument("--no-costs", action="store_true", help="no system calls and instructions")
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/store.json")
    options = parser.parse_args(arguments)
    machine = measure.machine()
    print(machine)
    print(versions := store_servers.versions())
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(start()) for name, start in store_servers.available().items()
                   if name == "musterd" or name in (options.servers or [name])}
        loads = measure_loads(servers, options, options.operations, 0)
        # A job of many workers: most wait, a few speak.
        crowd = measure_loads(servers, options, ["get"], options.idle) if options.idle else {}
        # As redis-benchmark -P: the kernel's part of an operation, which is the same for all, gets small.
        several = [o for o in options.operations if o in ("set", "get", "add")] if options.in_flight > 1 else []
        crammed = measure_loads(servers, options, several, 0, options.in_flight)
        costs = {} if options.no_costs else measure_costs(servers, options)
    if options.save:
        measure.save("store", {"versions": versions, "loads": loads, "idle_connections": options.idle, "beside_idle": crowd, "in_flight": options.in_flight,
                               "with_in_flight": crammed, "costs": costs})
    return 0
