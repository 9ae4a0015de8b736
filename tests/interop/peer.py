# The process behind torch_generations.Peer: imports PyTorch, then calls what it is told to, a JSON line each.
# SPDX-License-Identifier: Apache-2.0
import importlib
import json
import os
import pathlib
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a check prints is no answer


def answer(request):
    before = dict(os.environ)
    os.environ.update(request["environment"])
    try:
        check = getattr(importlib.import_module(request["module"]), request["check"])
        return {"value": check(**request["arguments"])}
    except BaseException:  # also what is no Exception must reach the test
        return {"error": traceback.format_exc()}
    finally:
        os.environ.clear()
        os.environ.update(before)


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
