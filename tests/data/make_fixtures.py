#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the fixtures that the C++ tests compare with PyTorch: tests/data/pytorch_*.safetensors.

Run by hand with a Python that has torch (Debian: python3-torch 1.13), never by the tests:
    /usr/bin/python3 tests/data/make_fixtures.py
pytorch_amp.safetensors needs torch 2.3 or later, whose GradScaler also works on a CPU (written with 2.14):
    python3 tests/data/make_fixtures.py amp
and so does pytorch_images.safetensors, which needs torchvision and Pillow as well (written with 0.29 and 13.0):
    PYTHONPATH=.venv/torch:.venv/torchvision:.venv/pillow python3 tests/data/make_fixtures.py images
A name of a function below writes its file alone.
"""
import json
import os
import struct
import sys
import zlib

import numpy
import torch
import torch.nn.functional as F
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../bench"))
from train_torch import Block, ResNet  # noqa: E402

NAMES = {"float32": "F32", "int32": "I32", "int64": "I64", "uint8": "U8"}


def write(name, tensors, **metadata):
    """A safetensors file, sorted by alignment then name as the format's own writer does."""
    arrays = {key: numpy.ascontiguousarray(value) for key, value in tensors.items()}
    order = sorted(arrays, key=lambda key: (-arrays[key].itemsize, key))
    header = {"__metadata__": {"torch": torch.__version__, **metadata}}
    offset = 0
    for key in order:
        array = arrays[key]
        header[key] = {"dtype": NAMES[str(array.dtype)], "shape": list(array.shape),
                       "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(os.path.join(HERE, name), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for key in order:
            file.write(arrays[key].tobytes())


class GarmentClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 4 * 4)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = torch.flatten(self.pool(F.relu(self.conv2(x))), 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 512)
        self.fc2 = nn.Linear(512, 512)
        self.fc3 = nn.Linear(512, 10)

    def forward(self, x):
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


def order_summary(order):
    """CRC-32 of the int32 values, then the first and last 16."""
    values = numpy.asarray(order, dtype=numpy.int32)
    crc = numpy.array([zlib.crc32(values.tobytes()), len(values)], dtype=numpy.int64)
    return crc, numpy.concatenate([values[:16], values[-16:]])


def rng():
    tensors = {}
    for seed in (0, 1, 42, 2**31 + 5, 2**32 + 7, 2**63 - 1):
        generator = torch.Generator().manual_seed(seed)
        tensors[f"randperm.60000.{seed}.crc"], tensors[f"randperm.60000.{seed}.ends"] = \
            order_summary(torch.randperm(60000, generator=generator))
        generator = torch.Generator().manual_seed(seed)
        tensors[f"uniform.{seed}"] = torch.empty(1000).uniform_(-0.2, 0.7, generator=generator).numpy()
        tensors[f"random.{seed}"] = torch.empty(8, dtype=torch.int64).random_(generator=generator).numpy()
    for n in (1, 2, 3, 10, 97):
        tensors[f"randperm.{n}.5"] = torch.randperm(n, generator=torch.Generator().manual_seed(5)).numpy()
    write("pytorch_rng.safetensors", tensors)


