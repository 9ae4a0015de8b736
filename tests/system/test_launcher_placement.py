# SPDX-License-Identifier: Apache-2.0
"""Where workers run and what they see of the GPUs: dry runs over described machines, real bindings read from /proc."""
import json
import os
import re

import pytest

from launcher_support import BIN, clean_environment, muster

SERVER = "pack:2 numa:2 l3:2 core:4 pu:2"  # 64 CPUs, 4 NUMA nodes
SHOW = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "LOCAL_RANK")
os.write(1, (json.dumps({"rank": int(os.environ["RANK"]), "cpus": status["Cpus_allowed_list"].strip(),
                  "mems": status["Mems_allowed_list"].strip(), "policy": open("/proc/self/numa_maps").readline().split()[1],
                  **{name: os.environ.get(name) for name in names}}) + "\\n").encode())
"""


def mask():
    return sorted(os.sched_getaffinity(0))


@pytest.fixture
def gpus(tmp_path):
    """An environment in which the node has these GPUs: (UUID, PCI address)."""
    library = BIN / "libfake_nvml.so"
    assert library.is_file(), f"{library} is not built"

    def environment(*lines, **extra):
        inventory = tmp_path / "gpus"
        inventory.write_text("".join(f"{line}\n" for line in lines))
        return clean_environment(MUSTER_NVML_LIBRARY=library, FAKE_NVML=inventory, **extra)

    return environment


def eight(gpus, **extra):
    return gpus(*(f"GPU-{i}000 0000:{0x17 + i:02x}:00.0 0 0 0 -" for i in range(8)), **extra)


def shown(muster, *args, env=None, **kwargs):
    script = muster.script("show.py", SHOW)
    result = muster.run(*args, script, env=env, **kwargs)
    assert result.returncode == 0, result.stderr
    workers = sorted((json.loads(line) for line in result.stdout.splitlines()), key=lambda worker: worker["rank"])
    return workers, result.stderr


def rows(text):
    """The table's lines as dictionaries."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("rank "))
    names = lines[head].split()
    return [dict(zip(names, re.split(r"  +", line))) for line in lines[head + 1:] if re.match(r"[\d?]+ ", line)]


def test_each_rank_is_bound_to_a_core_of_its_own_inside_the_mask(muster):
    cpus = mask()
    workers, said = shown(muster, "--nproc-per-node=1", "--bind=core", "--report-bindings",
                          preexec_fn=lambda: os.sched_setaffinity(0, cpus[-1:]))
    assert workers[0]["cpus"] == str(cpus[-1])
    assert workers[0]["mems"]
    assert workers[0]["policy"] == "default" or workers[0]["policy"].startswith("prefer")
    assert rows(said)[0]["CPUs"] == str(cpus[-1])


def test_bound_ranks_divide_the_mask_and_their_threads_are_their_cores(muster):
    env = clean_environment(OMP_NUM_THREADS=None)
    workers, said = shown(muster, "--nproc-per-node=2", "--bind=core", "--oversubscribe", "--report-bindings", env=env)
    assert [row["CPUs"] for row in rows(said)] == [worker["cpus"] for worker in workers]
    for worker, row in zip(workers, rows(said)):
        assert worker["OMP_NUM_THREADS"] == row["cores"]
    unbound, said = shown(muster, "--nproc-per-node=2", "--report-bindings")
    for worker, row in zip(unbound, rows(said)):
        assert row["CPUs"] == "any of " + worker["cpus"]
        assert worker["policy"] == "default"


@pytest.mark.parametrize("options", [["--report-bindings"], ["--gpus=0,1"]])
def test_whoever_gets_more_than_one_thread_is_told_so_once(muster, gpus, options):
    # A described machine has cores to share, wherever this runs.
    env = eight(gpus, HWLOC_SYNTHETIC=SERVER, OMP_NUM_THREADS=None)
    workers, said = shown(muster, "--nproc-per-node=2", *options, env=env)
    assert [worker["OMP_NUM_THREADS"] for worker in workers] == ["16", "16"]
    assert said.count("OMP_NUM_THREADS is not set: each of the 2 workers gets 16 threads") == 1
    assert "OMP_NUM_THREADS" not in shown(muster, "--nproc-per-node=2", *options, env={**env, "OMP_NUM_THREADS": "3"})[1]


