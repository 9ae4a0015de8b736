# The main job from outside: alone, as several ranks, resumed, and with input that is wrong.
# SPDX-License-Identifier: Apache-2.0
import gzip
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import time

import pytest

from ports import free_port

DATA = "/usr/share/datasets/fashion-mnist"


def environment(**extra):
    """Ours without what would make this process a rank of something."""
    ours = {name: value for name, value in os.environ.items()
            if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
            and not name.startswith(("TORCHELASTIC_", "PET_", "SLURM_"))}
    ours.update({name: str(value) for name, value in extra.items()})
    return ours


@pytest.fixture
def job(bin_dir):
    """Runs fashion_mnist with these flags, as one rank."""
    def run_job(*flags, seconds=120):
        return subprocess.run([str(bin_dir / "fashion_mnist"), *map(str, flags)], text=True, capture_output=True,
                              timeout=seconds, env=environment(), stdin=subprocess.DEVNULL)
    return run_job


@pytest.fixture
def ranks(bin_dir):
    """Runs fashion_mnist as several ranks started by hand; returns what each has written, rank 0 first."""
    def run_ranks(world, *flags, seconds=180, flags_of_rank=None):
        port = free_port()
        children = []
        try:
            for rank in range(world):
                own = (flags_of_rank or {}).get(rank, ())
                children.append(subprocess.Popen(
                    [str(bin_dir / "fashion_mnist"), *map(str, flags), *own], text=True, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                    env=environment(RANK=rank, WORLD_SIZE=world, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=world,
                                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port)))
            deadline = time.monotonic() + seconds
            results = []
            for child in children:
                out, err = child.communicate(timeout=max(1, deadline - time.monotonic()))
                results.append(subprocess.CompletedProcess(child.args, child.returncode, out, err))
            return results
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.communicate()
    return run_ranks


def summary_of(output):
    """The final block as a dictionary."""
    def number(pattern):
        found = re.search(pattern, output, re.MULTILINE)
        return float(found.group(1)) if found else None

    return {"train_loss": number(r"^train loss +([\d.]+)"), "test_loss": number(r"^test loss +([\d.]+)"),
            "accuracy": number(r"^accuracy +([\d.]+) %"), "images": number(r"^accuracy .* of (\d+)\)"),
            "best": number(r"^best +([\d.]+) %"), "images_per_second": number(r"^speed +(\d+) images/s"),
            "sha256": (re.search(r"^parameters   sha256 ([0-9a-f]{64})$", output, re.MULTILINE) or [None, None])[1]}


def steps_of(checkpoints):
    return sorted(int(name[5:]) for name in os.listdir(checkpoints) if name.startswith("step-"))


def contents(checkpoints):
    """Of the newest: file name to bytes."""
    newest = checkpoints / (checkpoints / "LATEST").read_text().strip()
    return {file.name: file.read_bytes() for file in newest.iterdir()}


def one_line_error(result, code, *words):
    """The job failed with one line on stderr that has all these words, and said nothing else."""
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("fashion_mnist: "), result.stderr
    for word in words:
        assert word in lines[0], lines[0]


def test_alone_it_trains_and_ends_in_the_whole_summary(job):
    result = job("--epochs=1", "--device=cpu")
    assert result.returncode == 0, result.stderr
    summary = summary_of(result.stdout)
    assert None not in summary.values(), result.stdout
    assert summary["accuracy"] > 75
    assert summary["images"] == 10000
    assert summary["best"] == summary["accuracy"]
    assert len(re.findall(r"^epoch 1/1  step", result.stdout, re.MULTILINE)) == 15
    assert result.stderr == ""


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(job):
    shas = [summary_of(job("--epochs=1", "--device=cpu", "--batch-size=64", f"--seed={seed}").stdout)["sha256"]
            for seed in (5, 5, 6)]
    assert shas[0] == shas[1]
    assert shas[0] != shas[2]


