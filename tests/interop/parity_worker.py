# SPDX-License-Identifier: Apache-2.0
"""A worker of the parity tests: writes down what it was told, then does what its arguments say, in their order.

    out=TEXT, err=TEXT       a line on stdout or stderr
    hold=NAME                until the file $PARITY_DIR/NAME is there
    exit=CODE, signal=NAME   end so
    throw=TEXT               an exception nobody catches
    child=NAME               leave a process behind that tells when it is asked to end
    raise=TEXT, text=TEXT    the end of a program under @record, and one that wrote a text instead
    garbage=TEXT             likewise, what is no JSON
    catch=NAME               tell that it is ready, end with 0 at the first signal and write down which it was
    deaf=NAME                likewise, but ignore SIGTERM

Behind each, @RANK or @RANK/ATTEMPT: only there.
"""
import json
import os
import signal
import sys
import time

WHERE = os.environ["PARITY_DIR"]
RANK, ATTEMPT = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
NAME = f"{os.environ['PARITY_NODE']}.{RANK}.{ATTEMPT}"


def status(name):
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(name + ":"))


def tell(name, value):
    path = os.path.join(WHERE, name)
    with open(path + ".part", "w") as file:
        json.dump(value, file)
    os.rename(path + ".part", path)


def record(text):
    """What @record leaves, without the 2 s it takes to import it."""
    message = {"message": f"ValueError: {text}",
               "extraInfo": {"py_callstack": f"Traceback (most recent call last):\nValueError: {text}\n",
                             "timestamp": str(int(time.time()))}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": message}, file)


def catch(name):
    wanted = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    tell(f"{NAME}.{name}", os.getpid())
    tell(f"{NAME}.signal", signal.Signals(signal.sigwait(wanted)).name)
    os._exit(0)


def deaf(name):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell(f"{NAME}.{name}", os.getpid())
    while True:
        signal.pause()


def act(what, value):
    if what in ("out", "err"):
        # In one piece: ranks share the stream.
        os.write(1 if what == "out" else 2, f"said {value} {RANK}\n".encode())
    elif what == "hold":
        while not os.path.exists(os.path.join(WHERE, value)):
            time.sleep(0.01)  # between looks; the alarm below is the deadline
    elif what == "exit":
        sys.exit(int(value))
    elif what == "throw":
        raise ValueError(value)
    elif what == "child":
        if os.fork() == 0:
            signal.alarm(150)
            catch(value)
        while not os.path.exists(os.path.join(WHERE, f"{NAME}.{value}")):
            time.sleep(0.01)
    elif what == "signal":
        os.kill(os.getpid(), getattr(signal, value))
    elif what == "raise":
        record(value)
        os._exit(1)
    elif what in ("text", "garbage"):
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            file.write(value if what == "garbage" else json.dumps({"message": value, "timestamp": 1234567890}))
        os._exit(1)
    elif what == "catch":
        catch(value)
    elif what == "deaf":
        deaf(value)


signal.alarm(150)  # nobody's orphan for longer
with open("/proc/self/cmdline", "rb") as file:
    command = file.read().decode().split("\0")[:-1]
tell(f"{NAME}.json", {
    "environment": dict(os.environ), "command": command, "argv": sys.argv, "name": __name__, "directory": os.getcwd(),
    "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
    "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)),
    "stdin": os.readlink("/proc/self/fd/0"), "blocked": status("SigBlk"), "ignored": status("SigIgn"),
    "umask": status("Umask"), "nice": os.getpriority(os.PRIO_PROCESS, 0)})
for word in sys.argv[1:]:
    step, _, place = word.partition("@")
    rank, _, attempt = place.partition("/")
    if "=" in step and rank in ("", RANK) and attempt in ("", ATTEMPT):
        act(*step.split("=", 1))
