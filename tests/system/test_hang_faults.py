# SPDX-License-Identifier: Apache-2.0
"""Hangs among other troubles: a worker that ends meanwhile, a full disk, a terminal that nobody reads."""
import os
import pty
import re
import subprocess

import pytest

from hang_support import TIMEOUT, err, read_hangs, without_tools
from launcher_support import BIN, MUSTER, clean_environment, muster, read_report, wait_for

STACK = 'echo "Thread 1 (LWP 1):"; echo "#0  0x1 in read ()"; echo "#1  0x2 in main ()"'

# Each waits at its own gate, rank 1 for ever.
WAIT = """
import os
rank = os.environ["RANK"]
fd = os.open("gate." + rank, os.O_RDWR)  # both ends: it is not told that nobody writes
open("ready." + rank, "w").close()
os.read(fd, 1)
"""


def gates(muster, ranks=2):
    for rank in range(ranks):
        os.mkfifo(muster.tmp_path / f"gate.{rank}")


def test_who_ended_while_stacks_were_read_is_the_outlier_and_not_the_one_that_is_stopped(muster, err):
    gates(muster)
    # The tool sees rank 0 to its end, whoever it was called for.
    end = f"""until [ -e {muster.tmp_path}/look ]; do /bin/sleep 0.02; done
echo x 1<>{muster.tmp_path}/gate.0
until [ -e {muster.tmp_path}/ended ]; do /bin/sleep 0.02; done
{STACK}"""
    _, env = without_tools(muster.tmp_path, gdb=end)
    script = muster.script("wait.py", WAIT)
    process = muster.start("--nproc-per-node=2", "--hang-timeout=1:1", "--on-hang=stop", "--log-dir=logs", script, stderr=err.file, env=env)
    wait_for(lambda: all((muster.tmp_path / f"ready.{rank}").exists() for rank in range(2)), "the workers")
    (zero,) = [pid for pid in children(process.pid) if rank_of(pid) == "0"]
    (muster.tmp_path / "look").touch()
    wait_for(lambda: not os.path.exists(f"/proc/{zero}"), "the end of rank 0")
    (muster.tmp_path / "ended").touch()
    assert process.wait(60) == 124
    assert "outlier: rank 0, ended already (exited with code 0), and others may wait for it\n" in err.text()
    assert read_report(muster.tmp_path / "logs")["root_cause"]["rank"] == 1
    (hang,) = read_hangs(muster.tmp_path / "logs")
    assert hang["ranks"][0]["ended"] == "exited with code 0"


def test_a_hang_that_ended_while_stacks_were_read_is_said_to_be_over_and_ends_nothing(muster, err):
    gates(muster)
    # Rank 0 ends, rank 1 speaks; that goes to its file, which is a sign of life.
    end = f"""until [ -e {muster.tmp_path}/look ]; do /bin/sleep 0.02; done
echo x 1<>{muster.tmp_path}/gate.0
echo x 1<>{muster.tmp_path}/gate.1
until [ -e {muster.tmp_path}/ended ]; do /bin/sleep 0.02; done
{STACK}"""
    _, env = without_tools(muster.tmp_path, gdb=end)
    script = muster.script("wait.py", WAIT + """
if rank == "1":
    print("on I go", flush=True)
    open("spoke", "w").close()
    while not os.path.exists("done"):
        print("on", flush=True)
        __import__("time").sleep(0.02)  # a step
""")
    process = muster.start("--nproc-per-node=2", "--hang-timeout=1:1", "--on-hang=stop", "--log-dir=logs", "-r", "3", script, stderr=err.file, env=env)
    wait_for(lambda: (muster.tmp_path / "ready.0").exists() and (muster.tmp_path / "ready.1").exists(), "the workers")
    (zero,) = [pid for pid in children(process.pid) if rank_of(pid) == "0"]
    (muster.tmp_path / "look").touch()
    wait_for(lambda: not os.path.exists(f"/proc/{zero}") and (muster.tmp_path / "spoke").exists(), "both to go on")
    (muster.tmp_path / "ended").touch()
    err.wait(r"the hang is over after \S+ m?s\n")
    (muster.tmp_path / "done").touch()
    assert process.wait(60) == 0
    assert "; it ended while stacks were read: the job goes on\n" in err.text()
    assert "muster stops the job" not in err.text()
    assert read_hangs(muster.tmp_path / "logs")[0]["over_after_ms"] > 0


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def rank_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = dict(word.split(b"=", 1) for word in file.read().split(b"\0") if b"=" in word)
    except OSError:
        return None
    return words.get(b"RANK", b"").decode()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "logs"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True).returncode != 0:
        pytest.fail("cannot mount a tmpfs; these tests run as root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_hang_is_told_and_acted_upon_while_the_disk_with_the_logs_is_full(muster, err, small_disk):
    _, env = without_tools(muster.tmp_path, gdb=f"until [ -e {muster.tmp_path}/full ]; do /bin/sleep 0.02; done; {STACK}")
    script = muster.script("wait.py", WAIT)
    gates(muster)
    process = muster.start("--nproc-per-node=2", "--hang-timeout=1:1", "--on-hang=stop", f"--log-dir={small_disk}", script,
                           stderr=err.file, env=env)
    wait_for(lambda: list(small_disk.glob("*/attempt_0")), "the attempt")
    with pytest.raises(OSError), open(small_disk / "filler", "wb", buffering=0) as file:
        while True:
            assert file.write(b"x" * 65536) > 0
    with pytest.raises(OSError), open(small_disk / "filler2", "wb", buffering=0) as file:
        while True:
            assert file.write(b"x") > 0
    (muster.tmp_path / "full").touch()
    assert process.wait(60) == 124
    assert re.search(r"could not write \S+/hang\.json: No space left on device", err.text()), err.text()
    assert re.search(r"^muster: hang on \S+: ranks 0-1 made no progress ", err.text(), re.M)
    assert "all stacks and states:" not in err.text()
    assert not list(small_disk.glob("*/attempt_0/hang.json"))


def test_who_waits_for_a_terminal_that_nobody_reads_is_not_taken_for_hanging(muster):
    folder = muster.tmp_path
    # Little at first, so that its first steps are over when nobody reads any more.
    script = muster.script("flood.py", """
import os, time
for i in range(100):
    os.write(1, b"begins\\n")
    time.sleep(0.02)  # a step
for i in range(20000): os.write(1, b"%05d %s\\n" % (i, b"-" * 91))
""")
    reader, writer = pty.openpty()
    process = subprocess.Popen([MUSTER, "--nproc-per-node=2", "--view=fold", "--hang-timeout=1:60", "--on-hang=stop", script],
                               env=clean_environment(), cwd=folder, stdout=writer, stderr=subprocess.PIPE, start_new_session=True)
    muster.started.append(process)
    os.close(writer)
    # Five times the limit, and nobody has read anything.
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(7)
    while True:
        try:
            if not os.read(reader, 65536):
                break
        except OSError:  # the other side is gone
            break
    os.close(reader)
    said = process.stderr.read()
    assert process.wait(60) == 0, said
    assert b"hang" not in said
