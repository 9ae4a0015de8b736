# SPDX-License-Identifier: Apache-2.0
"""The stores under test: musterd, the one the launcher embeds, and a job's one behind its agent. Each listens on a port
of the kernel's choice."""
import signal
import subprocess
import time

from launcher_support import BIN, MUSTER, clean_environment


def wait_for_file(path, process, log, seconds=20):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, log()
        assert time.monotonic() < deadline, f"{path.name} was not written: {log()}"
        time.sleep(0.001)  # between looks at a condition
    return path.read_text()


class Musterd:
    host = "127.0.0.1"

    def __init__(self, folder, *options):
        self.log_file = folder / "log"
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen(
                [BIN / "musterd", "--port", "0", "--port-file", folder / "port", "--log-level", "debug", *options],
                stderr=log, stdin=subprocess.DEVNULL)
        self.port = int(wait_for_file(folder / "port", self.process, self.log))

    def log(self):
        return self.log_file.read_text()

    def stop(self, warnings=0):
        """Ends it in order; a crash, or another number of refused clients than expected, is a failure of the test."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0, self.log()
        assert self.log().count(" warning: closed ") == warnings, self.log()

    def kill(self):
        self.process.kill()
        self.process.wait()


class EmbeddedStore:
    """The store that `muster` serves to its workers: its one worker writes down where it is and waits for an end of file."""

    _WORKER = 'echo "$MASTER_ADDR $MASTER_PORT" > "$1.new" && mv "$1.new" "$1" && exec cat'

    def __init__(self, folder, *options):
        self.log_file = folder / "log"
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen([MUSTER, *options, "--nproc-per-node=1", "sh", "-c", self._WORKER, "sh",
                                             folder / "endpoint"], stdin=subprocess.PIPE, stdout=log, stderr=log, env=clean_environment())
        self.host, port = wait_for_file(folder / "endpoint", self.process, self.log).split()
        self.port = int(port)

    def log(self):
        return self.log_file.read_text()

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(20) == 0, self.log()
        assert not self.log(), self.log()

    def kill(self):
        if self.process.poll() is None:
            self.process.terminate()  # with SIGKILL its guardian would have to end the worker
            self.process.wait(20)
        self.process.stdin.close()


class ProxiedStore(EmbeddedStore):
    """A job's store at a musterd, as its workers see it: behind the agent (--store-proxy)."""

    def __init__(self, folder):
        (folder / "coordinator").mkdir()
        self.coordinator = Musterd(folder / "coordinator")
        super().__init__(folder, "--rdzv-backend=muster", "--store-proxy",
                         f"--rdzv-endpoint=127.0.0.1:{self.coordinator.port}")

    def stop(self):
        super().stop()
        self.coordinator.stop()

    def kill(self):
        super().kill()
        self.coordinator.kill()