def sampler():
    tensors = {}
    for n in (1, 7, 10, 100):
        for world in (1, 2, 3, 4, 16):
            for shuffle in (False, True):
                for drop in (False, True):
                    if drop and n < world:
                        continue  # PyTorch's own assertion fails there
                    for epoch in (0, 3):
                        for rank in {0, world // 2, world - 1}:
                            s = torch.utils.data.DistributedSampler(
                                range(n), num_replicas=world, rank=rank, shuffle=shuffle, seed=11, drop_last=drop)
                            s.set_epoch(epoch)
                            key = f"small/{n}/{world}/{rank}/{int(shuffle)}/{int(drop)}/{epoch}"
                            tensors[key] = numpy.array(list(s), dtype=numpy.int32)
    for world in (1, 2, 3, 4):
        for rank in range(world):
            for epoch in (0, 1, 7):
                s = torch.utils.data.DistributedSampler(range(60000), num_replicas=world, rank=rank, seed=42)
                s.set_epoch(epoch)
                tensors[f"large/{world}/{rank}/{epoch}/crc"], tensors[f"large/{world}/{rank}/{epoch}/ends"] = \
                    order_summary(list(s))
    # One process: the loader draws from the default generator, here after the model has been constructed.
    torch.manual_seed(42)
    GarmentClassifier()
    loader = torch.utils.data.DataLoader(torch.arange(60000), batch_size=1000, shuffle=True)
    for epoch in range(2):
        tensors[f"loader/{epoch}/crc"], tensors[f"loader/{epoch}/ends"] = \
            order_summary(torch.cat(list(loader)).numpy())
    write("pytorch_sampler.safetensors", tensors)


def weights():
    tensors = {}
    for seed in (0, 42):
        torch.manual_seed(seed)
        for name, value in GarmentClassifier().state_dict().items():
            if seed == 42 or value.numel() < 3000:
                tensors[f"garment.{seed}.{name}"] = value.numpy()
            tensors[f"garment.{seed}.{name}.crc"] = numpy.array([zlib.crc32(value.numpy().tobytes())], dtype=numpy.int64)
        torch.manual_seed(seed)
        for name, value in Mlp().state_dict().items():
            tensors[f"mlp.{seed}.{name}.crc"] = numpy.array([zlib.crc32(value.numpy().tobytes())], dtype=numpy.int64)
            tensors[f"mlp.{seed}.{name}.first"] = value.flatten()[:16].clone().numpy()
    write("pytorch_weights.safetensors", tensors)


def sgd():
    """Three steps of torch.optim.SGD on given parameters and gradients, with and without weight decay."""
    tensors = {}
    generator = torch.Generator().manual_seed(9)
    for name, decay, momentum in (("plain", 0.0, 0.9), ("decay", 0.01, 0.9), ("no_momentum", 0.0, 0.0), ("nesterov", 0.01, 0.9),
                                  ("clip", 0.0, 0.9)):
        p = nn.Parameter(torch.empty(1003).uniform_(-1, 1, generator=generator))
        optimizer = torch.optim.SGD([p], lr=0.001, momentum=momentum, weight_decay=decay, nesterov=name == "nesterov")
        tensors[f"{name}.params.0"] = p.detach().clone().numpy()
        for step in (1, 2, 3):
            p.grad = torch.empty(1003).uniform_(-3, 3, generator=generator)
            tensors[f"{name}.grads.{step}"] = p.grad.clone().numpy()
            if name == "clip":
                torch.nn.utils.clip_grad_norm_([p], 10.0)
            optimizer.step()
            tensors[f"{name}.params.{step}"] = p.detach().clone().numpy()
    schedules = {"step": lambda o: torch.optim.lr_scheduler.StepLR(o, 7, 0.3),
                 "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20, 0.01),
                 "warm_up": lambda o: torch.optim.lr_scheduler.LinearLR(o, 1 / 3, total_iters=5)}
    for name, make in schedules.items():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
        schedule, rates = make(optimizer), []
        for _ in range(21):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        tensors[f"lr.{name}"] = numpy.array(rates, dtype=numpy.float32)
    write("pytorch_sgd.safetensors", tensors)


def step():
    """One whole training step of GarmentClassifier (seed 42) on a batch of 4: loss, gradients, updated small tensors."""
    torch.manual_seed(42)
    model = GarmentClassifier()
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (4, 28, 28), dtype=torch.uint8, generator=generator)
    labels = torch.tensor([3, 0, 9, 3])
    x = ((images.float() / 255) - 0.5) / 0.5
    logits = model(x[:, None])
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    tensors = {"images": images.numpy(), "labels": labels.to(torch.uint8).numpy(), "logits": logits.detach().numpy(),
               "loss": loss.detach().reshape(1).numpy()}
    for name, value in model.named_parameters():
        tensors[f"grad.{name}"] = value.grad.numpy()
    write("pytorch_step.safetensors", tensors)


