# SPDX-License-Identifier: Apache-2.0
"""The GPU benches rehearsed on the CPU: that every row is there and what becomes of it, not what the figures are."""
import json
import os
import pathlib
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import gpu_bench  # noqa: E402
import gpu_compare  # noqa: E402
import gpu_launch  # noqa: E402
import gpu_train  # noqa: E402
import measure  # noqa: E402

CASES = [name for name, *_ in measure.gpu_cases("cpu")]


@pytest.fixture
def bench(bin_dir, tmp_path, monkeypatch):
    """Runs one of the two and returns its exit code and the rows of its file by name."""
    if (torch := measure.ROOT / ".venv/torch").is_dir():
        monkeypatch.setenv("PYTHONPATH", str(torch))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    output = tmp_path / "result.json"

    def run(module, *options, build=bin_dir.parent):
        code = module.main([f"--build={build}", f"--output={output}", "--device=cpu", "--rounds=2", "--sample=0.01", *options])
        return code, {row["name"]: row for row in json.loads(output.read_text())["results"]}

    run.output = output
    return run


def check_samples(summary, rounds=2):
    assert len(summary["samples"]) == rounds and min(summary["samples"]) > 0
    assert summary["min"] <= summary["median"] <= summary["max"]


def test_every_step_rate_and_kernel_is_measured_and_not_measured_again(bench, bin_dir, tmp_path):
    code, rows = bench(gpu_bench)
    assert code == 0, rows
    kernels = [row for row in rows.values() if not row["name"].startswith("steps of")]
    assert [f"steps of {case}" for case in CASES] == [name for name in rows if name.startswith("steps of")]
    for row in rows.values():
        assert row["status"] == "ok"
        check_samples(row["captured"] if "captured" in row else row["rate"])
    assert all(rows[f"steps of {case}"]["ratio"]["min"] > 0 for case in CASES if case.startswith("garment"))
    names = " ".join(row["name"] for row in kernels)
    for part in ("ReLU", "add", "BatchNorm", "cast", "max pooling", "average pooling", "dropout", "gather", "SGD", "AdamW", "conv", "linear"):
        assert part in names
    assert all(row["share"]["of_medians"] > 0 and len(row["reference_seconds"]) == 2 for row in kernels)
    assert all(("aim_met" in row) == (row["flop"] == 0) for row in kernels)

    # Without one row, and programs that can measure nothing else: all others stay as they are.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/train_steps").write_text("no program")
    (tmp_path / "bin/gpu_kernel_bench").write_text(f'#!/bin/sh\ncase "$1" in --list|SGD) exec "{bin_dir}/gpu_kernel_bench" "$@";; esac\nexit 1\n')
    (tmp_path / "bin/gpu_kernel_bench").chmod(0o755)
    kept = {**rows, "SGD": {"name": "SGD", "status": "not run"}}
    bench.output.write_text(json.dumps({"machine": {}, "results": list(kept.values())}))
    code, again = bench(gpu_bench, "--resume", build=tmp_path)
    assert code == 0 and again["SGD"]["status"] == "ok"
    assert {**again, "SGD": 0} == {**rows, "SGD": 0}


def test_muster_and_pytorch_start_with_equal_losses_and_are_timed_in_turn(bench, monkeypatch):
    options = [f"--python={sys.executable}", "--losses=2", "--variants=eager,graph"]
    code, rows = bench(gpu_compare, *options)
    assert code == 0, rows
    assert list(rows) == [f"{case}, {variant}" for case in CASES for variant in ("eager", "graph")]
    for case in CASES:
        row = rows[f"{case}, eager"]
        assert all(difference <= most for difference, most in zip(row["losses"]["difference"], row["losses"]["tolerance"]))
        assert not row["settings"]["matmul_tf32"] and row["settings"]["cudnn_tf32"]  # as ours
        check_samples(row["muster"])
        check_samples(row["torch"])
        # What a PyTorch cannot do is kept with its reason: here a CUDA graph, for want of a GPU.
        assert rows[f"{case}, graph"]["status"] == "unsupported" and rows[f"{case}, graph"]["error"]
    judged = json.loads(bench.output.read_text())["aims"]
    assert len(judged) == len(gpu_compare.AIMS) and all(aim["ratio"] > 0 and aim["met"] in (True, False) for aim in judged)
    assert bench(gpu_compare, "--resume", "--deadline=0", *options) == (0, rows)


