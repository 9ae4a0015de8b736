# `scripts/bench launch`: how long a job of no-ops takes from the command to its end, on one node and on several, beside a
# bare posix_spawn loop (the floor), MPICH's hydra, Open MPI, Slurm's srun and torchrun, one after another in every round,
# so that all see the same machine; what the agent weighs; and how long after a rank's death the others are stopped, and
# all are started again.
# SPDX-License-Identifier: Apache-2.0
import argparse

import launch_deaths
import launch_memory
import measure
from launch_tools import Tools

PARTS = ("ranks", "nodes", "memory", "deaths")
TOO_LONG = 20   # seconds: all of them need less where they work
ALIVE_MS = 300  # for a launcher that needs workers which live for a while


class Contest:
    """One size: every tool in every round. Its figures are ratios of runs made next to each other."""

    def __init__(self, tools, nodes, ranks, rounds):
        self.title = f"{nodes} nodes, {ranks} ranks on each" if nodes > 1 else f"{ranks} ranks"
        self.nodes, self.ranks, self.pause, self.notes = nodes, ranks, {}, []
        self.times = {tool.name: [] for tool in tools.known if nodes <= tool.most_nodes and self._warm(tool)}
        for number in range(rounds):
            for tool in tools.known:
                if tool.name in self.times and (tool.rounds is None or number < tool.rounds):
                    self._measure(tool)

    def _run(self, tool):
        pause = self.pause.get(tool.name, 0)
        program = [measure.program("noop"), *([str(pause)] if pause else [])]  # static: the loader is not measured
        return measure.wall_ms(tool.command(self.nodes, self.ranks, program), TOO_LONG, tool.env) - pause

    def _measure(self, tool):
        try:
            self.times[tool.name].append(self._run(tool))
        except measure.Failed as failure:
            # What worked once may hang the next time; then it gets workers that live, and begins anew.
            self._note(tool, failure)
            del self.times[tool.name]
            if self.pause[tool.name] == 0 and self._warm(tool, [ALIVE_MS]):
                self.times[tool.name] = []

    def _note(self, tool, failure):
        self.notes.append(f"{tool.name}: {str(failure).rsplit(': ', 1)[-1]}")

    def _warm(self, tool, pauses=(0, ALIVE_MS)):
        """Fills the page cache, and finds out whether it works at all."""
        for pause in pauses:
            self.pause[tool.name] = pause
            try:
                self._run(tool)
            except measure.Failed as failure:
                self._note(tool, failure)
                continue
            if pause:
                self.notes[-1] += f"; here its workers stay for {pause} ms, which are subtracted"
            return True
        self.notes[-1] += "; left out"
        return False

    def show(self):
        floor = self.times["posix_spawn loop"]
        print(f"\n{self.title} of a program that does nothing, wall time in ms")
        print(f"{'':20}{'median':>9}{'p25':>9}{'p75':>9}{'runs':>6}   times the floor [smallest, largest]   muster is")
        out = {}
        for name, times in ((name, times) for name, times in self.times.items() if times):
            s, ratio = measure.summary(times), measure.paired_ratio(times, floor)
            factor = s["median"] / measure.summary(self.times["muster"])["median"]
            verdict = "" if name == "muster" else f"{factor:.2f}x faster" if factor >= 1 else f"{1 / factor:.2f}x slower"
            spread = f"{ratio['of_medians']:7.2f} [{ratio['min']:.2f}, {ratio['max']:.2f}]"
            print(f"{name:20}{s['median']:9.1f}{s['p25']:9.1f}{s['p75']:9.1f}{s['runs']:6}   {spread:38}{verdict}")
            out[name] = {**s, "times_the_floor": ratio}
        for note in self.notes:
            print(f"  {note}")
        return {"tools": out, "notes": self.notes}


def numbers(text):
    return [int(n) for n in text.split(",")]


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench launch")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--sizes", type=numbers, default=[2, 64, 256], help="ranks on one node")
    parser.add_argument("--nodes", type=numbers, default=[1, 8, 64])
    parser.add_argument("--ranks", type=int, default=2, help="on each node, where there are several")
    parser.add_argument("--tools", help="of hydra, open_mpi, slurm, torchrun; all that are installed")
    parser.add_argument("--slow-nodes", type=int, default=8, help="mpirun, srun and torchrun on at most so many nodes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="write tests/bench/results/launch.json")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    print(measure.machine())
    result = {"unit": "ms", "program": "tests/bench/noop.c"}
    contests = [("sizes", 1, size) for size in options.sizes if "ranks" in parts]
    contests += [("nodes", nodes, options.ranks) for nodes in options.nodes if "nodes" in parts]
    if contests:
        with Tools(options.tools.split(",") if options.tools is not None else None) as tools:
            for tool in tools.known:
                if tool.rounds is not None:
                    tool.most_nodes = min(tool.most_nodes, options.slow_nodes)
            for group, nodes, ranks in contests:
                shown = Contest(tools, nodes, ranks, options.rounds).show()
                result.setdefault(group, {})[str(ranks if group == "sizes" else nodes)] = shown
    if "memory" in parts:
        result["memory"] = launch_memory.measure_all(options.sizes)
    if "deaths" in parts:
        result["deaths"] = launch_deaths.measure_all(options.rounds)
    if options.save:
        measure.save("launch", result)
    return 0
