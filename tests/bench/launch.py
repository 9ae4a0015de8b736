# `scripts/bench launch`: how long a job of no-ops takes from the command to its end. muster, a bare posix_spawn loop
# (the floor), MPICH's hydra and torchrun, one after another in every round, so that all see the same machine.
# SPDX-License-Identifier: Apache-2.0
import argparse
import shutil
import sys

import measure

NO_OP = measure.program("noop")  # static: what is measured is the launcher, not the dynamic loader


def tools():
    """name -> (command of a size, environment, rounds at most)"""
    muster, floor = measure.program("muster"), measure.program("launch_floor")
    known = {
        "posix_spawn loop": (lambda n: [floor, str(n), NO_OP], None, None),
        "muster": (lambda n: [muster, "--standalone", "--no-python", f"--nproc-per-node={n}", NO_OP], None, None),
    }
    if shutil.which("mpiexec.hydra"):
        known["mpiexec.hydra"] = (lambda n: ["mpiexec.hydra", "-n", str(n), NO_OP], None, None)
    if (measure.ROOT / ".venv/torch/torch").is_dir():
        python, env = measure.torch_environment("current")
        run = [python, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        known["torchrun"] = (lambda n: [*run, f"--nproc-per-node={n}", NO_OP], env, 5)
    for name in ("mpiexec.hydra", "torchrun"):
        if name not in known:
            print(f"without {name}: scripts/setup --bench installs it", file=sys.stderr)
    return known


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench launch")
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=[2, 64, 256])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/launch.json")
    options = parser.parse_args(arguments)
    known, results = tools(), {}
    print(measure.machine())
    for size in options.sizes:
        times = {name: [] for name in known}
        for command, env, _ in known.values():
            measure.wall_ms(command(size), env=env)  # warms the page cache
        for round_number in range(options.rounds):
            for name, (command, env, limit) in known.items():
                if limit is None or round_number < limit:
                    times[name].append(measure.wall_ms(command(size), env=env))
        results[size] = {name: measure.summary(values) for name, values in times.items()}
        print(f"\n{size} ranks of a program that does nothing, wall time in ms")
        print(f"{'':18}{'median':>10}{'p25':>10}{'p75':>10}{'runs':>6}   muster is")
        for name, s in results[size].items():
            factor = s["median"] / results[size]["muster"]["median"]
            verdict = "" if name == "muster" else f"{factor:.2f}x faster" if factor >= 1 else f"{1 / factor:.2f}x slower"
            print(f"{name:18}{s['median']:10.1f}{s['p25']:10.1f}{s['p75']:10.1f}{s['runs']:6}   {verdict}")
    if options.save:
        measure.save("launch", {"unit": "ms", "program": "tests/bench/noop.c", "sizes": results})
    return 0
