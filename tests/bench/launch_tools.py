# The contestants of `scripts/bench launch`: how each starts N ranks on one node, or on each of K nodes. Nodes are agents
# (daemons, proxies) on this machine, at loopback addresses where a launcher wants addresses.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import pathlib
import shutil
import socket
import sys
import tempfile

import measure

MPI_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SLURM_NODES = 8


def free_port():
    """Below the ephemeral ports, so that nothing takes it before the first agent does, and above those of Slurm steps."""
    for port in range(29000 + os.getpid() % 2000, 32000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise measure.Failed("no free port")


class Tool:
    """command(nodes, ranks per node, program) is a whole command line; None: it cannot."""

    def __init__(self, name, command, env=None, rounds=None, most_nodes=1):
        self.name, self.command, self.env, self.rounds, self.most_nodes = name, command, env, rounds, most_nodes


class Tools:
    """What is installed. Ends the Slurm that it started, and the files."""

    def __init__(self, wanted=None):
        self.stack, self.without = contextlib.ExitStack(), []
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        self.known = []
        for add in (self._floor, self._muster, self._hydra, self._open_mpi, self._slurm, self._torchrun):
            name = add.__name__[1:]
            if wanted is None or name in wanted or name in ("floor", "muster"):
                add()
        for line in self.without:
            print(line, file=sys.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def _floor(self):
        floor = measure.program("launch_floor")
        self.known.append(Tool("posix_spawn loop", lambda nodes, ranks, program: [floor, str(ranks), *program] if nodes == 1 else
                               [floor, str(nodes), floor, str(ranks), *program], most_nodes=10000))

    def _muster(self):
        floor, muster = measure.program("launch_floor"), measure.program("muster")

        def command(nodes, ranks, program):
            count = f"--nproc-per-node={ranks}"
            if nodes == 1:
                return [muster, "--standalone", "--no-python", count, *program]
            return [floor, str(nodes), muster, f"--nnodes={nodes}", "--rdzv-backend=c10d",
                    f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--no-python", count, *program]

        self.known.append(Tool("muster", command, most_nodes=10000))

    def _hydra(self):
        if not shutil.which("mpiexec.hydra"):
            return self.without.append("without mpiexec.hydra: scripts/setup --bench installs it")

        def command(nodes, ranks, program):
            # With `fork` each "host" gets a proxy on this machine, without ssh.
            hosts = [] if nodes == 1 else ["-launcher", "fork", "-ppn", str(ranks), "-hosts",
                                           ",".join(f"127.0.1.{i + 1}" for i in range(nodes))]
            return ["mpiexec.hydra", *hosts, "-n", str(nodes * ranks), *program]

        self.known.append(Tool("mpiexec.hydra", command, most_nodes=64))

    def _open_mpi(self):
        mpirun = shutil.which("mpirun.openmpi")
        if not mpirun:
            return self.without.append("without Open MPI: scripts/setup --bench installs it")
        remote = self.folder / "here"  # in the place of ssh
        remote.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
        remote.chmod(0o755)

        def command(nodes, ranks, program):
            hosts = ["--oversubscribe"] if nodes == 1 else [
                "--mca", "plm_rsh_agent", str(remote), "--host", ",".join(f"n{i}:{ranks}" for i in range(nodes))]
            return [mpirun, "--bind-to", "none", *hosts, "-n", str(nodes * ranks), *program]

        self.known.append(Tool("mpirun (Open MPI)", command, {**os.environ, **MPI_ROOT}, rounds=5, most_nodes=8))

    def _slurm(self):
        """A Slurm of its own, as tests/slurm starts one; where that cannot be imported, Slurm is not there either."""
        for folder in ("tests/slurm", "tests/system"):
            sys.path.append(str(measure.ROOT / folder))
        try:
            import cluster
        except ImportError as error:
            return self.without.append(f"without srun: {error}; use the system's Python, with its pytest")
        if missing := cluster.missing():
            return self.without.append(f"without srun: {', '.join(missing)} missing; scripts/setup installs them")
        slurm = cluster.Cluster(nodes=SLURM_NODES)
        self.stack.callback(slurm.close)

        def command(nodes, ranks, program):
            return ["srun", "--overcommit", f"--nodes={nodes}", f"--ntasks-per-node={ranks}", *program]

        self.known.append(Tool("srun", command, slurm.environment(), rounds=5, most_nodes=SLURM_NODES))

    def _torchrun(self):
        if not (measure.ROOT / ".venv/torch/torch").is_dir():
            return self.without.append("without torchrun: scripts/setup installs it")
        python, env = measure.torch_environment("current")
        run = [python, "-m", "torch.distributed.run", "--no-python"]
        floor = measure.program("launch_floor")

        def command(nodes, ranks, program):
            count = f"--nproc-per-node={ranks}"
            if nodes == 1:
                return [*run, "--standalone", count, *program]
            return [floor, str(nodes), *run, f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                    count, *program]

        self.known.append(Tool("torchrun", command, env, rounds=3, most_nodes=8))

