# `scripts/bench rendezvous`: what a start costs as jobs grow: agents that join one job at the coordinator, are told of a
# failure and finish, beside torchrun's agents at musterd and at PyTorch's store; clients that check in at the store and wait for one key, directly and behind their agents; memory of a
# connection and of a key.
# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
import json
import os
import pathlib
import statistics

import measure
import store_servers

STEPS = ["join", "failure", "again", "finish"]
TORCH_AGENTS = pathlib.Path(__file__).with_name("rendezvous_torch.py")
# Descriptors a process needs for itself.
RESERVED = 64


def resident(pid):
    return int(open(f"/proc/{pid}/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")


def cpu_ms(pid):
    return sum(int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0]) for task in os.listdir(f"/proc/{pid}/task")) / 1e6


def measure_nodes(options):
    env = {**os.environ, "MUSTER_SECRET": "a secret of the bench"}
    out = {}
    print("\nagents of one job, with a secret: ms from the first connection to the last agent that knows its rank; from a worker's failure\n"
          "to the last agent told; until all are in the next world; until all know the job is over. Medians [smallest, largest]")
    print(f"{'nodes':>6}{'join ms':>24}{'failure ms':>24}{'again ms':>24}{'finish ms':>24}{'messages/node':>15}{'bytes/node':>12}"
          f"{'coordinator ms':>16}{'us/node':>9}")
    for nodes in options.nodes:
        if nodes > store_servers.descriptor_limit() - RESERVED:
            print(f"{nodes:6}  left out: a process has {store_servers.descriptor_limit()} descriptors here")
            continue
        runs = []
        for _ in range(options.rounds):
            with store_servers.musterd(env=env) as server:
                runs.append(measure.json_line([measure.program("control_load"), f"--port={server.port}", f"--nodes={nodes}",
                                               f"--server-pid={server.pid}"], env=env))
        cell = {step: {key: measure.summary([run[step][key] for run in runs]) for key in runs[0][step]} for step in STEPS}
        cell["bytes_per_agent"] = measure.summary([run["server_bytes_per_agent"] for run in runs])
        out[str(nodes)] = cell
        text = "".join(f"{s['median']:10.2f} [{s['min']:.2f}, {s['max']:.2f}]".rjust(24) for s in (cell[step]["ms"] for step in STEPS))
        messages = sum(cell["join"][f"{way}_messages"]["median"] for way in ("sent", "received"))
        size = sum(cell["join"][f"{way}_bytes"]["median"] for way in ("sent", "received"))
        server_ms = cell["join"]["server_ms"]["median"]
        print(f"{nodes:6}{text}{messages:15.1f}{size:12.0f}{server_ms:16.1f}{1000 * server_ms / nodes:9.1f}", flush=True)
    return out


def join_by_torchrun(server, nodes):
    """Milliseconds until torchrun's agents (c10d) of one job have joined at a store, each a thread of one process."""
    python, env = measure.torch_environment("current")
    with server() as at:
        return measure.json_line([python, str(TORCH_AGENTS), str(at.port), str(nodes)], env=env)["join_ms"]


def join_by_muster(nodes):
    with store_servers.musterd() as server:
        return measure.json_line([measure.program("control_load"), f"--port={server.port}", f"--nodes={nodes}", f"--server-pid={server.pid}"])["join"]["ms"]


def measure_torchrun(options):
    """The three ways in turn, so that all see the same machine."""
    if not store_servers.has_torch("current"):
        print("without torchrun's rendezvous: scripts/setup installs PyTorch")
        return {}
    ways = {"muster": join_by_muster, "torchrun, musterd": lambda nodes: join_by_torchrun(store_servers.musterd, nodes),
            "torchrun, PyTorch's store": lambda nodes: join_by_torchrun(lambda: store_servers.torch("current"), nodes)}
    print("\nms from the first agent's start to the last that knows its rank: muster's agents, and torchrun's c10d by the store of musterd or PyTorch.\n"
          "Medians [smallest, largest]")
    print(f"{'nodes':>6}" + "".join(f"{way:>32}" for way in ways))
    out = {}
    for nodes in options.torch_nodes:
        times = {way: [] for way in ways}
        for _ in range(min(options.rounds, 5)):
            for way, join in ways.items():
                times[way].append(join(nodes))
        out[str(nodes)] = cell = {way: measure.summary(each) for way, each in times.items()}
        print(f"{nodes:6}" + "".join(f"{s['median']:.1f} [{s['min']:.1f}, {s['max']:.1f}]".rjust(32) for s in cell.values()), flush=True)
    return out


