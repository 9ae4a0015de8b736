# SPDX-License-Identifier: Apache-2.0
"""Why a worker failed, as the report says it on the terminal and in report.json; and what follows a failure."""
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

from launcher_support import BIN, MUSTER, ROOT, clean_environment, muster, read_report, wait_for


def fail(muster, *command, options=(), **kwargs):
    """Runs a job that fails; its result and its report.json."""
    result = muster.run("--nproc-per-node=1", "--log-dir=logs", *options, *command, **kwargs)
    return result, read_report(muster.tmp_path / "logs")


@pytest.fixture(scope="module")
def cpp(tmp_path_factory):
    """A C++ program that fails in the way it is told to."""
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "fail.cc").write_text("""
#include <cassert>
#include <new>
#include <stdexcept>
#include <string>
int main(int, char** argv) {
  const std::string how = argv[1];
  if (how == "throw") throw std::runtime_error("no such shard");
  if (how == "alloc") throw std::bad_alloc();
  if (how == "assert") assert(how == "well");
  if (how == "segv") *static_cast<volatile int*>(nullptr) = 1;
}
""")
    subprocess.run([os.environ.get("CXX", "c++"), "-o", folder / "fail", "fail.cc"], check=True, cwd=folder, timeout=60)
    return str(folder / "fail")


def test_an_uncaught_python_exception_is_told_with_its_place_and_the_last_step(muster):
    script = muster.script("train.py", """
import os
with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write("step 1200\\n")
def loss():
    raise ValueError("boom")
loss()
""")
    result, report = fail(muster, script)
    assert f"cause     : uncaught exception: ValueError: boom ({script}:5)\n" in result.stderr
    assert "progress  : step 1200\n" in result.stderr
    assert re.search(rf"on \S+ exited with code 1 \(ValueError: boom at {script}:5\); exit status 1\n$", result.stderr)
    root = report["root_cause"]
    assert (root["cause"], root["error"], root["where"]) == ("exception", "ValueError: boom", f"{script}:5")
    assert (root["rank"], root["exit_code"], root["label"], root["progress"]) == (0, 1, "root cause", "step 1200")
    assert root["stderr"][-1] == "ValueError: boom"
    assert (report["exit_status"], report["program"], report["nodes"][0]["node"]) == (1, str(script), 0)


@pytest.mark.parametrize("how,kind,error,where", [
    ("throw", "exception", "std::runtime_error: no such shard", None),
    ("alloc", "host-out-of-memory", "std::bad_alloc: std::bad_alloc", None),
    ("assert", "assertion", r"fail: fail.cc:\d+: .*Assertion `how == \"well\"' failed.", "fail.cc:10"),
    ("segv", "crash", "SIGSEGV", None),
])
def test_a_cpp_program_needs_no_decorator(muster, cpp, how, kind, error, where):
    result, report = fail(muster, "sh", "-c", f"ulimit -c 0; exec {cpp} {how}")
    root = report["root_cause"]
    assert root["cause"] == kind and re.fullmatch(error, root["error"]) and root.get("where") == where
    number = signal.SIGSEGV if how == "segv" else signal.SIGABRT
    assert (root["signal"], root["core_dumped"], result.returncode) == (number, False, 128 + number)


def test_a_core_that_was_dumped_is_told(muster, cpp):
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "/")):
        pytest.skip(f"cores do not go to the working directory here: {pattern}")
    result, report = fail(muster, "sh", "-c", f"ulimit -c unlimited; exec {cpp} segv")
    assert report["root_cause"]["core_dumped"]
    assert "was killed by SIGSEGV (core dumped)" in result.stderr


def test_an_error_that_went_to_a_file_is_found_there(muster):
    result, report = fail(muster, muster.script("train.py", "raise KeyError('weights')"), options=["-r", "3"])
    assert report["root_cause"]["error"] == "KeyError: 'weights'"
    assert "Traceback" in "\n".join(report["root_cause"]["stderr"])


@pytest.mark.parametrize("options", [[], ["-r", "3"], ["-t", "3"]], ids=["pipe", "file", "tee"])
def test_an_error_in_the_midst_of_much_other_output_is_found(muster, options):
    script = muster.script("train.py", """
import os
chatter = b"".join(b"step %d loss 0.25\\n" % i for i in range(60000))
error = b'Traceback (most recent call last):\\n  File "train.py", line 9, in step\\nValueError: loss is nan\\n'
rest = chatter + error + chatter
while rest: rest = rest[os.write(2, rest):]
os._exit(7)
""")
    result, report = fail(muster, script, options=options)
    assert (report["root_cause"]["error"], report["root_cause"]["where"]) == ("ValueError: loss is nan", "train.py:9")
    assert report["root_cause"]["stderr"][-1] == "step 59999 loss 0.25"


