# SPDX-License-Identifier: Apache-2.0
"""Output that is hard to show as lines, in every view: binary bytes, progress bars, long lines, colours, no end."""
import os
import pty
import re
import resource
import subprocess

import pytest

from launcher_support import MUSTER, clean_environment, muster
from test_launcher_slow_readers import read_all

PIECES = {
    "utf-8": ("gr\u00fc\u00dfe \u20ac \U0001f600 ".encode() * 40 + b"\n", 1),
    "long": (b"L" * 1_000_000 + b"\n", 65_536),
    "bar": (b"".join(b"\r%3d%%" % i for i in range(0, 101, 10)) + b"\n", 5),
    "binary": (bytes(b for b in range(256) if b not in b"\r\n") + b"\n", 7),
    "colour": (b"\x1b[31mred\nstill red\x1b[0m\nplain\n", 100),
    "no end": (b"no end", 100),
}

TALK = """
import os, sys
pieces = {pieces!r}
for text, size in pieces.values():
    for at in range(0, len(text), size): os.write({fd}, text[at:at + size])
"""

LINES = {
    "utf-8": [PIECES["utf-8"][0][:-1]],
    "long": [b"L" * 1_000_000],
    "bar": [b"%3d%%" % i for i in range(0, 101, 10)],
    "binary": [PIECES["binary"][0][:-1]],
    "colour": [b"\x1b[31mred\x1b[0m", b"still red\x1b[0m", b"plain"],
    "no end": [b"no end"],
}
ALL_LINES = [line for lines in LINES.values() for line in lines]
RAW = b"".join(text for text, _ in PIECES.values())


def show(muster, *options, fd=1, count=3):
    script = muster.script("talk.py", TALK.format(pieces=PIECES, fd=fd))
    result = subprocess.run([MUSTER, f"--nproc-per-node={count}", *map(str, options), script], env=clean_environment(), cwd=muster.tmp_path,
                            capture_output=True, timeout=60)
    assert result.returncode == 0
    assert (result.stderr, result.stdout)[fd - 1] == b""
    return (result.stdout, result.stderr)[fd - 1]


@pytest.mark.parametrize("rotation", [(), ("--log-max-size=64K", "--log-keep=99")], ids=["", "rotated"])
@pytest.mark.parametrize("fd", [1, 2])
def test_teed_lines(muster, fd, rotation):
    logs = muster.tmp_path / "logs"
    lines = show(muster, "-t3", "--log-dir", logs, *rotation, fd=fd).split(b"\n")
    assert lines.pop() == b""
    for rank in range(3):
        mine = [line[11:] for line in lines if line.startswith(b"[default%d]:" % rank)]
        assert mine == ALL_LINES
        (path,) = logs.glob(f"*/attempt_0/{rank}/std{('out', 'err')[fd - 1]}.log")
        older = sorted(path.parent.glob(path.name + ".*"), key=lambda p: -int(p.suffix[1:]))
        assert b"".join(p.read_bytes() for p in [*older, path]) == RAW
        assert len(older) == (1 if rotation else 0)  # with the long line at its end
    assert len(lines) == 3 * len(ALL_LINES)


@pytest.mark.parametrize("fd", [1, 2])
def test_folded_lines(muster, fd):
    lines = show(muster, "--view=fold", fd=fd).split(b"\n")
    assert lines.pop() == b""
    said = {text: [] for text in map(plain, ALL_LINES)}
    for line in lines:
        label, text = re.fullmatch(rb"\[(default\d|x3|x2 [\d,-]+)\]:(.*)", line, re.S).groups()
        ranks = {b"x3": [0, 1, 2], b"x2 0-1": [0, 1], b"x2 1-2": [1, 2], b"x2 0,2": [0, 2]}.get(label) or [int(label[7:])]
        said[plain(text)] += ranks
    assert all(sorted(ranks) == [0, 1, 2] for ranks in said.values())


def plain(line):
    return line.replace(b"\x1b[31m", b"").replace(b"\x1b[0m", b"")


@pytest.mark.parametrize("fd", [1, 2])
def test_rank_0_is_shown_as_it_is(muster, fd):
    assert show(muster, "--view=rank0", fd=fd) == RAW


