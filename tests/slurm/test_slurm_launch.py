# muster under a real srun: who is told what, and what cannot be true together.
# SPDX-License-Identifier: Apache-2.0
import os
import re
import shlex
import signal

import pytest

from cluster import NODES
from launcher_support import MUSTER, alive, wait_for
from tell_tasks import column, told


def test_nodes_ranks_and_head_come_from_the_step(slurm, tell):
    done = slurm.muster(["-N2", "--ntasks-per-node=1"], "--nproc-per-node=2", tell)
    assert done.returncode == 0, done.stderr
    workers = told(done.stdout)
    assert column(workers, "RANK") == ["0", "1", "2", "3"]
    assert column(workers, "GROUP_RANK") == column(workers, "SLURM_NODEID") == ["0", "0", "1", "1"]
    assert column(workers, "LOCAL_RANK") == ["0", "1", "0", "1"]
    assert set(column(workers, "WORLD_SIZE")) == {"4"}
    assert len(set(column(workers, "MASTER_PORT"))) == 1
    first = workers[0]
    assert set(column(workers, "TORCHELASTIC_RUN_ID")) == {f"{first['SLURM_JOB_ID']}.{first['SLURM_STEP_ID']}"}


def test_one_node_meets_on_loopback(slurm, tell):
    done = slurm.muster(["-N1", "-n1"], "--nproc-per-node=2", tell)
    assert done.returncode == 0, done.stderr
    workers = told(done.stdout)
    assert column(workers, "WORLD_SIZE") == ["2", "2"]
    assert column(workers, "MASTER_ADDR") == ["127.0.0.1", "127.0.0.1"]


def test_a_secret_of_the_batch_script_guards_the_job_and_does_not_reach_the_workers(slurm, tell):
    code, out = slurm.batch(f"""export MUSTER_SECRET=$(head -c 32 /dev/urandom | base64)
srun {MUSTER} --nproc-per-node=1 {tell}
srun env -u MUSTER_SECRET {MUSTER} --nproc-per-node=1 true
""", "-N2", "--ntasks-per-node=1")
    assert code == 0, out
    workers = told(out)
    assert column(workers, "RANK") == ["0", "1"]
    assert column(workers, "MUSTER_SECRET") == [None, None]
    # Of the two steps only the one without a secret is warned.
    steps = re.findall(r"no secret is set .* whoever reaches (\S+) can", out)
    assert len(steps) == 1, out
    assert steps[0].startswith(NODES[0] + ":")


def test_steps_of_one_job_that_run_at_once_do_not_meet(slurm, tell):
    code, out = slurm.batch(f"""srun --overlap -N2 -n2 {MUSTER} --nproc-per-node=1 {tell} &
srun --overlap -N2 -n2 {MUSTER} --nproc-per-node=1 {tell} &
wait
""", "-N2", "--ntasks-per-node=1")
    assert code == 0, out
    workers = told(out)
    assert column(workers, "RANK") == ["0", "0", "1", "1"]
    assert len(set(column(workers, "TORCHELASTIC_RUN_ID"))) == 2


def test_an_endpoint_given_by_hand_is_taken(slurm, tell):
    code, out = slurm.batch(f"""srun {MUSTER} --nnodes=2 --rdzv-backend=c10d --rdzv-id=mine --rdzv-endpoint=127.0.0.1:$((19000 + SLURM_JOB_ID % 900)) \\
  --nproc-per-node=1 {tell}
""", "-N2", "--ntasks-per-node=1")
    assert code == 0, out
    workers = told(out)
    assert column(workers, "SLURM_NODEID") == ["0", "1"]
    assert set(column(workers, "TORCHELASTIC_RUN_ID")) == {"mine"}


def test_static_rendezvous_takes_its_address_from_the_step(slurm, tell):
    done = slurm.muster(["-N2", "--ntasks-per-node=1"], "--rdzv-backend=static", "--nproc-per-node=1", tell)
    assert done.returncode == 0, done.stderr
    workers = told(done.stdout)
    assert column(workers, "SLURM_NODEID") == ["0", "1"]
    assert set(column(workers, "MASTER_ADDR")) == {NODES[0]}


