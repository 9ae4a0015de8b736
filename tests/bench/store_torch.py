# PyTorch's own TCPStore server for the store bench: prints "<version> <port>", serves until standard input ends.
# SPDX-License-Identifier: Apache-2.0
import sys
from datetime import timedelta

import torch
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
print(torch.__version__, store.port, flush=True)
sys.stdin.read()
