# The tracked files of this repository, and their #include lines: what every check starts from.
# SPDX-License-Identifier: Apache-2.0
import functools
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE_ROOTS = ("rendezvous/include", "worker_runtime/include")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


@functools.cache
def tracked_files():
    """Every file git tracks or would track, relative to the root; deleted ones are left out."""
    listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                             check=True, capture_output=True, text=True, timeout=60).stdout
    return sorted(name for name in listing.split("\0") if name and (ROOT / name).is_file())


def cpp_files():
    return [name for name in tracked_files() if pathlib.Path(name).suffix in CPP_SUFFIXES]


@functools.cache
def text(name):
    return (ROOT / name).read_text(encoding="utf-8", errors="replace")


@functools.cache
def includes(name):
    """[(line number, "<" or '"', target as written)]"""
    return [(text(name).count("\n", 0, match.start()) + 1, match[1], match[2])
            for match in _INCLUDE.finditer(text(name))]


def resolve(name, target):
    """The tracked file an #include of `name` names, or None for a system or library header."""
    directory = str(pathlib.PurePosixPath(name).parent)
    for base in (".", directory, *INCLUDE_ROOTS):
        candidate = str(pathlib.PurePosixPath(base) / target)
        if candidate in _tracked_set():
            return candidate
    return None


@functools.cache
def _tracked_set():
    return frozenset(tracked_files())


@functools.cache
def closure(name):
    """`name` and every tracked file it includes, directly or not."""
    seen, queue = {name}, [name]
    while queue:
        for _, _, target in includes(queue.pop()):
            found = resolve(name, target)
            if found and found not in seen:
                seen.add(found)
                queue.append(found)
    return frozenset(seen)
