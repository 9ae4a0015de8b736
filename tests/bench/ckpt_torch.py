# PyTorch's side of `scripts/bench ckpt`: as many tensors of the same sizes, written by torch.save or by safetensors' save_file,
# alone and with the fsync that makes the file outlive a power loss. Reads a word per line and answers each with a line of JSON.
# SPDX-License-Identifier: Apache-2.0
# Usage: ckpt_torch.py <directory> <megabytes>
import json
import os
import sys
import time

import torch
from safetensors.torch import save_file

directory, layers = sys.argv[1], max(1, int(sys.argv[2]) // 8)
torch.set_num_threads(1)
state = {f"{kind}layer{layer}.{name}": torch.randn(shape) for kind in ("", "momentum.") for layer in range(layers)
         for name, shape in (("weight", (1024, 1024)), ("bias", (1024,)))}
print(json.dumps({"torch": torch.__version__, "bytes": sum(4 * tensor.numel() for tensor in state.values())}), flush=True)
for line in sys.stdin:
    path = os.path.join(directory, "theirs")
    begin = time.perf_counter()
    if line.strip() == "torch.save":
        torch.save(state, path)
    else:
        save_file(state, path)
    returned = time.perf_counter() - begin
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    print(json.dumps({"seconds": time.perf_counter() - begin, "stop": returned}), flush=True)
    os.close(file)
    os.unlink(path)