def shares(clients, most):
    """As few equal parts as do."""
    parts = -(-clients // most)
    return [clients // parts + (1 if i < clients % parts else 0) for i in range(parts)]


def check_in(clients, generators, most_per_server):
    """One run: milliseconds from the first connect to the last client woken, and what the servers used."""
    with contextlib.ExitStack() as stack:
        servers, started = [], []
        group = 1
        for share in shares(clients, most_per_server):
            server = stack.enter_context(store_servers.musterd())
            servers.append((server, share, resident(server.pid), cpu_ms(server.pid)))
        for server, share, *_ in servers:
            for part in shares(share, max(1, -(-share // generators))):
                command = [measure.program("store_checkin"), f"--port={server.port}", f"--clients={part}", f"--total={share}",
                           f"--source-group={group}"]
                started.append(stack.enter_context(store_servers.running(command)))
                group += 1
        lines = [process.stdout.readline() for process in started]
        if not all(lines):
            raise measure.Failed("a generator failed")
        lines = [json.loads(line) for line in lines]
        start = min(line["start_ns"] for line in lines)
        return {
            "connected_ms": (max(line["connected_ns"] for line in lines) - start) / 1e6,
            "counted_ms": (max(line["counted_ns"] for line in lines) - start) / 1e6,
            "done_ms": (max(line["done_ns"] for line in lines) - start) / 1e6,
            "num_reset": sum(line["num_reset"] for line in lines),
            "server_cpu_us_per_client": 1000 * sum(cpu_ms(s.pid) - before for s, _, _, before in servers) / clients,
            "server_bytes_per_client": sum(resident(s.pid) - before for s, _, before, _ in servers) / clients,
        }


def sockets(pid):
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
    return count


def check_in_behind_agents(clients, agents, generators, most_per_process):
    """The same at one musterd and one job, by way of the agents of as many nodes."""
    with contextlib.ExitStack() as stack:
        head = stack.enter_context(store_servers.musterd())
        listening = sockets(head.pid)
        nodes = stack.enter_context(store_servers.proxies(head, agents))
        before = resident(head.pid), cpu_ms(head.pid), sum(map(resident, nodes.pids)), sum(map(cpu_ms, nodes.pids))
        ports = ",".join(map(str, nodes.ports))
        started = [stack.enter_context(store_servers.running(
            [measure.program("store_checkin"), f"--port={ports}", f"--clients={part}", f"--total={clients}", f"--source-group={group}"]))
            for group, part in enumerate(shares(clients, min(most_per_process, -(-clients // generators))), 1)]
        lines = [process.stdout.readline() for process in started]
        if not all(lines):
            raise measure.Failed("a generator failed")
        lines = [json.loads(line) for line in lines]
        start = min(line["start_ns"] for line in lines)
        after = resident(head.pid), cpu_ms(head.pid), sum(map(resident, nodes.pids)), sum(map(cpu_ms, nodes.pids))
        return {
            **{f"{what}_ms": (max(line[f"{what}_ns"] for line in lines) - start) / 1e6 for what in ("connected", "counted", "done")},
            "num_reset": sum(line["num_reset"] for line in lines),
            "head_connections": sockets(head.pid) - listening,
            "head_cpu_ms": after[1] - before[1],
            "head_bytes_per_client": (after[0] - before[0]) / clients,
            "agents_cpu_us_per_client": 1000 * (after[3] - before[3]) / clients,
            "agents_bytes_per_client": (after[2] - before[2]) / clients,
        }


def measure_check_in_behind_agents(options):
    most = store_servers.descriptor_limit() - RESERVED
    runs = [check_in_behind_agents(options.clients, options.agents, options.generators, most) for _ in range(options.rounds)]
    cell = {key: measure.summary([run[key] for run in runs]) for key in runs[0]}
    done, middle = cell["done_ms"], {key: value["median"] for key, value in cell.items()}
    print(f"\nthe same clients of one job behind {options.agents} agents (--store-proxy), at one musterd\n"
          f"{options.clients:6} clients: all woken after {done['median'] / 1000:.2f} s [{done['min'] / 1000:.2f}, {done['max'] / 1000:.2f}], "
          f"connected after {middle['connected_ms'] / 1000:.2f} s; musterd has {middle['head_connections']:.0f} connections and used "
          f"{middle['head_cpu_ms']:.0f} ms, {1000 * middle['head_cpu_ms'] / options.clients:.1f} us and "
          f"{middle['head_bytes_per_client']:.0f} bytes for each client; their agents {middle['agents_cpu_us_per_client']:.1f} us and "
          f"{middle['agents_bytes_per_client']:.0f} bytes", flush=True)
    return {str(options.clients): {"agents": options.agents, **cell}}


def measure_check_in(options):
    most = store_servers.descriptor_limit() - RESERVED
    out = {}
    print("\nstore clients that connect, greet, ADD to init/ and WAIT for one key, which the last of them sets. Medians [smallest, largest]")
    for clients in dict.fromkeys([min(options.clients, most), options.clients]):
        servers = len(shares(clients, most))
        runs = [check_in(clients, options.generators, most) for _ in range(options.rounds)]
        cell = {key: measure.summary([run[key] for run in runs]) for key in runs[0]}
        out[str(clients)] = {"servers": servers, **cell}
        done = cell["done_ms"]
        note = "" if servers == 1 else f"; {servers} musterd at once, since a process has {most + RESERVED} descriptors here"
        print(f"{clients:6} clients: all woken after {done['median'] / 1000:.2f} s [{done['min'] / 1000:.2f}, {done['max'] / 1000:.2f}], connected after "
              f"{cell['connected_ms']['median'] / 1000:.2f} s; {cell['server_cpu_us_per_client']['median']:.1f} us of musterd and "
              f"{cell['server_bytes_per_client']['median']:.0f} bytes each{note}", flush=True)
    return out


def measure_keys(options):
    """Bytes of memory of a key with its value."""
    out = {}
    for value_bytes in (8, 64, 1024):
        sizes = []
        for _ in range(min(options.rounds, 3)):
            with store_servers.musterd() as server:
                few, many = ([measure.program("store_load"), f"--port={server.port}", "--connections=1", "--operations=1", f"--keys={n}",
                              f"--value-bytes={value_bytes}"] for n in (1, options.keys))
                measure.json_line(few)
                before = resident(server.pid)
                measure.json_line(many)
                sizes.append((resident(server.pid) - before) / options.keys)
        out[str(value_bytes)] = statistics.median(sizes)
    print("\nmemory of a key of 25 bytes, with a value of so many: " + ", ".join(f"{n}: {size:.0f} bytes" for n, size in out.items()))
    return out


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench rendezvous")
    parser.add_argument("--nodes", type=lambda text: [int(n) for n in text.split(",")], default=[10, 100, 1000, 10000])
    parser.add_argument("--torch-nodes", type=lambda text: [int(n) for n in text.split(",")], default=[8, 32, 64], help="joined by torchrun's agents too")
    parser.add_argument("--clients", type=int, default=98304, help="of the store")
    parser.add_argument("--agents", type=int, default=96, help="that proxy the store in a last row of clients; 0: no such row")
    parser.add_argument("--generators", type=int, default=2, help="processes that share the clients of a store")
    parser.add_argument("--keys", type=int, default=9000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/rendezvous.json")
    options = parser.parse_args(arguments)
    print(measure.machine())
    result = {"descriptors": store_servers.descriptor_limit(), "nodes": measure_nodes(options), "torchrun": measure_torchrun(options),
              "clients": measure_check_in(options), "clients_behind_agents": measure_check_in_behind_agents(options) if options.agents else {},
              "bytes_per_key": measure_keys(options)}
    if options.save:
        measure.save("rendezvous", result)
    return 0