def ops():
    """What single operations make of given inputs: output, and gradients by it of sum(output * dy)."""
    generator = torch.Generator().manual_seed(5)
    tensors = {}

    def case(name, module, *shape):
        x = torch.empty(shape).uniform_(-1, 1, generator=generator).requires_grad_()
        for parameter in module.parameters():
            parameter.data.uniform_(-1, 1, generator=generator)
        y = module(x)
        dy = torch.empty(y.shape).uniform_(-1, 1, generator=generator)
        y.backward(dy)
        for key, value in {"x": x, "y": y, "dy": dy, "dx": x.grad}.items():
            tensors[f"{name}.{key}"] = value.detach().numpy()
        for key, parameter in module.named_parameters():
            tensors[f"{name}.{key}"] = parameter.detach().numpy()
            tensors[f"{name}.d{key}"] = parameter.grad.numpy()

    case("groups", nn.Conv2d(6, 9, 3, stride=2, padding=1, groups=3), 2, 6, 7, 6)
    case("depthwise", nn.Conv2d(4, 8, 3, groups=4, bias=False), 2, 4, 5, 6)
    case("adaptive", nn.AdaptiveAvgPool2d((3, 2)), 2, 3, 5, 7)
    case("adaptive_up", nn.AdaptiveAvgPool2d((5, 4)), 1, 2, 3, 2)
    case("adaptive_one", nn.AdaptiveAvgPool2d(1), 2, 3, 5, 7)
    torch.manual_seed(42)
    model = LeNet5()
    for key, value in model.named_parameters():
        tensors[f"lenet5.{key}.crc"] = numpy.array([zlib.crc32(value.detach().numpy().tobytes())], dtype=numpy.int64)
    x = torch.empty(4, 1, 28, 28).uniform_(-1, 1, generator=generator)
    logits = model(x)
    loss = F.cross_entropy(logits, torch.tensor([3, 0, 9, 3]))
    loss.backward()
    tensors.update({"lenet5.x": x.numpy(), "lenet5.logits": logits.detach().numpy(), "lenet5.loss": loss.detach().reshape(1).numpy()})
    for key, value in model.named_parameters():
        tensors[f"lenet5.{key}.grad_norm"] = value.grad.norm().reshape(1).numpy()
    write("pytorch_ops.safetensors", tensors)


def resnet():
    """One training step of ResNet-18 and -50 on 4 images of 64x64, in double from float32 weights and pixels, which a
    reader draws again from the same generator: logits, loss, gradients in part, running statistics, then logits in
    evaluation mode."""
    tensors = {}
    for depth in (18, 50):
        generator = torch.Generator().manual_seed(depth)
        model = ResNet(depth, 10)
        for name, value in model.named_parameters():
            fan_in = value[0].numel() if value.dim() > 1 else 0
            low, high = ((-(6 / fan_in) ** 0.5, (6 / fan_in) ** 0.5) if value.dim() == 4 else
                         (-0.05, 0.05) if name.startswith("fc") else (0.5, 1.5) if name.endswith("weight") else (-0.3, 0.3))
            with torch.no_grad():
                value.uniform_(low, high, generator=generator)
        x = torch.empty(4, 3, 64, 64).uniform_(-1, 1, generator=generator)
        model.double()
        logits = model(x.double())
        loss = F.cross_entropy(logits, torch.tensor([3, 0, 9, 3]))
        loss.backward()
        tensors[f"{depth}.logits"] = logits.detach().float().numpy()
        tensors[f"{depth}.loss"] = loss.detach().float().reshape(1).numpy()
        for name, value in model.named_parameters():
            flat = value.grad.flatten()
            tensors[f"{depth}.grad.{name}"] = torch.cat([flat.norm().reshape(1), flat[:8], flat[-8:]]).float().numpy()
        for name, value in model.named_buffers():
            if value.dim() == 1:
                tensors[f"{depth}.{name}"] = value[:4].float().numpy()
        model.eval()
        tensors[f"{depth}.eval_logits"] = model(x.double()).detach().float().numpy()
    write("pytorch_resnet.safetensors", tensors)


