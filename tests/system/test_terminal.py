# SPDX-License-Identifier: Apache-2.0
"""The launcher in the foreground of a terminal: its keys, its size, and its end."""
import fcntl
import os
import pathlib
import pty
import select
import signal
import struct
import termios

import pytest

from launcher_support import MUSTER, alive, clean_environment, wait_for

# Says its pid, then the size of the terminal on its stderr whenever that has changed.
WORKER = """
import os, signal, sys
with open(f"pid{os.environ['RANK']}.new", "w") as file: file.write(str(os.getpid()))
os.rename(file.name, file.name[:-4])
size = None
while not os.path.exists("go"):
    now = os.get_terminal_size(2) if os.isatty(2) else None
    if now != size:
        size = now
        os.write(2, b"size %dx%d of rank %s\\n" % (size.columns, size.lines, os.environ["RANK"].encode()))
    signal.sigtimedwait([], 0.02)
"""


class Terminal:
    def __init__(self, folder, *args):
        (folder / "worker.py").write_text(WORKER)
        self.folder, self.output, self.status = folder, b"", None
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(MUSTER, [MUSTER, *args, "worker.py"], clean_environment())

    def resize(self, columns, lines):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def key(self, byte):
        os.write(self.master, byte)

    def shows(self, text):
        while text not in self.output:
            ready, _, _ = select.select([self.master], [], [], 30)
            assert ready, (text, self.output)
            try:
                chunk = os.read(self.master, 4096)
            except OSError:
                chunk = b""
            assert chunk, (text, self.output)
            self.output += chunk

    def workers(self, count):
        paths = [self.folder / f"pid{rank}" for rank in range(count)]
        wait_for(lambda: all(path.exists() for path in paths), "the workers")
        return [int(path.read_text()) for path in paths]

    def hang_up(self):
        os.close(self.master)
        self.master = -1

    def code(self):
        def ended():
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            return pid
        if self.status is None:
            wait_for(ended, f"the launcher to end, not {self.output!r}", 30)
        return self.status

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.master >= 0:
            os.close(self.master)


@pytest.fixture
def terminal(tmp_path):
    made = []

    def make(*args):
        made.append(Terminal(tmp_path, *args))
        return made[-1]

    yield make
    for one in made:
        one.close()


def gone(pids):
    wait_for(lambda: not any(map(alive, pids)), f"{pids} to be gone")


def state(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_terminal_s_size_reaches_the_workers_when_it_changes(terminal):
    one = terminal("--nproc-per-node=2")
    one.workers(2)
    for columns, lines in ((101, 31), (77, 22)):
        one.resize(columns, lines)
        for rank in range(2):
            one.shows(b"size %dx%d of rank %d\r\n" % (columns, lines, rank))


@pytest.mark.parametrize("key, number", [(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)])
def test_keys_that_end_a_program_end_launcher_and_workers(terminal, key, number):
    one = terminal("--nproc-per-node=2")
    pids = one.workers(2)
    one.key(key)
    one.shows(b"exit status %d" % (128 + number))
    assert one.code() == 128 + number
    gone(pids)


def test_the_end_of_the_terminal_ends_the_job(terminal):
    one = terminal("--nproc-per-node=2")
    pids = one.workers(2)
    one.hang_up()
    assert one.code() == 128 + signal.SIGHUP
    gone(pids)


def test_a_launcher_that_is_suspended_goes_on_where_it_was(terminal, tmp_path):
    one = terminal("--nproc-per-node=2")
    pids = one.workers(2)
    os.kill(one.pid, signal.SIGSTOP)  # as a shell's job control does; without a shell the key does not
    wait_for(lambda: state(one.pid) == "T", "the launcher to be suspended")
    assert all(map(alive, pids))
    (tmp_path / "go").touch()
    gone(pids)
    os.kill(one.pid, signal.SIGCONT)
    assert one.code() == 0