def test_a_signal_from_outside_is_told_from_a_failure(muster):
    process = muster.start("--nproc-per-node=2", "--log-dir=logs", "sh", "-c", "echo $$$$ > pid$RANK.new; mv pid$RANK.new pid$RANK; exec sleep 1000")
    wait_for(lambda: all((muster.tmp_path / f"pid{rank}").exists() for rank in range(2)), "the workers")
    # ${local_rank} substitution makes $$ of $$$$.
    os.kill(int((muster.tmp_path / "pid1").read_text()), signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 137
    assert "cause     : signal from outside: SIGKILL, sender unknown\n" in err
    report = read_report(muster.tmp_path / "logs")
    assert {worker["rank"]: worker["label"] for worker in report["workers"]} == {0: "stopped by muster", 1: "root cause"}


@pytest.fixture
def memory_group():
    """A control group with 64 MiB of memory and no swap, of whichever version has the controller here."""
    one, two = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")
    group, limits = None, {}
    if (one / "memory.limit_in_bytes").exists():
        group, limits = one / f"muster-test-{os.getpid()}", {"memory.limit_in_bytes": 64 << 20, "memory.swappiness": 0}
    elif "memory" in ((two / "cgroup.subtree_control").read_text() if (two / "cgroup.subtree_control").exists() else ""):
        group, limits = two / f"muster-test-{os.getpid()}", {"memory.max": 64 << 20, "memory.swap.max": 0}
    if group is None:
        pytest.skip("no memory controller of control groups here")
    try:
        group.mkdir()
        for name, value in limits.items():
            if (group / name).exists():
                (group / name).write_text(str(value))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")
    yield group
    wait_for(lambda: not (group / "cgroup.procs").read_text(), "the group to be empty")
    group.rmdir()


def test_a_worker_that_the_kernel_killed_for_memory_is_told_so(muster, memory_group):
    script = muster.script("hungry.py", "kept = [bytearray(b'x' * (8 << 20)) for _ in range(64)]")
    result, report = fail(muster, script, preexec_fn=lambda: (memory_group / "cgroup.procs").write_text(str(os.getpid())))
    assert result.returncode == 137
    assert "cause     : out of host memory: killed by the kernel" in result.stderr
    assert report["root_cause"]["cause"] == "host-out-of-memory"


def test_a_fault_of_the_gpu_is_told_with_its_xid_and_device(muster):
    """The kernel's log is a file of this test, in a mount namespace: nothing is written to the host's."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    namespace = ["unshare", *user, "--mount"]
    may = subprocess.run([*namespace, "true"], capture_output=True, text=True, timeout=60)
    if may.returncode:
        pytest.skip(f"no namespace can be made here: {may.stderr.strip()}")
    log = muster.tmp_path / "kmsg"
    # One from before the job: it has nothing to do with it.
    log.write_text("4,1,10,-;NVRM: Xid (PCI:00ab:17:00): 43, pid='<unknown>', name=<unknown>, Ch 00000010\n")
    gpus = muster.tmp_path / "gpus"
    gpus.write_text("GPU-1000 00ab:17:00.0 0 0 0 -\nGPU-2000 00ab:18:00.0 0 0 0 -\n")
    env = clean_environment(MUSTER_NVML_LIBRARY=BIN / "libfake_nvml.so", FAKE_NVML=gpus)
    script = muster.script("train.py", """
import os, signal, sys
if os.environ["LOCAL_RANK"] == "0": signal.pause()
with open("kmsg", "a") as kernel:
    kernel.write("4,2,20,-;NVRM: Xid (PCI:00ab:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\\n")
sys.exit("RuntimeError: CUDA error: unspecified launch failure")
""")
    command = [*namespace, "sh", "-c", 'mount --bind "$0" /dev/kmsg && exec "$@"', log,
               MUSTER, "--gpus=0,1", "--log-dir=logs", script]
    result = subprocess.run([str(word) for word in command], env=env, cwd=muster.tmp_path, capture_output=True, text=True, timeout=60)
    report = read_report(muster.tmp_path / "logs")
    root = report["root_cause"]
    assert (root["rank"], root["cause"]) == (1, "gpu-fault"), result.stderr
    assert any("Xid (PCI:00ab:18:00): 79" in line for line in root["kernel"])
    assert "GPU-2000" in root["device"] and "GPU-2000" in result.stderr
    assert "Xid (PCI:00ab:17:00): 43" not in json.dumps(report)


def test_a_fault_that_only_the_drivers_library_tells_of_is_evidence_at_once(muster):
    gpus = muster.tmp_path / "gpus"
    gpus.write_text("GPU-3000 00ac:17:00.0 0 0 0 -\nGPU-4000 00ac:18:00.0 0 0 0 -\n")
    env = clean_environment(MUSTER_NVML_LIBRARY=BIN / "libfake_nvml.so", FAKE_NVML=gpus)
    script = muster.script("train.py", """
import os, pathlib, signal, sys, time
if os.environ["LOCAL_RANK"] == "0": signal.pause()
draft = pathlib.Path("draft")
draft.write_text("GPU-3000 63\\nGPU-4000 95\\n")
draft.rename("gpus.xid")
deadline = time.monotonic() + 60
while not os.path.exists("gpus.xid.told") and time.monotonic() < deadline: time.sleep(0.01)
sys.exit("RuntimeError: loss is nan")
""")
    result = muster.run("--gpus=0,1", "--log-dir=logs", "--max-restarts=2", "--no-restart-on=gpu", script, env=env)
    report = read_report(muster.tmp_path / "logs")
    root = report["root_cause"]
    assert (root["rank"], root["cause"], report["restarts_used"]) == (1, "gpu-fault", 0), result.stderr
    assert root["kernel"] == [
        "NVML: Xid (PCI:00ac:18:00): 95, uncontained memory error: all programs on the GPU are lost (GPU-4000)"]
    assert "GPU-4000" in root["device"]
    assert report["nodes"][0]["kernel"] == ["NVML: Xid (PCI:00ac:17:00): 63, a memory page was retired or a row remapped (GPU-3000)"]
    assert "--no-restart-on" in result.stderr


def test_who_only_lost_its_connection_is_a_consequence_of_a_failure_that_ends_later(muster):
    # Rank 1 has written its error, and is still ending when rank 0 is through: as with a GPU to be cleaned up.
    script = muster.script("train.py", """
import os, signal, sys
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    print("Traceback (most recent call last):\\n  File \\"train.py\\", line 9, in step\\nValueError: loss is nan",
          file=sys.stderr, flush=True)
    open("failed", "w").close()
    while True: signal.pause()
while not os.path.exists("failed"): pass
raise ConnectionResetError("Connection reset by peer")
""")
    result = muster.run("--nproc-per-node=2", "--log-dir=logs", script)
    report = read_report(muster.tmp_path / "logs")
    assert (report["root_cause"]["rank"], report["root_cause"]["error"]) == (1, "ValueError: loss is nan")
    assert {worker["rank"]: worker["label"] for worker in report["workers"]} == {0: "consequence", 1: "root cause"}
    assert "failed as a consequence: rank 0\n" in result.stderr


def test_a_worker_that_could_not_be_started_is_in_the_report(muster):
    program = muster.script("bad", "#!/no/such/interpreter\n")
    program.chmod(0o755)
    result, report = fail(muster, "./bad")
    assert result.returncode == 127
    assert (report["root_cause"]["cause"], report["root_cause"]["pid"]) == ("not-started", 0)
    assert "No such file or directory" in report["root_cause"]["error"]


def test_success_and_a_stop_leave_no_report(muster):
    assert muster.run("--nproc-per-node=1", "--log-dir=logs", "true").returncode == 0
    assert list((muster.tmp_path / "logs").glob("*/report.json")) == []


def test_the_readme_describes_every_field_of_the_report(muster):
    script = muster.script("train.py", """
import json, os
with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write("step 1")
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "no", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1"}}}, file)
raise ValueError("no")
""")
    _, report = fail(muster, script)
    text = (ROOT / "launcher/reference.md").read_text()
    fields = set(report) | set(report["nodes"][0]) | set(report["root_cause"]) | {"signal", "core_dumped", "device"}
    assert [name for name in sorted(fields) if f"`{name}`" not in text] == []
    words = re.findall(r'CauseName\{CauseClass::\w+, "([\w-]+)"', (ROOT / "launcher/job/cause.h").read_text())
    assert len(words) > 10 and [word for word in words if f"`{word}`" not in text] == []


def test_an_exit_code_that_is_final_is_not_tried_again(muster):
    script = muster.script("exit", "#!/bin/sh\necho $1 >> tries\nexit $1\n")
    script.chmod(0o755)
    options = ["--nproc-per-node=1", "--max-restarts=2", "--no-restart-on=2,64-78"]
    assert muster.run(*options, "./exit", 70).returncode == 70
    assert muster.run(*options, "./exit", 3).returncode == 3
    assert (muster.tmp_path / "tries").read_text().split() == ["70", "3", "3", "3"]
    result = muster.run("--no-restart-on=64-x", "true")
    assert result.returncode == 2 and "'64-x'" in result.stderr


def test_restarts_tell_their_pause_and_how_long_they_took_and_the_report_lists_them(muster):
    script = muster.script("exit", "#!/bin/sh\nexit 9\n")
    script.chmod(0o755)
    result, report = fail(muster, "./exit", options=["--max-restarts=2", "--restart-backoff=0.1:0.15"])
    assert result.returncode == 9
    assert [float(s) for s in re.findall(r"restart in (\S+) s \(--restart-backoff\)", result.stderr)] == [0.1, 0.15]
    took = re.findall(r"workers restarted (\d+) ms after the failure", result.stderr)
    assert len(took) == 2 and int(took[0]) >= 100 and int(took[1]) >= 150
    assert (report["restarts_used"], report["max_restarts"], len(report["restarts"])) == (2, 2, 2)


def test_a_signal_during_the_pause_before_a_restart_ends_the_job(muster):
    process = muster.start("--nproc-per-node=1", "--max-restarts=2", "--restart-backoff=1000:1000", "false")
    while "--restart-backoff" not in process.stderr.readline():
        pass
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
