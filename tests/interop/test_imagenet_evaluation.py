# SPDX-License-Identifier: Apache-2.0
"""imagenet_train --evaluate beside PyTorch: torchvision's ResNet-18 with the same weights on the same images."""
import re
import subprocess

import pytest

import torch_generations
from image_folders import MISSING, make_image_folders
from launcher_support import BIN, clean_environment

PACKAGES = [torch_generations.ROOT / ".venv" / name for name in ("torchvision", "pillow", "safetensors")]
# The last layer is fitted to scores around the labels, so that some images are right, some among five, some neither.
SCRIPT = """
import sys
import torch
from safetensors.torch import save_file
from torchvision import datasets, models, transforms
data, weights, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(1)
model = models.resnet18(num_classes=6)
transform = transforms.Compose([transforms.Resize(size * 256 // 224), transforms.CenterCrop(size), transforms.ToTensor(),
                                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
loader = torch.utils.data.DataLoader(datasets.ImageFolder(f"{data}/val", transform), batch_size=16)
images, labels = (torch.cat(parts) for parts in zip(*loader))
with torch.no_grad():
    model.train()(images)  # running statistics other than a new model's
    model.eval()
    classifier, model.fc = model.fc, torch.nn.Identity()
    features = model(images).double()
    scores = torch.randn(len(labels), 6) + 1.5 * torch.nn.functional.one_hot(labels, 6)
    gram = features @ features.T + 1e-3 * torch.eye(len(labels))
    classifier.weight.copy_(torch.linalg.solve(gram, scores.double()).T @ features)
    classifier.bias.zero_()
    model.fc = classifier
    save_file(model.state_dict(), weights)
    output = model(images)
top = output.topk(5).indices == labels[:, None]
loss = torch.nn.functional.cross_entropy(output, labels)
print(f"{100 * top[:, 0].float().mean():.3f} {100 * top.any(1).float().mean():.3f} {loss:.4f}")
"""


@torch_generations.newest
def test_the_accuracy_is_that_of_torchvision_with_the_same_weights(torch, tmp_path):
    if MISSING or not all(package.is_dir() for package in PACKAGES):
        pytest.skip("no torchvision, Pillow or safetensors here: scripts/setup --full installs them")
    make_image_folders(tmp_path / "data", classes=6, images=20)
    environment = torch.environment()
    environment["PYTHONPATH"] = ":".join([environment["PYTHONPATH"], *map(str, PACKAGES)])
    theirs = subprocess.run([torch_generations.PYTHON, "-c", SCRIPT, "data", "weights.safetensors", "40"], cwd=tmp_path, env=environment,
                            capture_output=True, text=True, timeout=180)
    assert theirs.returncode == 0, theirs.stderr
    top1, top5, loss = map(float, theirs.stdout.split())
    assert 20 < top1 < top5 < 100
    for ranks in (1, 2):
        ours = subprocess.run([BIN / "muster", "--standalone", f"--nproc-per-node={ranks}", BIN / "imagenet_train", "data", "--evaluate",
                               "--pretrained=weights.safetensors", "--image-size=40", "-b7", "-j2", "--device=cpu"],
                              cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=180)
        assert ours.returncode == 0, ours.stderr
        found = re.search(r" \* Acc@1 (\S+) Acc@5 (\S+)  loss (\S+)", ours.stdout)
        assert (float(found[1]), float(found[2])) == (top1, top5), ours.stdout
        assert abs(float(found[3]) - loss) <= 2e-4, (ours.stdout, loss)
