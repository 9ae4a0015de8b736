# SPDX-License-Identifier: Apache-2.0
"""100 MB from 8 ranks that write as fast as they can: every line whole and exactly once, wherever output goes."""
import os
import re
import struct
import subprocess

import pytest

from launcher_support import MUSTER, alive, children_named, clean_environment, let_go, muster, rotated, wait_for

RANKS, BLOCKS, BLOCK = 8, 640, 200  # of 100 bytes each: 102 MB

FLOOD = f"""
import os
rank = os.environb[b"RANK"]
for block in range({BLOCKS}):
    lines = b"".join(b"%s %07d %s\\n" % (rank, block * {BLOCK} + i, b"x" * 89) for i in range({BLOCK}))
    while lines:
        lines = lines[os.write(1, lines):]
"""


def lines_of(rank, count=BLOCKS * BLOCK, first=0):
    return b"".join(b"%d %07d %s\n" % (rank, i, b"x" * 89) for i in range(first, count))


def run(muster, *options, text=FLOOD, timeout=120):
    script = muster.script("flood.py", text)
    result = subprocess.run([MUSTER, f"--nproc-per-node={RANKS}", *map(str, options), script], env=clean_environment(),
                            cwd=muster.tmp_path, capture_output=True, timeout=timeout)
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout


ROTATE = ("--log-max-size=1M", "--log-keep=100")


@pytest.mark.parametrize("rotation", [(), ROTATE], ids=["", "rotated"])
def test_teed_lines_are_shown_and_written_whole_and_once(muster, rotation):
    logs = muster.tmp_path / "logs"
    shown = run(muster, "-t", "1", "--log-dir", logs, *rotation)
    by_rank = {rank: [] for rank in range(RANKS)}
    prefix = re.compile(rb"\[default(\d)\]:(.*\n)")
    for line in shown.splitlines(keepends=True):
        match = prefix.fullmatch(line)
        assert match, line
        by_rank[int(match[1])].append(match[2])
    for rank in range(RANKS):
        expected = lines_of(rank)
        assert b"".join(by_rank[rank]) == expected
        (path,) = logs.glob(f"*/attempt_0/{rank}/stdout.log")
        assert rotated(path) == expected
        if rotation:
            files = sorted(path.parent.glob("stdout.log*"))
            assert len(files) == 13
            assert all(p.stat().st_size <= (1 << 20) + len(lines_of(rank, 1)) and p.read_bytes()[-1:] == b"\n" for p in files)
            assert next(logs.glob(f"*/generation_0/*/{rank}.out")).samefile(path)


@pytest.mark.parametrize("rotation", [(), ROTATE], ids=["", "rotated"])
def test_rank0_shows_rank_0_whole_and_the_files_have_all(muster, rotation):
    logs = muster.tmp_path / "logs"
    assert run(muster, "--view=rank0", *(("--log-dir", logs, *rotation) if rotation else ())).replace(b"[default0]:", b"") == lines_of(0)
    if rotation:
        for rank in range(RANKS):
            (path,) = logs.glob(f"*/attempt_0/{rank}/stdout.log")
            assert rotated(path) == lines_of(rank)


@pytest.mark.parametrize("rotation", [(), ROTATE], ids=["", "rotated"])
def test_fold_shows_each_line_of_each_rank_once_and_in_order(muster, rotation):
    """Half of the lines are the same for all ranks, wherever those stand. A quarter of the others' bytes, as ranks out of step are read slowly."""
    text = FLOOD.replace("rank, block", "rank if i % 2 else b'-', block").replace(f"range({BLOCKS})", f"range({BLOCKS // 4})")
    shown = run(muster, "--view=fold", *(("--log-dir", muster.tmp_path / "logs", *rotation) if rotation else ()), text=text)
    label = re.compile(rb"\[(?:default(\d)|x8|x\d ([\d,-]+))\]:(\d|-) (\d{7}) x{89}")
    groups, seen, everybody = {}, [0] * RANKS, range(RANKS)
    for line in shown.splitlines():
        match = label.fullmatch(line)
        assert match, line
        who = (match[1], match[2])
        if who not in groups:
            spans = [part.split(b"-") for part in (match[2] or b"").split(b",") if part]
            groups[who] = [int(match[1])] if match[1] else [r for s in spans for r in range(int(s[0]), int(s[-1]) + 1)] or everybody
        number = int(match[4])
        assert (match[3] == b"-") == (number % 2 == 0)
        for rank in groups[who]:
            assert number == seen[rank], line
            seen[rank] += 1
    assert seen == [BLOCKS // 4 * BLOCK] * RANKS


ENDLESS = """
import itertools, mmap, os, struct
rank = os.environb[b"RANK"]
with open("written." + rank.decode(), "w+b") as file:
    file.write(bytes(8)); file.flush()
    written = mmap.mmap(file.fileno(), 8)  # outlives this process
os.write(2, b"pid %d\\n" % os.getpid())
for block in itertools.count():
    if block == 50:
        open("go").read()  # so that no rank is ahead of the others by more than this
    lines = b"".join(b"%s %07d %s\\n" % (rank, block * 200 + i, b"x" * 89) for i in range(200))
    while lines:
        n = os.write(1, lines)
        lines = lines[n:]
        struct.pack_into("q", written, 0, struct.unpack_from("q", written)[0] + n)
"""


@pytest.mark.parametrize("rotation", [(), ("--log-max-size=256K", "--log-keep=9999")], ids=["", "rotated"])
def test_what_workers_had_written_is_in_the_files_when_the_launcher_is_killed(muster, rotation):
    logs = muster.tmp_path / "logs"
    script = muster.script("endless.py", ENDLESS)
    os.mkfifo(muster.tmp_path / "go")
    process = subprocess.Popen([MUSTER, f"--nproc-per-node={RANKS}", "-t3", "--log-dir", logs, *rotation, script], env=clean_environment(),
                               cwd=muster.tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    muster.started.append(process)
    pids = [int(re.fullmatch(rb"\[default\d\]:pid (\d+)\n", process.stderr.readline())[1]) for _ in range(RANKS)]
    written = lambda rank: struct.unpack("q", (muster.tmp_path / f"written.{rank}").read_bytes())[0]
    wait_for(lambda: all(written(rank) == 1_000_000 for rank in range(RANKS)), "a megabyte from each", 60)
    let_go(muster.tmp_path / "go")  # whoever waits in open() goes on; one of them is enough
    wait_for(lambda: any(written(rank) > 1_500_000 for rank in range(RANKS)), "more of it")
    writers = children_named(process.pid, "job-logs")
    assert len(writers) == (1 if rotation else 0)
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(alive, pids + writers)), "workers and the log writer to be gone")
    for rank in range(RANKS):
        (path,) = logs.glob(f"*/attempt_0/{rank}/stdout.log")
        found = rotated(path)
        # A write that was under way when the worker was killed may be there, too, or a part of it.
        assert len(found) >= written(rank) >= 1_000_000
        assert found == lines_of(rank, len(found) // 99 + 1)[:len(found)]