def test_several_tasks_on_a_node_are_refused_with_a_command_that_works(slurm, tell):
    done = slurm.muster(["-N2", "--ntasks-per-node=2"], "-t", "1", tell)
    assert done.returncode == 2
    refusals = [line for line in done.stderr.splitlines() if line.startswith("muster:")]
    assert len(refusals) == 4, "one line per task"
    advice = [line for line in refusals if "run: srun" in line]
    assert len(advice) == 1, done.stderr
    assert "this step has 4 tasks on 2 nodes" in advice[0]
    per_node, per_task = re.search(r"run: (srun .*); or, with a worker per task: (srun .*)", advice[0]).groups()
    for command, group in ((per_node, ["0", "0", "1", "1"]), (per_task.replace("--tee=1 ", ""), ["0", "0", "1", "1"])):
        words = [MUSTER if word == "muster" else word for word in shlex.split(command)]
        # In a job of four tasks, whose number srun finds in the environment.
        code, out = slurm.batch(shlex.join(words), "-N2", "--ntasks-per-node=2")
        assert code == 0, out
        workers = told("\n".join(line[line.find("{"):] for line in out.splitlines() if "{" in line))
        assert column(workers, "GROUP_RANK") == group, command


def test_a_number_of_nodes_that_the_step_has_not_is_refused(slurm):
    done = slurm.muster(["-N2", "--ntasks-per-node=1"], "--nnodes=4", "true")
    assert done.returncode == 2
    assert "--nnodes=4, but this step has 2 tasks on 2 nodes; run: srun -N 4 -n 4 --ntasks-per-node=1 muster true" in done.stderr


def test_a_node_rank_that_a_shell_made_the_same_for_all_is_refused(slurm):
    code, out = slurm.batch(f"srun --kill-on-bad-exit=1 {MUSTER} --node-rank=$SLURM_NODEID true\n", "-N2", "--ntasks-per-node=1", seconds=60)
    assert code != 0
    assert "--node-rank=0, but this is task 1 of the step" in out


def test_a_port_that_another_has_ends_the_job_and_names_the_owner(slurm):
    holder = slurm.script("holder.py", """import socket, sys, time
listener = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
time.sleep(600)
""")
    code, out = slurm.batch(f"""port=$((20000 + (61 * SLURM_JOB_ID + 0) % 9000))
exec 3< <(exec /usr/bin/python3 {holder} $port)
read -u 3 line
srun --kill-on-bad-exit=1 {MUSTER} true
code=$?
kill $!
echo port $port
exit $code
""", "-N2", "--ntasks-per-node=1")
    assert "Exited with exit code 75" in out, out
    port = re.search(r"port (\d+)", out)[1]
    assert re.search(rf":{port}\b.* in use .*python3", out), out
    assert code != 0


def test_a_job_that_finds_another_jobs_coordinator_is_refused_at_once(slurm):
    there = slurm.folder / "first-step-runs"
    first = slurm.script("first.sh", f"#!/bin/sh\ntouch {there}.$RANK\nexec sleep 600\n")
    code, out = slurm.batch(f"""port=$((19000 + SLURM_JOB_ID % 900))
flags="--rdzv-backend=c10d --master-port=$port --nproc-per-node=1"
srun --overlap -N2 -n2 {MUSTER} $flags {first} 2>/dev/null &
for i in $(seq 600); do [ -e {there}.1 ] && break; sleep 0.1; done
srun --overlap -N2 -n2 --kill-on-bad-exit=0 {MUSTER} $flags true
code=$?
scancel $SLURM_JOB_ID.0
wait
exit $code
""", "-N2", "--ntasks-per-node=1", seconds=120)
    assert code != 0, out
    assert "task 0: Exited with exit code 75" in out, out
    assert "task 1: Exited with exit code 78" in out, out
    assert re.search(r"this coordinator serves job \d+\.0 alone, not \d+\.1", out), out


