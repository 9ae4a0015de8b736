# SPDX-License-Identifier: Apache-2.0
"""Workers that hang in a job of several nodes: one report with all ranks, and all nodes act as one."""
import re
import subprocess

import pytest

from etcd_support import Etcd
from hang_support import TIMEOUT, Err, read_hangs, real_tool, without_tools
from launcher_support import BIN, MUSTER, read_report, wait_for
from ports import free_port

STACK = 'echo "Thread 1 (LWP 1):"; echo "#0  0x1 in read ()"; echo "#1  0x2 in gdb_was_here ()"; echo "#2  0x3 in main ()"'


class Job:
    """Launchers on this host, one per node, of two ranks each. Rank 3, on node 1, is the one that others wait for."""

    def __init__(self, tmp_path, kind, gdb=STACK):
        self.tmp_path, self.errs, self.running, self.etcd = tmp_path, [], [], None
        port = free_port()
        self.place = {"static": ["--master-addr=127.0.0.1", f"--master-port={port}"],
                      "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]}.get(kind)
        if kind == "etcd":
            self.etcd = Etcd(tmp_path).start()
            self.place = ["--rdzv-backend=etcd", f"--rdzv-endpoint={self.etcd.endpoint}"]
        _, self.env = without_tools(tmp_path, gdb=gdb)

    def start(self, *options, nodes=3, stuck=3, program=BIN / "hang_worker"):
        for node in range(nodes):
            self.errs.append(Err(self.tmp_path, f"err{node}"))
            command = [MUSTER, f"--nnodes={nodes}", f"--node-rank={node}", *self.place, f"--local-addr=host{node}",
                       "--nproc-per-node=2", TIMEOUT, f"--log-dir=logs{node}", *options, program, self.tmp_path, stuck]
            self.running.append(subprocess.Popen([*map(str, command)], cwd=self.tmp_path, env=self.env, stdout=subprocess.DEVNULL,
                                                 stderr=self.errs[-1].file))
        return self

    def go(self):
        for gate in self.tmp_path.glob("go.*"):
            gate.write_text("x")

    def codes(self):
        return [process.wait(90) for process in self.running]

    def said(self):
        return [err.text() for err in self.errs]

    def close(self):
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()
        for err in self.errs:
            err.file.close()
        if self.etcd:
            self.etcd.close()


@pytest.fixture
def job(tmp_path):
    made = []

    def make(kind, **how):
        made.append(Job(tmp_path, kind, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", ["static", "c10d", "etcd"])
def test_there_is_one_report_with_the_stacks_of_all_ranks_and_the_outlier_of_them(job, tmp_path, kind):
    if kind == "etcd":
        real_tool("etcd")
    one = job(kind).start()
    one.errs[0].wait(r"all stacks and states: \S+hang\.json\n")
    for err in one.errs[1:]:
        err.wait(r"hang on .*; outlier: rank 3 on host1, at the same step, but in \"data\"; the job goes on .*; see node 0 \(host0\) for the report\n")
    text = one.errs[0].text()
    assert re.search(r"^muster: hang on host0, host1, host2: ranks 0-5 made no progress for \S+ m?s \(limit 500 ms\); the job goes on", text, re.M)
    assert '\n  outlier: rank 3 on host1, at the same step, but in "data"\n  rank 3 on host1: "epoch 1 step 5/8 data", ' in text
    assert re.search(r'\n  ranks 0-2,4-5 on host0, host1, host2: "epoch 1 step 5/8 all_reduce", .*\n    gdb: read <- gdb_was_here <- main\n', text)
    (hang,) = read_hangs(tmp_path / "logs0")
    assert hang["outlier_ranks"] == [3]
    assert [rank["rank"] for rank in hang["ranks"]] == list(range(6))
    assert [rank["host"] for rank in hang["ranks"]] == ["host0", "host0", "host1", "host1", "host2", "host2"]
    assert all(rank["stalled"] and rank["stacks"][0]["functions"][1] == "gdb_was_here" for rank in hang["ranks"])
    assert hang["nodes"] == [{"node": node, "host": f"host{node}", "answered": True} for node in range(3)]
    # Each node keeps what it found.
    (own,) = read_hangs(tmp_path / "logs1")
    assert [rank["rank"] for rank in own["ranks"]] == [2, 3]
    one.go()
    assert one.codes() == [0, 0, 0]
    assert sum(text.count("all stacks and states") for text in one.said()) == 1


def test_stop_ends_all_nodes_with_the_same_status_for_the_rank_that_was_named(job, tmp_path):
    one = job("static").start("--on-hang=stop", "--max-restarts=3")
    assert one.codes() == [124, 124, 124], one.said()
    root = read_report(tmp_path / "logs0")["root_cause"]
    assert (root["rank"], root["node"], root["cause"], root["progress"]) == (3, 1, "hang", "epoch 1 step 5/8 data")
    assert 'outlier: rank 3, at the same step, but in "data"' in root["error"]
    assert read_report(tmp_path / "logs0")["restarts_used"] == 0
    assert len(read_hangs(tmp_path / "logs0")[0]["ranks"]) == 6


def test_restart_is_one_restart_of_all_nodes(job, tmp_path):
    one = job("c10d").start("--on-hang=restart", "--max-restarts=1")
    assert one.codes() == [0, 0, 0], one.said()
    for node, text in enumerate(one.said()):
        assert len(re.findall(r"rank 3 \(local_rank 1, pid \d+\) hangs: .*; restart 1 of 1\n", text)) == 1, text
    assert read_hangs(tmp_path / "logs0")[0]["outlier_ranks"] == [3]


def test_a_hang_that_ends_while_stacks_are_read_ends_nothing(job, tmp_path):
    # It lasts until the worker that it was to look at has gone on to its end.
    end = 'for a; do case $a in [0-9]*) while [ -e /proc/$a ]; do sleep 0.01; done;; esac; done'
    one = job("c10d", gdb=f'for gate in {tmp_path}/go.*; do echo x 1<>$gate; done; {end}; {STACK}').start("--on-hang=stop")
    assert one.codes() == [0, 0, 0], one.said()
    for text in one.said():
        assert "muster stops the job" not in text


def test_a_second_hang_gets_a_report_of_its_own(job, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("""
import os, pathlib, sys, time
rank, folder = os.environ["RANK"], pathlib.Path(sys.argv[1])
step = 0
while not (folder / "done").exists():
    if (folder / "hold").exists() and (rank == sys.argv[2] or step % 10 == 0):
        time.sleep(0.02)  # it waits
        continue
    step += 1
    with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write(f"step {step}\\n")
    if step % 10 == 0: (folder / f"steps.{rank}").write_text(str(step))
    time.sleep(0.02)  # a step
""")
    one = job("static").start("--hang-timeout=1:60", nodes=2, program=script)
    for number in (1, 2):
        # Four looks or more have seen them move.
        wait_for(lambda: all((tmp_path / f"steps.{rank}").exists() and int((tmp_path / f"steps.{rank}").read_text() or 0) > 80 * number
                             for rank in range(4)), f"steps before hang {number}", 60)
        (tmp_path / "hold").touch()
        wait_for(lambda: one.errs[0].text().count("all stacks and states") == number, f"report {number}", 60)
        (tmp_path / "hold").unlink()
        wait_for(lambda: len(re.findall(r"the hang is over after \S+ m?s\n", one.errs[0].text())) == number,
                 f"end {number}", 60)
    (tmp_path / "done").touch()
    assert one.codes() == [0, 0]
    first, second = read_hangs(tmp_path / "logs0")
    assert len(first["ranks"]) == len(second["ranks"]) == 4
    assert first["over_after_ms"] > 0 and second["over_after_ms"] > 0


def test_the_stacks_of_all_nodes_are_read_before_anybody_is_signalled(job, tmp_path):
    order = tmp_path / "order"
    # The tool of one rank takes far longer than the others'.
    gdb = f'for pid; do :; done; [ -e {tmp_path}/slow ] || {{ : > {tmp_path}/slow; /bin/sleep 2; }}; echo stack >> {order}; {STACK}'
    program = tmp_path / "wait.sh"
    program.write_text(f"""#!/bin/sh
trap 'echo signal >> {order}; exit 0' TERM
echo "step 7" > "$MUSTER_PROGRESS_FILE"
while :; do /bin/sleep 0.1; done  # until it is stopped
""")
    program.chmod(0o755)
    one = job("c10d", gdb=gdb).start("--on-hang=stop", "--hang-timeout=1:1", nodes=2, program=program)
    assert one.codes() == [124, 124], one.said()
    assert order.read_text().split() == ["stack"] * 4 + ["signal"] * 4