def test_the_mlp_trains(job):
    result = job("--model=mlp", "--epochs=1", "--batch-size=256", "--lr=0.05", "--device=cpu", "--log-every=100")
    assert result.returncode == 0, result.stderr
    assert summary_of(result.stdout)["accuracy"] > 70


def test_ranks_with_several_buckets_print_how_much_communication_was_hidden(ranks):
    results = ranks(2, "--model=mlp", "--epochs=1", "--batch-size=512", "--device=cpu")
    assert [result.returncode for result in results] == [0, 0], [result.stderr for result in results]
    assert re.search(r"^communication  \d+\.\d\d ms a step, \d+ % hidden behind backward$", results[0].stdout, re.M), results[0].stdout


def test_a_memory_fraction_that_the_model_does_not_fit_is_refused_in_one_sentence(job):
    result = job("--model=mlp", "--epochs=1", "--device=cpu", "--gpu-memory-fraction=0.000001")
    assert result.returncode == 1
    assert re.fullmatch(r"fashion_mnist: allocate 2678848 bytes on cpu \(\w+\): 0 of the \d+ bytes that a memory fraction of "
                        r"1e-06 allows are in use; use a smaller batch or model, or a larger fraction\n", result.stderr)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_several_ranks_train_and_only_rank_0_speaks(ranks, world):
    results = ranks(world, "--epochs=1", "--batch-size=16", "--device=cpu", "--log-every=100")
    assert [result.returncode for result in results] == [0] * world, [result.stderr for result in results]
    assert summary_of(results[0].stdout)["accuracy"] > 50
    assert summary_of(results[0].stdout)["images"] == 10000
    assert f"{world} ranks" in results[0].stdout
    assert [result.stdout for result in results[1:]] == [""] * (world - 1)


@pytest.mark.parametrize("world", [1, 2])
def test_a_resumed_run_is_bit_identical_with_an_uninterrupted_one(job, ranks, tmp_path, world):
    def train(*flags):
        flags = ("--batch-size=32", "--seed=3", "--device=cpu", "--warmup-steps=2000", *flags)  # into the second epoch
        results = [job(*flags)] if world == 1 else ranks(world, *flags)
        assert [result.returncode for result in results] == [0] * world, [result.stderr for result in results]
        return results[0].stdout

    saved = tmp_path / "run"
    whole = train("--epochs=3", f"--checkpoint={tmp_path / 'whole'}")
    train("--epochs=1", f"--checkpoint={saved}")
    resumed = train("--epochs=3", f"--resume={saved}", f"--checkpoint={saved}")
    assert summary_of(resumed)["sha256"] == summary_of(whole)["sha256"]
    for key in ("train_loss", "test_loss", "accuracy", "best"):
        assert summary_of(resumed)[key] == summary_of(whole)[key]
    assert contents(saved) == contents(tmp_path / "whole")
    assert len(steps_of(saved)) == 3

    done = train("--epochs=3", f"--resume={saved}")
    assert "nothing to train" in done
    assert summary_of(done)["sha256"] == summary_of(whole)["sha256"]


