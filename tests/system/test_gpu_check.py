# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check itself, with programs that play the GPU tests: there is no GPU here. Then what a GPU host without oneDNN,
Boost and OpenSSL gets: its build from a package of the sources, and the bundle of the programs built there."""
import glob
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from launcher_support import ROOT, alive, wait_for

CASES = """#!/bin/sh
case "$1" in --list*) printf '%s\\n' {names}; exit 2;; esac
case "$1" in
  *passes*) exit 0;;
  *fails*) echo 'expected 3'; exit 1;;
  *hangs*) sleep 1000 & echo $! > {folder}/child; wait;;
  *) echo 'No test cases matched'; exit 0;;
esac
"""
INFO = """#!/bin/sh
echo '{"gpu": "A GPU", "driver_cuda": "12.4", "cublaslt": "13.1.0", "cudnn": "9", "nccl": "2.28.3"}'
"""
# Plays gpu_bench.py and gpu_compare.py: their arguments are their result.
MEASURE = """import argparse, json, sys, time
parser = argparse.ArgumentParser()
for name in ("build", "output", "machine"): parser.add_argument(f"--{name}", required=True)
parser.add_argument("--deadline", type=int, required=True)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()
print("bandwidth 1", flush=True)
results = [vars(options)]
json.dump({"machine": json.load(open(options.machine)), "results": results}, open(options.output, "w"))
"""
SANITIZER = """#!/bin/sh
shift 6
"$@" || exit
echo '========= ERROR SUMMARY: 0 errors'
"""


def loaded(script):
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def gpu_check(tmp_path, monkeypatch):
    """A machine with a GPU; returns the function that runs the script's first part, or those that are named, and gives
    its exit code and what it wrote."""
    module = loaded(ROOT / "scripts/gpu_check")
    monkeypatch.setattr(module, "has_gpu", lambda: True)
    monkeypatch.setattr(module, "smi", lambda: [])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    monkeypatch.setattr(module.glob, "glob", lambda pattern: [])
    (tmp_path / "bin").mkdir()
    program(tmp_path, "gpu_info", INFO)
    for part in module.SCRIPTS[:4]:
        program(tmp_path, part, MEASURE)
    for name in module.PROGRAMS:
        program(tmp_path, name, CASES.format(names=f"'{name} passes'", folder=tmp_path))

    def run(*options, parts=("correctness",)):
        monkeypatch.setattr(sys, "argv", ["gpu_check", *parts, f"--build={tmp_path}", f"--results={tmp_path}", *options])
        with pytest.raises(SystemExit) as end:
            module.main()
        written = [tmp_path / f"gpu_{part}.json" for part in parts or module.PARTS]
        results = [json.loads(path.read_text()) if path.exists() else None for path in written]
        return end.value.code, results[0] if len(results) == 1 else results

    run.module = module
    return run


def program(folder, name, text):
    path = folder / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def statuses(result):
    return {check["check"]: check["status"] for check in result["checks"]}


def test_every_case_is_a_check_and_all_have_to_pass(gpu_check, tmp_path):
    programs = len(gpu_check.module.PROGRAMS)
    code, result = gpu_check()
    assert (code, result["counts"]) == (0, {"passed": programs, "failed": 0, "skipped": 0, "not run": 0})
    program(tmp_path, "gpu_nccl", CASES.format(names="'one passes' 'this fails' 'is unknown'", folder=tmp_path))
    code, result = gpu_check()
    assert (code, result["counts"]) == (1, {"passed": programs, "failed": 2, "skipped": 0, "not run": 0})
    assert statuses(result)["is unknown"] == statuses(result)["this fails"] == "failed"
    assert [check["output"] for check in result["checks"] if check["check"] == "this fails"] == ["expected 3\n"]


def test_what_hangs_is_ended_with_its_children_and_the_rest_goes_on_later(gpu_check, tmp_path):
    program(tmp_path, "gpu_kernels", CASES.format(names="'one hangs' 'one passes'", folder=tmp_path))
    cases = len(gpu_check.module.PROGRAMS) + 1  # two of gpu_kernels
    code, result = gpu_check("--timeout=3")
    assert code == 1
    assert (statuses(result)["one hangs"], statuses(result)["one passes"]) == ("failed", "passed")
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not alive(child), "the end of what a check started")
    code, result = gpu_check("--deadline=1")
    assert (code, result["counts"]["not run"]) == (1, cases)
    program(tmp_path, "gpu_kernels", CASES.format(names="'now passes' 'one passes'", folder=tmp_path))
    code, result = gpu_check("--resume")
    assert (code, result["counts"]["passed"]) == (0, cases)
    program(tmp_path, "gpu_trainer", "#!/bin/sh\necho 'gpu_trainer passes'; exit 1\n")  # it would fail if it ran
    assert gpu_check("--resume")[0] == 0


def test_a_gpu_that_cuda_cannot_use_is_a_failure_and_no_skip(gpu_check, tmp_path):
    program(tmp_path, "gpu_info", "#!/bin/sh\necho 'SKIP: no GPU here'; exit 77\n")
    code, result = gpu_check()
    assert "there is a GPU, and gpu_info ended with 77: SKIP: no GPU here" in code
    assert result is None


def test_the_launchers_own_check_runs_where_it_was_built_and_its_figures_stay(gpu_check, tmp_path):
    for name in gpu_check.module.LAUNCHER:
        program(tmp_path, name, "#!/bin/sh\necho 'preflight: GEMM 640 TFLOP/s'\n")
    code, result = gpu_check()
    assert code == 0
    assert result["checks"][-1]["output"] == "preflight: GEMM 640 TFLOP/s\n"


def test_each_part_has_a_file_of_its_own_with_the_machine_in_it(gpu_check, tmp_path, capfd):
    code, (correctness, bench, compare, train, launch) = gpu_check("--resume", parts=())
    assert (code, correctness["counts"]["failed"]) == (0, 0)
    assert {part["machine"]["gpu"] for part in (correctness, bench, compare, train, launch)} == {"A GPU"}
    assert bench["results"][0]["build"] == str(tmp_path) and bench["results"][0]["resume"]
    assert 400 < compare["results"][0]["deadline"] < 480
    assert capfd.readouterr().out.count("bandwidth 1\n") == 4
    code, bench = gpu_check(parts=["bench"])
    assert code == 0 and not bench["results"][0]["resume"]
    program(tmp_path, "gpu_compare.py", MEASURE + "sys.exit(1)")
    assert gpu_check(parts=["bench", "compare"])[0] == 1


def test_a_part_that_misses_its_deadline_is_ended_and_keeps_its_file(gpu_check, tmp_path, capfd):
    program(tmp_path, "gpu_bench.py", MEASURE + "time.sleep(1000)")
    code, bench = gpu_check("--deadline=2", parts=["bench"])
    assert (code, bench["results"][0]["deadline"]) == (1, 1)
    assert "bench: failed, exit code 124" in capfd.readouterr().out


def test_memory_accesses_are_checked_where_compute_sanitizer_works(gpu_check, tmp_path):
    code, result = gpu_check()
    assert (code, result["machine"]["compute_sanitizer"]) == (0, "no compute-sanitizer here")
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    code, result = gpu_check()
    assert (code, result["machine"]["compute_sanitizer"]) == (0, "works")
    checked = [check["program"] for check in result["checks"] if check["check"].startswith("memcheck: ")]
    assert sorted(checked) == sorted(gpu_check.module.UNDER_MEMCHECK)
    tool.write_text("#!/bin/sh\necho 'Device not supported'\n")
    code, result = gpu_check()
    assert (code, result["machine"]["compute_sanitizer"]) == (0, "does not work here: Device not supported\n")


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory):
    """The sources as a GPU host gets them, and what it builds of them."""
    with pytest.MonkeyPatch.context() as patch:
        # The compiler cache also knows the headers of a build of this preset in the tree itself, which are those under /usr.
        patch.setenv("CCACHE_NAMESPACE", "gpu_host")
        yield from built_gpu_host(tmp_path_factory.mktemp("gpu_host"))


def built_gpu_host(folder):
    if not shutil.which("nvcc") and not glob.glob("/usr/local/cuda*/bin/nvcc"):
        pytest.skip("no GPU here, and no nvcc to build for one")
    subprocess.run([ROOT / "scripts/gpu_check", f"--pack-source={folder}/muster.tar.xz"], check=True)
    assert (folder / "muster.tar.xz").stat().st_size < 40e6
    subprocess.run(["tar", "-xf", "muster.tar.xz"], cwd=folder, check=True)
    tree = folder / "muster"
    # One architecture: a third of the kernels' compile time. What build() configures again keeps it.
    subprocess.run(["cmake", "--preset", "gpu-host", "-DCMAKE_CUDA_ARCHITECTURES=90"], cwd=tree, check=True, capture_output=True,
                   env={**os.environ, "CUDACXX": shutil.which("nvcc") or glob.glob("/usr/local/cuda*/bin/nvcc")[0]})
    build = loaded(tree / "scripts/gpu_check").build(2, "gpu-host")
    subprocess.run(["cmake", "--build", build, "-j2", "--target", "unit_kernels_cpu"], check=True, capture_output=True)
    yield build
    shutil.rmtree(folder, ignore_errors=True)


def skips(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return (done.returncode, done.stdout) == (77, "SKIP: no GPU here\n")


@pytest.mark.timeout(900)  # its first build takes minutes
def test_a_gpu_host_builds_without_onednn_boost_and_openssl(gpu_host):
    headers = subprocess.run(["ninja", "-t", "deps"], cwd=gpu_host, check=True, capture_output=True, text=True).stdout
    module = loaded(ROOT / "scripts/gpu_check")
    packed = [path.name for pattern in module.THIRD_PARTY_FILES["include"] for path in pathlib.Path("/usr").glob(pattern)]
    absent = ["boost", "openssl", "oneapi", "spdlog", *packed]
    assert "third_party/include/tl/expected.hpp" in headers
    assert re.findall(rf"/usr/include/(?:x86_64-linux-gnu/)?(?:{'|'.join(absent)})\S*", headers) == []
    for name in [*module.PROGRAMS, "gpu_info", *module.EXAMPLES, "train_steps", "muster-preflight"]:
        needed = subprocess.run(["ldd", gpu_host / "bin" / name], check=True, capture_output=True, text=True).stdout
        assert "libhwy" in needed or name == "gpu_info"
        assert not re.search("dnnl|ssl|crypto|boost|not found", needed), f"{name}: {needed}"
    assert skips([gpu_host / "bin/gpu_ops"]) and skips([gpu_host / "bin/gpu_info"])


@pytest.mark.timeout(900)
def test_a_gpu_host_computes_on_the_cpu_what_others_do(gpu_host, bin_dir):
    subprocess.run([gpu_host / "bin/unit_kernels_cpu"], check=True, capture_output=True)  # also what oneDNN would compute
    flags = ["--epochs=1", "--batch-size=256", "--device=cpu", "--seed=3"]
    outputs = [subprocess.run([folder / "fashion_mnist", *flags], check=True, capture_output=True, text=True, timeout=100).stdout
               for folder in (gpu_host / "bin", bin_dir)]
    digests = [re.findall(r"parameters +sha256 ([0-9a-f]{64})", output) for output in outputs]
    assert len(digests[0]) == 1 and digests[0] == digests[1]


@pytest.mark.timeout(900)
def test_the_bundle_runs_where_nothing_is_built(gpu_host, bin_dir, tmp_path, monkeypatch):
    bundle = tmp_path / "bundle.tar.xz"
    subprocess.run([ROOT / "scripts/gpu_check", f"--bundle={bundle}", f"--build={gpu_host}", f"--build={bin_dir.parent}"], check=True)
    assert bundle.stat().st_size < 40e6
    subprocess.run(["tar", "-xf", bundle], cwd=tmp_path, check=True)
    host = tmp_path / "muster-gpu"
    assert skips([host / "gpu_check"]) and skips([host / "bin/gpu_trainer"])
    needed = subprocess.run(["ldd", host / "bin/gpu_trainer"], check=True, capture_output=True, text=True).stdout
    assert re.search(r"libhwy\S+ => \S+/muster-gpu/", needed)

    # With a GPU its programs would be asked for their cases, which say here that there is none.
    module = loaded(host / "gpu_check")
    monkeypatch.setattr(module, "has_gpu", lambda: True)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["gpu_check", "correctness"])
    program(host, "gpu_info", INFO)
    with pytest.raises(SystemExit) as end:
        module.main()
    result = json.loads((host / "gpu_correctness.json").read_text())
    cases = [check for check in result["checks"] if check["program"] in module.PROGRAMS]
    assert end.value.code == 1 and {check["program"] for check in cases} == {*module.PROGRAMS} and len(cases) > 25
    assert {check["status"] for check in cases} == {"skipped"}
    assert "muster" in {check["program"] for check in result["checks"]}


def test_a_bundle_takes_no_program_that_needs_onednn(build, tmp_path):
    if not (build / "bin/gpu_ops").exists():
        pytest.skip("no GPU here, and no nvcc to build for one")
    done = subprocess.run([ROOT / "scripts/gpu_check", f"--bundle={tmp_path}/bundle", f"--build={build}"], capture_output=True, text=True)
    assert done.returncode == 1 and "needs oneDNN, which is too large; name a build of the preset gpu-host" in done.stderr
