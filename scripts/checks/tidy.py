# clang-tidy with the short list of .clang-tidy over the product's sources. A file is judged again only when it, a
# header of this tree that it includes, the list, clang-tidy or an installed library changed: the verdicts "clean" are
# remembered in the user's cache, for every checkout.
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import time

from . import source_tree

_CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "muster" / "lint"
_KEPT_DAYS = 30
_DATABASE = source_tree.ROOT / "build" / "tidy"
_FILE_TIMEOUT = 400  # the slowest takes 15 s on an idle machine
_CLANG_TIDY = source_tree.ROOT / ".venv" / "clang-tidy" / "clang_tidy" / "data" / "bin" / "clang-tidy"  # a pinned wheel


def _configure():
    # Each time: a database that is there may not know the newest files, which nobody would judge then.
    # clang-tidy reads clang's flags, not g++'s, and not the precompiled headers of another clang.
    command = ["cmake", "--preset", "asan", "-B", str(_DATABASE), "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON"]
    done = subprocess.run(command, cwd=source_tree.ROOT, text=True, capture_output=True, timeout=300)
    return None if done.returncode == 0 else f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}"


@functools.cache
def _tools():
    """What judges: clang-tidy, and the headers of the system."""
    commands = ([_CLANG_TIDY, "--version"], ["dpkg-query", "--show", "*-dev", "libstdc++*"])
    return b"".join(subprocess.run(command, capture_output=True, timeout=60).stdout for command in commands)


def _forget_old():
    for path in _CACHE.iterdir():
        if path.stat().st_mtime < time.time() - _KEPT_DAYS * 86400:
            path.unlink(missing_ok=True)


def _key(name, command):
    digest = hashlib.sha256(_tools() + command.replace(str(source_tree.ROOT), ".").encode())
    for part in [".clang-tidy", *sorted(source_tree.closure(name))]:
        digest.update(part.encode())
        digest.update((source_tree.ROOT / part).read_bytes())
    return digest.hexdigest()


def _check(job):
    name, command = job
    remembered = _CACHE / _key(name, command)
    if remembered.exists():
        remembered.touch()
        return []
    try:
        done = subprocess.run([_CLANG_TIDY, "--quiet", "-p", str(_DATABASE), name], cwd=source_tree.ROOT, text=True,
                              capture_output=True, timeout=_FILE_TIMEOUT)
    except subprocess.TimeoutExpired:
        return [f"{name}: clang-tidy took more than {_FILE_TIMEOUT} s"]
    if done.returncode == 0:
        remembered.touch()
        return []
    found = [line for line in done.stdout.splitlines() if ": error:" in line or ": warning:" in line]
    return [line.replace(str(source_tree.ROOT) + "/", "") for line in found] or [f"{name}: {done.stderr.strip()[-500:]}"]


def run(only=()):
    if not _CLANG_TIDY.exists():
        return ["clang-tidy: not installed; scripts/setup --full installs it"]
    if problem := _configure():
        return [problem]
    commands = {}
    for entry in json.loads((_DATABASE / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(source_tree.ROOT):
            commands[str(path.relative_to(source_tree.ROOT))] = entry.get("command", "")
    names = [name for name in source_tree.cpp_files()
             if name in commands and not name.startswith("tests/") and (not only or name in only)]
    _CACHE.mkdir(parents=True, exist_ok=True)
    _forget_old()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = pool.map(_check, [(name, commands[name]) for name in names])
        return sorted({problem for found in results for problem in found})