def test_a_checkpoint_is_two_safetensors_files_and_what_they_are_of(job, tmp_path):
    path = tmp_path / "run"
    assert job("--epochs=1", "--batch-size=256", "--device=cpu", f"--checkpoint={path}").returncode == 0
    assert (path / "LATEST").read_text() == (path / "BEST").read_text() == "step-00000235\n"
    step = path / "step-00000235"
    for name, tensor, tensors in (("model", "conv1.weight", 10), ("optim", "momentum.conv1.weight", 10)):
        content = (step / f"{name}.safetensors").read_bytes()
        length, = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])
        assert (8 + length) % 64 == 0
        assert header.pop("__metadata__") == {"format": "pt"}
        assert header[tensor] | {"data_offsets": 0} == {"dtype": "F32", "shape": [6, 1, 5, 5], "data_offsets": 0}
        assert len(header) == tensors
        assert max(entry["data_offsets"][1] for entry in header.values()) == len(content) - 8 - length
    state = json.loads((step / "state.json").read_text())
    assert state["model"] == "garment" and state["optimizer"] == "SGD"
    assert {key: state["training"][key] for key in ("epoch", "step", "world_size", "batch_size", "epoch_samples", "best_epoch")} \
        == {"epoch": 1, "step": 235, "world_size": 1, "batch_size": 256, "epoch_samples": 0, "best_epoch": 1}
    assert {name: entry["size_bytes"] for name, entry in state["files"].items()} \
        == {name: (step / name).stat().st_size for name in ("model.safetensors", "optim.safetensors")}


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(bin_dir):
    main, terminal = pty.openpty()
    child = subprocess.Popen([str(bin_dir / "fashion_mnist"), "--epochs=1", "--batch-size=8", "--device=cpu"],
                             stdout=terminal, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment())
    os.close(terminal)
    shown = b""
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            if not select.select([main], [], [], 1)[0]:
                continue
            try:
                part = os.read(main, 65536)
            except OSError:  # the terminal's other end was closed
                break
            if not part:
                break
            shown += part
        assert child.wait(timeout=30) == 0
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        child.stderr.close()
        os.close(main)
    text = shown.decode()
    assert "\r" in text and re.search(r"\[=*>? *\]", text)
    assert not re.search(r"^epoch 1/1  step", text, re.MULTILINE)
    final = text[text.rindex("\x1b[K"):]
    assert "parameters   sha256" in final


@pytest.mark.parametrize("flags, words", [
    (["--nonsense"], ["unknown argument --nonsense", "--help"]),
    (["--workers=-2"], ["--workers"]),
    (["--data-parallel=0"], ["--data-parallel"]),
    (["--batch-size=0"], ["--batch-size"]),
    (["--epochs=many"], ["--epochs"]),
    (["--model=resnet"], ["--model"]),
    (["--lr=nan"], ["--lr"]),
    (["--seed=-1"], ["--seed"]),
    (["--device=tpu"], ["'tpu'", "0,3"]),
    (["--backend=mpi"], ["mpi", "nccl", "muster"]),
    (["--backend=nccl", "--device=cpu"], ["nccl", "cpu"]),
    (["--gpu-memory-fraction=1.5"], ["fraction"]),
    (["--checkpoint=", "--amp=fp16"], ["--checkpoint= has no value"]),
    (["--checkpoint", "--amp=fp16"], ["--checkpoint", "followed by --amp=fp16 instead of a value"]),
    (["--logical-shards=65536", "--batch-size=65536"], ["65536 shards of 65536 samples"]),
])
def test_a_wrong_flag_is_one_line(job, flags, words):
    one_line_error(job(*flags), 2, *words)


def test_a_gpu_that_is_not_there_is_one_line(bin_dir):
    result = subprocess.run([str(bin_dir / "fashion_mnist"), "--device=cuda", "--epochs=0"], text=True,
                            capture_output=True, timeout=120, env=environment(LOCAL_RANK=99), stdin=subprocess.DEVNULL)
    one_line_error(result, 1, "")
    assert re.search("cuda|gpu", result.stderr, re.IGNORECASE), result.stderr


def test_help_is_not_an_error(job):
    result = job("--help")
    assert result.returncode == 0 and "--checkpoint" in result.stdout


def test_a_data_directory_without_the_data_is_one_line(job, tmp_path):
    one_line_error(job(f"--data={tmp_path}/none"), 1, f"{tmp_path}/none", "No such file or directory", "--data")
    one_line_error(job(f"--data={tmp_path}"), 1, "train-images-idx3-ubyte", "--data")


