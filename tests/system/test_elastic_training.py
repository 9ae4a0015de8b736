# SPDX-License-Identifier: Apache-2.0
"""A training whose world changes within an epoch: a node joins at a checkpoint, a node dies between two. It goes on with the
samples that were not trained, and ends where a run that nothing happened to ends."""
import json
import re
import subprocess

import pytest

from elastic_support import job  # noqa: F401
from launcher_support import BIN, clean_environment, wait_for

SAMPLES = 60000
EVERY, BATCH = 40, 16
LR = 0.001
TRAIN = ["--no-python", BIN / "fashion_mnist", "--epochs=2", f"--batch-size={BATCH}", f"--lr={LR}", "--device=cpu"]
ELASTIC = ["--checkpoint=run", "--resume=run", f"--checkpoint-every={EVERY}"]
CONF = "last_call_timeout=0.05"


def uninterrupted(tmp_path, *flags):
    done = subprocess.run([*TRAIN[1:], *flags], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def found(pattern, text):
    match = re.search(pattern, text, re.MULTILINE)
    assert match, (pattern, text)
    return match.group(1)


def state(tmp_path):
    return json.loads((newest(tmp_path) / "state.json").read_text())["training"]


def newest(tmp_path):
    return tmp_path / "run" / (tmp_path / "run/LATEST").read_text().strip()


def steps_left(trained, world):
    """Of an epoch of which so many samples are trained; each rank has equally many, rounded up."""
    of_rank = -(-(SAMPLES - trained) // world)
    return -(-of_rank // BATCH)


def begun_within(tmp_path):
    """Waits until a checkpoint from within an epoch is there."""
    wait_for(lambda: (tmp_path / "run/LATEST").exists(), "a checkpoint", 60)


def resumed(output):
    """(epochs done, steps done) where the last world went on."""
    found = re.findall(r"^resumed run in epoch (\d+) after step (\d+)$", output, re.MULTILINE)
    assert found, output
    return int(found[-1][0]) - 1, int(found[-1][1])


def joined(it, flags):
    options = ["--join-at=safe-point", *TRAIN, *ELASTIC, *flags]
    it.start(0, 1, *options, nnodes="1:2", conf=CONF)
    begun_within(it.tmp_path)
    it.start(1, 1, *options, nnodes="1:2", conf=CONF)
    return it.codes(0, 1, timeout=200)


def died(it, flags):
    options = [*TRAIN, *ELASTIC, *flags]
    for node in (0, 1):
        it.start(node, 1, *options, nnodes="1:2", restarts=2, conf="last_call_timeout=1")
    begun_within(it.tmp_path)
    it.running[1].kill()
    return it.codes(0, timeout=200)


@pytest.mark.parametrize("change, before, after", [(joined, 1, 2), (died, 2, 1)])
def test_a_world_that_changes_within_an_epoch_leaves_out_no_sample_and_learns_as_well(job, tmp_path, change, before, after):  # noqa: F811
    # --scale-lr: the learning rate follows the size of the batch over all ranks.
    it = job(2)
    codes = change(it, ["--scale-lr"])
    output = it.out(0) + it.out(1)
    assert set(codes) == {0}, it.err(0) + it.err(1)
    epoch, step = resumed(output)
    # Nothing beyond the checkpoint counts, and from there on each sample once: so many steps, no more and no fewer.
    whole = steps_left(0, before)
    trained = (step - epoch * whole) * before * BATCH
    assert 0 <= trained < SAMPLES
    last = state(tmp_path)
    steps = step + steps_left(trained, after) + (1 - epoch) * steps_left(0, after)
    assert (last["epoch"], last["epoch_samples"], last["step"], last["world_size"]) == (2, 0, steps, after)
    # The schedule is as far as if all its steps had been of the last world's size.
    assert abs(last["schedule_step"] - 2 * steps_left(0, after)) <= 2
    # Rank 0 of each world says how large the world is, and its learning rate: that of one rank times the size.
    rates = re.findall(r"^garment on FashionMNIST: .* (\d+) ranks? \(.*, lr (\S+), seed \d+$", output, re.MULTILINE)
    assert set(rates) == {(str(world), f"{LR * world:g}") for world in (before, after)}
    ours, theirs = (float(found(r"^test loss +([\d.]+)$", text)) for text in (output, uninterrupted(tmp_path)))
    assert abs(ours - theirs) < 0.1, (ours, theirs)


@pytest.mark.parametrize("change", [joined, died])
def test_with_logical_shards_a_world_that_changes_ends_with_the_same_bits(job, tmp_path, change):  # noqa: F811
    it = job(2)
    codes = change(it, ["--logical-shards=2"])
    output = it.out(0) + it.out(1)
    assert set(codes) == {0}, it.err(0) + it.err(1)
    resumed(output)
    whole = uninterrupted(tmp_path, "--logical-shards=2", "--checkpoint=whole")
    digest = r"^parameters   sha256 ([0-9a-f]{64})$"
    assert found(digest, output) == found(digest, whole)
    for name in ("model.safetensors", "optim.safetensors"):
        ours, theirs = (newest(tmp_path) / name, tmp_path / "whole" / newest(tmp_path).name / name)
        assert ours.read_bytes() == theirs.read_bytes()
