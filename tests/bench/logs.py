# `scripts/bench logs`: how many MB/s of their ranks' output launchers carry, from ranks that print as fast as they can, to
# files and to one reader: beside plain files and plain pipes (the floors), Open MPI, hydra and torchrun, one after another
# in every round. Every line is counted where it arrives; a launcher that loses one has no figure.
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

import measure
from launch_tools import MPI_ROOT

LINE = 100  # bytes, as flood writes them
TOO_LONG = 120
PYTHON_ROUNDS = 3


class Way:
    """command(folder, program): a whole command line, whose lines are in files below the folder, on stdout, or both.
    `shown`: of how many ranks; `extra`: lines beside them."""

    def __init__(self, name, command, files, shown, env=None, rounds=None, extra=0):
        self.name, self.command, self.files, self.shown, self.env, self.rounds, self.extra = name, command, files, shown, env, rounds, extra

    def all_shown(self, seen, lines):
        seen -= self.extra
        return lines <= seen <= self.shown[1] * lines if isinstance(self.shown, tuple) else seen == self.shown * lines


def ways(ranks, wanted):
    muster, floor = measure.program("muster"), measure.program("launch_floor")
    run = [muster, "--standalone", "--no-python", f"--nproc-per-node={ranks}"]
    rotate = ["--log-max-size=8M", "--log-keep=1000"]
    all_of_them = [
        Way("one pipe, no launcher", lambda folder, program: [floor, str(ranks), *program], False, ranks, extra=1),
        Way("files, no launcher", lambda folder, program: [floor, str(ranks), "/bin/sh", "-c", f'exec "$0" "$@" >{folder}/$$', *program], True, 0, extra=1),
        Way("muster", lambda folder, program: [*run, *program], False, ranks),
        Way("muster -r 3", lambda folder, program: [*run, "-r", "3", "--log-dir", folder, *program], True, 0),
        Way("muster -r 3, rotated", lambda folder, program: [*run, "-r", "3", "--log-dir", folder, *rotate, *program], True, 0),
        Way("muster -t 3", lambda folder, program: [*run, "-t", "3", "--log-dir", folder, *program], True, ranks),
        Way("muster -t 3, rotated", lambda folder, program: [*run, "-t", "3", "--log-dir", folder, *rotate, *program], True, ranks),
        Way("muster --view=rank0", lambda folder, program: [*run, "--view=rank0", *program], False, 1),
        Way("muster --view=fold", lambda folder, program: [*run, "--view=fold", *program], False, (1, ranks)),  # all say the same, at one time or not
    ]
    if shutil.which("mpiexec.hydra"):
        all_of_them.append(Way("hydra -prepend-rank", lambda folder, program: ["mpiexec.hydra", "-prepend-rank", "-n", str(ranks), *program], False, ranks))
    if mpirun := shutil.which("mpirun.openmpi"):
        all_of_them.append(Way("Open MPI --tag-output", lambda folder, program: [mpirun, "--bind-to", "none", "--oversubscribe", "--tag-output", "-n", str(ranks), *program],
                               False, ranks, {**os.environ, **MPI_ROOT}))
    if (measure.ROOT / ".venv/torch/torch").is_dir():
        python, env = measure.torch_environment("current")
        torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--no-python", f"--nproc-per-node={ranks}"]
        all_of_them.append(Way("torchrun -t 3", lambda folder, program: [*torchrun, "-t", "3", "--log-dir", folder, *program], True, ranks, env, PYTHON_ROUNDS))
    return [way for way in all_of_them if wanted is None or any(word in way.name for word in wanted)]


def lines_in(folder):
    """Of stdout's files, rotated ones too; torchrun's layout has each once, and links to it."""
    count = 0
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file() and not path.is_symlink() and "err" not in path.name and path.suffix not in (".json", ".jsonl"):
            count += path.stat().st_size // LINE
    return count


def seconds_of(way, ranks, lines):
    """From the command to its end, when all is written and read."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        command = way.command(folder, [measure.program("flood"), str(lines)])
        start = time.perf_counter()
        process = subprocess.Popen(command, env=way.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        errors = []
        listener = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        listener.start()
        watch = threading.Timer(TOO_LONG, process.kill)
        watch.start()
        shown = 0
        while block := os.read(process.stdout.fileno(), 1 << 20):
            shown += block.count(b"\n")
        code = process.wait()
        took = time.perf_counter() - start
        watch.cancel()
        listener.join()
        process.stdout.close()
        process.stderr.close()
        if code:
            raise measure.Failed(f"{way.name}: exit status {code}: {errors[0].decode(errors='replace').strip()[-300:]}")
        if not way.all_shown(shown, lines):
            raise measure.Failed(f"{way.name}: {shown} lines were shown, each of {ranks} ranks had {lines}")
        if way.files and lines_in(folder) != ranks * lines:
            raise measure.Failed(f"{way.name}: {lines_in(folder)} of {ranks * lines} lines are in the files")
        return took


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench logs")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=200, help="of all ranks together")
    parser.add_argument("--ways", help="words of the names of what is measured, with commas between them; all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/logs.json")
    options = parser.parse_args(arguments)
    lines = max(1, options.megabytes * 1_000_000 // (LINE * options.ranks))
    total = lines * options.ranks * LINE / 1e6
    print(measure.machine())
    times, notes = {}, []
    for number in range(options.rounds):
        for way in ways(options.ranks, options.ways.split(",") if options.ways else None):
            if way.name in times and times[way.name] is None or way.rounds is not None and number >= way.rounds:
                continue
            try:
                times.setdefault(way.name, []).append(seconds_of(way, options.ranks, lines))
            except measure.Failed as failure:
                notes.append(str(failure))
                times[way.name] = None
    print(f"\n{total:.0f} MB in lines of {LINE} bytes from {options.ranks} ranks, MB/s")
    print(f"{'':26}{'median':>8}{'p25':>8}{'p75':>8}{'runs':>6}")
    result = {"unit": "MB/s", "bytes": int(total * 1e6), "ranks": options.ranks, "ways": {}, "notes": notes}
    for name, seconds in times.items():
        if seconds is None:
            continue
        s = measure.summary([total / each for each in seconds])
        print(f"{name:26}{s['median']:8.0f}{s['p25']:8.0f}{s['p75']:8.0f}{s['runs']:6}")
        result["ways"][name] = s
    for note in notes:
        print(f"  no figure: {note}")
    if options.save:
        measure.save("logs", result)
    return 0
