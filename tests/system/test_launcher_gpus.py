# SPDX-License-Identifier: Apache-2.0
"""What muster tells of GPUs: their figures on /metrics, who uses them (musterctl gpus, the report of a failure)."""
import json
import os
import pwd
import re
import signal
import subprocess
import sys

import pytest

from launcher_support import MUSTER, alive, child_named, clean_environment, let_go, muster, read_report, wait_for
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
        draft.write_text(f"GPU-aa 00ab:17:00.0 2048 0 0 {listed(first)} {FIGURES}\n"
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


LEAVES_A_DAEMON = """
import os, pathlib, signal, subprocess
# A loader of data with a session of its own, which ignores SIGTERM.
child = subprocess.Popen(["sh", "-c", "trap '' TERM; echo > ready; exec sleep 1000"], start_new_session=True)
while not os.path.exists("ready"): signal.sigtimedwait([], 0.01)
pathlib.Path("draft").write_text(str(child.pid))
os.rename("draft", "daemon")
signal.pause()
"""


def running_daemon(muster, *options, env):
    """A job whose worker has started a process that nothing but muster ends. Returns it, worker and daemon."""
    muster.tmp_path.joinpath("daemon").unlink(missing_ok=True)
    muster.tmp_path.joinpath("ready").unlink(missing_ok=True)
    job = muster.start("--gpus=0", *options, muster.script("leaves.py", LEAVES_A_DAEMON), env=env)
    daemon = wait_for(lambda: (file := muster.tmp_path / "daemon").exists() and int(file.read_text()), "the daemon")
    return job, daemon


def kill_agent_and_guardian(job):
    """As by the kernel for memory: nobody is left to end what the workers started."""
    os.kill(child_named(job.pid, "job-guardian"), signal.SIGKILL)
    job.kill()
    job.wait(60)


def test_gpus_names_who_uses_each_gpu_and_ends_only_what_a_dead_agent_left_to_its_caller(muster, gpus):
    alive_job, kept = running_daemon(muster, "--rdzv-id=job-a", env=gpus.environment)
    dead_job, left = running_daemon(muster, "--rdzv-id=job-b", env=gpus.environment)
    foreign = subprocess.Popen(["sleep", "1000"])
    zombie = subprocess.Popen(["true"])
    try:
        wait_for(lambda: "\nState:\tZ" in open(f"/proc/{zombie.pid}/status").read(), "a zombie")
        gpus.hold([kept, foreign.pid, left], [left, zombie.pid, 4194300])
        assert {entry["kind"] for entry in gpus.listed().values()} == {"worker", "foreign", "zombie", "unseen"}
        kill_agent_and_guardian(dead_job)
        listed = wait_for(lambda: (now := gpus.listed())[left]["kind"] == "left-behind" and now, "the orphan")
        assert {pid: entry["to_free"] for pid, entry in listed.items()} == {
            kept: False, foreign.pid: False, left: True, zombie.pid: False, 4194300: False}
        assert (listed[left]["rank"], listed[left]["run_id"], listed[left]["gpu"]) == ("0", "job-b", 1)
        assert listed[foreign.pid]["command"] == "sleep 1000" and listed[foreign.pid]["uid"] == os.getuid()
        assert abs(listed[foreign.pid]["since"] - os.stat(f"/proc/{foreign.pid}").st_ctime) < 60
        assert listed[kept]["memory_bytes"] == 2 << 30 and "rank" not in listed[foreign.pid]
        said = gpus.ctl()
        assert said.returncode == 0 and alive(left)
        assert said.stdout.count("--free would end this: pid ") == 2  # on two GPUs
        assert re.search(rf"^0 .*\b{foreign.pid}\b.* \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d .*sleep 1000$", said.stdout, re.M), said.stdout
        assert f"would end this: pid {left} (" in said.stdout and "rank 0 of job-b, left behind by an agent that is gone" in said.stdout
        freed = gpus.ctl("--free")
        assert (freed.returncode, freed.stdout.splitlines()[-1]) == (0, f"pid {left} was ended by SIGKILL")
        assert not alive(left) and alive(kept) and foreign.poll() is None and alive_job.poll() is None
        assert "nothing to end" in gpus.ctl("--free").stdout
    finally:
        foreign.kill()
        foreign.wait()
        zombie.wait()


# In a mount namespace whose /dev is of the test's own: $1 is a folder, $2 musterctl.
HOLDS_DEVICE_FILES = """
touch "$1/null" && mount --bind /dev/null "$1/null" && mount -t tmpfs none /dev || exit 9
touch /dev/null /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl && mount --bind "$1/null" /dev/null || exit 9
sleep 1001 3</dev/nvidia1 4</dev/nvidia1 5</dev/nvidiactl &
first=$!
RANK=3 TORCHELASTIC_RUN_ID=job-a MUSTER_LINEAGE=1-2 sleep 1002 3</dev/nvidia0 4</dev/nvidia1 &
second=$!
sleep 1003 3</dev/nvidiactl &
third=$!
for pid in $first $second $third; do
  until read -r name <"/proc/$pid/comm" && [ "$name" = sleep ]; do :; done
done
echo "$first $second $third"
"$2" gpus --json
kill "$first" "$second" "$third"
"""


def test_without_nvml_who_uses_a_gpu_is_known_by_its_device_file(gpus):
    gpus.environment["MUSTER_NVML_LIBRARY"] = "/nowhere/libnvidia-ml.so.1"
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    done = subprocess.run(["unshare", *user, "--mount", "sh", "-c", HOLDS_DEVICE_FILES, "sh", gpus.runtime.parent, CTL], env=gpus.environment,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0, done.stderr
    pids, text = done.stdout.split("\n", 1)
    first, second, _ = map(int, pids.split())
    told = json.loads(text)
    assert told["source"] == "device-files" and "/nowhere/libnvidia-ml.so.1" in told["error"]
    assert [(entry["gpu"], entry["pid"], entry["kind"]) for entry in told["processes"]] == sorted(
        [(0, second, "left-behind"), (1, second, "left-behind"), (1, first, "foreign")], key=lambda entry: entry[:2])
    assert {entry["command"] for entry in told["processes"] if entry["pid"] == second} == {"sleep 1002"}
    assert "processes are known by the device files that they have open" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_gpus_leaves_what_belongs_to_another_user_even_if_its_agent_is_dead(muster, gpus):
    code = "import os; os.fork() and os._exit(0); os.setsid(); os.setuid(65534); os.write({}, str(os.getpid()).encode()); os.execvp('sleep', ['sleep', '1000'])"
    read, write = os.pipe()
    subprocess.run([sys.executable, "-c", code.format(write)],
                   env={**os.environ, "MUSTER_LINEAGE": "of-a-dead-agent"}, pass_fds=[write], stdout=subprocess.DEVNULL, timeout=60, check=True)
    other = int(os.read(read, 20))
    os.close(read), os.close(write)
    try:
        gpus.hold([other], None)
        entry = wait_for(lambda: (now := gpus.listed()[other])["command"] == "sleep 1000" and now, "the program")
        assert (entry["kind"], entry["to_free"], entry["uid"]) == ("left-behind", False, 65534)
        assert "nothing to end" in gpus.ctl("--free").stdout and alive(other)
    finally:
        os.kill(other, signal.SIGKILL)


def test_gpus_says_where_nvml_does_not_answer_and_goes_by_the_device_files(muster, gpus):
    gpus.file.write_text("init=9\n")
    said = gpus.ctl("--json")
    assert said.returncode == 0
    assert "device files" in said.stderr and json.loads(said.stdout)["source"] == "device-files"
    os.unlink(gpus.file)
    os.mkfifo(gpus.file)  # the driver waits for ever
    said = gpus.ctl()
    assert said.returncode == 0 and "has not answered within 5 s" in said.stderr


FAILS = """
import os, signal, sys
with open("pids", "a") as file:
    file.write(os.environ["RANK"] + " " + str(os.getpid()) + "\\n")
if os.environ["RANK"] == "0":
    signal.pause()
open("go").read()
sys.exit("RuntimeError: " + os.environ["SAYS"])
"""


@pytest.mark.parametrize("says, cause", [("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "gpu-unavailable"),
                                         ("CUDA out of memory. Tried to allocate 20.00 MiB", "gpu-out-of-memory"),
                                         ("CUDA error: an illegal memory access was encountered", "gpu-fault")])
def test_the_report_of_a_worker_that_could_not_use_its_gpu_names_who_holds_it(muster, gpus, says, cause):
    logs = muster.tmp_path / "logs"
    os.mkfifo(muster.tmp_path / "go")
    foreign = subprocess.Popen(["sleep", "1000"])
    try:
        job = muster.start("--nproc-per-node=2", "--rdzv-id=job-a", f"--log-dir={logs}", muster.script("fails.py", FAILS),
                           env={**gpus.environment, "SAYS": says}, cwd=muster.tmp_path)
        wait_for(lambda: len(lines := pids_of_ranks(muster)) == 2 and lines, "the workers")
        pids = pids_of_ranks(muster)
        gpus.hold([foreign.pid], [pids[0], pids[1], foreign.pid])
        (muster.tmp_path / "go").write_text("")
        assert job.wait(60) == 1
    finally:
        foreign.kill()
        foreign.wait()
    root = read_report(logs)["root_cause"]
    assert (root["rank"], root["cause"], root["device"]) == (1, cause, "GPU 1 (GPU-bb)")
    shown = [line.split(": ", 1)[1] for line in job.stderr.read().splitlines() if line.startswith("  gpu user  : ")]
    assert shown == root.get("gpu_holders", [])
    user = pwd.getpwuid(os.getuid()).pw_name
    holders = {pids[0]: "rank 0 of this job) holds 1.0 GiB of GPU 1 (GPU-bb)", foreign.pid: f"{user}, foreign: sleep 1000) holds 1.0 GiB of GPU 1 (GPU-bb)"}
    assert len(shown) == (0 if cause == "gpu-fault" else 2)
    for line, pid in zip(shown, sorted(holders)):
        assert line == f"pid {pid} ({holders[pid]}"


def pids_of_ranks(muster):
    file = muster.tmp_path / "pids"
    return dict(map(int, line.split()) for line in file.read_text().splitlines()) if file.exists() else {}