def test_a_corrupt_data_file_is_named(job, tmp_path):
    for name in os.listdir(DATA):
        os.symlink(os.path.join(DATA, name), tmp_path / name)
    victim = tmp_path / "train-images-idx3-ubyte.gz"
    victim.unlink()
    with open(os.path.join(DATA, victim.name), "rb") as original:
        victim.write_bytes(original.read(1_000_000))
    one_line_error(job(f"--data={tmp_path}"), 1, str(victim), "truncated")
    victim.write_bytes(gzip.compress(struct.pack(">IIII", 0x803, 60000, 28, 28) + bytes(1000)))
    one_line_error(job(f"--data={tmp_path}"), 1, str(victim), "60000x28x28")
    victim.write_bytes(b"not images")
    one_line_error(job(f"--data={tmp_path}"), 1, str(victim), "IDX")


def test_a_checkpoint_of_another_model_names_the_first_tensor(job, tmp_path):
    path = tmp_path / "run"
    assert job("--epochs=1", "--batch-size=256", "--device=cpu", f"--checkpoint={path}").returncode == 0
    one_line_error(job("--device=cpu", "--log-dir="), 2, "--log-dir= has no value")
    assert job("--device=cpu", "--epochs=0", f"--log-dir={tmp_path}/events=").returncode == 0
    one_line_error(job("--model=mlp", "--device=cpu", f"--resume={path}"), 1, str(path), "'garment'", "'fc1.weight'")
    one_line_error(job("--seed=9", "--device=cpu", f"--resume={path}"), 2, str(path), "--seed")
    one_line_error(job("--optimizer=adamw", "--device=cpu", f"--resume={path}"), 1, str(path), "optimizer SGD", "AdamW")
    one_line_error(job("--device=cpu", f"--checkpoint={path}"), 2, str(path), "another run's", "--resume")
    weights = path / "step-00000235/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    one_line_error(job("--device=cpu", f"--resume={path}"), 1, str(weights), "damaged")


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(job, tmp_path):
    path = tmp_path / "run"
    train = ("--batch-size=256", "--device=cpu", f"--checkpoint={path}")
    whole = job("--epochs=2", *train)
    assert whole.returncode == 0, whole.stderr
    with open(path / "step-00000470/optim.safetensors", "r+b") as file:
        file.truncate(1000)
    resumed = job("--epochs=2", *train, f"--resume={path}")
    assert resumed.returncode == 0, resumed.stderr
    assert re.fullmatch(r"muster: checkpoint step-00000470 of .*/optim.safetensors has 1000 bytes, not those of state.json; "
                        r"the run goes on from step-00000235\n", resumed.stderr), resumed.stderr
    assert summary_of(resumed.stdout)["sha256"] == summary_of(whole.stdout)["sha256"]
    assert (path / "LATEST").read_text() == "step-00000470\n"


def test_a_checkpoint_that_cannot_be_read_or_written_is_one_line(job, tmp_path):
    one_line_error(job("--device=cpu", f"--resume={tmp_path}/none"), 1, "no checkpoint in", f"{tmp_path}/none")
    one_line_error(job("--device=cpu", f"--checkpoint={tmp_path}/no/run"), 1, f"{tmp_path}/no")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    one_line_error(job("--device=cpu", f"--checkpoint={tmp_path}/file"), 2, "not a directory")


FULL = """
mount -t tmpfs -o size=1m tmpfs run || exit 99
"$@" --epochs=5 --checkpoint=run
echo "status $?"
ls run
"$@" --epochs=1 --resume=run
"""


def test_a_full_disk_ends_the_run_with_one_line_and_what_was_saved_is_there(bin_dir, job, tmp_path):
    (tmp_path / "run").mkdir()
    train = ("--batch-size=256", "--device=cpu")
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL, "sh", bin_dir / "fashion_mnist", *train],
                          cwd=tmp_path, env=environment(), text=True, capture_output=True, timeout=200, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"fashion_mnist: checkpoint step-00000705 of run: write run/\.tmp-\d+/\w+.safetensors: write: "
                        r"No space left on device \(ENOSPC\)\n", done.stderr), done.stderr
    first, rest = done.stdout.split("status 1\n")
    assert rest.split()[:4] == ["BEST", "LATEST", "step-00000235", "step-00000470"]
    # Of the two that fitted.
    whole = job("--epochs=2", *train)
    assert summary_of(rest)["sha256"] == summary_of(whole.stdout)["sha256"]


