# SPDX-License-Identifier: Apache-2.0
"""A terminal or pipe that nobody reads: the workers that wait for it are named, and the others are not kept."""
import os
import pty
import re
import signal
import subprocess

import pytest

from launcher_support import MUSTER, child_named, clean_environment, let_go, muster, rotated, wait_for

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

    def __init__(self, muster, name, program, *options, terminal=True, own_stderr=True):
        self.folder = muster.tmp_path / name
        self.folder.mkdir()
        os.mkfifo(self.folder / "go")
        self.reader, writer = pty.openpty() if terminal else os.pipe()
        self.place = os.readlink(f"/proc/self/fd/{writer}")
        self.process = subprocess.Popen([MUSTER, "--nproc-per-node=2", *map(str, options), program], env=clean_environment(), cwd=self.folder,
                                        stdout=writer, stderr=subprocess.PIPE if own_stderr else writer, start_new_session=True)
        muster.started.append(self.process)
        os.close(writer)

    def first_word(self):
        return self.process.stderr.readline().decode()

    def read(self):
        """(what came, what stderr said meanwhile)"""
        shown = read_all(self.reader)
        said = self.process.stderr.read().decode() if self.process.stderr else ""
        assert self.process.wait(timeout=60) == 0
        return shown, said


@pytest.fixture
def stalls(muster):
    """All at once: each takes the 5 s after which a wait is worth a word."""
    logs = muster.tmp_path / "logs"
    flood = muster.script("flood.py", FLOOD)  # once: who reads it while it is written anew reads nothing
    wrapper = muster.script("wrapper.sh", "#!/bin/sh\n\"$PYTHON_EXEC\" ../flood.py\nexit $?\n")
    wrapper.chmod(0o755)
    return {
        "terminal": Unread(muster, "terminal", flood, "--log-dir", logs),
        "pipe": Unread(muster, "pipe", flood, "--view=fold", terminal=False),
        "script": Unread(muster, "script", wrapper, terminal=False),
        "one terminal": Unread(muster, "one", flood, "--view=fold", own_stderr=False),
        "tee": Unread(muster, "tee", flood, "-t1", "--log-dir", muster.tmp_path / "teed"),
        "disk": Unread(muster, "disk", muster.script("go.py", GO + FLOOD), "-r1", "--log-dir", muster.tmp_path / "rotated", "--log-max-size=1M"),
    }


GO = """
import os
if os.environ["RANK"] == "1": raise SystemExit
open("ready", "w").close()
open("go").read()
"""


def test_whoever_waits_for_a_reader_is_named_and_for_how_long(muster, stalls):
    # A log writer that does not move is as good as a disk that does not.
    disk = stalls["disk"]
    wait_for((disk.folder / "ready").exists, "rank 0 to start")
    writer = child_named(disk.process.pid, "job-logs")
    os.kill(writer, signal.SIGSTOP)
    let_go(disk.folder / "go")

    waits = re.compile(r"muster [\d:.]+ warning: ranks? ([\d,-]+) (?:has|have) waited (\d+) s so far for whoever reads stdout \((.*)\)\n")
    waited = re.compile(r"(?:muster [\d:.]+ warning: ranks? [\d,-]+ (?:have |has )?waited \d+ s (?:so far )?for whoever reads stdout \(.*\)\n)+")
    for name in ("terminal", "pipe", "script"):
        stall = stalls[name]
        word = stall.first_word()
        match = waits.fullmatch(word)
        assert match, word
        assert int(match[2]) >= 5 and match[3] == stall.place
        shown, said = stall.read()
        assert waited.fullmatch(said), said
        if name != "pipe":
            lines = shown.replace(b"\r", b"").splitlines()
            assert sorted(lines) == [b"%d %05d %s" % (rank, i, b"-" * 91) for rank in range(2) for i in range(20000)]
    (kept,) = (muster.tmp_path / "logs").glob("*/stalls.log")
    assert re.search(rf"\+\d{{4}} ranks? [\d,-]+ (has|have) waited \d+ s so far for whoever reads stdout \({stalls['terminal'].place}\)\n", kept.read_text())

    (path,) = (muster.tmp_path / "rotated").glob("*/attempt_0/0/stdout.log")
    word = disk.first_word()
    assert re.fullmatch(rf"muster [\d:.]+ warning: rank 0 has waited \d+ s so far for the disk with {path}\n", word), word
    os.kill(writer, signal.SIGCONT)
    _, said = disk.read()
    assert re.fullmatch(rf"muster [\d:.]+ warning: rank 0 waited \d+ s for the disk with {path}\n", said), said
    assert len(rotated(path).splitlines()) == 20000

    # Where stderr is the same terminal, it is said when that is read.
    shown, _ = stalls["one terminal"].read()
    assert re.search(rb"waited \d+ s so far for whoever reads stdout", shown), shown[-500:]

    # A file is in between: nobody waits, and what nobody has read at the end is named.
    stall = stalls["tee"]
    wait_for(lambda: stall.process.poll() is not None, "the launcher to wait for its reader no longer", 60)
    assert all((stall.folder / f"finished.{rank}").exists() for rank in range(2))
    shown, said = stall.read()
    assert all(re.fullmatch(rb"\[default\d\]:\d \d{5} -{91}", line) for line in shown.splitlines()[:-1])
    assert " waited " not in said
    assert all(f"bytes of local_rank {rank} are not shown, since nobody reads them; its file has them\n" in said for rank in range(2))
    for rank in range(2):
        (path,) = (muster.tmp_path / "teed").glob(f"*/attempt_0/{rank}/stdout.log")
        assert len(path.read_bytes().splitlines()) == 20000
