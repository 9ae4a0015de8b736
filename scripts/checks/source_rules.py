# Rules a file can be judged by alone: licence line, characters, leftovers, scripts that say what they do.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import re

from . import selection, source_tree

_CODE_SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".cmake", ".sh", ".c"}
_SPDX = "SPDX-License-Identifier: Apache-2.0"
# Written in halves so that this file does not report itself.
_LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def _is_script(name):
    path = pathlib.PurePosixPath(name)
    return path.parts[0] == "scripts" and len(path.parts) == 2 or name == ".ci/run"


def is_code(name):
    path = pathlib.PurePosixPath(name)
    if name.startswith("tests/data/"):
        return False
    return path.suffix in _CODE_SUFFIXES or path.name == "CMakeLists.txt" or _is_script(name)


def _lines_in_raw_strings(text):
    """1-based numbers of the lines on which a C++ raw string goes on: their white space is the program's."""
    return {number for match in re.finditer(r'R"(\w*)\(.*?\)\1"', text, re.DOTALL)
            for number in range(text.count("\n", 0, match.start()) + 1, text.count("\n", 0, match.end()) + 1)}


def _check_code(name, text):
    lines = text.split("\n")
    raw = _lines_in_raw_strings(text)
    if not any(_SPDX in line for line in lines[:6]):
        yield 1, f"no '{_SPDX}' in the first lines"
    for number, line in enumerate(lines, 1):
        if line != line.rstrip() and number not in raw:
            yield number, "white space at the end of the line"
        if "\t" in line:
            yield number, "tab character"
        if not line.isascii():
            yield number, "character outside ASCII: " + ascii(next(c for c in line if not c.isascii()))
        if match := _LEFTOVER.search(line):
            yield number, f"'{match[0]}' left in the tree: do it, or write an issue"
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end of the file"


def _check_script(name, text):
    if not os.access(source_tree.ROOT / name, os.X_OK):
        yield 1, f"not executable: chmod +x {name}"
    lines = text.split("\n")
    if not lines[0].startswith("#!"):
        yield 1, "no #! line"
    if len(lines) < 2 or not re.match(r"# [A-Z].{20,}\.?$", lines[1]) or "SPDX" in lines[1]:
        yield 2, "the line after #! says in one sentence what the script does"


def _forgotten_tests():
    """Test files that no CMakeLists.txt builds, test folders that tests/CMakeLists.txt does not enter, names that split."""
    lists = {name: source_tree.text(name) for name in source_tree.tracked_files()
             if name.startswith("tests/") and name.endswith("/CMakeLists.txt") and not name.startswith("tests/embed/")}
    everything = "\n".join(lists.values())
    for name in source_tree.cpp_files():
        path = pathlib.PurePosixPath(name)
        if path.parts[0] == "tests" and re.search(r"_(test|fuzz)\.cc$", path.name) and path.name not in everything:
            yield f"{name}:1: in no CMakeLists.txt: it never runs"
    for name in lists:
        folder = str(pathlib.PurePosixPath(name).parent.relative_to("tests"))
        if folder not in (".", "bench") and not re.search(rf"[ (/]{re.escape(folder)}[ )\n/]", lists["tests/CMakeLists.txt"]):
            yield f"{name}:1: tests/CMakeLists.txt does not add this folder"
    for source in sorted({source for _, _, sources in selection.programs() for source in sources}):
        for case in selection.cases(source):
            if ";" in case:
                yield f"{source}:1: '{case}': ctest takes it for two tests, and each for passed without running any"


def run():
    problems = list(_forgotten_tests())
    for name in source_tree.tracked_files():
        if not is_code(name):
            continue
        text = source_tree.text(name)
        found = list(_check_code(name, text))
        if _is_script(name):
            found += _check_script(name, text)
        problems += [f"{name}:{line}: {what}" for line, what in found]
    return problems