def test_only_rank_0_must_be_able_to_write_the_checkpoint(ranks, tmp_path):
    path = tmp_path / "run"
    results = ranks(2, "--epochs=1", "--batch-size=256", "--device=cpu",
                    flags_of_rank={0: [f"--checkpoint={path}"], 1: [f"--checkpoint={tmp_path}/no/run"]})
    assert [result.returncode for result in results] == [0, 0], [result.stderr for result in results]
    assert steps_of(path) == [118]


def test_a_diverging_run_stops_and_says_so(job, tmp_path):
    path = tmp_path / "run"
    result = job("--lr=1000", "--epochs=1", "--device=cpu", f"--checkpoint={path}")
    one_line_error(result, 1, "no longer finite", "--lr")
    assert os.listdir(path) == []


def test_a_model_that_its_last_step_spoiled_is_not_the_best(job, tmp_path):
    path = tmp_path / "run"
    result = job("--model=mlp", "--lr=1e6", "--epochs=1", "--batch-size=30000", "--device=cpu", f"--checkpoint={path}", "--profile=none.json")
    assert result.stderr == "muster: note: no trace in none.json: it takes more steps than the 2 that were done\n"
    assert result.returncode == 0 and re.search("test loss -?nan", result.stdout) and "best         0.00 %  (epoch 0)" in result.stdout
    assert sorted(os.listdir(path)) == ["LATEST", "step-00000002"]


