# ruff over the Python files and shellcheck over the shell scripts.
# SPDX-License-Identifier: Apache-2.0
import shutil
import subprocess

from . import source_tree

_RUFF = source_tree.ROOT / ".venv" / "ruff" / "bin" / "ruff"
# A short list, as .clang-tidy's: each finds defects, none is a matter of taste. Every finding is an error. In tests fixtures are
# imported for pytest's sake and named again as arguments.
_RULES = ["--isolated", "--select=B006,B017,E711,E712,E713,E722,E9,F,PLE", "--per-file-ignores=tests/**:F401,tests/**:F811"]


def _written_in(interpreter, suffix):
    return [name for name in source_tree.tracked_files()
            if name.endswith(suffix) or (source_tree.text(name).startswith("#!") and interpreter in source_tree.text(name).split("\n", 1)[0])]


def _findings(command):
    done = subprocess.run(command, cwd=source_tree.ROOT, text=True, capture_output=True, timeout=120)
    return (done.stdout.splitlines() or [done.stderr.strip()]) if done.returncode else []


def run():
    missing = [tool for tool, there in (("ruff", _RUFF.exists()), ("shellcheck", shutil.which("shellcheck"))) if not there]
    if missing:
        return [f"{tool}: not installed; scripts/setup --full installs it" for tool in missing]
    return (_findings([_RUFF, "check", *_RULES, "--no-cache", "--quiet", "--output-format=concise", *_written_in("python", ".py")])
            + _findings(["shellcheck", "--format=gcc", *_written_in("sh", ".sh")]))
