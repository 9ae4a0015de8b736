# clang-format over the tracked C++ and CUDA sources: checks, or rewrites.
# SPDX-License-Identifier: Apache-2.0
import shutil
import subprocess

from . import source_tree


def files(only=()):
    names = source_tree.cpp_files()
    return [name for name in names if not only or name in only or any(name.startswith(o.rstrip("/") + "/") for o in only)]


def run(only=()):
    if not shutil.which("clang-format"):
        return ["clang-format: not installed; scripts/setup installs it"]
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", "--ferror-limit=1", *files(only)], cwd=source_tree.ROOT,
                          text=True, capture_output=True, timeout=300)
    problems = [line.split(": error:")[0] + ": not formatted; run scripts/format"
                for line in done.stderr.splitlines() if ": error:" in line]
    if done.returncode and not problems:
        problems = [done.stderr.strip() or "clang-format failed"]
    return problems


def rewrite(only=()):
    subprocess.run(["clang-format", "-i", *files(only)], cwd=source_tree.ROOT, check=True, timeout=300)