def test_a_directory_has_one_writer(bin_dir, job, tmp_path):
    """The second is refused, and the first goes on."""
    path = tmp_path / "run"
    first = subprocess.Popen([str(bin_dir / "fashion_mnist"), "--epochs=1", "--device=cpu", "--batch-size=16", "--log-every=10",
                              "--checkpoint-every=10", f"--checkpoint={path}"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL, env=environment())
    with first:
        for line in first.stdout:
            if line.startswith("epoch 1/1  step"):
                break
        for flags in ((), (f"--resume={path}", "--epochs=0")):
            one_line_error(job(f"--checkpoint={path}/", *flags), 2, "another program writes its checkpoints to")
        first.send_signal(signal.SIGTERM)
        first.stdout.read()
        assert (first.wait(timeout=60), first.stderr.read()) == (85, "")
    assert steps_of(path)


@pytest.mark.parametrize("to", ["parent", "rank"])
def test_sigterm_saves_what_spawned_ranks_have(bin_dir, tmp_path, to):
    path = tmp_path / "run"
    with subprocess.Popen([str(bin_dir / "fashion_mnist"), "--epochs=50", "--device=cpu", "--nprocs=2", f"--checkpoint={path}"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment()) as parent:
        for line in parent.stdout:
            if line.startswith("epoch 1/50  step"):
                break
        if to == "parent":
            parent.send_signal(signal.SIGTERM)
        else:
            os.kill(int(pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0]), signal.SIGTERM)
        assert "preempted in epoch 1" in parent.stdout.read()
        assert (parent.wait(timeout=60), parent.stderr.read()) == (85, "")
    assert len(steps_of(path)) == 1


@pytest.fixture
def muster(bin_dir):
    """Runs fashion_mnist under our launcher."""
    def run_muster(world, *flags, seconds=120):
        return subprocess.run([str(bin_dir / "muster"), "--standalone", f"--nproc-per-node={world}",
                               str(bin_dir / "fashion_mnist"), *map(str, flags)], text=True, capture_output=True,
                              timeout=seconds, env=environment(), stdin=subprocess.DEVNULL)
    return run_muster


def test_under_the_launcher_two_ranks_give_the_bits_of_two_ranks_started_by_hand(muster, ranks):
    flags = ("--epochs=1", "--batch-size=32", "--device=cpu")
    launched = muster(2, *flags)
    assert launched.returncode == 0, launched.stderr
    assert summary_of(launched.stdout)["sha256"] == summary_of(ranks(2, *flags)[0].stdout)["sha256"]


def test_under_the_launcher_data_that_is_missing_ends_all_ranks(muster, tmp_path):
    result = muster(2, f"--data={tmp_path}/none", seconds=30)
    assert result.returncode != 0
    assert f"data directory {tmp_path}/none: No such file or directory" in result.stderr


@pytest.mark.parametrize("flags", [("--optimizer=adamw", "--lr=0.002", "--label-smoothing=0.1"), ("--amp=bf16", "--lr=0.02"),
                                   ("--amp=fp16", "--lr=0.02")])
def test_optimizer_smoothing_and_mixed_precision(job, tmp_path, flags):
    """Two epochs in one go, and with a checkpoint between: the same parameters; and it learns."""
    common = ("--batch-size=64", "--device=cpu", *flags)
    whole = job("--epochs=2", *common)
    assert whole.returncode == 0, whole.stderr
    saved = tmp_path / "run"
    assert job("--epochs=1", f"--checkpoint={saved}", *common).returncode == 0
    resumed = job("--epochs=2", f"--resume={saved}", *common)
    assert resumed.returncode == 0, resumed.stderr
    assert summary_of(resumed.stdout)["sha256"] == summary_of(whole.stdout)["sha256"]
    assert summary_of(whole.stdout)["accuracy"] > 80


def test_logical_shards_make_the_number_of_ranks_irrelevant(job, ranks):
    flags = ("--epochs=1", "--batch-size=16", "--logical-shards=4", "--device=cpu")
    sums = {summary_of(job(*flags).stdout)["sha256"]}
    for world in (2, 4):
        results = ranks(world, *flags)
        assert [result.returncode for result in results] == [0] * world, results[0].stderr
        sums.add(summary_of(results[0].stdout)["sha256"])
    assert len(sums) == 1 and None not in sums
    one_line_error(job("--logical-shards=6", "--device=cpu"), 2, "6 logical shards", "power of two")


def test_the_ranks_meet_as_the_notes_of_pytorch_say(ranks, tmp_path):
    flags = ("--epochs=1", "--batch-size=256", "--device=cpu")
    by_environment = summary_of(ranks(2, *flags)[0].stdout)["sha256"]
    meet = f"file://{tmp_path}/meet"
    results = ranks(2, *flags, "--backend=tcp", flags_of_rank={
        rank: [f"--init-method={meet}?rank={rank}&world_size=2", f"--local_rank={rank}"] for rank in range(2)})
    assert [result.returncode for result in results] == [0, 0], results
    assert "2 ranks (tcp) on cpu" in results[0].stdout
    assert summary_of(results[0].stdout)["sha256"] == by_environment


def test_it_writes_events_for_tensorboard_and_a_trace_of_all_ranks(ranks, tmp_path):
    results = ranks(2, "--epochs=1", "--batch-size=256", "--device=cpu", "--log-every=50", f"--log-dir={tmp_path}/events",
                    f"--profile={tmp_path}/trace.json")
    assert [result.returncode for result in results] == [0, 0], results
    events, = (tmp_path / "events").iterdir()
    assert all(tag in events.read_bytes() for tag in (b"train/loss", b"test/loss", b"test/accuracy", b"conv1.weight"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 1} and any("conv1" in event["name"] for event in trace)


def test_a_data_loader_makes_the_batches_that_the_device_gathers(job, ranks):
    flags = ("--epochs=2", "--batch-size=48", "--device=cpu", "--log-every=100")  # 60,000 is no multiple
    resident = job(*flags)
    for workers in (0, 3):
        loaded = job(*flags, f"--workers={workers}")
        assert loaded.returncode == 0, loaded.stderr
        assert summary_of(loaded.stdout)["sha256"] == summary_of(resident.stdout)["sha256"]
        assert re.search(r"^epoch 1/2  step +100/1250 .*  data [\d.]+ [mu]?s  step ", loaded.stdout, re.M), loaded.stdout
    flags = ("--epochs=1", "--batch-size=16", "--logical-shards=4", "--device=cpu")
    sums = {summary_of(ranks(2, *flags, *loader)[0].stdout)["sha256"] for loader in ((), ("--workers=1",))}
    assert len(sums) == 1 and None not in sums


def test_with_a_data_loader_a_run_that_was_saved_within_an_epoch_goes_on_there(job, tmp_path):
    flags = ("--epochs=2", "--batch-size=256", "--device=cpu", "--workers=2")
    whole = job(*flags, "--checkpoint-every=100", f"--checkpoint={tmp_path}/run")
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "run/LATEST").write_text("step-00000400\n")  # in the second epoch
    shutil.rmtree(tmp_path / "run/step-00000470")
    resumed = job(*flags, f"--resume={tmp_path}/run")
    assert f"resumed {tmp_path}/run in epoch 2 after step 400\n" in resumed.stdout, resumed.stderr
    assert summary_of(resumed.stdout)["sha256"] == summary_of(whole.stdout)["sha256"]


@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_replicas_in_one_process_train_as_one(job, amp):
    flags = ("--epochs=1", "--batch-size=64", "--device=cpu", "--lr=0.02", "--amp=" + amp)
    alone, replicas = job(*flags), job(*flags, "--data-parallel=2")
    assert replicas.returncode == 0, replicas.stderr
    assert "1 rank (single) on cpu" in replicas.stdout and ", 2 replicas, batch 64 per rank" in replicas.stdout
    assert summary_of(replicas.stdout)["train_loss"] == pytest.approx(summary_of(alone.stdout)["train_loss"], rel=0.1)
    assert summary_of(replicas.stdout)["accuracy"] > 80
    memory = re.search(r"^memory +([\d.]+) MB of the first replica, ([\d.]+) MB of the second$", replicas.stdout, re.M)
    assert float(memory[1]) > float(memory[2]) > 0
    assert not re.search("^memory", alone.stdout, re.M)


def test_replicas_are_of_one_process(ranks):
    results = ranks(2, "--device=cpu", "--data-parallel=2")
    for result in results:
        one_line_error(result, 2, "2 replicas (DataParallel) in a job of 2 ranks")


def test_ranks_that_it_spawns_give_the_bits_of_ranks_of_the_launcher(job, muster, tmp_path):
    flags = ("--epochs=1", "--batch-size=32", "--device=cpu")
    spawned = job(*flags, "--nprocs=2")
    assert (spawned.returncode, spawned.stderr) == (0, "")
    assert "2 ranks (shm) on cpu" in spawned.stdout
    assert summary_of(spawned.stdout)["sha256"] == summary_of(muster(2, *flags).stdout)["sha256"]
    one_line_error(job("--nprocs=2", f"--data={tmp_path}/none"), 1, "rank ", f"{tmp_path}/none", "No such file or directory")


def test_the_learning_rate_warms_up(job):
    done = job("--epochs=1", "--batch-size=256", "--device=cpu", "--log-every=50", "--lr=0.03", "--warmup-steps=100")
    assert done.returncode == 0, done.stderr
    rates = [float(rate) for rate in re.findall(r"loss \S+  lr (\S+)  step", done.stdout)]  # each of the last of 50 steps
    assert rates == pytest.approx([0.03 * (1 / 3 + 2 / 3 * min(1, step / 100)) for step in (49, 99, 149, 199)], rel=1e-3)