def test_exec_becomes_the_program_with_the_tasks_rank(slurm, tell):
    done = slurm.muster(["-N2", "-n4"], "--exec", tell)
    assert done.returncode == 0, done.stderr
    workers = told(done.stdout)
    assert column(workers, "RANK") == column(workers, "SLURM_PROCID") == ["0", "1", "2", "3"]
    assert column(workers, "LOCAL_RANK") == column(workers, "SLURM_LOCALID") == ["0", "1", "0", "1"]
    assert column(workers, "NODE_RANK") == column(workers, "GROUP_RANK") == ["0", "0", "1", "1"]
    assert set(column(workers, "LOCAL_WORLD_SIZE")) == {"2"}
    assert set(column(workers, "WORLD_SIZE")) == {"4"}
    assert set(column(workers, "MASTER_ADDR")) == {NODES[0]}
    assert len(set(column(workers, "MASTER_PORT"))) == 1
    assert 20000 <= int(workers[0]["MASTER_PORT"]) < 29000
    assert set(column(workers, "TORCHELASTIC_USE_AGENT_STORE")) == {None}


def test_exec_leaves_no_agent_between_slurm_and_the_program(slurm):
    # SLURM_TASK_PID is what Slurm started.
    done = slurm.muster(["-N1", "-n1"], "--exec", "--no-python", "sh", "-c", "exec test $SLURM_TASK_PID -eq $(cut -d ' ' -f 4 /proc/self/stat)")
    assert done.returncode == 0, done.stderr


def test_exec_with_uneven_tasks_counts_each_node(slurm, tell):
    done = slurm.muster(["-N2", "-n3"], "--exec", tell)
    assert done.returncode == 0, done.stderr
    workers = told(done.stdout)
    assert column(workers, "LOCAL_WORLD_SIZE") == ["2", "2", "1"]
    assert column(workers, "GROUP_RANK") == ["0", "0", "1"]


def test_exec_passes_on_the_programs_exit_status(slurm):
    done = slurm.muster(["-N1", "-n1"], "--exec", "sh", "-c", "exit 7")
    assert done.returncode == 7
    done = slurm.muster(["-N1", "-n1"], "--exec", "./no-such-program")
    assert done.returncode == 127, done.stderr


def test_exec_refuses_what_needs_an_agent_or_contradicts_the_step(slurm):
    done = slurm.muster(["-N1", "-n1"], "--exec", "--max-restarts=3", "true")
    assert done.returncode == 2
    assert "--max-restarts needs an agent" in done.stderr
    done = slurm.muster(["-N2", "-n4"], "--exec", "--nproc-per-node=4", "true")
    assert done.returncode == 2
    assert "--nproc-per-node=4, but this node has 2 of the step's tasks" in done.stderr
    assert "run: srun -N 2 -n 4 muster --exec true" in done.stderr


def sleepers(slurm, *srun, muster=()):
    """A job of 2 x 2 workers that wait; srun, and the workers' pids by rank once all are there."""
    folder = slurm.folder / f"pids.{len(list(slurm.folder.glob('pids.*')))}"
    folder.mkdir()
    script = slurm.script("sleeper.sh", f"#!/bin/sh\necho $$ > {folder}/.$RANK && mv {folder}/.$RANK {folder}/$RANK && exec sleep 600\n")
    process = slurm.start("srun", "-N2", "--ntasks-per-node=1", *srun, MUSTER, "--nproc-per-node=2", *muster, script)
    wait_for(lambda: len(list(folder.glob("[0-9]"))) == 4 or process.poll() is not None, "four workers", 60)
    assert process.poll() is None, process.communicate()
    return process, [int((folder / str(rank)).read_text()) for rank in range(4)]


def agents(pids):
    """The muster processes above these workers."""
    return {int(next(line for line in open(f"/proc/{pid}/status") if line.startswith("PPid")).split()[1]) for pid in pids}


