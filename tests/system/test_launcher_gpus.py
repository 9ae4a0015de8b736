# SPDX-License-Identifier: Apache-2.0
"""What muster tells of GPUs: their figures on /metrics, who uses them (musterctl gpus, the report of a failure)."""
import json
import os
import signal
import subprocess
import sys

import pytest

from launcher_support import MUSTER, alive, clean_environment, let_go, muster, read_report, wait_for
from metrics_support import ask, check_with_promtool, health, listens_at, metrics

BIN = os.path.dirname(MUSTER)
CTL = os.path.join(BIN, "musterctl")
FIGURES = ("util=97/41 total=81920 power=350500 energy=123456789 temperature=64/71 clock=1980/2619 throttle=0x4 "
           "corrected_ecc=2")


class Gpus:
    """A fake driver: two GPUs, whose figures and processes a test writes."""

    def __init__(self, muster):
        self.file = muster.tmp_path / "gpus"
        self.runtime = muster.tmp_path / "runtime"
        self.hold(None, None)
        self.environment = clean_environment(MUSTER_NVML_LIBRARY=os.path.join(BIN, "libfake_nvml.so"), FAKE_NVML=self.file,
                                             MUSTER_RUNTIME_DIR=self.runtime)

    def hold(self, first, second):
        """Who uses them: lists of process numbers."""
        def listed(pids):
            return ",".join(map(str, pids)) if pids else "-"
        draft = self.file.with_suffix(".draft")
        draft.write_text(f"driver=580.65.06/13000\nGPU-aa 00ab:17:00.0 2048 0 0 {listed(first)} {FIGURES}\n"
                         f"GPU-bb 00ab:18:00.0 1024 0 0 {listed(second)} {FIGURES}\n")
        draft.rename(self.file)

    def ctl(self, *words, **kwargs):
        return subprocess.run([CTL, "gpus", *words], env=self.environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60, **kwargs)

    def listed(self):
        return {entry["pid"]: entry for entry in json.loads(self.ctl("--json").stdout)["processes"]}


@pytest.fixture
def gpus(muster):
    return Gpus(muster)


def test_the_figures_of_each_gpu_are_on_metrics_under_the_names_of_dcgm_exporter_with_the_rank_that_uses_it(muster, gpus):
    job = muster.start("--gpus=1,0", "--rdzv-id=job-a", "--metrics-addr=127.0.0.1:0", muster.script("t.py", "import signal; signal.pause()"),
                       env=gpus.environment)
    address = listens_at(lambda: job.stderr.readline())
    wait_for(lambda: health(address)["state"] == "running", "the workers")
    text = wait_for(lambda: "DCGM_" in (now := ask(address)[1]) and now, "figures")
    check_with_promtool("\n".join(line for line in text.splitlines() if "DCGM_" not in line) + "\n")
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 3, checked  # it is parsed, and its linter would have dcgm-exporter's names otherwise
    assert {line.split()[0][:5] for line in checked.stderr.splitlines()} == {"DCGM_"}, checked.stderr
    host = health(address)["host"]
    values = {sample.split("{")[0]: value for sample, value in metrics(address).items() if 'gpu="0"' in sample}
    assert values == {
        "DCGM_FI_DEV_GPU_UTIL": 97, "DCGM_FI_DEV_MEM_COPY_UTIL": 41, "DCGM_FI_DEV_FB_USED": 2048, "DCGM_FI_DEV_FB_FREE": 81920 - 2048,
        "DCGM_FI_DEV_POWER_USAGE": 350.5, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123456789, "DCGM_FI_DEV_GPU_TEMP": 64,
        "DCGM_FI_DEV_MEMORY_TEMP": 71, "DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_MEM_CLOCK": 2619,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4, "DCGM_FI_DEV_XID_ERRORS": 0, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 2,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0}
    for gpu, uuid, bus, rank in ((0, "GPU-aa", "00AB:17:00.0", 1), (1, "GPU-bb", "00AB:18:00.0", 0)):
        assert (f'DCGM_FI_DEV_SM_CLOCK{{gpu="{gpu}",UUID="{uuid}",pci_bus_id="0000{bus}",device="nvidia{gpu}",modelName="Fake GPU",'
                f'Hostname="{host}",rank="{rank}",run_id="job-a"}} 1980\n') in text
    (gpus.file.parent / "gpus.xid.draft").write_text("GPU-bb 79\n")
    (gpus.file.parent / "gpus.xid.draft").rename(str(gpus.file) + ".xid")
    wait_for(lambda: any(value == 79 for sample, value in metrics(address).items()
                         if sample.startswith("DCGM_FI_DEV_XID_ERRORS") and 'gpu="1"' in sample), "the fault")


def test_a_driver_that_is_wedged_leaves_the_last_figures_with_their_age_and_holds_nothing(muster, gpus):
    go = muster.tmp_path / "go"
    os.mkfifo(go)
    job = muster.start("--gpus=0", "--metrics-addr=127.0.0.1:0", muster.script("t.py", f"open({str(go)!r}).read()"),
                       env=gpus.environment)
    address = listens_at(lambda: job.stderr.readline())
    wait_for(lambda: "DCGM_" in ask(address)[1], "figures")
    muster.tmp_path.joinpath("gpus.hang").write_text("nvmlDeviceGetUtilizationRates")
    wait_for(lambda: metrics(address)["muster_gpu_figures_age_seconds"] > 3, "old figures")
    assert 97 in metrics(address).values()
    let_go(go)
    assert job.wait(60) == 0
