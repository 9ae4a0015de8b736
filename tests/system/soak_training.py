# SPDX-License-Identifier: Apache-2.0
"""The training of scripts/soak: an elastic FashionMNIST job of two or three nodes that saves and resumes. Each checkpoint is
copied as it appears. Afterwards a world of the same size, undisturbed, goes on from copies, and has to write the same bits."""
import collections
import contextlib
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import time

from elastic_support import write
from launcher_support import BIN, MUSTER, clean_environment, wait_for
from soak_jobs import CONF

EPOCHS, EVERY = 4, 250
SAVE = f"--checkpoint-every={EVERY}"
TRAIN = [f"--epochs={EPOCHS}", "--batch-size=4", "--device=cpu"]
BOUND = 0.1         # between the test losses of a disturbed run and one that is not
MISSING_FOR = 10    # seconds for which what LATEST names may not be readable: a late writer replaces it
WORKER = """
program="$1" run="$2"
shift 2
echo "$RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $$" >>"$SOAK_RECORD"
echo "soak: rank $RANK of $WORLD_SIZE starts after $(cat "$run/LATEST" 2>/dev/null)"
exec "$program" --checkpoint="$run" --resume="$run" "$@"
"""
STARTS = re.compile(r"soak: rank 0 of (\d+) starts after (?:step-(\d+))?|resumed \S+ in epoch \d+ after step (\d+)")
LOSS = re.compile(r"test loss +([\d.]+)$", re.MULTILINE)

Saved = collections.namedtuple("Saved", "world digest path")


def digest(folder):
    """SHA-256 of the parameters and the optimizer's state."""
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in ("model.safetensors", "optim.safetensors"))).hexdigest()


class Training:
    """What the agents of one run do."""
    most, ranks, backend, can_be_preempted = 3, 1, "muster", True

    def __init__(self, folder, checkpoints, logs, checked):
        self.folder, self.checkpoints, self.logs, self.checked = folder, checkpoints, logs, checked
        self.archive = folder / "archive"
        self.archive.mkdir()
        self.command = ["sh", write(folder, "worker.sh", WORKER), BIN / "fashion_mnist", checkpoints, *TRAIN, SAVE]
        self.step, self.name, self.missing_since, self.went_back = 0, "", None, 0
        self.saved = collections.defaultdict(list)  # by step

    def options_of(self, name):
        return ["--nnodes=2:3", "--hang-timeout=20:25", "--on-hang=restart", "--restart-backoff=0.2:2", f"--log-dir={self.logs}/{name}",
                "--tee=3", f"--rdzv-conf=last_call_timeout=1,{CONF}", "--no-python"]

    def is_over(self, scene):
        return any(scene.out(name).find("parameters   sha256") >= 0 for name in scene.running)

    def look(self, late_writer):
        """Copies what LATEST names; `late_writer`: an agent was away, whose rank 0 may have written since."""
        with contextlib.suppress(FileNotFoundError):
            name = (self.checkpoints / "LATEST").read_text().strip()
            if name == self.name or not name:
                return
            new, now = self.archive / "new", time.monotonic()
            shutil.rmtree(new, ignore_errors=True)
            try:
                shutil.copytree(self.checkpoints / name, new)
                state = json.loads((new / "state.json").read_text())["training"]
                what = digest(new)
            except (OSError, shutil.Error, ValueError) as error:
                self.missing_since = self.missing_since or now
                assert now - self.missing_since < MISSING_FOR, f"LATEST names {name}, which cannot be read: {error}"
                return
            self.missing_since = None
            step = state["step"]
            assert name == f"step-{step:08}", (name, state)
            self.went_back += step < self.step
            assert step > self.step or late_writer, f"LATEST went back from step {self.step} to {step}"
            path = self.archive / f"{step}-{len(self.saved[step])}"
            new.rename(path)
            self.saved[step].append(Saved(state["world_size"], what, path))
            self.name, self.step = name, step
            self.checked["checkpoints"] += 1

    def resumptions(self, scene):
        """(step, world) of each, after a look whether it was the newest checkpoint."""
        found = set()
        for name in scene.running:
            world = latest = 0
            for start, before, resumed in STARTS.findall(scene.out(name)):
                if start:
                    world, latest = int(start), int(before or 0)
                elif world:
                    assert int(resumed) >= latest or self.went_back, f"{name} resumed step {resumed}, and {latest} was saved"
                    found.add((int(resumed), world))
                    self.checked["resumptions from the newest checkpoint"] += 1
        return sorted(found)

    def replays(self, scene):
        """[(copies of the checkpoint, world, {the next step: digests of it})] of all whose next checkpoint was seen."""
        out = []
        for step, world in self.resumptions(scene):
            after = min((other for other in self.saved if other > step), default=None)
            digests = {saved.digest for saved in self.saved[after] if saved.world == world} if after else ()
            if digests and self.saved.get(step):
                out.append(([saved.path for saved in self.saved[step]], world, after, digests))
        return out


def alone(folder, world, checkpoints):
    """A run on this host, of that size, in a group of processes of its own."""
    resume = [f"--checkpoint={checkpoints}", f"--resume={checkpoints}", SAVE] if checkpoints else []
    with open(folder / "out", "w") as out:
        return subprocess.Popen([MUSTER, "--standalone", f"--nproc-per-node={world}", "--no-python", BIN / "fashion_mnist", *TRAIN, *resume],
                                env=clean_environment(), cwd=folder, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def replay(folder, copies, world, after, digests, checked):
    for copy in copies:  # a late writer may have replaced one by another
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        step = json.loads((copy / "state.json").read_text())["training"]["step"]
        name = f"step-{step:08}"
        shutil.copytree(copy, run / name)
        (run / "LATEST").write_text(name + "\n")
        process = alone(folder, world, run)
        try:
            done = lambda: [path for path in run.glob("step-*") if re.fullmatch(r"step-\d+", path.name) and path.name > name]
            wait_for(lambda: done() or process.poll() is not None, "a checkpoint of an undisturbed run", 120)
            next_one = min(done(), default=None)
            assert next_one, (folder / "out").read_text()[-2000:]
            if int(next_one.name[5:]) != after:
                return False  # it was saved between two, as it was preempted
            if digest(next_one) in digests:
                checked["parameters after a resumption, equal to an undisturbed run's"] += 1
                return True
        finally:
            process.kill()
            process.wait()
    raise AssertionError(f"{world} ranks went on from step {step} and had other parameters at step {after} than an undisturbed run")


def undisturbed_loss(folder):
    folder.mkdir()
    process = alone(folder, 3, None)
    code = process.wait(300)
    assert code == 0, (folder / "out").read_text()
    return float(LOSS.search((folder / "out").read_text())[1])


def final_loss(scene):
    """None where rank 0's agent was killed before it could say."""
    found = [float(loss) for name in scene.running for loss in LOSS.findall(scene.out(name))]
    return found[-1] if found else None
