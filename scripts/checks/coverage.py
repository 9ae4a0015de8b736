#!/usr/bin/env python3
# Prints which share of each folder's lines ran under the tests of build/asan, whose programs wrote their counts to
# build/asan/profile (clang's source-based coverage). Run by scripts/test --full. A process that was killed, or that cleared its
# environment, wrote nothing; the tests from outside are not counted: they run the programs of build/dev.
# SPDX-License-Identifier: Apache-2.0
import collections
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "asan"
PROFILE = TREE / "profile"
PARTS = ("launcher", "rendezvous", "worker_runtime")


def _llvm(tool):
    for name in (tool, f"{tool}-14", f"/usr/lib/llvm-14/bin/{tool}"):
        if found := shutil.which(name):
            return found
    sys.exit(f"coverage: {tool} is not installed; scripts/setup --full installs it")


def _programs():
    return [path for path in sorted((TREE / "bin").iterdir()) if path.read_bytes()[:4] == b"\x7fELF" and not path.name.startswith("fuzz_")]


def _files():
    """(path in the tree, lines, covered lines) of every source that a program was built from."""
    merged = PROFILE / "merged.profdata"
    raw = [path for path in PROFILE.glob("*.profraw") if path.stat().st_size]
    if not raw:
        sys.exit(f"coverage: no counts under {PROFILE}; run scripts/test --full")
    subprocess.run([_llvm("llvm-profdata"), "merge", "-sparse", "-o", merged, *raw], check=True)
    first, *others = _programs()
    command = [_llvm("llvm-cov"), "export", "-summary-only", f"-instr-profile={merged}", "-ignore-filename-regex=/tests/|^/usr/", first]
    for program in others:
        command += ["-object", program]
    # Of what it says besides, that a test's copy of an inline function differs, nothing is shown.
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"coverage: {done.stderr}")
    for entry in json.loads(done.stdout)["data"][0]["files"]:
        path = (TREE / entry["filename"]).resolve()  # relative to the tree where ccache made it so
        if path.is_relative_to(ROOT):
            lines = entry["summary"]["lines"]
            yield path.relative_to(ROOT), lines["count"], lines["covered"]


def main():
    counts = collections.defaultdict(lambda: [0, 0])
    for path, lines, covered in _files():
        if path.parts[0] in PARTS:
            for name in (path.parts[0], "/".join(path.parts[:2]) if len(path.parts) > 2 else f"{path.parts[0]}/main"):
                counts[name][0] += lines
                counts[name][1] += covered
    print("   lines  covered  folder")
    for name in sorted(counts):
        lines, covered = counts[name]
        print(f"{lines:8d}  {100 * covered / lines:6.1f} %  {name}")


main()
