# PyTorch's side of scripts/bench data: torchvision's ImageFolder by a DataLoader. Needs torch, torchvision and Pillow.
#   data_torch.py make ROOT IMAGES WIDTH      a folder of JPEGs so wide and 3/4 as high, two classes
#   data_torch.py serve ROOT WORKERS BATCH    an epoch for each line on stdin: a line of JSON
#   data_torch.py psnr A B      of normalised 224x224 images in two files: [least, median] in dB
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import sys
import time

import numpy


def make(root, images, width):
    from PIL import Image
    height = width * 3 // 4
    for index in range(images):
        random = numpy.random.default_rng(index)
        pixels = numpy.zeros((height, width, 3))
        for cells in (4, 9, 20, 45, 100, 250, *((width // 2,) if width > 500 else ())):  # detail at each scale, as photographs have it
            noise = random.normal(0, 30 * (9 / cells) ** 0.5, (cells * 3 // 4, cells, 3)).clip(-127, 127)
            pixels += numpy.asarray(Image.fromarray((noise + 128).astype(numpy.uint8)).resize((width, height), Image.BICUBIC)) - 128.0
        path = pathlib.Path(root) / f"class{index % 2}" / f"{index:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels + 128).clip(0, 255).astype(numpy.uint8)).save(path, quality=90)


def serve(root, workers, batch):
    import torch
    import torchvision
    from torchvision import transforms
    torch.set_num_threads(1)
    transform = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                                    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    loader = torch.utils.data.DataLoader(torchvision.datasets.ImageFolder(root, transform), batch_size=batch, shuffle=True,
                                         num_workers=workers, persistent_workers=workers > 0)
    for _ in sys.stdin:
        begin = time.perf_counter()
        images = sum(len(labels) for _, labels in loader)
        print(json.dumps({"images": images, "seconds": time.perf_counter() - begin,
                          "version": f"torch {torch.__version__}, torchvision {torchvision.__version__}"}), flush=True)


def psnr(a, b):
    a, b = (numpy.fromfile(file, dtype=numpy.float32).reshape(-1, 3, 224 * 224) for file in (a, b))
    squares = ((a - b) * numpy.array([0.229, 0.224, 0.225], numpy.float32)[:, None]) ** 2
    of_images = -10 * numpy.log10(squares.mean((1, 2)).clip(1e-10))
    print(json.dumps([float(of_images.min()), float(numpy.median(of_images))]))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1] == "psnr":
        psnr(*sys.argv[2:])
    else:
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