def test_what_does_not_fit_into_the_deadline_is_not_run(bench):
    for module in (gpu_bench, gpu_compare):
        code, rows = bench(module, "--deadline=0", *(["--python=/bin/true"] if module is gpu_compare else []))
        assert code == 1 and {row["status"] for row in rows.values()} == {"not run"}


@pytest.mark.parametrize("answer, status", [({"steps": 1, "seconds": 1, "loss": 9}, "failed"), ({"error": "it cannot"}, "unsupported")])
def test_a_pytorch_with_another_loss_is_not_timed_and_none_at_all_is_no_success(bench, tmp_path, answer, status):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n[ \"$1\" != -c ] || exit 0\nwhile read -r _; do echo '{json.dumps(answer)}'; done\n")
    python.chmod(0o755)
    code, rows = bench(gpu_compare, f"--python={python}", "--only=garment batch 4", "--variants=eager")
    row = rows["garment batch 4, eager"]
    assert (code, row["status"]) == (1, status)
    assert ("the losses differ" if status == "failed" else "it cannot") in row["error"] and "ratio" not in row
    assert all(aim["met"] is None for aim in json.loads(bench.output.read_text())["aims"])


@pytest.mark.parametrize("module", [gpu_bench, gpu_compare])
def test_without_a_gpu_a_bench_is_skipped(module, bin_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure, "has_gpu", lambda: False)
    with pytest.raises(SystemExit) as end:
        module.main([f"--build={bin_dir.parent}", f"--output={tmp_path}/result.json"])
    assert end.value.code == 77 and capsys.readouterr().out == "SKIP: no GPU here\n"
    assert os.listdir(tmp_path) == []


def test_the_programs_train_in_every_precision_alone_and_as_two_ranks(bench):
    code, rows = bench(gpu_train)
    assert code == 0, rows
    assert len(rows) == 14 and {row["status"] for row in rows.values()} == {"ok"}
    assert all(row["accuracy"] > 50 and row["images_per_second"] > 0 for name, row in rows.items() if name.startswith("fashion"))
    # In so few steps of fp16 the GradScaler only looks for its scale.
    assert all(row["acc1"] > 0 for name, row in rows.items() if name.startswith("imagenet") and "fp16" not in name)
    assert bench(gpu_train, "--resume") == (0, rows)  # none of them again


def test_figures_of_a_gpu_are_taken_once_two_readings_in_turn_tell_the_same_utilisation():
    def metrics_of(*looks):
        texts = [f'DCGM_FI_DEV_GPU_UTIL{{gpu="0"}} {busy}\nmuster_gpu_figures_age_seconds {age}\n' for busy, age in looks]
        return (lambda: texts.pop(0) if len(texts) > 1 else texts[0]), texts
    # The second look at a reading tells nothing new; nor does a GPU that is not busy yet.
    ask, rest = metrics_of((0, 0.1), (0, 0.1), (10, 0.1), (10, 0.5), (99, 0.1), (99, 0.5), (100, 0.1), (7, 0.1))
    assert gpu_launch.steady_metrics(ask, time.monotonic() + 60).startswith('DCGM_FI_DEV_GPU_UTIL{gpu="0"} 100\n')
    assert len(rest) == 1
    for look in ((50, 0.1), (0, 0.1)):
        with pytest.raises(measure.Failed, match="does not become steady"):
            gpu_launch.steady_metrics(metrics_of(look)[0], time.monotonic() + 0.3)


def test_the_launcher_runs_pytorch_as_torchrun_does_and_ends_a_hang(bench):
    code, rows = bench(gpu_launch, f"--python={sys.executable}", "--rounds=1")
    assert code == 0, rows
    for ranks, name in ((1, "1 rank"), (2, "2 ranks")):
        row = rows[f"DDP, {name}"]
        assert row["loss"].startswith(f"world {ranks} loss 0.")
        check_samples(row["muster"], 1)
        check_samples(row["torchrun"], 1)
    assert "muster: hang on" in rows["a rank that does not come"]["output"]
    assert len(rows) == 3
