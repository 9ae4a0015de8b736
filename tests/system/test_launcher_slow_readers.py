# SPDX-License-Identifier: Apache-2.0
"""A terminal or pipe that nobody reads for a while: nothing is lost, and teed workers do not wait."""
import os
import pty
import re
import select
import subprocess
import time

from launcher_support import MUSTER, clean_environment, muster, wait_for

FLOOD = """
import os
for i in range(20000): os.write(1, b"%s %05d %s\\n" % (os.environb[b"RANK"], i, b"-" * 91))
open("finished." + os.environ["RANK"], "w").close()
"""


def read_all(fd):
    out = []
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:  # of a pseudo-terminal: the other side is gone
            break
        if not data:
            break
        out.append(data)
    os.close(fd)
    return b"".join(out)


class Unread:
    """muster with a stdout that nobody reads until read() is called."""

    def __init__(self, muster, name, program, *options, terminal=True):
        self.folder = muster.tmp_path / name
        self.folder.mkdir()
        self.reader, writer = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen([MUSTER, "--nproc-per-node=2", *map(str, options), program], env=clean_environment(), cwd=self.folder,
                                        stdout=writer, stderr=subprocess.PIPE, start_new_session=True)
        muster.started.append(self.process)
        os.close(writer)

    def read(self):
        """(what came, what stderr said meanwhile)"""
        shown = read_all(self.reader)
        said = self.process.stderr.read().decode()
        assert self.process.wait(timeout=60) == 0
        return shown, said


def test_workers_that_wait_for_a_reader_go_on_when_it_reads(muster):
    """Without a file the worker waits, as it would without muster; nothing is lost."""
    flood = muster.script("flood.py", FLOOD)
    slow = [Unread(muster, name, flood, terminal=terminal) for name, terminal in (("terminal", True), ("pipe", False))]
    for unread in slow:
        shown, said = unread.read()
        assert said == ""
        assert sorted(shown.replace(b"\r", b"").splitlines()) == [b"%d %05d %s" % (rank, i, b"-" * 91) for rank in range(2) for i in range(20000)]


def test_a_reader_that_takes_its_time_gets_all_that_is_teed(muster):
    unread = Unread(muster, "steady", muster.script("flood.py", FLOOD), "-t1", "--log-dir", muster.tmp_path / "steady", terminal=False)
    wait_for(lambda: all((unread.folder / f"finished.{rank}").exists() for rank in range(2)), "the workers to have written all", 60)
    size, pace = 0, time.monotonic()
    while data := os.read(unread.reader, 32768):  # 4 MB in twice the time that a reader may take nothing
        size += len(data)
        pace += 0.05
        select.select([], [], [], max(0, pace - time.monotonic()))
    os.close(unread.reader)
    assert unread.process.stderr.read() == b"" and unread.process.wait(timeout=60) == 0
    assert size == 2 * 20000 * (len("[default0]:") + len(b"0 00000 \n") + 91)


def test_teed_workers_do_not_wait_for_a_reader_and_what_it_missed_is_named(muster):
    unread = Unread(muster, "tee", muster.script("flood.py", FLOOD), "-t1", "--log-dir", muster.tmp_path / "teed")
    wait_for(lambda: unread.process.poll() is not None, "the launcher to wait for its reader no longer", 60)
    assert all((unread.folder / f"finished.{rank}").exists() for rank in range(2))
    shown, said = unread.read()
    assert all(re.fullmatch(rb"\[default\d\]:\d \d{5} -{91}", line) for line in shown.splitlines()[:-1])
    assert all(f"bytes of local_rank {rank} were not shown, because nobody read them; its log file has them\n" in said for rank in range(2))
    for rank in range(2):
        (path,) = (muster.tmp_path / "teed").glob(f"*/attempt_0/{rank}/stdout.log")
        assert len(path.read_bytes().splitlines()) == 20000
