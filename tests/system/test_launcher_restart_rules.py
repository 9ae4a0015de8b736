# SPDX-License-Identifier: Apache-2.0
"""Which failures are tried again, what is said of those that are not, and when restarts lead nowhere."""
import os
import signal

import pytest

from elastic_support import STAY, job, write
from launcher_support import muster
from test_launcher_several import start_both

BACKENDS = ["static", "c10d"]

# Each attempt ends as the next word of ENDS says; the attempts are counted in "tries".
END = """
import os, signal, sys
with open("tries", "a+") as tries:
    tries.write("x")
    tries.seek(0)
    end = "ENDS".split()[len(tries.read()) - 1]
if end == "hang":
    with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write("step 1")
    signal.pause()
if end.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, end))
if end == "oom":
    sys.exit("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
sys.exit(int(end))
"""


def run(muster, ends, *options):
    (muster.tmp_path / "tries").unlink(missing_ok=True)
    result = muster.run("--nproc-per-node=1", "--max-restarts=9", *options, muster.script("end.py", END.replace("ENDS", ends)))
    return result, len((muster.tmp_path / "tries").read_text())


def test_only_failures_that_are_named_are_tried_again(muster):
    rule = "--restart-on=exit:75,signal:SIGBUS,oom"
    result, tries = run(muster, "75 oom SIGBUS 3 0", rule)
    assert (result.returncode, tries) == (3, 4), result.stderr
    assert f"exited with code 3; not restarted: {rule} does not name exit code 3; exit status 3" in result.stderr
    result, tries = run(muster, "3 7 oom 0", rule.replace("--", "--no-"), "--restart-backoff=0")
    assert (result.returncode, tries) == (1, 3), result.stderr
    assert "not restarted: --no-restart-on=exit:75,signal:SIGBUS,oom names gpu-out-of-memory, exit code 1" in result.stderr
    result, tries = run(muster, "70 71 0", "--restart-on=exit:64-78", "--no-restart-on=71")
    assert (result.returncode, tries) == (71, 2), result.stderr


def test_a_hang_that_is_named_is_restarted_without_another_word(muster):
    result, tries = run(muster, "hang 3", "--restart-on=hang", "--hang-timeout=0.3:5", "--shutdown-timeout=5")
    assert (result.returncode, tries) == (3, 2), result.stderr
    assert "does not name exit code 3" in result.stderr


def test_a_preempted_worker_goes_on_here_where_that_is_named(muster):
    assert [run(muster, "85 0")[i] if i else run(muster, "85 0")[0].returncode for i in (0, 1)] == [85, 1]
    result, tries = run(muster, "85 0", "--restart-on=preempted")
    assert (result.returncode, tries) == (0, 2), result.stderr


def test_what_names_nothing_or_contradicts_is_refused(muster):
    for options, words in [
            (["--restart-on=hangs"], ["'hangs' is no failure; the nearest is hang; there are", "gpu-out-of-memory"]),
            (["--restart-on=oom", "--max-restarts=0"], ["without --max-restarts"]),
            (["--restart-on=hang", "--on-hang=stop"], ["contradict"]),
            (["--restart-on=oom", "--on-hang=restart"], ["does not name hang"]),
            (["--no-restart-on=hang", "--on-hang=restart"], ["names hang"]),
            (["--exhausted-exit-code=256"], ["--exhausted-exit-code=256"]),
            (["--max-restarts=0", "--exhausted-exit-code=77"], ["--exhausted-exit-code=77: nothing is restarted without --max-restarts"]),
            (["--exhausted-exit-code=85"], ["that is what a preempted job ends with"]),
            (["--max-restarts-without-progress=-1"], ["--max-restarts-without-progress"]),
            (["--join-at=safe-point"], ["--nnodes=MIN:MAX"]),
            (["--join-at=soon", "--rdzv-backend=c10d", "--nnodes=1:2", "--rdzv-endpoint=127.0.0.1:1"], ["safe-point:SECONDS"])]:
        result = muster.run("--max-restarts=1", *options, "true")
        assert result.returncode == 2, options
        assert result.stderr.count("\n") == 1 and all(word in result.stderr for word in words), result.stderr


def test_the_last_failure_may_have_an_exit_code_of_its_own(muster):
    result, tries = run(muster, "9 9 9", "--max-restarts=2", "--exhausted-exit-code=77")
    assert (result.returncode, tries) == (77, 3)
    assert "exited with code 9; no restart is left of 2 (--exhausted-exit-code); exit status 77" in result.stderr
    # What would not have been tried again anyway has its own.
    result, tries = run(muster, "9 3", "--max-restarts=2", "--exhausted-exit-code=77", "--no-restart-on=3")
    assert (result.returncode, tries) == (3, 2)


