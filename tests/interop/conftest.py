# A musterd per test on a free port of the loopback, and a run() of Python workers with a deadline.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("MUSTER_BIN_DIR") or os.environ.get("MUSTER_BIN") or ROOT / "build/dev/bin")


class Musterd:
    def __init__(self, folder, *options):
        self.port_file = folder / "port"
        self.log_file = folder / "log"
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen(
                [BIN / "musterd", "--port", "0", "--port-file", self.port_file, "--log-level", "debug", *options],
                stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self.port_file.exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, "musterd did not begin to listen"
            time.sleep(0.001)
        self.port = int(self.port_file.read_text())

    def log(self):
        return self.log_file.read_text()

    def stop(self):
        """Ends it in order; a crash or a refused client is a failure of the test."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0, self.log()
        assert "warning" not in self.log(), self.log()


@pytest.fixture
def musterd(tmp_path):
    daemon = Musterd(tmp_path)
    try:
        yield daemon
        daemon.stop()
    finally:
        daemon.process.kill()
        daemon.process.wait()


@pytest.fixture
def workers():
    """workers(script, [environment, ...]): runs one Python per environment, returns their outputs in order."""
    running = []

    def start(script, environments, seconds=120):
        path = pathlib.Path(__file__).with_name(script)
        started = [subprocess.Popen([sys.executable, path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment})
                   for environment in environments]
        running.extend(started)
        deadline = time.monotonic() + seconds
        outputs = []
        for process in started:
            output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            assert process.returncode == 0, output
            outputs.append(output)
        return outputs

    yield start
    for process in running:
        process.kill()
        process.wait()
