# clang-tidy with the short list of .clang-tidy over the product's sources, in the dozens that the preset compiles as one: a third
# of the time. A dozen is judged again only when a file of it, a header of this tree that it includes, the list, clang-tidy or an
# installed library changed: the verdicts "clean" are remembered in the user's cache, for every checkout.
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import time

from . import source_tree

_CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "muster" / "lint"
_KEPT_DAYS = 30
_DATABASE = source_tree.ROOT / "build" / "tidy"
_UNIT_TIMEOUT = 600  # seconds, for twelve sources
_CLANG_TIDY = source_tree.ROOT / ".venv" / "clang-tidy" / "clang_tidy" / "data" / "bin" / "clang-tidy"  # a pinned wheel


def _configure():
    # Each time: a database that is there may not know the newest files, which nobody would judge then.
    # clang-tidy reads clang's flags, not g++'s, and not the precompiled headers of another clang.
    command = ["cmake", "--preset", "asan", "-B", str(_DATABASE), "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON", "-DMUSTER_TESTS=OFF"]
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


def _sources(path):
    """The files of this tree that a compiled one consists of: itself, or what a unity source includes."""
    if "Unity" not in path.parts:
        return [str(path.relative_to(source_tree.ROOT))]
    included = re.findall(r'^#include "(.*)"$', path.read_text(), re.MULTILINE)
    return [str(pathlib.Path(name).relative_to(source_tree.ROOT)) for name in included]


def _key(path, command):
    digest = hashlib.sha256(_tools() + command.replace(str(source_tree.ROOT), ".").encode())
    known = source_tree.cpp_files()
    parts = {part for name in _sources(path) if name in known for part in source_tree.closure(name)}
    for part in [".clang-tidy", *sorted(parts)]:
        digest.update(part.encode())
        digest.update((source_tree.ROOT / part).read_bytes())
    return digest.hexdigest()


def _check(job):
    path, command = job
    remembered = _CACHE / _key(path, command)
    if remembered.exists():
        remembered.touch()
        return []
    try:
        done = subprocess.run([_CLANG_TIDY, "--quiet", "-p", str(_DATABASE), path], cwd=source_tree.ROOT, text=True,
                              capture_output=True, timeout=_UNIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        return [f"clang-tidy took more than {_UNIT_TIMEOUT} s for {', '.join(_sources(path))}"]
    if done.returncode == 0:
        remembered.touch()
        return []
    found = [line for line in done.stdout.splitlines() if ": error:" in line or ": warning:" in line]
    return [line.replace(str(source_tree.ROOT) + "/", "") for line in found] or [f"{path}: {done.stderr.strip()[-500:]}"]


def run():
    if not _CLANG_TIDY.exists():
        return ["clang-tidy: not installed; scripts/setup --full installs it"]
    if problem := _configure():
        return [problem]
    jobs = []
    for entry in json.loads((_DATABASE / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(source_tree.ROOT) and path.suffix in (".cc", ".cxx"):
            jobs.append((path, entry.get("command", "")))
    _CACHE.mkdir(parents=True, exist_ok=True)
    _forget_old()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return sorted({problem for found in pool.map(_check, jobs) for problem in found})
