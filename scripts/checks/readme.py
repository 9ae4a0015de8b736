# The READMEs tell the truth: every path that the root's names exists, and the tables of launcher/reference.md are the code's.
# SPDX-License-Identifier: Apache-2.0
import re

from . import daemon_reference, reference, source_tree

# In backticks, starting with a folder of the root; wildcards and {a,b} allowed.
_PATH = re.compile(r"`((?:launcher|rendezvous|worker_runtime|tests|scripts|\.ci)/[^\s`]*)")
_TABLE = "to change"


def _expand(pattern):
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    return [result for choice in match[1].split(",")
            for result in _expand(pattern[:match.start()] + choice + pattern[match.end():])]


def check(name, text):
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        for match in _PATH.finditer(line):
            for path in _expand(match[1].rstrip(".,:;")):
                found = list(source_tree.ROOT.glob(path.rstrip("/"))) if "*" in path else \
                    (source_tree.ROOT / path).exists()
                if not found:
                    problems.append(f"{name}:{number}: there is no {path}")
    return problems


def run():
    readme = source_tree.ROOT / "README.md"
    if not readme.is_file():
        return ["README.md: missing"]
    text = readme.read_text(encoding="utf-8")
    problems = check("README.md", text)
    problems += reference.run() + daemon_reference.run()
    if _TABLE not in text.lower():
        problems.append('README.md: the table "to change X -> file -> its test" is missing')
    return problems
