# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on this machine, of two nodes unless more are wanted, in a temporary directory: munged, slurmctld and two slurmd on ports of their
own, started from Debian's packages and independent of their services. Root or not, it runs as whoever runs the tests."""
import contextlib
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import time

from launcher_support import MUSTER, clean_environment, wait_for, write_at_once
from ports import free_ports

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
# Names that every resolver takes for 127.0.0.1 and 127.0.0.2, so that a node's name leads to this machine without a
# line in /etc/hosts. Slurm allows no dots in them.
def names_of(count):
    return tuple(f"0x{0x7f000001 + i:08x}" for i in range(count))


NODES = names_of(2)


def missing():
    """What is not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


def first_job():
    """A step's port and its job's name follow from the job's number: clusters of tests that run at once share no numbers."""
    return 1 + 300 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


class Cluster:
    def __init__(self, nodes=len(NODES)):
        self.nodes = names_of(nodes)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.daemons = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def environment(self, **extra):
        ours = {name: value for name, value in clean_environment().items() if not name.startswith(("SLURM", "SRUN", "SBATCH"))}
        ours.update(PATH=PATH, SLURM_CONF=str(self.folder / "slurm.conf"), TMPDIR=str(self.folder))
        ours.update({name: str(value) for name, value in extra.items()})
        return ours

    def start(self, *command, env=None, **options):
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen([str(word) for word in command], text=True, stdin=subprocess.DEVNULL, cwd=self.folder,
                                env=env or self.environment(), **options)

    def run(self, *command, seconds=90, **options):
        process = self.start(*command, **options)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.cancel_all()
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{command} did not end within {seconds} s\n{out}\n{err}\n{self.log()}") from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def muster(self, srun, *words, **options):
        """`srun <flags> muster <words>`"""
        return self.run("srun", *srun, MUSTER, *words, **options)

    def script(self, name, text):
        path = self.folder / name
        write_at_once(path, text)
        path.chmod(0o755)
        return path

    def batch(self, text, *flags, seconds=90):
        """The text of a batch script; its exit code, and what it wrote."""
        out = self.folder / "batch.out"
        out.unlink(missing_ok=True)
        script = self.script("batch.sh", "#!/bin/bash\n" + text)
        submitted = self.run("sbatch", "--parsable", "-o", out, *flags, script)
        assert submitted.returncode == 0, submitted.stderr

        def over():  # sbatch --wait looks every 2 to 10 s
            fields = dict(pair.partition("=")[::2] for pair in self.run("scontrol", "-o", "show", "job", submitted.stdout.strip()).stdout.split())
            # Without an answer, of a controller that has much to do, it is asked again.
            return fields if fields.get("JobState", "PENDING") not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING") else None

        state = wait_for(over, f"the batch script\n{text}\nto end", seconds)
        return int(state["ExitCode"].split(":")[0]), out.read_text()

    def jobs(self):
        return self.run("squeue", "-h", "-o", "%i %T").stdout.split("\n")[:-1]

    def cancel_all(self):
        for job in self.jobs():
            self.run("scancel", job.split()[0])
        wait_for(lambda: not self.jobs(), "all jobs to be over", 60)

    def processes(self):
        """Whatever has this cluster's configuration in its environment: daemons, step managers and all that they started."""
        mark = f"SLURM_CONF={self.folder}/".encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def log(self):
        return "\n".join(f"--- {path.name}\n" + path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log")))

    def close(self):
        with contextlib.suppress(Exception):
            if len(self.daemons) > 1:
                self.cancel_all()
        for daemon in reversed(self.daemons):
            daemon.terminate()
        deadline = time.monotonic() + 15
        for daemon in reversed(self.daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=max(0.1, deadline - time.monotonic()))
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in self.daemons:
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _daemon(self, name, *command):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.daemons.append(subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                 cwd=self.folder, env=self.environment()))

    def _start(self):
        user = pwd.getpwuid(os.getuid()).pw_name
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        control, *ports = free_ports(1 + len(self.nodes))
        for name in ("state", *self.nodes):
            (self.folder / name).mkdir()
        nodes = "\n".join(f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8"
                          for name, port in zip(self.nodes, ports))
        (self.folder / "slurm.conf").write_text(f"""
ClusterName=muster
FirstJobId={first_job()}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge}/socket
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
# This machine may have fewer processors than the nodes promise.
SlurmdParameters=config_overrides
KillWait=10
# Nothing of it can be reached from elsewhere.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
""")
        self._daemon("munged", "munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                     f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed", "--num-threads=2")
        wait_for((munge / "socket").exists, "munged's socket", 30)
        self._daemon("slurmctld", "slurmctld", "-D")
        for name in self.nodes:
            self._daemon(name, "slurmd", "-D", "-N", name)
        wait_for(self._ready, "idle nodes", 60)

    def _ready(self):
        dead = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
        assert not dead, f"{dead} ended\n{self.log()}"
        return self.run("sinfo", "-h", "-N", "-o", "%T").stdout.split() == ["idle"] * len(self.nodes)