def test_threads_are_the_shares_of_the_cores_and_that_is_said_once(muster):
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = len({open(siblings.format(cpu)).read() for cpu in mask()})
    workers, said = shown(muster, "--nproc-per-node=2", env=clean_environment(OMP_NUM_THREADS=None))
    threads = {int(worker["OMP_NUM_THREADS"]) for worker in workers}
    # A cgroup may leave less time than the mask has cores.
    assert len(threads) == 1 and 1 <= min(threads) <= max(1, cores // 2)
    assert said.count("OMP_NUM_THREADS") == (1 if max(threads) > 1 else 0)


def test_a_restart_binds_again(muster):
    script = muster.script("once.sh", "grep Cpus_allowed_list /proc/self/status; exit $((TORCHELASTIC_RESTART_COUNT == 0))\n")
    cpu = mask()[0]
    result = muster.run("--nproc-per-node=1", "--max-restarts=1", "--bind=numa", "--no-python", "/bin/sh", script,
                        preexec_fn=lambda: os.sched_setaffinity(0, [cpu]))
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"Cpus_allowed_list:\t{cpu}\n" * 2


def test_more_ranks_than_cores_are_refused_before_anything_starts(muster):
    result = muster.run("--nproc-per-node=2", "--bind=core", "echo", "started",
                        preexec_fn=lambda: os.sched_setaffinity(0, mask()[:1]))
    assert result.returncode == 2
    assert "has 1 core" in result.stderr and "--oversubscribe" in result.stderr
    assert result.stdout == ""


def test_gpus_are_what_was_chosen_in_nvidia_smis_numbers(muster, gpus):
    workers, _ = shown(muster, "--gpus=5,GPU-2000", env=eight(gpus))
    assert [worker["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["5,GPU-2000"] * 2
    assert [worker["CUDA_DEVICE_ORDER"] for worker in workers] == ["PCI_BUS_ID"] * 2
    assert [worker["LOCAL_RANK"] for worker in workers] == ["0", "1"]
    workers, _ = shown(muster, "--gpus=5,GPU-2000", "--virtual-local-rank", env=eight(gpus))
    assert [worker["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["5", "GPU-2000"]
    assert [worker["LOCAL_RANK"] for worker in workers] == ["0", "0"]


def test_two_ranks_on_one_gpu_need_a_word_where_muster_gives_them_out(muster, gpus):
    two = ["GPU-a 0000:17:00.0 0 0 0 -", "GPU-b 0000:18:00.0 0 0 0 -"]
    options = ["--nproc-per-node=4", "--virtual-local-rank"]
    refused = muster.run(*options, "echo", "started", env=gpus(*two))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "4 workers for 2 GPUs; lower --nproc-per-node, or share GPUs with --oversubscribe" in refused.stderr
    workers, _ = shown(muster, *options, "--oversubscribe", env=gpus(*two))
    assert [worker["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0", "1", "0", "1"]
    # No driver is needed to see this.
    twice = muster.run("--nproc-per-node=2", "--virtual-local-rank", "true", env=clean_environment(CUDA_VISIBLE_DEVICES="1,1"))
    assert twice.returncode == 2 and "GPU 1 is named twice in CUDA_VISIBLE_DEVICES=1,1" in twice.stderr
    # Where the program chooses, as under torchrun, it is told and started.
    plain = muster.run("--nproc-per-node=4", "true", env=gpus(*two))
    assert plain.returncode == 0 and plain.stderr.count("4 workers for 2 GPUs; a worker that uses the GPU of its LOCAL_RANK") == 1


@pytest.mark.parametrize("args,extra,reason", [
    (["--gpus=8"], {}, "8 names no GPU; this node has 0 GPU-0000"),
    (["--gpus=1", "--nproc-per-node=2"], {}, "two ranks on one GPU need --oversubscribe"),
    (["--gpus=1,1"], {}, "the same GPU"),
    (["--gpus=1"], {"CUDA_VISIBLE_DEVICES": "2,3"}, "1 is not among CUDA_VISIBLE_DEVICES=2,3"),
    (["--gpus=1"], {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "CUDA_DEVICE_ORDER=FASTEST_FIRST"),
])
def test_a_wrong_choice_of_gpus_is_refused_with_the_reason(muster, gpus, args, extra, reason):
    result = muster.run(*args, "true", env=eight(gpus, **extra))
    assert result.returncode == 2
    assert reason in result.stderr


def test_a_dry_run_shows_the_plan_of_another_machine_and_starts_nothing(muster, gpus):
    touched = muster.tmp_path / "touched"
    result = muster.run("--dry-run", "--gpus=4-7", "--bind=core", "touch", touched,
                        env=eight(gpus, HWLOC_SYNTHETIC=SERVER))
    assert result.returncode == 0, result.stderr
    assert not touched.exists()
    table = rows(result.stdout)
    assert [(row["rank"], row["CUDA"], row["GPU"], row["UUID"], row["PCI"]) for row in table] == [
        (str(i), str(i), str(4 + i), f"GPU-{4 + i}000", f"0000:{0x1b + i:02x}:00.0") for i in range(4)]
    # No NUMA node is known of GPUs that are not there: they are spread.
    assert [row["CPUs"] for row in table] == ["0-15", "16-31", "32-47", "48-63"]
    assert "  CUDA_VISIBLE_DEVICES=4,5,6,7\n" in result.stdout
    assert f"command: /usr/bin/touch {touched}\n" in result.stdout
    assert "local rank 3: the NUMA node of GPU 7 is unknown" in result.stdout
    assert result.stdout.endswith("nothing was started (--dry-run)\n")
    assert "MUSTER_SECRET" not in result.stdout


@pytest.mark.parametrize("option,cpus", [
    ("--numa-binding=node", ["0-15", "16-31", "32-47", "48-63"]),
    ("--numa-binding=socket", ["0-31", "0-31", "32-63", "32-63"]),
    ("--numa-binding=exclusive", ["0-15", "16-31", "32-47", "48-63"]),
    ("--numa-binding=core-complex", ["0-7", "16-23", "32-39", "48-55"]),
])
def test_torchruns_names_for_bindings_are_known(muster, option, cpus):
    result = muster.run("--dry-run", "--nproc-per-node=4", option, "true", env=clean_environment(HWLOC_SYNTHETIC=SERVER))
    assert result.returncode == 0, result.stderr
    assert [row["CPUs"] for row in rows(result.stdout)] == cpus


def test_another_machines_topology_is_not_bound_to(muster):
    result = muster.run("--bind=numa", "true", env=clean_environment(HWLOC_SYNTHETIC=SERVER))
    assert result.returncode == 2
    assert "describes another machine" in result.stderr


def test_a_fit_node_runs_and_an_unhealthy_one_says_why_and_does_not(muster, gpus):
    fine = muster.run("--preflight=quick", "--gpus=0", "echo", "ran", env=gpus("GPU-1 0000:17:00.0 100 0 0 -"))
    assert (fine.returncode, fine.stdout) == (0, "ran\n"), fine.stderr
    held = gpus("GPU-1 0000:17:00.0 100 0 0 -", f"GPU-2 0000:18:00.0 8192 0 0 {os.getpid()}")
    unhealthy = muster.run("--preflight=quick", "--gpus=0,1", "echo", "ran", env=held)
    assert (unhealthy.returncode, unhealthy.stdout) == (74, "")
    assert re.search(rf"preflight of \S+: GPU 1 \(GPU-2\): pid {os.getpid()} \(\S+\) holds 8192 MiB", unhealthy.stderr)
    assert "is unhealthy and does not take part" in unhealthy.stderr
    # Another job's GPU does not matter to this one, and sharing is allowed where it is asked for.
    assert muster.run("--preflight=quick", "--gpus=0", "true", env=held).returncode == 0
    assert muster.run("--preflight=quick", "--gpus=0,1", "--oversubscribe", "true", env=held).returncode == 0
    assert muster.run("--gpus=0,1", "true", env=held).returncode == 0


def test_the_full_preflight_measures_memory_too(muster):
    result = muster.run("--preflight=full", "--nproc-per-node=1", "echo", "ran")
    assert (result.returncode, result.stdout) == (0, "ran\n"), result.stderr


def test_an_unknown_preflight_is_a_usage_error(muster):
    assert muster.run("--preflight=fast", "true").returncode == 2


def test_workers_that_share_a_cpu_of_several_are_told_once(muster):
    cpus = mask()
    if len(cpus) < 2:
        pytest.skip("one CPU cannot be a part of them")
    narrow = {"preexec_fn": lambda: os.sched_setaffinity(0, cpus[:1])}
    done = muster.run("--nproc-per-node=4", "true", **narrow)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("4 workers share 1 of the node's") == 1
    assert done.stderr.count("\n") == 1
    for words in (["--nproc-per-node=4", "--oversubscribe"], ["--nproc-per-node=1"]):
        assert muster.run(*words, "true", **narrow).stderr == ""


def test_a_batch_script_s_idle_nodes_are_said_unless_one_is_meant(muster):
    env = clean_environment(SLURM_JOB_ID=77, SLURM_NNODES=2, SLURM_JOB_NUM_NODES=2, SLURM_JOB_NODELIST="n[1-2]")
    done = muster.run("--no-python", "true", env=env)
    assert done.returncode == 0, done.stderr
    assert "run: muster --no-python --srun true;" in done.stderr
    assert done.stderr.count("\n") == 1
    for word in ("--nnodes=1", "--standalone", "--no-slurm"):
        assert muster.run(word, "--no-python", "true", env=env).stderr == ""
