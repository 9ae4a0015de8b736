# SPDX-License-Identifier: Apache-2.0
"""--preflight over several nodes: an unhealthy node tells the others why and a spare takes its place, clocks are compared,
and the full check really computes and reduces."""
import ctypes
import os
import re
import shutil
import subprocess

import pytest

from elastic_support import SHOW, job, write  # noqa: F401
from launcher_support import BIN, MUSTER, child_named, clean_environment, muster, wait_for  # noqa: F401
from test_faults_host import stepped_clock  # noqa: F401

CHECK = "--preflight=quick"
FEW_FILES = ("prlimit", "--nofile=64:64")
FEW_FILES_TEXT = r"64 open files are allowed \(ulimit -Hn\) and 68 are needed"


@pytest.fixture
def full_disk(tmp_path):
    """A directory on a file system without a free block."""
    path = tmp_path / "full"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], check=True)
    try:
        with pytest.raises(OSError), open(path / "filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.fixture
def hung_disk(tmp_path):
    """A directory on a file system that never answers: its server, this process, does not read the kernel's questions."""
    path = tmp_path / "hung"
    path.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    try:
        assert libc.mount(b"hung", os.fsencode(path), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
        yield path
    finally:
        os.close(server)  # who waits for an answer gets an error
        libc.umount2(os.fsencode(path), 2)


def with_gpus(tmp_path, driver="580.159.04/13000", **variables):
    """The environment of a node with two GPUs and the driver of an H200."""
    gpus = tmp_path / "gpus_of_versions"
    gpus.write_text(f"driver={driver}\nGPU-1000 0000:17:00.0 0 0 0 -\nGPU-2000 0000:18:00.0 0 0 0 -\n")
    return clean_environment(MUSTER_NVML_LIBRARY=BIN / "libfake_nvml.so", FAKE_NVML=gpus, **variables)


def python_in(prefix, site_packages):
    """An interpreter with those packages."""
    real = os.path.realpath("/usr/bin/python3")
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python3").symlink_to(real)
    library = prefix / "lib" / os.path.basename(real)
    library.mkdir(parents=True)
    (library / "site-packages").symlink_to(site_packages)
    return prefix / "bin/python3"


def descriptors(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            pass


def test_a_driver_and_a_file_system_that_hang_make_their_node_unhealthy_in_time(muster, tmp_path, hung_disk):
    pipe = tmp_path / "driver"  # nobody ever writes: to open it waits for ever
    os.mkfifo(pipe)
    wedged = clean_environment(MUSTER_NVML_LIBRARY=BIN / "libfake_nvml.so", FAKE_NVML=pipe)
    # Beside each other: each takes the 10 s that it has.
    started = [muster.start(CHECK, "--nproc-per-node=1", "echo", "ran", env=wedged),
               muster.start(CHECK, "--nproc-per-node=gpu", "echo", "ran", env=wedged),
               muster.start(CHECK, "--nproc-per-node=1", f"--log-dir={hung_disk}/logs", "echo", "ran"),
               muster.start(CHECK, "--nproc-per-node=1", "--no-python", python_in(tmp_path / "env", hung_disk), "-ISc", "print('ran')",
                            env=with_gpus(tmp_path))]
    # A check that hangs in the kernel holds nothing of its launcher's that somebody waits for.
    child = child_named(started[2].pid, "job-preflight")
    ours = {os.readlink(f"/proc/{started[2].pid}/fd/{fd}") for fd in (1, 2)}
    assert wait_for(lambda: not ours & set(descriptors(child)), "the check to let go of its launcher's descriptors")
    assert os.getsid(child) == child
    (out, err), (_, planless), (far_out, far_err), (ran, told) = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [74, 74, 74, 0], (err, planless, far_err, told)
    assert (out, far_out) == ("", "")
    verdict = r"preflight\S* .*the GPU driver \(NVML\) does not answer within 10 s"
    assert re.search(verdict, err) and re.search(verdict, planless), (err, planless)
    assert re.search(f"preflight of .*: the check of {hung_disk}/logs took more than 10 s; a driver or a disk does not answer", far_err)
    # Where only the versions cannot be read the node is fit, and the job runs.
    assert ran == "ran\n"
    assert re.search("preflight of .*: warning: the check of the versions of CUDA, NCCL and cuDNN took more than 10 s", told), told


def test_the_versions_that_the_workers_get_and_their_gpus_are_told(muster, tmp_path):
    site = tmp_path / "site"
    for file in ("nvidia/cu13/lib/libcudart.so.13", "nvidia_cuda_runtime-13.0.96.dist-info/METADATA", "nvidia/nccl/lib/libnccl.so.2",
                 "nvidia_nccl_cu13-2.28.9.dist-info/METADATA", "nvidia/cudnn/lib/libcudnn.so.9",
                 "nvidia_cudnn_cu13-9.19.0.56.dist-info/METADATA", "torch/version.py"):
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    python = python_in(tmp_path / "env", site)
    script = write(tmp_path, "train.py", "import os\nos.write(1, b'ran\\n')\n")
    env = with_gpus(tmp_path, CUDA_VISIBLE_DEVICES="1,0", PYTHON_EXEC=python)
    result = muster.run(CHECK, "--nproc-per-node=2", script, env=env)
    assert (result.returncode, result.stdout.split()) == (0, ["ran"] * 2), result.stderr
    lib = f"{tmp_path}/env/lib/{os.path.basename(os.path.realpath(python))}/site-packages/nvidia"
    for text in (f"driver 580.159.04 (CUDA up to 13.0), CUDA runtime 13.0.96 ({lib}/cu13/lib/libcudart.so.13), NCCL 2.28.9 "
                 f"({lib}/nccl/lib/libnccl.so.2), cuDNN 9.19.0.56 ({lib}/cudnn/lib/libcudnn.so.9), PyTorch 2.11.0+cu130 (for CUDA 13.0)",
                 "CUDA_VISIBLE_DEVICES=1,0: local rank 0,1 uses nvidia-smi's GPU 1,0 as cuda:0,1"):
        assert re.search(rf"^muster: preflight of \S+: {re.escape(text)}$", result.stderr, re.M), result.stderr
    # What does not fit is a warning, and the job runs.
    result = muster.run(CHECK, "--nproc-per-node=1", script, env={**env, **with_gpus(tmp_path, driver="570.86.15/12080", PYTHON_EXEC=python)})
    assert (result.returncode, result.stdout) == (0, "ran\n"), result.stderr
    assert re.search(r"preflight of \S+: warning: PyTorch is for CUDA 13, but driver 570\.86\.15 runs CUDA 12 at most", result.stderr)


def with_nccl(tmp_path, body):
    """The environment of workers whose loader finds that NCCL."""
    (tmp_path / "nccl.c").write_text("#include <stdlib.h>\nint ncclGetVersion(int* out) { %s }\n" % body)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnccl.so.2", tmp_path / "nccl.c"], check=True)
    return with_gpus(tmp_path, LD_LIBRARY_PATH=tmp_path)


def test_of_libraries_that_no_package_brought_the_version_is_the_one_that_they_tell(muster, tmp_path):
    conda = python_in(tmp_path / "conda", tmp_path / "none")
    with_nccl(tmp_path, "*out = 2804; return 0;")
    (tmp_path / "libnccl.so.2").rename(tmp_path / "conda/lib/libnccl.so.2")
    env = with_nccl(tmp_path, "*out = 22803; return 0;")
    for program, library in (("echo", f"2.28.3 ({tmp_path}/libnccl.so.2)"), (conda, f"2.8.4 ({tmp_path}/conda/lib/libnccl.so.2)")):
        result = muster.run(CHECK, "--nproc-per-node=1", "--no-python", program, "-c", "'ran'", env=env)
        assert result.returncode == 0, result.stderr
        assert f", NCCL {library}, cuDNN " in result.stderr
        assert "PyTorch" not in result.stderr


def test_a_library_that_crashes_when_it_is_asked_for_its_version_is_a_warning(muster, tmp_path):
    result = muster.run(CHECK, "--nproc-per-node=1", "echo", "ran", env=with_nccl(tmp_path, "abort();"))
    assert (result.returncode, result.stdout) == (0, "ran\n"), result.stderr
    assert re.search(r"preflight of \S+: warning: the check of the versions of CUDA, NCCL and cuDNN died", result.stderr)


def test_links_clocks_and_ports_below_their_best_are_named(muster, tmp_path):
    gpus = tmp_path / "gpus"
    gpus.write_text("GPU-1000 0000:17:00.0 0 0 0 - state=0 generation=5/5 width=16/16 links=18/18\n"
                    "GPU-2000 0000:18:00.0 0 0 0 - state=0 generation=4/5 width=8/16 links=17/18 retired_pending=1\n")
    env = clean_environment(MUSTER_NVML_LIBRARY=BIN / "libfake_nvml.so", FAKE_NVML=gpus)
    result = muster.run(CHECK, "--gpus=0,1", "echo", "ran", env=env)
    assert (result.returncode, result.stdout) == (0, "ran\n" * 2), result.stderr
    for text in ("its PCIe link has 8 of 16 lanes", "its PCIe link runs at generation 4 of 5",
                 "17 of 18 NVLinks are active; another GPU of this node has 18"):
        assert re.search(rf"preflight of \S+: warning: GPU 1 \(GPU-2000\): {text}", result.stderr), result.stderr
    assert "GPU 1 (GPU-2000) needs a reset" in result.stderr
    assert "GPU-1000" not in result.stderr
    gpus.write_text("GPU-1000 0000:17:00.0 0 0 0 - throttle=0x88\n")
    result = muster.run(CHECK, "--gpus=0", "echo", "ran", env=env)
    assert (result.returncode, result.stdout) == (74, "")
    assert "GPU 0 (GPU-1000): the hardware throttles its clocks (power brake)" in result.stderr


def test_a_spare_takes_the_place_of_a_node_with_a_full_disk_which_all_are_told_of(job, tmp_path, full_disk):
    it = job(4)
    script = write(tmp_path, "show.py", SHOW)
    it.start(0, 1, CHECK, "--spares=1", "--node-rank=0", script, nnodes=3)
    it.start(1, 1, CHECK, "--spares=1", "--node-rank=1", script, nnodes=3)
    it.start(2, 1, CHECK, "--spares=1", "--node-rank=2", f"--log-dir={full_disk}/logs", script, nnodes=3)
    for node in (0, 1):
        it.said(node, rf"2/3 nodes; host2 is unhealthy: {full_disk} \(logs\) is full: 0 MiB and \d+ files left")
    it.start(3, 1, CHECK, "--spares=1", "--node-rank=2", script, nnodes=3)
    assert it.codes(0, 1, 3) == [0, 0, 0], [it.err(node) for node in range(4)]
    assert it.codes(2) == [74], it.err(2)
    assert "host2 is unhealthy and does not take part" in it.err(2)
    workers = it.workers(0, 1, 2, 3)
    assert [(w["RANK"], w["NODE"], w["WORLD_SIZE"]) for w in workers] == [("0", "0", "3"), ("1", "1", "3"), ("2", "3", "3")]


def test_an_unhealthy_node_that_runs_the_coordinator_stays_for_the_others_and_ends_as_the_job_does(job, tmp_path):
    it = job(3)
    script = write(tmp_path, "show.py", SHOW)
    it.start(0, 1, CHECK, "--spares=1", script, nnodes=2, wrap=FEW_FILES)
    for node in (1, 2):
        it.start(node, 1, CHECK, "--spares=1", script, nnodes=2)
    assert it.codes(0, 1, 2) == [0, 0, 0], [it.err(node) for node in range(3)]
    assert re.search(f"preflight of host0: {FEW_FILES_TEXT}", it.err(0))
    assert it.workers(0) == []
    assert len(it.workers(1, 2)) == 2


def test_too_few_fit_nodes_are_a_timeout_that_names_the_unhealthy_one(job, tmp_path):
    it = job(2)
    for node, wrap in ((0, ()), (1, FEW_FILES)):
        it.start(node, 1, CHECK, "--no-python", "true", conf="join_timeout=8", wrap=wrap)
    assert it.codes(0, 1) == [69, 74], (it.err(0), it.err(1))
    for node in (0, 1):
        assert re.search(f"1 of 2 nodes were ready\n  host1: preflight: is unhealthy: {FEW_FILES_TEXT}", it.err(node))


def test_a_signal_ends_an_unhealthy_node_that_waits_and_its_reason_stays(job, tmp_path):
    it = job(2)
    it.start(0, 1, CHECK, "--no-python", "true", conf="join_timeout=10")
    unhealthy = it.start(1, 1, CHECK, "--no-python", "true", conf="join_timeout=10", wrap=FEW_FILES)
    it.said(0, f"1/2 nodes; host1 is unhealthy: {FEW_FILES_TEXT}")
    unhealthy.terminate()
    assert it.codes(1) == [143]
    assert it.codes(0) == [69]
    assert re.search(f"host1: preflight: is unhealthy: {FEW_FILES_TEXT}", it.err(0))


def start_static(it, node, *args, wrap=(), **env):
    options = (f"--nnodes={len(it.nodes.names)}", f"--node-rank={node}", f"--master-addr={it.nodes.address(0)}",
               "--master-port=29511", f"--local-addr=host{node}", "--nproc-per-node=1")
    it.spawn(node, node, *wrap, MUSTER, *options, *args, env=clean_environment(NODE=node, **env))


@pytest.mark.parametrize("unhealthy", [0, 2])
def test_with_static_rendezvous_an_unhealthy_node_ends_the_job_everywhere_with_its_reason(job, unhealthy):
    it = job(3)
    # Without the last one: what is known need not be waited for.
    start_static(it, unhealthy, CHECK, "--no-python", "true", wrap=FEW_FILES)
    start_static(it, 2 - unhealthy, CHECK, "--no-python", "true")
    assert it.codes(2) == [74], it.err(2)
    # Node 0 stays for it, whoever is unhealthy.
    if unhealthy != 0:
        it.said(0, "the job is cancelled; waiting at most 60 s for node 1 to connect and get the reason")
    start_static(it, 1, "--no-python", "true")
    for node in (0, 1, 2):
        assert it.codes(node) == [74]
        assert re.search(rf"node {unhealthy} \(host{unhealthy}\) is unhealthy: {FEW_FILES_TEXT}", it.err(node)), it.err(node)


def set_clock(tmp_path, library, seconds):
    (tmp_path / "clock").write_text(str(seconds))
    return {"LD_PRELOAD": library, "MUSTER_TEST_CLOCK": tmp_path / "clock"}


def others_say_nothing(it, *nodes):
    return all(" ahead of " not in it.err(node) and " behind " not in it.err(node) for node in nodes)


def test_a_clock_that_differs_from_the_coordinators_is_reported_by_its_node_and_changes_nothing(job, tmp_path, stepped_clock):
    it = job(3)
    script = write(tmp_path, "show.py", SHOW)
    it.start(0, 1, CHECK, script)
    it.start(1, 1, CHECK, script, **set_clock(tmp_path, stepped_clock, 90))
    it.said(1, r"preflight of host1: the clock is (89|90)\.\d\d s ahead of the coordinator at \S+'s")
    it.start(2, 1, script, **set_clock(tmp_path, stepped_clock, 90))
    assert it.codes(0, 1, 2) == [0, 0, 0], [it.err(node) for node in range(3)]
    assert others_say_nothing(it, 0, 2)
    assert len(it.workers(0, 1, 2)) == 3


def test_a_clock_that_differs_from_node_0s_is_reported_under_static_rendezvous(job, tmp_path, stepped_clock):
    it = job(3)
    start_static(it, 0, CHECK, "--no-python", "true")
    start_static(it, 1, CHECK, "--no-python", "true", **set_clock(tmp_path, stepped_clock, -3600))
    it.said(1, r"preflight of host1: the clock is (3599|3600)\.\d\d s behind the coordinator at 10\.77\.0\.1:29511 \(node 0\)'s")
    start_static(it, 2, "--no-python", "true")
    assert it.codes(0, 1, 2) == [0, 0, 0], [it.err(node) for node in range(3)]
    assert others_say_nothing(it, 0, 2)


def test_the_full_check_multiplies_reduces_and_says_how_fast(muster):
    result = muster.run("--preflight=full", "--nproc-per-node=2", "echo", "ran")
    assert (result.returncode, result.stdout) == (0, "ran\n" * 2), result.stderr
    figures = re.search(r"preflight of \S+: (\d+) process(?:es)?: GEMM [\d.]+.* GFLOP/s.*, memory copies [\d.]+.* GiB/s", result.stderr)
    assert figures, result.stderr
    assert (int(figures[1]) > 1) == ("all-reduce" in result.stderr)
    assert (int(figures[1]) > 1) == (len(os.sched_getaffinity(0)) > 1) or int(figures[1]) == 1


def with_helper(muster, text):
    """The launcher elsewhere, with another program beside it."""
    there = muster.tmp_path / "bin"
    there.mkdir()
    shutil.copy2(BIN / "muster", there)
    if text is not None:
        (there / "muster-preflight").write_text(text)
        (there / "muster-preflight").chmod(0o755)
    return subprocess.run([there / "muster", "--preflight=full", "--nproc-per-node=1", "echo", "ran"], text=True, timeout=100,
                          capture_output=True, env=clean_environment(TMPDIR=muster.tmp_path), cwd=muster.tmp_path)


@pytest.mark.parametrize("helper,text", [
    ("#!/bin/sh\necho '>the devices'\nkill -BUS $$\n", "the check of the devices died"),
    ("#!/bin/sh\necho \"!CPU: the GEMM's result is wrong in 3 of 512 rows\"\necho .\n", "CPU: the GEMM's result is wrong in 3 of 512 rows"),
    ("#!/bin/sh\necho usage: none\n", "unexpected output of the check: usage: none"),
    (None, "the full check needs .*/bin/muster-preflight, which is not there"),
])
def test_a_device_that_fails_the_full_check_makes_its_node_unhealthy(muster, helper, text):
    result = with_helper(muster, helper)
    assert (result.returncode, result.stdout) == (74, ""), result.stderr
    assert re.search(f"preflight of .*{text}", result.stderr), result.stderr


def test_the_helper_alone_says_who_starts_it():
    result = subprocess.run([BIN / "muster-preflight", "--help"], text=True, capture_output=True, timeout=60)
    assert result.returncode == 2
    assert "started by muster --preflight=full" in result.stderr
