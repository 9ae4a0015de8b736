# The include-layer check: folders include lower ones only, and libraries stay in the folders that own them.
# SPDX-License-Identifier: Apache-2.0
import re

from . import source_tree

# Every folder of the product, from the top down: (folder, what it may include besides the ground, why it stands there). It
# includes folders that stand lower only, so there is no cycle; an allowance that nothing uses is an error. The picture in
# .github/CONTRIBUTING.md is drawn from this table by scripts/format.
GROUND = ("rendezvous/include", "rendezvous/base")
FOLDERS = [
    ("launcher/main", "agent checks cli doctor hardware network output plan process report telemetry",
     "muster: from argv to an agent and its exit status"),
    ("launcher/ctl", "hardware job plan process progress report text rendezvous/agent_client rendezvous/net rendezvous/status",
     "musterctl: talks to agents and musterd, is none itself"),
    ("launcher/agent", "hang job join output process progress report telemetry rendezvous/net",
     "the loop that ties the folders together: calls policies, contains none"),
    ("launcher/doctor", "cli job network text rendezvous/net rendezvous/protocol", "the network check between nodes, a program of its own in all but name"),
    ("launcher/checks", "hardware job process text",
     "what is checked before workers start"),
    ("launcher/telemetry", "hardware job output process progress report text rendezvous/net rendezvous/protocol rendezvous/status",
     "events, metrics and the status page: read the others, decide nothing"),
    ("launcher/join", "job network text rendezvous/agent_client rendezvous/coordinator rendezvous/etcd rendezvous/net "
     "rendezvous/protocol rendezvous/proxy rendezvous/server",
     "how this node agrees with the others; the only folder that talks to a coordinator"),
    ("launcher/report", "hardware job output process progress text", "why a job failed"),
    ("launcher/hang", "job output process progress text rendezvous/protocol", "why a job stands still"),
    ("launcher/progress", "text", "what workers say of themselves: files and pages they write"),
    ("launcher/plan", "cli hardware job network process text", "from options to a Job"),
    ("launcher/output", "job network process text rendezvous/net", "the workers' lines: files, terminal, folding"),
    ("launcher/process", "hardware job text", "starting, watching and ending processes"),
    ("launcher/network", "job rendezvous/net", "addresses and names of this host"),
    ("launcher/cli", "job text", "options as a table, and the command line read by it"),
    ("launcher/job", "hardware text rendezvous/etcd rendezvous/net rendezvous/protocol",
     "values without I/O: Job, Outcome, Cause, policies"),
    ("launcher/hardware", "text", "GPUs, CPUs, and who gets which"),
    ("launcher/text", "", "texts that several folders write alike"),
    ("rendezvous/musterd", "protocol server status wal", "musterd: options and main"),
    ("rendezvous/status", "coordinator net protocol server wal", "/metrics, /healthz, and the page of a musterd"),
    ("rendezvous/etcd", "agent_client coordinator net protocol server wal", "a coordinator whose state is in etcd"),
    ("rendezvous/agent_client", "coordinator net protocol", "the agent's side of the connection to its coordinator"),
    ("rendezvous/server", "coordinator net protocol proxy store wal", "the sockets of store and coordinator"),
    ("rendezvous/wal", "coordinator net proxy store", "state that survives the process"),
    ("rendezvous/proxy", "coordinator net protocol store", "the workers' store by way of their agent"),
    ("rendezvous/coordinator", "protocol", "who takes part: decisions without I/O"),
    ("rendezvous/protocol", "", "messages between agents and coordinator, and their proofs"),
    ("rendezvous/client", "store", "store clients"),
    ("rendezvous/store", "", "keys, waiters and TCPStore's bytes, without sockets"),
    ("rendezvous/net", "", "what every server and client here stands on"),
    ("worker_runtime/examples", "include", "programs that use the installed headers alone"),
    ("worker_runtime/preflight", "device include ops", "muster-preflight: exact products on each device"),
    ("worker_runtime/checkpoint", "core device include training", "checkpoints: directories of safetensors files"),
    ("worker_runtime/training", "core device include ops", "data-parallel training"),
    ("worker_runtime/data", "device include", "data sets, transforms, samplers and the loader"),
    ("worker_runtime/optim", "device include ops", "optimizers"),
    ("worker_runtime/nn", "include", "models by name"),
    ("worker_runtime/graph", "core device include ops", "operations over values: arenas, lifetimes, the walk"),
    ("worker_runtime/ops", "device include", "a folder for each operation"),
    ("worker_runtime/groups", "core device include", "process groups"),
    ("worker_runtime/observe", "core include", "what a worker tells its agent, MACs, TensorBoard"),
    ("worker_runtime/device", "core include", "memory, streams and capture: the CPU and GPUs"),
    ("worker_runtime/core", "include", "placement, random numbers, shared libraries"),
    ("worker_runtime/include", "", "installed headers"),
    ("rendezvous/base", "", "descriptors, clock, environment, log: the ground of all three parts"),
    ("rendezvous/include", "", "installed headers: the standard library and tl::expected only"),
]


