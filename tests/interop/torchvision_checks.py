# What torchvision makes of an image folder, compared with what muster's DataLoader handed out (data_load dump). Run by
# test_torchvision.py with a Python that finds torch, torchvision and Pillow.
#   torchvision_checks.py make ROOT
#   torchvision_checks.py compare ROOT TENSORS LINES exact|scaled train|evaluate
# SPDX-License-Identifier: Apache-2.0
import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "data"))
from make_fixtures import encoded, sample_image  # noqa: E402

KINDS = {"420.jpg": {}, "422.jpg": {"subsampling": "4:2:2"}, "444.JPEG": {"subsampling": "4:4:4", "quality": 95},
         "progressive.jpeg": {"progressive": True}, "grey.jpg": {"mode": "L"}, "cmyk.jpg": {"mode": "CMYK"},
         "rgb.png": {}, "rgba.PNG": {"mode": "RGBA"}, "palette.png": {"mode": "P"}}
SIZES = [(500, 375), (333, 500), (240, 700), (224, 224), (1000, 90), (61, 43), (1400, 1100)]


def make(root):
    for number, (width, height) in enumerate(SIZES):
        for kind, options in KINDS.items():
            path = pathlib.Path(root) / ("cat", "dog/one", "dog/one-b")[number % 3] / f"{number}-{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(sample_image(width, height, number), "PNG" if kind.lower().endswith("png") else "JPEG", **options))


def compare(root, tensors, lines, decode, pipeline):
    import numpy
    import torch
    from torchvision import datasets, transforms
    from torchvision.transforms import functional
    finish = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    evaluation = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), finish])
    folder = datasets.ImageFolder(root)
    ours = torch.from_numpy(numpy.fromfile(tensors, dtype=numpy.float32).reshape(-1, 3, 224, 224))
    told = [json.loads(line) for line in pathlib.Path(lines).read_text().splitlines()]
    assert [(line["path"], line["label"]) for line in told] == folder.samples, "another order, or other labels"
    assert len(ours) == len(folder) == len(SIZES) * len(KINDS)
    signal, scaled, flips = [], [], 0
    for index, (image, _) in enumerate(folder):
        size_before = image.size
        if pipeline == "evaluate":
            expected = evaluation(image)
        else:
            (crop, left, top, width, height), (resize, _, _, *size), *flip = told[index]["steps"]
            assert (crop, resize, size) == (0, 1, [224, 224]), told[index]
            image = functional.resized_crop(image, top, left, height, width, [224, 224])
            flips += len(flip)
            expected = finish(functional.hflip(image) if flip else image)
        if decode == "exact":
            assert torch.equal(ours[index], expected), f"{told[index]['path']}: other values than torchvision's"
        elif told[index]["path"].endswith(("jpg", "jpeg", "JPEG")):
            deviation = torch.tensor([0.229, 0.224, 0.225])[:, None, None] * (ours[index] - expected)
            decibels = -10 * math.log10(max(float((deviation ** 2).mean()), 1e-10))
            # The decoder makes an image of half the size or less where that is not below what is wanted.
            from_side, to_side = (min(told[index]["steps"][0][3:]), 224) if pipeline == "train" else (min(size_before), 256)
            (scaled if from_side >= 2 * to_side else signal).append(decibels)
    assert pipeline == "evaluate" or 0 < flips < len(folder)
    print(json.dumps({"images": len(folder), "psnr": [min(signal), sum(signal) / len(signal)] if signal else None,
                      "scaled": [len(scaled), min(scaled)] if scaled else None}))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
