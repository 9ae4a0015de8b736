# The README tells the truth: every path it names exists, its flags are in the launcher's table of options, its exit codes
# are the launcher's.
# SPDX-License-Identifier: Apache-2.0
import re

from . import source_tree

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


def check_flags(text, option_table):
    """Flags of the table under "Flags that matter" against launcher/cli/option_table.h."""
    known = set(re.findall(r'OptionRow\{\s*"([\w-]+)"', option_table))
    section = text.partition("## Flags that matter")[2].partition("###")[0]
    rows = [line.split("|")[1] for line in section.split("\n") if line.startswith("| `")]
    return [f"README.md: the launcher has no option --{flag}"
            for row in rows for flag in re.findall(r"--([\w-]+)", row) if flag not in known]


def check_exit_codes(text, exit_status):
    """The rows under "Exit codes" against kExitCodes of launcher/job/exit_status.h, both ways."""
    numbers = dict(re.findall(r"int (kExit\w+) = (\d+);", exit_status))
    truth = {(numbers[name], meaning) for name, meaning in re.findall(r'ExitCode\{(kExit\w+), "([^"]+)"\}', exit_status)}
    section = text.partition("### Exit codes")[2].partition("###")[0]
    written = set(re.findall(r"^\| (\d+) \| (.+?) \|$", section, re.MULTILINE))
    return [f"README.md: exit code {code} ({meaning}) is not in launcher/job/exit_status.h" for code, meaning in written - truth] + \
           [f"README.md: exit code {code} ({meaning}) of launcher/job/exit_status.h is missing" for code, meaning in truth - written]


def run():
    readme = source_tree.ROOT / "README.md"
    if not readme.is_file():
        return ["README.md: missing"]
    text = readme.read_text(encoding="utf-8")
    problems = check("README.md", text)
    for path, compare in (("launcher/cli/option_table.h", check_flags), ("launcher/job/exit_status.h", check_exit_codes)):
        if (source_tree.ROOT / path).is_file():
            problems += compare(text, source_tree.text(path))
    if _TABLE not in text.lower():
        problems.append('README.md: the table "to change X -> file -> its test" is missing')
    return problems