def _allowed():
    """folder -> folders it may include, and what is wrong with the table itself."""
    order, allowed, problems = [folder for folder, _, _ in FOLDERS], {}, []
    for at, (folder, names, _) in enumerate(FOLDERS):
        part = folder.split("/")[0]
        full = [name if "/" in name else f"{part}/{name}" for name in names.split()]
        problems += [f"include_layers.py: {folder} may not include {name}: it does not stand lower in the table"
                     for name in full if name not in order[at + 1:]]
        allowed[folder] = set(full) | set(ground for ground in GROUND if ground in order[at + 1:])
    return allowed, problems


_WHY = [
    ("rendezvous", "launcher", "the store knows nothing of processes"),
    ("rendezvous", "worker_runtime", "the store knows nothing of training"),
    ("launcher", "worker_runtime", "launcher and worker_runtime share the environment's names (rendezvous/base) and nothing else"),
    ("worker_runtime", "launcher", "launcher and worker_runtime share the environment's names (rendezvous/base) and nothing else"),
    ("worker_runtime", "rendezvous", "the worker runtime uses the store through its public headers and base only"),
]

# (what, header pattern, paths that may include it, reason)
LIBRARIES = [
    ("Boost.Asio", r"boost/(asio|beast)", r"rendezvous/(net|server|agent_client|proxy|wal|status|etcd|musterd)/|rendezvous/base/lifetime\.h|launcher/|tests/",
     "Asio lives in the folders that do I/O; base has the timer of their loops"),
    ("CLI11", r"CLI/", r"rendezvous/musterd/options\.cc$|launcher/ctl/main\.cc$|worker_runtime/examples/|tests/",
     "CLI11 takes 2.4 s to compile and 0.3 ms of each start: one .cc per binary, and none of muster's"),
    ("CUDA", r"(cuda|cublas|cudnn|cooperative_groups|cub/|thrust/|mma\.h|nvtx3)",
     r"worker_runtime/device/cuda/|worker_runtime/device/compute\.cc$|worker_runtime/ops/[\w/]*(cuda_|plan)\w+\.(h|cc)$|worker_runtime/(ops|optim)/[\w/]+\.cuh?$|"
     r"worker_runtime/groups/nccl/|tests/(unit/cuda|gpu|bench)/",
     "CUDA is found, never required: its headers stay in the device files"),
    ("NCCL", r"nccl", r"worker_runtime/groups/nccl/|tests/(unit/cuda|gpu|bench)/",
     "NCCL is loaded at run time by worker_runtime/groups/nccl"),
    ("ncurses", r"n?curses", r"launcher/ctl/top_screen\.cc$|tests/", "ncurses is what musterctl top draws with, and nothing else links it"),
    ("hwloc", r"hwloc", r"launcher/hardware/|tests/", "hwloc is the launcher's library"),
    ("oneDNN", r"(dnnl|oneapi/)", r"worker_runtime/ops/|tests/", "oneDNN computes operations on the CPU"),
]

# Public headers: the C++ standard library, tl::expected and each other.
_STANDARD = re.compile(r"^(tl/expected\.hpp|muster/\w+\.h|[a-z_]+)$")
_PURE_FORBIDDEN = re.compile(
    r"^(boost/(asio|beast)|thread$|mutex$|condition_variable$|future$|sys/(socket|epoll|mman|un|prctl)\.h|"
    r"netinet/|arpa/|netdb\.h|poll\.h|unistd\.h|spawn\.h|fcntl\.h|pthread\.h)")
