# `scripts/bench all`: every bench, one after another, each in a process of its own with a deadline, into one JSON file and one
# report. A bench that is not done in time is ended with all it started and reported as cut off; its share of the time that is
# left goes by weight, so that what one does not need is the next one's.
# SPDX-License-Identifier: Apache-2.0
import argparse
import ctypes
import datetime
import importlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import measure
import metrics
import report

# Seconds that each may take, about half of them spare on two cores, in both kinds of run: the weights of the shares.
SECONDS = {"train": (300, 45), "data": (150, 12), "ckpt": (240, 8), "launch": (600, 70), "logs": (150, 18), "all_reduce": (60, 26), "store": (900, 38),
           "rendezvous": (360, 40), "dp_vs_ddp": (90, 12), "parameter_server": (180, 8), "scaling_rule": (60, 12)}
# The smallest sizes that still say something.
QUICK = {
    "train": ["--cases=garment-4x1,garment-4x2,garment-64x1", "--fraction=0.25", "--rounds=3"],
    "data": ["--images=64", "--batches=2000", "--files=10000", "--rounds=3", "--torch-workers=0"],
    "ckpt": ["--megabytes=64", "--rounds=3"],
    "launch": ["--sizes=2,8,32", "--nodes=1,2,4", "--slow-nodes=1", "--rounds=3"],
    "logs": ["--ranks=4", "--megabytes=20", "--rounds=3"],
    "all_reduce": ["--max-mib=1", "--rounds=3"],
    "store": ["--operations=set,get", "--connections=1,8,32", "--rounds=3", "--seconds=0.1", "--idle=0", "--in-flight=1", "--no-costs"],
    "rendezvous": ["--nodes=10,100,1000", "--torch-nodes=8", "--clients=2000", "--agents=4", "--keys=1000", "--rounds=3"],
    "dp_vs_ddp": ["--batches=64", "--samples=6400", "--rounds=3"],
    "parameter_server": ["--ranks=2,4", "--bytes=4096,1048576", "--seconds=0.1", "--rounds=3"],
    "scaling_rule": ["--ranks=1,2", "--until=0.8", "--steps=1500"],
}
ALWAYS = {"store": ["--connections=1,8,32,256"]}  # several sizes: their growth is fitted
MINUTES = (60, 4.75)
ENDS = 10  # seconds that a bench has to end what it started
_PR_SET_CHILD_SUBREAPER = 36
# The system's, as its packages are what benches import: the Slurm of the tests needs pytest.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


class Peer:
    """What something is compared with: how its version is asked for, and what to install."""

    def __init__(self, name, package, version):
        self.name, self.package, self.version = name, package, version


