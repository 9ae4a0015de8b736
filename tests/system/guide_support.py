# SPDX-License-Identifier: Apache-2.0
"""The two guides of the worker runtime as what they tell a reader to type, and what they say he will see."""
import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDES = {language: (ROOT / "worker_runtime" / name).read_text() for language, name in
          (("en", "guide.md"), ("zh", "guide.zh.md"))}
# Words after ```console: what a block needs.
HERE = {
    None: "nothing",
    "four-gpus": "GPUs, described to the launcher by the tests' management library",
    "images": "a folder of images, which the test makes",
}
ELSEWHERE = {
    "slurm": "run by tests/slurm",
    "package": "run by test_package.py",
    "gpu": "a GPU",
    "host": "another host",
    "server": "a server of somebody else: Prometheus, Grafana, a container runtime",
}
_FENCE = re.compile(r"^```(\w+)(?: ([\w-]+))?\n(.*?)^```$", re.M | re.S)


class Block:
    """A fence: its commands, which start with "$ ", and the lines that they print."""

    def __init__(self, section, marker, text):
        self.section, self.marker = section, marker
        lines = text.splitlines()
        self.commands = [line[2:] for line in lines if line.startswith("$ ")]
        self.output = [line for line in lines if not line.startswith("$ ") and line != "..."]
        self.is_whole = "..." not in lines


def fences(text, language):
    """(section's number, marker, text) of each fence of that language."""
    for part in re.split(r"^## (?=\d)", text, flags=re.M)[1:]:
        number = int(part.split(".", 1)[0])
        for match in _FENCE.finditer(part):
            if match[1] == language:
                yield number, match[2], match[3]


def blocks(text):
    found = [Block(*fence) for fence in fences(text, "console")]
    assert all(block.marker in {**HERE, **ELSEWHERE} for block in found), [block.marker for block in found]
    return found


# What another run prints otherwise: measured numbers, digests, process numbers, the CPU's kind, the widths of columns.
_VARIES = {
    r"\s+": r"\s+",
    r"[0-9a-f]{16,}": "[0-9a-f]{16,}",
    r"\d[\d,]*\.\d+(?:e[-+]?\d+)?|\d+(?= +(?:it/s|images/s|ms|s)\b)": r"[\d.,e+-]+",
    r"(?<=pid )\d+|(?<=\()\d+(?= of)|\b\d+(?=s\b)|(?<=\} )\d+|(?<=ETA )\d+:\d+": r"[\d:]+",
    r"\(avx\w*\)": r"\(\w+\)",
}


def pattern(line):
    """A regular expression for a line of output: what varies may be something else, the rest is as it stands."""
    out, at = "", 0
    for match in re.finditer("|".join(f"({varying})" for varying in _VARIES), line):
        out += re.escape(line[at:match.start()]) + list(_VARIES.values())[match.lastindex - 1]
        at = match.end()
    return (out + re.escape(line[at:])).removesuffix(re.escape("...")) + (".*" if line.endswith("...") else "")


def differences(block, printed):
    """Lines that the guide shows and the commands did not print; of a block without "..." also those that it does not show.
    Ranks write in any order."""
    left = [line.strip() for line in printed.splitlines()]
    missing = []
    for line in block.output:
        found = next((other for other in left if re.fullmatch(pattern(line.strip()), other)), None)
        if found is None:
            missing.append(line)
        else:
            left.remove(found)
    return missing + (left if block.is_whole else [])


def environment(bin_dir, folder, env, **extra):
    """In which a reader's shell runs the commands: the programs are on his path."""
    (folder / "home").mkdir(exist_ok=True)
    return {**env, "PATH": f"{bin_dir}:{env['PATH']}", "HOME": str(folder / "home"), "TMPDIR": str(folder),
            "XDG_STATE_HOME": str(folder / "home/state"), **{name: str(value) for name, value in extra.items()},
            **{name: os.environ[name] for name in ("ASAN_OPTIONS",) if name in os.environ}}