@pytest.mark.parametrize("fd", [1, 2])
def test_another_ranks_error_does_not_begin_within_a_line_of_rank_0(muster, fd):
    """Rank 0 waits within a line until rank 1 has spoken, and rank 1's words are not shown before that line is over."""
    script = muster.script("two.py", f"""
import os
def said(name): return os.open(name, os.O_RDONLY)
if os.environ["RANK"] == "0":
    os.write({fd}, b"begun ")
    open("begun", "w").close()
    said("spoken")
    os.write({fd}, b"and ended\\n")
    said("over")
else:
    said("begun")
    os.write({fd}, b"ValueError: of rank 1\\nmore of ")
    open("spoken", "w").close()
    os.write({fd}, b"it")
    open("over", "w").close()
""")
    for name in ("begun", "spoken", "over"):
        os.mkfifo(muster.tmp_path / name)
    result = muster.run("--nproc-per-node=2", "--view=rank0", script)
    assert result.returncode == 0
    lines = (result.stdout, result.stderr)[fd - 1].splitlines()
    # Unless the machine was so slow that rank 0's line was closed for it.
    assert lines in (["begun and ended", "[default1]:ValueError: of rank 1", "[default1]:more of it"],
                     ["begun ", "[default1]:ValueError: of rank 1", "and ended", "[default1]:more of it"])


def test_stderr_of_several_ranks_is_not_torn_by_the_way_it_takes(muster):
    """With the default view bytes are passed on as they come; 64 KiB of them end anywhere."""
    flood = "import os\nfor i in range(300): os.write(2, b''.join(b'%s %06d %s\\n' % (os.environb[b'RANK'], i * 100 + j, b'-' * 90) for j in range(100)))"
    result = muster.run("--nproc-per-node=4", muster.script("flood.py", flood))
    seen = [0] * 4
    for line in result.stderr.splitlines():
        match = re.fullmatch(r"(\d) (\d{6}) -{90}", line)
        assert match, line
        assert int(match[2]) == seen[int(match[1])]
        seen[int(match[1])] += 1
    assert seen == [30000] * 4


def test_a_terminal_stays_one_for_rank_0(muster):
    """Though its output passes the launcher, so that nobody begins within its lines."""
    reader, writer = pty.openpty()
    script = muster.script("tty.py", "import os, sys\nif os.environ['RANK'] == '0': print(sys.stdout.isatty(), sys.stderr.isatty())")
    process = subprocess.Popen([MUSTER, "--nproc-per-node=2", "--view=rank0", script], env=clean_environment(), stdout=writer, stderr=writer)
    muster.started.append(process)
    os.close(writer)
    assert read_all(reader) == b"True True\r\n"
    assert process.wait(timeout=60) == 0

@pytest.mark.parametrize("view", ["-t1", "--view=rank0", "--view=fold"])
def test_output_that_a_full_disk_does_not_take_is_said_once(muster, view):
    with open("/dev/full", "w") as full:
        result = muster.run("--nproc-per-node=2", view, "sh", "-c", "echo line", stdout=full)
    assert result.returncode == 0
    assert result.stderr.count("stdout: No space left on device (ENOSPC); output that does not go to files is lost") == 1


def test_a_log_that_has_reached_its_limit_ends_no_job(muster):
    """ulimit -f: here muster alone writes to a file, the workers to its pipes."""
    with open(muster.tmp_path / "log", "w") as log:
        result = muster.run("--nproc-per-node=2", "--view=fold", "sh", "-c", "i=0; while [ $i -lt 2000 ]; "
                            "do echo line $i; i=$((i + 1)); done", stdout=log,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
    assert result.returncode == 0, result.stderr
    assert (muster.tmp_path / "log").stat().st_size == 8192
    assert "stdout: File too large (EFBIG); output that does not go to files is lost" in result.stderr


@pytest.mark.parametrize("options", [[], ["--view=rank0"]])
def test_the_report_and_messages_begin_a_line_of_their_own(muster, options):
    result = muster.run("--nproc-per-node=1", *options, "sh", "-c", "printf 'step 50%%' >&2; exit 3")
    assert result.returncode == 3
    assert re.match(r"step 50%\n=+\n", result.stderr), result.stderr
    muster.script("stop.sh", "printf 'step 50%%' >&2; kill -TERM $PPID; sleep 30")
    result = muster.run("--nproc-per-node=1", *options, "sh", "stop.sh")
    assert re.match(r"step 50%\nmuster [\d:.]+ warning: SIGTERM received", result.stderr), result.stderr
