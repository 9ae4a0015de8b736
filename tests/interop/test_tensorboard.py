# SPDX-License-Identifier: Apache-2.0
"""What SummaryWriter writes, read by the real tensorboard; its histograms as torch.utils.tensorboard makes them."""
import array
import json
import os
import random
import re
import subprocess
import urllib.request

import pytest
import torch_generations
from browser import browser  # noqa: F401
from launcher_support import BIN, wait_for
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


@pytest.fixture(scope="module")
def address(written, tmp_path_factory):
    """Of a tensorboard that has read the file."""
    folder = tmp_path_factory.mktemp("server")
    env = dict(os.environ, PYTHONPATH=str(TENSORBOARD), HOME=str(folder))
    command = [PYTHON, "-m", "tensorboard.main", "--logdir", str(written[0]), "--host", "127.0.0.1", "--port", "0"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def started():
        assert server.poll() is None, (folder / "log").read_text()
        return re.search(r"at (http://127\.0\.0\.1:\d+/)", (folder / "log").read_text())

    def has(plugin, tag):
        with urllib.request.urlopen(f"{found}data/plugin/{plugin}/tags", timeout=60) as answer:
            return f'"{tag}"' in answer.read().decode()
    try:
        found = wait_for(started, "tensorboard", 90)[1]
        for plugin, tag in (("scalars", "train/loss"), ("histograms", "fc1.weight"), ("images", "image3")):
            wait_for(lambda: has(plugin, tag), tag, 60)
        yield found
    finally:
        server.kill()
        server.wait()


def test_a_browser_shows_the_scalars_chart(address, browser):  # noqa: F811
    chromium = browser(extra=["--disable-3d-apis"])  # the curve is then an SVG path: that is looked for, with its 100 points
    chromium.open(f"{address}?tagFilter=loss#timeseries")
    chromium.wait("document.querySelector('[title=\"train/loss\"]')"
                  " && [...document.querySelectorAll('path')].some(path => (path.getAttribute('d') ?? '').split('L').length === 100)", 90)


def test_a_browser_shows_an_image_with_its_pixels(address, browser):  # noqa: F811
    chromium = browser()
    chromium.open(f"{address}?tagFilter=image3#timeseries")
    chromium.wait("document.querySelector('image-card [title=image3]') && document.querySelector('image-card img').naturalWidth", 90)
    width, height, pixels = chromium.value("""(() => {
        const image = document.querySelector('image-card img'), canvas = document.createElement('canvas');
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        const context = canvas.getContext('2d');
        context.drawImage(image, 0, 0);
        return [canvas.width, canvas.height, [...context.getImageData(0, 0, canvas.width, canvas.height).data]];
    })()""")
    assert (width, height) == (5, 3)
    assert pixels == [value for at in range(15) for value in (*(7 * (3 * at + i) % 256 for i in range(3)), 255)]  # and opaque


def test_a_browser_shows_a_histogram(address, browser):  # noqa: F811
    chromium = browser()
    chromium.open(f"{address}?tagFilter=fc1#timeseries")
    path = chromium.wait("document.querySelector('histogram-card [title=\"fc1.weight\"]')"
                         " && document.querySelector('tb-histogram .histogram path').getAttribute('d')", 90)
    # From the ground up, along the middles of 30 bins, and down. The first bin has all values but one, which lies far to the right.
    (_, ground), *bins, (_, end) = [tuple(map(float, point.split(","))) for point in re.findall(r"[ML]([^ML]+)", path)]
    heights = [ground - y for _, y in bins]
    assert len(bins) == 30 and end == ground and heights[0] > 10 and set(heights[1:20]) == {0}, heights
    assert sum(heights[20:]) == pytest.approx(heights[0] / (len(VALUES) - 1), rel=1e-3), heights
