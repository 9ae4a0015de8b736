# SPDX-License-Identifier: Apache-2.0
"""What SummaryWriter writes, read by the real tensorboard; its histograms as torch.utils.tensorboard makes them."""
import array
import json
import os
import random
import re
import select
import shutil
import subprocess
import time

import pytest
import torch_generations
from launcher_support import BIN
from torch_generations import CURRENT, NEWEST, PYTHON, ROOT

TENSORBOARD = ROOT / ".venv/tensorboard"
_draw = random.Random(0)
VALUES = array.array("f", [_draw.gauss(0, 0.1) for _ in range(5000)] + [0, 0, -3, 7e-13, 1e-12, 2e15])

READ = """
import io, json, sys
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "images": 0})
events.Reload()
tags = events.Tags()
def pixels(tag):
    image = Image.open(io.BytesIO(events.Images(tag)[0].encoded_image_string))
    return [image.mode, list(image.size), list(image.tobytes())]
print(json.dumps({
    "scalars": {tag: [[e.step, e.value, e.wall_time] for e in events.Scalars(tag)] for tag in tags["scalars"]},
    "histograms": {tag: [[e.step, vars(e.histogram_value)] for e in events.Histograms(tag)] for tag in tags["histograms"]},
    "images": {tag: [events.Images(tag)[0].step, pixels(tag)] for tag in tags["images"]},
}))
"""

TORCH_WRITES = """
import sys
import numpy
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter(sys.argv[1]) as writer:
    writer.add_histogram("fc1.weight", numpy.frombuffer(sys.stdin.buffer.read(), numpy.float32), 7)
"""


def tensorboard_python(program, *arguments, data=b""):
    env = torch_generations.environment(NEWEST)
    env["PYTHONPATH"] = f"{TENSORBOARD}:{env.get('PYTHONPATH', '')}"
    done = subprocess.run([PYTHON, "-c", program, *arguments], input=data, capture_output=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The event file of tests/interop/tensorboard_tool.cc."""
    if not TENSORBOARD.is_dir():
        pytest.skip("no tensorboard here: scripts/setup --full installs it")
    folder = tmp_path_factory.mktemp("events")
    done = subprocess.run([BIN / "tensorboard_tool", folder], input=VALUES.tobytes(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return folder, done.stdout.decode().strip()


@pytest.fixture(scope="module")
def read(written):
    return json.loads(tensorboard_python(READ, str(written[0])))


def test_the_file_is_named_as_tensorboard_names_it(written):
    host = re.escape(os.uname().nodename)
    assert re.fullmatch(rf"events\.out\.tfevents\.\d{{10}}\.{host}\.\d+\.0", os.path.basename(written[1]))


def test_tensorboard_reads_scalars(read):
    assert set(read["scalars"]) == {"train/loss", "train/accuracy"}
    loss = read["scalars"]["train/loss"]
    assert [step for step, _, _ in loss] == list(range(100))
    assert [value for _, value, _ in loss] == [array.array("f", [1 / (step + 1)])[0] for step in range(100)]
    times = [time for _, _, time in loss]
    assert times == sorted(times) and times[0] > 1.6e9
    assert [entry[:2] for entry in read["scalars"]["train/accuracy"]] == [[2**40, 0.25]]


def test_tensorboard_reads_images(read):
    assert set(read["images"]) == {"image1", "image3", "image4"}
    for channels, mode in ((1, "L"), (3, "RGB"), (4, "RGBA")):
        assert read["images"][f"image{channels}"] == [9, [mode, [5, 3], [7 * i % 256 for i in range(15 * channels)]]]


def test_tensorboard_reads_a_histogram_as_torch_makes_it(read, tmp_path):
    if not (CURRENT / "torch").is_dir():
        pytest.skip(torch_generations.missing(NEWEST))
    tensorboard_python(TORCH_WRITES, str(tmp_path), data=VALUES.tobytes())
    expected = json.loads(tensorboard_python(READ, str(tmp_path)))["histograms"]
    for of_torch, ours in zip(expected["fc1.weight"], read["histograms"]["fc1.weight"], strict=True):
        assert ours[0] == of_torch[0] == 7
        sums = {key: pytest.approx(of_torch[1][key]) for key in ("sum", "sum_squares")}  # added up in another order
        assert ours[1] == of_torch[1] | sums


def test_a_browser_shows_the_scalars_chart(written, tmp_path):
    if shutil.which("chromium") is None:
        pytest.skip("no chromium here: scripts/setup --full installs it")
    env = dict(os.environ, PYTHONPATH=str(TENSORBOARD), HOME=str(tmp_path))
    command = [PYTHON, "-m", "tensorboard.main", "--logdir", str(written[0]), "--host", "127.0.0.1", "--port", "0"]
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    deadline = time.monotonic() + 90
    try:
        while not (found := re.search(r"at (http://127\.0\.0\.1:\d+/)", (tmp_path / "log").read_text())):
            assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            select.select([], [], [], 0.05)
        browser = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000",
                   "--disable-3d-apis",  # the curve is then an SVG path: that is looked for, with its 100 points
                   f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=30000", "--dump-dom",
                   f"{found[1]}?tagFilter=loss#timeseries"]
        page = ""
        while not ('title="train/loss"' in page and any(path.count("L") == 99 for path in re.findall("<path[^>]*>", page))):
            assert time.monotonic() < deadline, page[:3000]  # the server may not have read the file yet
            page = subprocess.run(browser, env=env, text=True, capture_output=True, timeout=60).stdout
    finally:
        server.kill()
        server.wait()