def state_dict():
    """A bottleneck of torchvision's with what surrounds it, as safetensors.torch would save it, and its logits in
    evaluation mode."""
    generator = torch.Generator().manual_seed(7)
    model = nn.Module()
    model.conv1, model.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
    model.layer1 = nn.Sequential(Block(8, 4, 2, 4))
    model.fc = nn.Linear(16, 5)
    for name, value in model.state_dict().items():
        if value.dtype == torch.float32:
            low, high = (0.5, 1.5) if name.endswith(("running_var", "bn1.weight")) else (-0.5, 0.5)
            value.uniform_(low, high, generator=generator)
    model.eval()
    x = torch.empty(2, 3, 6, 6).uniform_(-1, 1, generator=generator)
    with torch.no_grad():
        logits = model.fc(model.layer1(F.relu(model.bn1(model.conv1(x)))).mean((2, 3)))
    write("pytorch_state_dict.safetensors", {name: value.numpy() for name, value in model.state_dict().items()}, format="pt")
    write("pytorch_state_dict_logits.safetensors", {"x": x.numpy(), "logits": logits.numpy()})


def garment_input():
    """GarmentClassifier (seed 42), images, labels."""
    torch.manual_seed(42)
    generator = torch.Generator().manual_seed(3)
    return GarmentClassifier(), torch.empty(4, 1, 28, 28).uniform_(-1, 1, generator=generator), torch.tensor([3, 0, 9, 3])


class Bottleneck(nn.Module):
    """A ResNet of one bottleneck."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Block(8, 4, 2, 4))
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(self.layer1(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


def block_input():
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(5)
    return Bottleneck(), torch.empty(8, 3, 6, 6).uniform_(-1, 1, generator=generator), torch.arange(8) % 5


def amp():
    """Steps of torch.optim.AdamW, of SGD under a GradScaler that meets infinities, and label smoothing."""
    tensors = {}
    generator = torch.Generator().manual_seed(11)

    def draw(*shape):
        return torch.empty(*shape).uniform_(-3, 3, generator=generator)

    for name, decay, clip in (("adamw", 0.01, 0), ("adamw_decay", 0.3, 0), ("adamw_clip", 0.01, 10.0)):
        p = nn.Parameter(draw(203) / 3)
        optimizer = torch.optim.AdamW([p], lr=0.01, weight_decay=decay, foreach=False, fused=False)
        tensors[f"{name}.params.0"] = p.detach().clone().numpy()
        for step in range(1, 7):
            p.grad = draw(203)
            tensors[f"{name}.grads.{step}"] = p.grad.clone().numpy()
            if clip:
                torch.nn.utils.clip_grad_norm_([p], clip)
            optimizer.step()
            tensors[f"{name}.params.{step}"] = p.detach().clone().numpy()
    p = nn.Parameter(draw(203))
    optimizer = torch.optim.SGD([p], lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    tensors["scaler.params.0"], scales = p.detach().clone().numpy(), []
    scaler.scale(torch.zeros(1))
    for step in range(1, 10):
        p.grad = draw(203) * scaler.get_scale()
        if step in (1, 5, 6):
            p.grad[step] = float("inf") if step != 6 else float("nan")
        tensors[f"scaler.grads.{step}"] = p.grad.clone().numpy()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        tensors[f"scaler.params.{step}"] = p.detach().clone().numpy()
    tensors["scaler.scales"] = numpy.array(scales, dtype=numpy.float32)
    logits = draw(7, 13).requires_grad_()
    labels = torch.randint(0, 13, (7,), generator=generator)
    loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
    loss.backward()
    for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        for kind, model, x, labels16 in (("garment", *garment_input()), ("block", *block_input())):
            with torch.autocast("cpu", dtype=dtype):
                logits16 = model(x)
                loss16 = F.cross_entropy(logits16, labels16)
            (loss16 * 128).backward()
            tensors[f"{kind}.{name}.logits"] = logits16.detach().float().numpy()
            tensors[f"{kind}.{name}.loss"] = loss16.detach().reshape(1).numpy()
            tensors[f"{kind}.x"], tensors[f"{kind}.labels"] = x.numpy(), labels16.to(torch.int32).numpy()
            for parameter, value in model.named_parameters():
                tensors[f"{kind}.{name}.grad.{parameter}"] = value.grad[:16].numpy()
                if kind == "block" and name == "BF16":
                    tensors[f"block.{parameter}"] = value.detach().numpy()
    tensors.update({"smoothing.logits": logits.detach().numpy(), "smoothing.labels": labels.to(torch.int32).numpy(),
                    "smoothing.loss": loss.detach().reshape(1).numpy(), "smoothing.gradient": logits.grad.numpy()})
    write("pytorch_amp.safetensors", tensors)


def interlaced_png(pixels):
    """Adam7, which Pillow cannot write."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, _ = pixels.shape
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    rows = [b"\0" + row.tobytes() for top, left, down, across in passes for row in pixels[top::down, left::across] if row.size]
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")


