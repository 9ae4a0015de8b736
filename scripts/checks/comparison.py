# launcher/comparison.md: each cell of muster's that claims something names tests that exist, and each other column has a source.
# SPDX-License-Identifier: Apache-2.0
import re

from . import source_tree

_PAGE = "launcher/comparison.md"
_TEST = re.compile(r"`([\w/.-]+\.(?:py|cc))::([^`]+)`")
_DENIED = re.compile(r"no\b")


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _exists(path, name):
    """A Python function by its name, a C++ test case by its title."""
    file = source_tree.ROOT / "tests" / path
    if not file.is_file():
        return False
    wanted = rf"^ *(async )?def {re.escape(name)}\(" if path.endswith(".py") else rf'TEST_CASE\(\s*"{re.escape(name)}"'
    return re.search(wanted, file.read_text(encoding="utf-8"), re.MULTILINE) is not None


def check(text, exists=_exists):
    problems, head, columns = [], None, set()
    tables, _, sources = text.partition("\n## Sources\n")
    for number, line in enumerate(tables.split("\n"), 1):
        where = f"{_PAGE}:{number}"
        if not line.startswith("|"):
            head = None
            continue
        cells = _cells(line)
        if head is None:
            head = cells
            columns.update(head[2:-1])
            if head[1] != "muster" or head[-1] != "test":
                problems.append(f"{where}: the second column is muster, the last one test")
        elif set(cells[0]) == {"-"}:
            continue
        elif len(cells) != len(head):
            problems.append(f"{where}: {len(cells)} cells below {len(head)}")
        else:
            tests = _TEST.findall(cells[-1])
            if not tests and not _DENIED.match(cells[1]):
                problems.append(f"{where}: '{cells[0]}': no test proves what is said of muster")
            problems += [f"{where}: there is no test {path}::{name}" for path, name in tests if not exists(path, name)]
            problems += [f"{where}: '{cells[0]}': an empty cell" for cell in cells if not cell]
    if not columns:
        problems.append(f"{_PAGE}: no table")
    problems += [f"{_PAGE}: no source with a link for {name}" for name in sorted(columns)
                 if not re.search(rf"^- {re.escape(name)}: <https://", sources, re.MULTILINE)]
    return problems


def run():
    return check(source_tree.text(_PAGE)) if (source_tree.ROOT / _PAGE).is_file() else [f"{_PAGE}: missing"]
