# SPDX-License-Identifier: Apache-2.0
"""Small data sets for imagenet_train: JPEG files in train and val, a folder for each class. A class has its colour, an image its noise."""
import pathlib
import random
import sys

PILLOW = pathlib.Path(__file__).resolve().parents[2] / ".venv/pillow"
MISSING = None if PILLOW.is_dir() else "Pillow is missing; scripts/setup --full installs it"
COLOURS = [(200, 60, 60), (60, 200, 60), (60, 60, 200), (180, 180, 60), (60, 180, 180), (180, 60, 180)]


def make_image_folders(root, classes=3, images=10, size=(64, 48)):
    """`images` for each class in train, half of them in val."""
    sys.path.insert(0, str(PILLOW))
    try:
        from PIL import Image
    finally:
        sys.path.remove(str(PILLOW))
    noise = random.Random(0)
    for split, count in (("train", images), ("val", images // 2)):
        for label in range(classes):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = bytes(min(255, max(0, base + noise.randrange(-50, 51)))
                               for _ in range(size[0] * size[1]) for base in COLOURS[label])
                Image.frombytes("RGB", size, pixels).save(folder / f"{number}.jpg", quality=90)
    return root
