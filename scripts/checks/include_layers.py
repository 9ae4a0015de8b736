# The include-layer check: includes point down only, and libraries stay in the folders that own them.
# SPDX-License-Identifier: Apache-2.0
import re

from . import source_tree

# (layer, path pattern); the first match decides. Lower layers know nothing of higher ones.
LAYERS = [
    ("rendezvous/include", r"rendezvous/include/"),
    ("rendezvous/base", r"rendezvous/base/"),
    ("rendezvous/net", r"rendezvous/net/"),
    ("musterd", r"rendezvous/\w*main\.cc$"),
    ("env_contract", r"rendezvous/env_contract\.h$"),
    ("slurm_step", r"rendezvous/(slurm_step|hostlist)\.(h|cc)$"),
    ("rendezvous", r"rendezvous/"),
    ("launcher/ctl", r"launcher/ctl/"),
    ("launcher", r"launcher/"),
    ("worker_runtime/include", r"worker_runtime/include/"),
    ("worker_runtime/examples", r"worker_runtime/examples/"),
    ("worker_runtime/training", r"worker_runtime/training/"),
    ("worker_runtime/observe", r"worker_runtime/observe/"),
    ("worker_runtime/nn", r"worker_runtime/nn/"),
    ("worker_runtime/kernels", r"worker_runtime/kernels/"),
    ("worker_runtime/groups", r"worker_runtime/groups/"),
    ("worker_runtime/core", r"worker_runtime/core/"),
    ("tests", r"tests/"),
]

_RENDEZVOUS = {"rendezvous/include", "rendezvous/base", "env_contract", "slurm_step", "rendezvous"}
_WORKER_GROUND = {"rendezvous/include", "rendezvous/base", "env_contract", "slurm_step", "worker_runtime/include"}
_WORKER = {layer for layer, _ in LAYERS if layer.startswith("worker_runtime/")} - {"worker_runtime/examples"}

# layer -> layers it may include besides itself
ALLOWED = {
    "rendezvous/include": set(),
    "rendezvous/base": {"rendezvous/include"},
    "env_contract": {"rendezvous/include", "rendezvous/base"},
    "slurm_step": {"rendezvous/include", "rendezvous/base"},
    "rendezvous": _RENDEZVOUS,
    "rendezvous/net": _RENDEZVOUS,
    "musterd": _RENDEZVOUS | {"rendezvous/net"},
    "launcher": _RENDEZVOUS | {"rendezvous/net"},
    "launcher/ctl": _RENDEZVOUS | {"rendezvous/net", "launcher"},
    "worker_runtime/include": {"rendezvous/include"},
    "worker_runtime/core": _WORKER_GROUND,
    "worker_runtime/groups": _WORKER_GROUND | {"worker_runtime/core", "worker_runtime/kernels"},
    "worker_runtime/kernels": _WORKER_GROUND | {"worker_runtime/core"},
    "worker_runtime/nn": _WORKER_GROUND | {"worker_runtime/core", "worker_runtime/kernels"},
    "worker_runtime/observe": _WORKER_GROUND | {"worker_runtime/core"},
    "worker_runtime/training": _WORKER_GROUND | _WORKER,
    "worker_runtime/examples": _WORKER_GROUND | _WORKER,
}

_WHY = [
    ("rendezvous", "launcher", "the store knows nothing of processes"),
    ("rendezvous", "worker_runtime", "the store knows nothing of training"),
    ("launcher", "worker_runtime", "launcher and worker_runtime share the environment's words (env_contract.h, slurm_step.h) and nothing else"),
    ("worker_runtime", "launcher", "launcher and worker_runtime share the environment's words (env_contract.h, slurm_step.h) and nothing else"),
    ("worker_runtime", "rendezvous", "the worker runtime uses the store through its public headers and base only"),
]