def end(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_scancel_leaves_no_worker(slurm):
    process, pids = sleepers(slurm, "--job-name=to-cancel")
    above = agents(pids)
    assert slurm.run("scancel", "--name=to-cancel").returncode == 0
    code, _, err = end(process)
    assert code != 0, err
    wait_for(lambda: not any(alive(pid) for pid in [*pids, *above]), "workers and agents to be gone", 30)


TREE = """
import os, signal, sys
folder, rank = sys.argv[1], os.environ["RANK"]
def note(name):
    path = f"{folder}/{rank}.{name}"
    with open(path + ".new", "w") as file: file.write(str(os.getpid()))
    os.rename(path + ".new", path)
def start(name, *steps):
    if os.fork(): return
    for step in steps: step()
    for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
    note(name)
    while True: signal.pause()
def forget():
    if os.fork(): os._exit(0)
start("loader")
start("session", os.setsid)
start("daemon", os.setsid, forget)
note("worker")
signal.pause()
"""


@pytest.mark.parametrize("how", [[], ["--signal=KILL", "--full"]], ids=["scancel", "scancel-kill-full"])
def test_whatever_workers_started_is_gone_after_scancel(slurm, how):
    folder = slurm.folder / f"tree.{len(list(slurm.folder.glob('tree.*')))}"
    folder.mkdir()
    process = slurm.start("srun", "-N2", "--ntasks-per-node=1", "--job-name=tree", MUSTER, "--nproc-per-node=1",
                          slurm.script("tree.py", TREE), folder)
    names = [f"{rank}.{name}" for rank in range(2) for name in ("worker", "loader", "session", "daemon")]
    wait_for(lambda: all((folder / name).exists() for name in names) or process.poll() is not None, "two trees", 60)
    assert process.poll() is None, process.communicate()
    pids = {name: int((folder / name).read_text()) for name in names}
    assert slurm.run("scancel", "--name=tree", *how).returncode == 0
    code, _, err = end(process)
    assert code != 0, err
    wait_for(lambda: not any(map(alive, pids.values())), f"all of {pids} to be gone", 30)


def test_a_signal_to_the_step_stops_all_workers_and_is_the_exit_status(slurm):
    process, pids = sleepers(slurm, "--job-name=to-stop", muster=["--shutdown-timeout=5"])
    assert slurm.run("scancel", "--name=to-stop", "--signal=INT").returncode == 0
    code, _, err = end(process)
    assert code == 128 + signal.SIGINT, err
    assert not any(alive(pid) for pid in pids)


def test_a_killed_worker_ends_the_step_with_its_status(slurm):
    process, pids = sleepers(slurm)
    os.kill(pids[3], signal.SIGKILL)
    code, _, err = end(process)
    assert code == 128 + signal.SIGKILL, err
    assert f"rank 3 (local_rank 1, pid {pids[3]}) on {NODES[1]} " in err
    assert not any(alive(pid) for pid in pids)


def test_a_killed_agent_ends_the_other_node_too(slurm):
    process, pids = sleepers(slurm, "--kill-on-bad-exit=0")
    (agent,) = agents(pids[2:])
    os.kill(agent, signal.SIGKILL)
    code, _, err = end(process)
    assert code == 128 + signal.SIGKILL, err  # srun's is the highest of the tasks'
    assert re.search(r"0: Exited with exit code 76", err), err
    assert not any(alive(pid) for pid in pids[:2])
    wait_for(lambda: not any(alive(pid) for pid in pids), "the killed agent's workers to be gone")


def test_a_range_of_nodes_goes_on_without_a_killed_one(slurm):
    # Both nodes are one machine here: what befalls one must not keep the other out (cool_down).
    script = slurm.script("rest.sh", f"#!/bin/sh\necho $$ > {slurm.folder}/rest.$WORLD_SIZE.$RANK\n"
                                     "[ $WORLD_SIZE = 2 ] && exec sleep 600\necho the rest goes on\n")
    process = slurm.start("srun", "-N2", "--ntasks-per-node=1", "--kill-on-bad-exit=0", MUSTER, "--nnodes=1:2", "--nproc-per-node=1",
                          "--max-restarts=1", "--rdzv-conf=last_call_timeout=1,cool_down=0", script)
    wait_for(lambda: len(list(slurm.folder.glob("rest.2.*"))) == 2 or process.poll() is not None, "two workers", 60)
    second = slurm.folder / "rest.2.1"
    pid = wait_for(lambda: second.read_text().strip(), "the second worker's pid", 10)
    (agent,) = agents([int(pid)])
    os.kill(agent, signal.SIGKILL)
    code, out, err = end(process)
    assert code == 128 + signal.SIGKILL, err  # the killed task's
    assert "the rest goes on" in out, err
    assert "task 0: Exited" not in err