FAIL = """
import os, sys
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
open(f"tried_{attempt}_{rank}", "w").close()
while not all(os.path.exists(f"tried_{attempt}_{rank}") for rank in range(4)): pass
STEP
if rank == "3": sys.exit(9)
import signal
signal.pause()
"""
# Told by all before one fails.
TELL = """
with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write("step %d" % (WHERE))
open(f"told_{attempt}_{rank}", "w").close()
while not all(os.path.exists(f"told_{attempt}_{rank}") for rank in range(4)): pass
"""


def tries(tmp_path):
    return len(list(tmp_path.glob("tried_*_0")))


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_nodes_say_by_which_rule_a_failure_was_not_tried_again(job, tmp_path, backend):
    both = start_both(job, backend, "--restart-on=oom,exit:64-78", write(tmp_path, "fail.py", FAIL.replace("STEP", "")))
    assert both.codes(0, 1) == [9, 9]
    assert tries(tmp_path) == 1
    for node in range(2):
        assert "not restarted: --restart-on=oom,exit:64-78 does not name exit code 9" in both.err(node)


@pytest.mark.parametrize("backend", BACKENDS)
def test_restarts_that_gain_no_step_end_the_job_with_what_was_reached(job, tmp_path, backend):
    script = write(tmp_path, "fail.py", FAIL.replace("STEP", TELL.replace("WHERE", "40 - int(attempt) // 2")))
    both = start_both(job, backend, "--max-restarts=9", "--max-restarts-without-progress=2", script)
    assert both.codes(0, 1) == [86, 86], both.err(0)
    assert tries(tmp_path) == 3
    for node in range(2):
        assert ("exited with code 9; no step was gained by the last 2 restarts: generation 0 reached step 40, 1 step 40, "
                "2 step 39 (--max-restarts-without-progress=2); exit status 86") in both.err(node)


@pytest.mark.parametrize("backend", BACKENDS)
def test_restarts_that_gain_a_step_go_on(job, tmp_path, backend):
    script = write(tmp_path, "fail.py", FAIL.replace("STEP", TELL.replace("WHERE", "40 + int(attempt)")))
    both = start_both(job, backend, "--max-restarts-without-progress=1", "--exhausted-exit-code=77", script)
    assert both.codes(0, 1) == [77, 77], both.err(0)
    assert tries(tmp_path) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_one_node_alone_tells_of_steps_a_failure_on_the_other_is_no_lack_of_them(job, tmp_path, backend):
    script = write(tmp_path, "fail.py", FAIL.replace("STEP", TELL.replace("WHERE", "40 + int(attempt)").replace(
        "with open(os.environ", "if rank == '0':\n  with open(os.environ")))
    both = start_both(job, backend, "--max-restarts-without-progress=1", "--exhausted-exit-code=77", script)
    assert both.codes(0, 1) == [77, 77], both.err(0)
    assert tries(tmp_path) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_word_about_steps_nothing_is_judged_and_that_is_said_once(job, tmp_path, backend):
    both = start_both(job, backend, "--max-restarts-without-progress=1", write(tmp_path, "fail.py", FAIL.replace("STEP", "")))
    assert both.codes(0, 1) == [9, 9]
    assert tries(tmp_path) == 3
    said = [both.err(node).count("no worker here has reported a step") for node in range(2)]
    assert sorted(said) == [0, 1], both.err(0) + both.err(1)


def test_one_node_alone_ends_when_its_restarts_gain_no_step(muster):
    script = muster.script("step.py", """
import os, sys
with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file: file.write("epoch 2/3 step 7 loss nan")
sys.exit(5)
""")
    result = muster.run("--nproc-per-node=2", "--max-restarts=9", "--max-restarts-without-progress=1", script)
    assert result.returncode == 86
    assert ("no step was gained by the last restart: generation 0 reached epoch 2 step 7, 1 epoch 2 step 7 "
            "(--max-restarts-without-progress=1); exit status 86") in result.stderr


def test_a_lost_node_ends_the_job_where_its_loss_is_not_named(job, tmp_path):
    it = job(2)
    for node in range(2):
        it.start(node, 1, "--restart-on=exit:1-255", write(tmp_path, "stay.py", STAY), nnodes="1:2", restarts=3,
                 conf="last_call_timeout=1000")
    it.started("2.0", 0, 1)
    os.kill(it.running[1].pid, signal.SIGKILL)
    assert it.codes(0) == [76]
    assert "lost node 1 (host1)" in it.err(0) or "lost node 0 (host1)" in it.err(0)
    assert "not restarted: with static rendezvous, or by --restart-on or --no-restart-on, a lost node ends the job" in it.err(0)