# (what, header pattern, paths that may include it, reason)
LIBRARIES = [
    ("Boost.Asio", r"boost/(asio|beast)", r"rendezvous/net/|launcher/|rendezvous/\w*main\.cc$|tests/",
     "Asio lives in rendezvous/net and in the launcher's ring of I/O"),
    ("CLI11", r"CLI/", r"rendezvous/\w*main\.cc$|launcher/(main|options)\.cc$|launcher/ctl/|worker_runtime/examples/|tests/",
     "CLI11 takes 2.4 s to compile: one .cc per binary"),
    ("CUDA", r"(cuda|cublas|cudnn|cooperative_groups|cub/|thrust/|mma\.h|nvToolsExt)",
     r"worker_runtime/core/cuda|worker_runtime/kernels/cuda/|worker_runtime/nn/\w*cuda|worker_runtime/training/\w*cuda|"
     r"worker_runtime/groups/nccl|tests/(unit/cuda|gpu|bench)/",
     "CUDA is found, never required: its headers stay in the device files"),
    ("NCCL", r"nccl", r"worker_runtime/groups/nccl|tests/(unit/cuda|gpu|bench)/",
     "NCCL is loaded at run time by worker_runtime/groups/nccl*"),
    ("hwloc", r"hwloc", r"launcher/|tests/", "hwloc is the launcher's library"),
    ("oneDNN", r"(dnnl|oneapi/)", r"worker_runtime/(kernels|nn)/|tests/", "oneDNN is one of the CPU kernels' libraries"),
]

# Public headers: the C++ standard library, tl::expected and each other.
_STANDARD = re.compile(r"^(tl/expected\.hpp|muster/\w+\.h|[a-z_]+)$")
_PURE_FORBIDDEN = re.compile(
    r"^(boost/(asio|beast)|thread$|mutex$|condition_variable$|future$|sys/(socket|epoll|mman|un|prctl)\.h|"
    r"netinet/|arpa/|netdb\.h|poll\.h|unistd\.h|spawn\.h|fcntl\.h|pthread\.h)")
PURE = re.compile(
    r"rendezvous/(wire|store_core|session|membership|control|env_contract|slurm_step|hostlist)\w*\.(h|cc)$|"
    r"launcher/(job|placement|device_choice|worker_env|restart_policy|stop_ladder|exit_status|root_cause|line_splitter|slurm_allocation|cpu_shortage|step_options|step_command)\w*\.(h|cc)$|"
    r"worker_runtime/training/(bucket_plan|sampler)\w*\.(h|cc)$")


def layer_of(name):
    for layer, pattern in LAYERS:
        if re.match(pattern, name):
            return layer
    return None


def _reason(layer, other):
    for source, target, why in _WHY:
        if layer.startswith(source) and other.startswith(target):
            return why
    if other == "tests":
        return "the product does not depend on its tests"
    if layer.endswith("/include"):
        return "installed headers include only the standard library, tl::expected and headers installed with them"
    return "includes point down only: " + layer + " is below " + other


def check_include(name, kind, target, resolved):
    """The reason why `name` may not include `target`, or None."""
    layer = layer_of(name)
    if layer is None:
        return None
    if resolved is None:
        for _, headers, paths, why in LIBRARIES:
            if re.match(headers, target) and not re.match(paths, name):
                return why
        if layer.endswith("/include") and not _STANDARD.match(target):
            return "installed headers include only the standard library, tl::expected and headers installed with them"
        if PURE.match(name) and _PURE_FORBIDDEN.match(target):
            return "this is decision code: it knows no sockets, clocks or threads"
        if kind == '"':
            return "no such file; paths are relative to the repository's root"
        return None
    other = layer_of(resolved)
    if other is None or other == layer:
        return None
    if layer == "tests":
        return None
    if other in ALLOWED[layer]:
        if other.endswith("/include") and kind == '"' and "/include/" in target:
            return "public headers are included as <muster/...>, as users do"
        return None
    return _reason(layer, other)


def run():
    problems = []
    for name in source_tree.cpp_files():
        for line, kind, target in source_tree.includes(name):
            why = check_include(name, kind, target, source_tree.resolve(name, target))
            if why:
                problems.append(f"{name}:{line}: {name} may not include {target} because {why}")
    return problems
