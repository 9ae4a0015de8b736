# PyTorch's side of scripts/bench data: torchvision's ImageFolder by a DataLoader. Needs torch, torchvision and Pillow.
#   data_torch.py make ROOT IMAGES      a folder of 500x375 JPEGs, two classes
#   data_torch.py serve ROOT WORKERS BATCH    an epoch for each line on stdin: a line of JSON
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import sys
import time

import numpy


def make(root, images):
    from PIL import Image
    for index in range(images):
        random = numpy.random.default_rng(index)
        pixels = numpy.zeros((375, 500, 3))
        for cells in (4, 9, 20, 45, 100, 250):  # detail at each scale, as photographs have it
            noise = random.normal(0, 30 * (9 / cells) ** 0.5, (cells * 3 // 4, cells, 3)).clip(-127, 127)
            pixels += numpy.asarray(Image.fromarray((noise + 128).astype(numpy.uint8)).resize((500, 375), Image.BICUBIC)) - 128.0
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


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], int(sys.argv[3]))
    else:
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
