# Which test programs hold the tests that a pattern names, read from the sources: nothing has to be built to know it.
# SPDX-License-Identifier: Apache-2.0
import re

from . import source_tree

_PROGRAM = re.compile(r"muster_test\((\w+)\s+LABEL (\w+)(.*?)\)\s*$", re.DOTALL | re.MULTILINE)
_CASE = re.compile(r'TEST_CASE(?:_METHOD)?\(\s*(?:\w+,\s*)?((?:"(?:[^"\\]|\\.)*"\s*)+)')
_FUNCTION = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def programs():
    """(program, label, its sources) of every muster_test() of the tree."""
    for name in source_tree.tracked_files():
        if not name.startswith("tests/") or not name.endswith("/CMakeLists.txt"):
            continue
        folder = name.rsplit("/", 1)[0]
        for program, label, rest in _PROGRAM.findall(source_tree.text(name)):
            yield program, label, [f"{folder}/{source}" for source in re.findall(r"(?<![\w/}])\w+_test\.cc", rest)]


def cases(source):
    """Names of the tests in a source."""
    text = source_tree.text(source) if source in source_tree.tracked_files() else ""
    for match in _CASE.finditer(text):
        yield "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match[1]))


def find(pattern):
    """(test programs, pytest files) with a test whose name matches the regular expression."""
    regex = re.compile(pattern)
    chosen = [program for program, label, sources in programs()
              if label != "gpu" and any(regex.search(f"{label}/{program}:{case}") for source in sources for case in cases(source))]
    files = [name for name in source_tree.tracked_files() if re.match(r"tests/(system|interop|slurm)/test_\w+\.py$", name)
             and (regex.search(name) or any(regex.search(f"{name}::{function}") or function in pattern
                                            for function in _FUNCTION.findall(source_tree.text(name))))]
    return chosen, files
