# muster-profile from outside: the table, JSON, and input that is wrong.
# SPDX-License-Identifier: Apache-2.0
import json

import pytest


@pytest.mark.parametrize("arguments, macs, parameters", [
    (["resnet50", "3x224x224"], "4.134G", "25.557M"),
    (["resnet50", "3x224x224", "--rule=old"], "4.112G", "25.557M"),
    (["resnet18", "--rule=pure"], "1.814G", "11.690M"),
    (["garment_classifier", "100x1x28x28"], "28.164M", "44.426K"),
])
def test_the_last_line_has_the_sums(run, bin_dir, arguments, macs, parameters):
    done = run(bin_dir / "muster-profile", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["layer", "type", "output", "shape", "MACs", "parameters"]
    assert lines[-1].split() == ["total", macs, parameters]
    assert len({len(line) for line in lines}) == 1


def test_json_has_exact_numbers(run, bin_dir):
    made = json.loads(run(bin_dir / "muster-profile", "resnet50", "--json").stdout)
    assert (made["macs"], made["parameters"]) == (4133742592, 25557032)
    assert sum(layer["macs"] for layer in made["layers"]) == made["macs"]
    assert made["layers"][0] == {"name": "conv1", "type": "Conv2d", "output_shape": [64, 112, 112], "macs": 118013952, "parameters": 9408}


@pytest.mark.parametrize("arguments", [
    [], ["alexnet"], ["resnet18", "3x224"], ["resnet18", "3x224x224x"], ["resnet18", "3x0x224"], ["resnet18", "3x99999999999x2"],
    ["resnet18", "1x1x1x1x1"], ["mlp", "1x20x20"], ["resnet18", "--rule=newest"], ["resnet18", "--sum"], ["a\nb"],
])
def test_bad_input_is_one_line_and_exit_2(run, bin_dir, arguments):
    done = run(bin_dir / "muster-profile", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("muster-profile: ") and done.stderr.count("\n") == 1
