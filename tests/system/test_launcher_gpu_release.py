# SPDX-License-Identifier: Apache-2.0
"""After a stop muster waits for the driver to take the workers' memory back; the driver is the tests' fake one."""
import signal

from launcher_support import muster, wait_for
from test_launcher_placement import gpus

UUID = "GPU-aa 0000:3b:00.0"


def test_a_stop_ends_once_the_driver_has_taken_back_what_a_worker_held(muster, gpus):
    environment = gpus(f"{UUID} 0 0 0 -")
    script = muster.script("stay", "#!/bin/sh\necho $$ > pid.new\nmv pid.new pid\nexec sleep 1000\n")
    script.chmod(0o755)
    process = muster.start("--nproc-per-node=1", "./stay", env=environment)
    pid = wait_for(lambda: (muster.tmp_path / "pid").exists() and (muster.tmp_path / "pid").read_text().strip(), "the worker")
    inventory = muster.tmp_path / "gpus"

    def held_by(pids):
        draft = muster.tmp_path / "gpus.new"
        draft.write_text(f"{UUID} 2048 0 0 {pids}\n")
        draft.rename(inventory)

    held_by(pid)
    process.terminate()
    wait_for((muster.tmp_path / "gpus.asked").exists, "NVML to be asked")
    assert process.poll() is None  # for 10 s it would go on asking
    held_by("1")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "holds" not in err
