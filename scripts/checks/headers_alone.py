# Every installed header compiles alone, and twice in one file, with the warnings of the tree as errors.
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import os
import pathlib
import subprocess

from . import source_tree


def _compile(header):
    root = next(r for r in source_tree.INCLUDE_ROOTS if header.startswith(r + "/"))
    name = pathlib.PurePosixPath(header).relative_to(root)
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Werror",
               "-x", "c++", "-"]
    # rendezvous must not need the worker runtime's headers.
    for include in source_tree.INCLUDE_ROOTS[: source_tree.INCLUDE_ROOTS.index(root) + 1]:
        command[1:1] = ["-I", str(source_tree.ROOT / include)]
    done = subprocess.run(command, input=f"#include <{name}>\n#include <{name}>\n", text=True, capture_output=True,
                          timeout=120)
    if done.returncode == 0:
        return None
    first = next((line for line in done.stderr.splitlines() if "error" in line), "the compiler failed")
    return f"{header}: does not compile alone: {first.strip()}"


def run():
    headers = [name for name in source_tree.cpp_files()
               if name.endswith(".h") and name.startswith(tuple(r + "/" for r in source_tree.INCLUDE_ROOTS))]
    if not headers:
        return ["no installed headers found"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [problem for problem in pool.map(_compile, headers) if problem]
