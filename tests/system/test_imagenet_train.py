# SPDX-License-Identifier: Apache-2.0
"""imagenet_train from outside, on small folders of JPEG files: alone, as several ranks, resumed, and with input that is wrong."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios

import pytest

from image_folders import MISSING, make_image_folders
from launcher_support import wait_for
from ports import free_port
from test_fashion_mnist import environment

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "")
TRAIN = ["--image-size=32", "-b5", "-p2", "--lr=0.01", "-j2", "--device=cpu"]


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return make_image_folders(tmp_path_factory.mktemp("images"))


@pytest.fixture
def train(bin_dir, images):
    """Runs imagenet_train with these flags, alone or as several ranks under muster; returns what it has written."""
    def run_train(*flags, world=1, data=images, expect=0):
        launcher = [bin_dir / "muster", "--standalone", f"--nproc-per-node={world}"] if world > 1 else []
        done = subprocess.run([*map(str, [*launcher, bin_dir / "imagenet_train", data, *TRAIN, *flags])], text=True, timeout=120,
                              capture_output=True, env=environment(), stdin=subprocess.DEVNULL)
        assert done.returncode == expect, (done.stdout, done.stderr)
        return done
    return run_train


def sha256_of(done):
    return re.search(r"^parameters sha256 ([0-9a-f]{64})$", done.stdout, re.MULTILINE).group(1)


def validations(done):
    """(Acc@1, Acc@5) of each evaluation."""
    return re.findall(r" \* Acc@1 (\d+\.\d{3}) Acc@5 (\d+\.\d{3})", done.stdout)


def one_line(done, *words):
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("imagenet_train: "), done.stderr
    assert all(word in lines[0] for word in words), lines[0]


def test_two_ranks_train_evaluate_and_keep_the_last_and_the_best(train, tmp_path):
    done = train("--epochs=2", f"--checkpoint={tmp_path}/run", f"--log-dir={tmp_path}/events", "--warmup-epochs=1", world=2)
    assert done.stdout.startswith("resnet18, 3 classes, 30 images to train on, 15 to evaluate on, 2 ranks (shm) on cpu")
    lines = re.findall(r"^epoch 1/2  step (\d)/3  loss \d+\.\d{4}  lr (\S+)  data \S+ ms  step \S+ ms  \d+ images/s  ETA 0:\d\d$",
                       done.stdout, re.MULTILINE)
    assert lines == [("2", "0.005556"), ("3", "0.007778")], done.stdout  # from a third of it, at the first of three steps
    best = max(float(top1) for top1, _ in validations(done))
    assert len(validations(done)) == 2 and {top5 for _, top5 in validations(done)} == {"100.000"}  # of three classes
    assert f"best Acc@1 {best:.3f} (epoch " in done.stdout
    steps = sorted(name for name in os.listdir(tmp_path / "run") if name.startswith("step-"))
    assert steps == ["step-00000003", "step-00000006"]
    assert (tmp_path / "run/LATEST").read_text() == "step-00000006\n"
    marked = (tmp_path / "run/BEST").read_text().strip()
    state = json.loads((tmp_path / "run" / marked / "state.json").read_text())["training"]
    assert f"{100 * state['best_metric']:.3f}" == f"{best:.3f}" and state["epoch"] == state["best_epoch"]
    events = b"".join(path.read_bytes() for path in (tmp_path / "events").iterdir())
    assert all(tag in events for tag in (b"train/loss", b"train/lr", b"val/loss", b"val/acc1", b"val/acc5"))


def test_a_trace_shows_the_data_beside_the_model(train, tmp_path):
    train("--epochs=1", "-b2", f"--profile={tmp_path}/trace.json", world=2)  # of its eight steps three
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["name"] for event in trace}
    assert {event["pid"] for event in trace} == {0, 1} and "data" in names and any("layer1.0.conv1" in name for name in names)


def test_the_number_of_workers_changes_no_bit(train):
    assert sha256_of(train("--epochs=1", "-j0")) == sha256_of(train("--epochs=1", "-j3"))


@pytest.mark.parametrize("world", [1, 2])
def test_a_resumed_run_is_bit_identical_with_an_uninterrupted_one(train, tmp_path, world):
    whole = train("--epochs=2", "--seed=3", world=world)
    train("--epochs=1", "--seed=3", f"--checkpoint={tmp_path}", world=world)
    rest = train("--epochs=2", f"--checkpoint={tmp_path}", f"--resume={tmp_path}", world=world)
    assert sha256_of(rest) == sha256_of(whole)
    assert validations(rest) == validations(whole)[1:]
    evaluated = train("--evaluate", f"--resume={tmp_path}", world=world)
    assert validations(evaluated) == validations(whole)[1:]
    latest = tmp_path / (tmp_path / "LATEST").read_text().strip()
    assert validations(train("-e", f"--pretrained={latest}/model.safetensors", world=world)) == validations(whole)[1:]


def stop_within_epoch(command):
    """Ends a run by SIGTERM in its first epoch of 15 steps; returns the step after which it ended."""
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as child:
        try:
            while not child.stdout.readline().startswith("epoch 1/2  step  4/15"):
                assert child.poll() is None
            child.send_signal(signal.SIGTERM)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 85, err
    return int(re.search(r"^preempted in epoch 1 after step (\d+); go on with --resume=", out, re.MULTILINE).group(1))


def test_a_run_that_is_stopped_within_an_epoch_goes_on_there(train, bin_dir, images, tmp_path):
    flags = ["--epochs=2", "-b2", "-p1"]
    step = stop_within_epoch([bin_dir / "imagenet_train", images, *TRAIN, *flags, f"--checkpoint={tmp_path}"])
    rest = train(*flags, f"--checkpoint={tmp_path}", f"--resume={tmp_path}")
    assert f"epoch 1/2  step {step + 1:>2}/15" in rest.stdout
    assert sha256_of(rest) == sha256_of(train(*flags))


def test_a_run_that_is_stopped_within_an_epoch_goes_on_with_more_ranks(train, bin_dir, images, tmp_path):
    flags = ["--epochs=2", "-p1", f"--checkpoint={tmp_path}"]
    step = stop_within_epoch([bin_dir / "imagenet_train", images, *TRAIN, *flags, "-b2"])
    rest = train(*flags, "-b1", f"--resume={tmp_path}", world=3)
    steps_left = -(-(30 - 2 * step) // 3)  # three ranks share the images that were not trained
    steps = [int(each) for each in re.findall(r"^epoch 1/2  step +(\d+)/10 ", rest.stdout, re.MULTILINE)]
    assert steps == [*range(10 - steps_left + 1, 11)]
    assert "epoch 2/2  train loss" in rest.stdout


def test_mixed_precision_and_batch_norm_over_all_ranks(train):
    shas = {sha256_of(train("--epochs=1", *flags, world=2)) for flags in ([], ["--amp=bf16"], ["--amp=fp16"], ["--sync-bn"])}
    assert len(shas) == 4


def test_ranks_meet_by_tcp_and_by_a_file(bin_dir, images, tmp_path):
    for method in (f"tcp://127.0.0.1:{free_port()}", f"file://{tmp_path}/meet"):
        ranks = [subprocess.Popen([*map(str, [bin_dir / "imagenet_train", images, *TRAIN, "--epochs=1", "--backend=gloo", "--local-rank", rank,
                                              f"--dist-url={method}?rank={rank}&world_size=2"])],
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) for rank in range(2)]
        try:
            outputs = [rank.communicate(timeout=120) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
        assert "2 ranks (shm)" in outputs[0][0] and outputs[1] == ("", "")
        assert outputs[0][1] == "muster: note: backend gloo: muster's own for the CPU is used (shm)\n"


def test_a_corrupt_image_ends_the_run_or_is_skipped_and_named(train, tmp_path):
    data = make_image_folders(tmp_path / "data", images=4)
    for victim in (data / "train/class1/2.jpg", data / "val/class0/1.jpg"):
        victim.write_bytes(victim.read_bytes()[:400])
    one_line(train("--epochs=1", data=data, expect=1), str(data / "train/class1/2.jpg"), "truncated")
    done = train("--epochs=2", "--skip-corrupt", data=data)
    assert sorted(done.stderr.splitlines()) == [f"imagenet_train: note: skipped {data}/train/class1/2.jpg: the JPEG is truncated",
                                                f"imagenet_train: note: skipped {data}/val/class0/1.jpg: the JPEG is truncated"]


@pytest.mark.parametrize("flags, words", [
    (["--arch=vgg16"], ["--arch", "vgg16", "--help"]),
    (["--backend=mpi"], ["mpi", "nccl", "muster"]),
    (["--gpu=0,0"], ["'0,0'"]),
    (["--backend=nccl"], ["nccl", "cpu"]),
    (["--image-size=8"], ["--image-size"]),
    (["--wd=nan"], ["--wd"]),
    (["--nonsense"], ["--nonsense"]),
])
def test_a_wrong_flag_is_one_line(train, flags, words):
    one_line(train(*flags, expect=2), *words)


def test_data_and_weights_that_do_not_fit_are_one_line(train, images, tmp_path):
    one_line(train(data=tmp_path, expect=1), f"{tmp_path}/train")
    other = tmp_path / "other"
    (other / "train").parent.mkdir()
    os.symlink(images / "train", other / "train")
    make_image_folders(tmp_path / "two", classes=2, images=2)
    os.symlink(tmp_path / "two/val", other / "val")
    one_line(train(data=other, expect=2), "different classes")
    train("--epochs=1", f"--checkpoint={tmp_path}/run")
    weights = tmp_path / "run/step-00000006/model.safetensors"
    one_line(train("-e", f"--pretrained={weights}", data=tmp_path / "two", expect=1), "'fc.weight'")
    one_line(train("-e", "--arch=resnet50", f"--resume={tmp_path}/run", expect=1), "'resnet18'", "resnet50")


def test_on_a_terminal_a_bar_shows_the_wait_for_data_and_what_is_left(bin_dir, images):
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    command = [bin_dir / "imagenet_train", images, *TRAIN, "-p1", "-b1", "--epochs=1"]
    child = subprocess.Popen([*map(str, command)], stdout=terminal, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment())
    os.close(terminal)
    shown = b""

    def ended():
        nonlocal shown
        try:
            while select.select([main], [], [], 0)[0]:
                shown += os.read(main, 65536)
        except OSError:  # the terminal's other end was closed
            return True

    try:
        wait_for(ended, "the end of the training", 120)
        assert child.wait(timeout=30) == 0
    finally:
        child.kill()
        child.communicate()
        os.close(main)
    text = shown.decode()
    bar = (r"\repoch 1/1 \[=+>? *\] +\d+%  loss \d+\.\d{4}  ETA 0:\d\d  \d+ images/s  data \S+ ms  step \S+ ms  lr 0\.01\x1b\[K")
    assert re.search(bar, text), text
    assert not re.search(r"^epoch 1/1  step", text, re.MULTILINE)
    assert "parameters sha256" in text[text.rindex("\x1b[K"):]