PURE = re.compile(
    r"rendezvous/(store|protocol|coordinator)/(?!auth|job_secrets)|rendezvous/base/(env_contract|slurm_step|hostlist)|launcher/(job|text)/|"
    r"launcher/hardware/(placement|device_choice)\w*\.|launcher/report/job_report|"
    r"worker_runtime/data/sampler\w*\.(h|cc)$")


def folder_of(name):
    """The folder in the table that a file belongs to; "tests" for tests, None outside the product."""
    parts = name.split("/")
    if parts[0] == "tests":
        return "tests"
    if parts[0] not in ("launcher", "rendezvous", "worker_runtime"):
        return None
    return f"{parts[0]}/{parts[1]}" if len(parts) > 2 else f"{parts[0]}/main"


def _reason(folder, other):
    for source, target, why in _WHY:
        if folder.startswith(source) and other.startswith(target):
            return why
    if other == "tests":
        return "the product does not depend on its tests"
    if folder.endswith("/include"):
        return "installed headers include only the standard library, tl::expected and headers installed with them"
    return f"the table in scripts/checks/include_layers.py does not let {folder} include {other}"


def check_include(name, kind, target, resolved, allowed, used):
    """The reason why `name` may not include `target`, or None."""
    folder = folder_of(name)
    if folder is None:
        return None
    if resolved is None:
        for _, headers, paths, why in LIBRARIES:
            if re.match(headers, target) and not re.match(paths, name):
                return why
        if folder.endswith("/include") and not _STANDARD.match(target):
            return "installed headers include only the standard library, tl::expected and headers installed with them"
        if PURE.match(name) and _PURE_FORBIDDEN.match(target):
            return "this is decision code: it knows no sockets, clocks or threads"
        if kind == '"':
            return "no such file; paths are relative to the repository's root"
        return None
    other = folder_of(resolved)
    if other is None or other == folder or folder == "tests":
        return None
    used.add((folder, other))
    if other in allowed.get(folder, ()):
        if other.endswith("/include") and kind == '"' and "/include/" in target:
            return "public headers are included as <muster/...>, as users do"
        return None
    return _reason(folder, other)


def picture():
    """The folders and what they may include as a mermaid graph; an arrow that follows from two others is left out."""
    allowed, _ = _allowed()
    reach = {}
    for folder, _, _ in reversed(FOLDERS):
        reach[folder] = set().union(*({other} | reach[other] for other in allowed[folder])) if allowed[folder] else set()
    short = {folder: f"{folder[0].upper()}{folder.split('/')[1]}" for folder, _, _ in FOLDERS}
    lines = ["graph TD"]
    for part in ("launcher", "rendezvous", "worker_runtime"):
        names = [f"{short[folder]}[{folder.split('/')[1]}]" for folder, _, _ in FOLDERS if folder.startswith(part + "/")]
        lines += [f"  subgraph {part}", *(f"    {'; '.join(names[i:i + 7])}" for i in range(0, len(names), 7)), "  end"]
    arrows = {}  # folders with the same targets share a line
    for folder, _, _ in FOLDERS:
        direct = {other for other in allowed[folder] if not any(other in reach[between] for between in allowed[folder])}
        if direct:
            arrows.setdefault(" & ".join(sorted(short[other] for other in direct)), []).append(short[folder])
    lines += [f"  {' & '.join(sources)} --> {targets}" for targets, sources in arrows.items()]
    return "\n".join(lines) + "\n"


def run():
    allowed, problems = _allowed()
    used = set()
    for name in source_tree.cpp_files():
        folder = folder_of(name)
        if folder and folder != "tests" and folder not in allowed:
            problems.append(f"{name}:1: the folder {folder} is not in the table of scripts/checks/include_layers.py")
        for line, kind, target in source_tree.includes(name):
            why = check_include(name, kind, target, source_tree.resolve(name, target), allowed, used)
            if why:
                problems.append(f"{name}:{line}: {name} may not include {target} because {why}")
    for folder, others in allowed.items():
        problems += [f"include_layers.py: nothing in {folder} includes {other}: take it out of the table"
                     for other in sorted(others) if other not in GROUND and (folder, other) not in used]
    return problems
