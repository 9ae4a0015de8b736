# SPDX-License-Identifier: Apache-2.0
# The process behind torchrun_runs.Torchrun: has imported PyTorch's launcher and runs its main() in a fork of itself for each
# request, a JSON line {"number", "launcher", "arguments", "environment", "directory", "stdout", "stderr"}. Says a JSON
# line when one has begun and one when it has ended. The "launcher" "options" is answered with torchrun's; "store" is PyTorch's
# own server of a store. Importing takes 1.5 s of processor time, a fork a few milliseconds.
import json
import os
import select
import signal
import sys
import traceback

import torch.distributed.launch
import torch.distributed.run
from torch.distributed.argparse_util import check_env, env


def serve_store(arguments):
    store = torch.distributed.TCPStore("127.0.0.1", int(arguments[0]), is_master=True, wait_for_workers=False)
    signal.pause()
    del store


MAINS = {"torchrun": torch.distributed.run.main, "launch": torch.distributed.launch.main, "store": serve_store}
answers = os.fdopen(os.dup(1), "w")


def become(request):
    """In the child; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(request["directory"])
        for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
            fd = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(fd, number)
            os.close(fd)
        answers.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = [request["launcher"], *request["arguments"]]
        MAINS[request["launcher"]](request["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def options():
    """Of torchrun's parser, without the positional arguments."""
    return [{"spellings": action.option_strings, "env": f"PET_{action.dest.upper()}" if type(action) in (env, check_env) else "",
             "takes": action.nargs != 0, "default": action.default, "choices": action.choices and list(action.choices)}
            for action in torch.distributed.run.get_args_parser()._actions if action.option_strings]


def serve():
    ended = {}  # pidfd -> (number, pid)
    pending = b""
    while True:
        for fd in select.select([0, *ended], [], [])[0]:
            if fd in ended:
                number, pid = ended.pop(fd)
                os.close(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                print(json.dumps({"number": number, "answer": status}), file=answers, flush=True)
                continue
            block = os.read(0, 1 << 16)
            if not block:
                for number, pid in ended.values():
                    os.kill(pid, signal.SIGTERM)
                return
            *lines, pending = (pending + block).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if request["launcher"] == "options":
                    print(json.dumps({"number": request["number"], "answer": options()}), file=answers, flush=True)
                    continue
                pid = os.fork()
                if pid == 0:
                    become(request)
                ended[os.pidfd_open(pid)] = request["number"], pid
                print(json.dumps({"number": request["number"], "pid": pid}), file=answers, flush=True)


serve()