def _command(name, *asked, word=""):
    """The line of what `asked` prints that has the word, without spaces in a row; the first of all lines."""
    def version():
        if not shutil.which(name):
            return None
        try:
            done = subprocess.run(asked, text=True, capture_output=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return "found"
        return next((" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines() if word in line), "found")
    return version


def _folder(name):
    def version():
        path = measure.ROOT / ".venv" / name
        return path.resolve().name if path.is_dir() else None
    return version


PEERS = [
    Peer("torchrun and PyTorch", "", _folder("torch")), Peer("torchvision", "", _folder("torchvision")), Peer("safetensors", "", _folder("safetensors")),
    Peer("matplotlib", "", _folder("matplotlib")),
    Peer("PyTorch of Debian", "python3-torch", lambda: "found" if os.path.isdir("/usr/lib/python3/dist-packages/torch") else None),
    Peer("mpirun", "openmpi-bin", _command("mpirun.openmpi", "mpirun.openmpi", "--version")), Peer("hydra", "mpich", _command("mpiexec.hydra", "mpiexec.hydra", "--version", word="Version:")),
    Peer("srun", "slurmctld slurmd slurm-client munge", _command("srun", "slurmd", "-V")), Peer("redis", "redis-server", _command("redis-server", "redis-server", "--version")),
]


def offer(found):
    """One line of what is missing and how to get it; nothing where all is there."""
    missing = [peer for peer in PEERS if not found[peer.name]]
    if not missing:
        return ""
    packages = " ".join(peer.package for peer in missing if peer.package)
    return (f"without {', '.join(peer.name for peer in missing)}: scripts/setup --bench installs " + ("them" if len(missing) > 1 else "it") +
            (f"; or apt-get install {packages}" if packages else ""))


def share(left, name, names, quick):
    """Seconds for a bench of those that are left: all of it by weight."""
    weights = [SECONDS[each][quick] for each in names]
    return left * SECONDS[name][quick] / sum(weights)


def descendants():
    """Of this process, the orphans of its children too: it is their reaper."""
    found, todo = [], [os.getpid()]
    while todo:
        pid = todo.pop()
        try:
            children = [int(child) for task in os.listdir(f"/proc/{pid}/task")
                        for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        except OSError:
            continue  # it has ended
        found += children
        todo += children
    return found


def end_all():
    """Ends whatever is left below this process: SIGKILL until nothing is."""
    deadline = time.monotonic() + ENDS
    while (pids := descendants()) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.01)


def run(name, arguments, seconds, folder, command=None):
    """What became of one bench: status ok, failed or cut off, with its text; what it prints goes to folder/NAME.log."""
    log, saved = folder / f"{name}.log", folder / f"{name}.json"
    saved.unlink(missing_ok=True)
    command = command or [PYTHON, "-B", __file__, str(folder), name, *arguments, "--save"]
    start = time.monotonic()
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
            process.terminate()
            try:
                process.wait(ENDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        finally:
            end_all()
    took = time.monotonic() - start
    lines = log.read_text(errors="replace").strip().splitlines()
    outcome = {"arguments": arguments, "seconds": round(took, 1), "share": round(seconds, 1), "load": os.getloadavg()[0]}
    if late:
        return {**outcome, "status": "cut off", "text": f"not done within {seconds:.0f} s; its last line: {lines[-1] if lines else 'none'}"}
    if process.returncode or not saved.exists():
        return {**outcome, "status": "failed", "text": f"exit status {process.returncode}: {lines[-1] if lines else 'it said nothing'}"}
    left_out = [line for line in lines if line.startswith("without ")]
    return {**outcome, "status": "ok", "text": "; ".join(left_out), "result": json.loads(saved.read_text())}


def main(arguments, build=lambda names: True):
    """build(names of benches) makes what they need, and says whether it could."""
    parser = argparse.ArgumentParser(prog="scripts/bench all")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, in less than 5 minutes")
    parser.add_argument("--minutes", type=float, help=f"for all of them together [{MINUTES[0]}; with --quick {MINUTES[1]}]")
    parser.add_argument("--only", help=f"of {', '.join(metrics.BENCHES)}")
    parser.add_argument("--output", type=pathlib.Path, default=measure.ROOT / "build/bench", help="folder of the results and the report [build/bench]")
    parser.add_argument("--save", action="store_true", help="keep the results in tests/bench/results, too; not those of --quick")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(metrics.BENCHES)
    if unknown := [name for name in names if name not in metrics.BENCHES]:
        parser.error(f"--only: there is no bench '{unknown[0]}'")
    if options.save and options.quick:
        parser.error("--save: the sizes of --quick are too small to be kept")
    minutes = options.minutes if options.minutes is not None else MINUTES[options.quick]
    if not 0 < minutes < 24 * 60:
        parser.error("--minutes: between 0 and 1440")
    if not build(names):
        return 1
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    options.output.mkdir(parents=True, exist_ok=True)
    peers = {peer.name: peer.version() for peer in PEERS}
    if line := offer(peers):
        print(line)
    end = time.monotonic() + 60 * minutes
    machine = measure.machine()
    whole = {"machine": machine, "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), "quick": options.quick, "minutes": minutes,
             "peers": peers, "benches": {}}
    path = options.output / metrics.WHOLE_RUN
    for index, name in enumerate(names):
        seconds = max(1.0, share(end - time.monotonic() - ENDS, name, names[index:], options.quick))
        given = QUICK[name] if options.quick else ALWAYS.get(name, [])
        outcome = run(name, given, seconds, options.output)
        whole["benches"][name] = outcome
        whole["seconds"] = round(60 * minutes - (end - time.monotonic()), 1)
        draft = path.with_suffix(".part")  # a reader finds the old one or a whole one
        draft.write_text(json.dumps(whole, indent=1) + "\n")
        draft.rename(path)
        print(f"{name:18}{outcome['status']:8}{outcome['seconds']:7.1f} s of {seconds:5.1f}  load {outcome['load']:5.1f}  {outcome['text']}", flush=True)
        if options.save and outcome["status"] == "ok":
            kept = {**outcome["result"], "peers": peers}
            (measure.RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(f"all of them: {whole['seconds']:.0f} s of {60 * minutes:.0f}; wrote {path}")
    report.write(metrics.load([path]), options.output / "report.html")
    return 0 if all(each["status"] == "ok" for each in whole["benches"].values()) else 1


if __name__ == "__main__":  # one bench, its result into a folder
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    measure.RESULTS = pathlib.Path(sys.argv[1])
    try:
        sys.exit(importlib.import_module(sys.argv[2]).main(sys.argv[3:]))
    except measure.Failed as failure:
        sys.exit(f"bench: {failure}")
