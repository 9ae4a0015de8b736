# SPDX-License-Identifier: Apache-2.0
"""Workers of the runtime that hang: the numbers of their collectives, of which the program says nothing, name the odd one out."""
import re

import pytest

from hang_support import TIMEOUT, err, read_hangs, without_tools
from launcher_support import BIN, muster, read_report
from test_hang_nodes import job

WORKER = BIN / "collective_worker"


def start(muster, err, fault, *options, backend="shm", workers=3, stuck=1, tells="1", **variables):
    _, env = without_tools(muster.tmp_path)
    env.update(WORKER_FAULT=fault, WORKER_BACKEND=backend, WORKER_TELLS=tells, **variables)
    return muster.start(f"--nproc-per-node={workers}", TIMEOUT, "--log-dir=logs", *options, WORKER, muster.tmp_path, stuck,
                        stderr=err.file, env=env)


def collective(rank):
    (word,) = rank["collectives"]
    return word["operation"], word["sequence"], word["bytes"], word["state"]


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_the_rank_that_has_not_come_to_the_collective_is_named_and_the_job_goes_on(muster, err, backend):
    process = start(muster, err, "late", backend=backend)
    err.wait(r"hang\.json\n")
    text = err.text()
    assert "\n  outlier: rank 1, not yet in all_reduce #4 of 4 KiB, where others wait; last in all_reduce #3 of 4 KiB (finished)\n" in text
    assert re.search(r'\n  rank 1: "step 5", all_reduce #3 of 4 KiB \(finished\), sleeping in read', text)
    assert re.search(r'\n  ranks 0,2: "step 5", all_reduce #4 of 4 KiB \(begun, not finished\)', text)
    (hang,) = read_hangs(muster.tmp_path / "logs")
    assert hang["outlier_ranks"] == [1]
    assert [collective(rank) for rank in hang["ranks"]] == [("all_reduce", 4, 4096, "begun"), ("all_reduce", 3, 4096, "finished"),
                                                            ("all_reduce", 4, 4096, "begun")]
    assert {(word["group"], word["backend"], word["world_size"]) for rank in hang["ranks"] for word in rank["collectives"]} == {
        ("default", backend, 3)}
    (muster.tmp_path / "go.1").write_text("x")
    assert process.wait(60) == 0


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_a_rank_that_left_out_a_collective_is_named_at_the_end_where_it_is_missed(muster, err, backend):
    process = start(muster, err, "skip", "--on-hang=stop", backend=backend)
    assert process.wait(90) == 124
    root = read_report(muster.tmp_path / "logs")["root_cause"]
    # It thought that its seventh was the others' eighth.
    assert (root["rank"], root["cause"]) == (1, "hang")
    assert "all_reduce #6 of 4 KiB (finished)" in root["error"]
    assert "outlier: rank 1, not yet in all_reduce #7 of 4 KiB, where others wait" in root["error"]


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_a_rank_that_called_another_collective_is_named_with_both(muster, err, backend):
    process = start(muster, err, "other", "--on-hang=stop", backend=backend)
    assert process.wait(90) == 124
    why = "in broadcast #4 of 4 KiB, where the others called all_reduce #4 of 4 KiB"
    root = read_report(muster.tmp_path / "logs")["root_cause"]
    assert (root["rank"], root["cause"]) == (1, "hang") and why in root["error"]
    (hang,) = read_hangs(muster.tmp_path / "logs")
    assert (hang["outlier_ranks"], hang["why"]) == ([1], why)
    assert [collective(rank)[::3] for rank in hang["ranks"]] == [("all_reduce", "failed"), ("broadcast", "failed"), ("all_reduce", "failed")]


def test_collectives_are_signs_of_life_of_a_program_that_says_nothing(muster, err):
    # Long enough for four looks.
    process = start(muster, err, "late", tells="0", WORKER_STEPS="500")
    err.wait(r"hang\.json\n")
    (hang,) = read_hangs(muster.tmp_path / "logs")
    assert hang["outlier_ranks"] == [1]
    assert [hang["ranks"][rank]["source"] for rank in (0, 2)] == ["collectives", "collectives"]
    assert "sign of life: collectives\n" in err.text()
    (muster.tmp_path / "go.1").write_text("x")
    assert process.wait(60) == 0


def test_a_restart_begins_with_new_numbers(muster, err):
    process = start(muster, err, "late", "--on-hang=restart", "--max-restarts=1")
    assert process.wait(90) == 0
    assert len(re.findall(r"outlier: rank 1, not yet in all_reduce #4 of 4 KiB, where others wait.*; restart 1 of 1\n", err.text())) == 1


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_of_two_nodes_the_numbers_of_all_ranks_are_compared(job, tmp_path, kind):
    one = job(kind)
    one.env.update(WORKER_FAULT="late", WORKER_BACKEND="tcp", WORKER_TELLS="1")
    one.start(nodes=2, program=WORKER)
    one.errs[0].wait(r"hang\.json\n")
    text = one.errs[0].text()
    assert "\n  outlier: rank 3 on host1, not yet in all_reduce #4 of 4 KiB, where others wait; " in text
    (hang,) = read_hangs(tmp_path / "logs0")
    assert [collective(rank)[1] for rank in hang["ranks"]] == [4, 4, 4, 3]
    (tmp_path / "go.3").write_text("x")
    assert one.codes() == [0, 0]