def sample_image(width, height, seed=0):
    """Slopes, edges and a little noise, as photographs have them."""
    random = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:height, 0:width]
    planes = [128 + 90 * numpy.sin(x / (7 + 3 * c)) * numpy.cos(y / (11 - 2 * c)) + 40 * ((x + c * y) // 13 % 2) for c in range(3)]
    return numpy.clip(numpy.stack(planes, -1) + random.normal(0, 6, (height, width, 3)), 0, 255).astype(numpy.uint8)


def encoded(pixels, kind, **options):
    import io

    from PIL import Image
    file, image = io.BytesIO(), Image.fromarray(pixels)
    image.convert(options.pop("mode", "RGB")).save(file, kind, **options)
    return file.getvalue()


def images():
    """Files of each kind and their pixels in PIL; what torchvision's transforms make of the first."""
    import io

    import torchvision
    from PIL import Image, __version__
    from torchvision import transforms
    from torchvision.transforms import functional
    pixels = sample_image(75, 57)
    files = {"420.jpg": encoded(pixels, "JPEG", quality=85), "422.jpg": encoded(pixels, "JPEG", subsampling="4:2:2"),
             "444.jpg": encoded(pixels, "JPEG", subsampling="4:4:4"), "progressive.jpg": encoded(pixels, "JPEG", progressive=True),
             "grey.jpg": encoded(pixels, "JPEG", mode="L"), "cmyk.jpg": encoded(pixels, "JPEG", mode="CMYK"),
             "rgb.png": encoded(pixels, "PNG"), "rgba.png": encoded(pixels, "PNG", mode="RGBA"),
             "palette.png": encoded(pixels, "PNG", mode="P"), "grey.png": encoded(pixels, "PNG", mode="L"),
             "bit.png": encoded(pixels, "PNG", mode="1"), "alpha.png": encoded(pixels, "PNG", mode="LA"),
             "interlaced.png": interlaced_png(pixels)}
    tensors = {}
    for name, data in files.items():
        rgb = numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        tensors[f"file/{name}"] = numpy.frombuffer(data, dtype=numpy.uint8)
        tensors[f"rgb/{name}"] = numpy.array([rgb.shape[1], rgb.shape[0], zlib.crc32(rgb.tobytes())], dtype=numpy.int64)
    image = Image.open(io.BytesIO(files["420.jpg"])).convert("RGB")
    normalize = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    evaluation = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor(), normalize])
    tensors["evaluation"] = evaluation(image).numpy()
    sizes = [(32, 32), (90, 110), (57, 75), (5, 3), (57, 20), (140, 75)]
    for height, width in sizes:
        tensors[f"resize/{height}/{width}"] = order_summary(numpy.asarray(image.resize((width, height), Image.BILINEAR)).ravel())[0]
    for size in (60, 70, 100):
        tensors[f"centre/{size}"] = order_summary(numpy.asarray(transforms.CenterCrop(size)(image)).ravel())[0]
    crops = [(3, 11, 40, 50), (0, 0, 57, 75), (20, 30, 9, 33)]
    tensors["crops"] = numpy.array(crops, dtype=numpy.int32)
    tensors["cropped"] = numpy.stack([numpy.asarray(functional.hflip(functional.resized_crop(image, *crop, [24, 28]))) for crop in crops])
    write("pytorch_images.safetensors", tensors, torchvision=torchvision.__version__, pillow=__version__)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            globals()[name]()
        sys.exit()
    ops()
    resnet()
    state_dict()
    rng()
    sampler()
    weights()
    sgd()
    step()
