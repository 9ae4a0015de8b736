# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check itself, with programs that play the GPU tests: there is no GPU here."""
import importlib.machinery
import importlib.util
import json
import os
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


@pytest.fixture
def gpu_check(tmp_path, monkeypatch):
    """A machine with a GPU; returns the function that runs the script and gives its exit code and what it wrote."""
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts/gpu_check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    monkeypatch.setattr(module, "has_gpu", lambda: True)
    monkeypatch.setattr(module, "smi", lambda: [])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    (tmp_path / "bin").mkdir()
    program(tmp_path, "gpu_info", INFO)
    for name in module.PROGRAMS:
        program(tmp_path, name, CASES.format(names=f"'{name} passes'", folder=tmp_path))

    def run(*options):
        output = tmp_path / "result.json"
        monkeypatch.setattr(sys, "argv", ["gpu_check", f"--build={tmp_path}", f"--output={output}", *options])
        with pytest.raises(SystemExit) as end:
            module.main()
        return end.value.code, json.loads(output.read_text()) if output.exists() else None

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
