# SPDX-License-Identifier: Apache-2.0
"""--timeline: how long each phase of the start took, seen from outside."""
import json
import re

import pytest

from hang_support import err
from launcher_support import BIN, clean_environment, muster
from test_hang_nodes import job

WORKER = BIN / "collective_worker"
AGENT = r"muster: [\d.]+ m?s to start on \S+: plan [\d.]+ m?s, preflight [\d.e-]+ m?s, prepare [\d.]+ m?s, rendezvous [\d.]+ m?s.*, spawn [\d.]+ m?s\n"
TIME = r"[\d.]+ m?s"


def environment(**more):
    return clean_environment(WORKER_FAULT="none", WORKER_BACKEND="shm", **more)


def read_events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_phase_of_the_agent_and_of_the_workers_is_told_with_the_slowest_rank(muster, err):
    path = muster.tmp_path / "events.jsonl"
    process = muster.start("--nproc-per-node=2", "--timeline", f"--events={path}", WORKER, muster.tmp_path, 0,
                           stderr=err.file, env=environment(WORKER_TELLS="1"))
    assert process.wait(60) == 0
    text = err.text()
    assert len(re.findall(AGENT, text)) == 1, text
    (groups,) = [e for e in read_events(path) if e["event"] == "workers_timeline" and e["stage"] == "groups"]
    assert (groups["ranks"], groups["all_nodes"]) == (2, False)
    for phase in ("load", "store", "gather", "group"):
        assert 0 <= groups[f"{phase}_seconds"] <= groups["seconds"] and groups[f"{phase}_rank"] in (0, 1)
    assert re.search(rf"2 ranks have reached their group after {TIME}; longest: load {TIME} \(rank [01]\), store {TIME} \(rank [01]\), "
                     rf"gather {TIME} \(rank [01]\), group {TIME} \(rank [01]\)\n", text), text
    (agent,) = [e for e in read_events(path) if e["event"] == "agent_timeline"]
    assert all(agent[f"{phase}_seconds"] >= 0 for phase in ("plan", "preflight", "prepare", "rendezvous", "spawn"))


def test_the_first_step_is_told_when_the_next_one_begins(muster, err):
    # The last rank holds the others in step 5.
    process = muster.start("--nproc-per-node=2", "--timeline", WORKER, muster.tmp_path, 1, stderr=err.file,
                           env=environment(WORKER_TELLS="1") | {"WORKER_FAULT": "late"})
    err.wait(rf"2 ranks have done the first step after {TIME}; longest: preparation {TIME} \(rank [01]\), first step {TIME} \(rank [01]\)\n")
    (muster.tmp_path / "go.1").write_text("x")
    assert process.wait(60) == 0


def test_without_being_asked_nothing_is_said_of_the_start(muster, err):
    process = muster.start("--nproc-per-node=2", WORKER, muster.tmp_path, 0, stderr=err.file, env=environment(WORKER_TELLS="1"))
    assert process.wait(60) == 0
    assert err.text() == ""


def test_of_workers_without_the_runtime_only_the_agents_part_is_told(muster, err):
    process = muster.start("--nproc-per-node=2", "--timeline", "--no-python", "true", stderr=err.file)
    assert process.wait(60) == 0
    assert re.fullmatch(AGENT, err.text())


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_of_several_nodes_the_first_one_tells_of_all_ranks(job, tmp_path, kind):
    one = job(kind)
    one.env.update(WORKER_FAULT="late", WORKER_BACKEND="tcp", WORKER_TELLS="1")
    one.start("--timeline", "--hang-timeout=off", nodes=2, program=WORKER)
    for what in ("reached their group", "done the first step"):
        one.errs[0].wait(rf"all nodes: 4 ranks have {what} after {TIME}; longest: \w+ .*\(rank [0-3] on host[01]\)\n")
    (tmp_path / "go.3").write_text("x")
    assert one.codes() == [0, 0]
    assert [len(re.findall(AGENT, text)) for text in one.said()] == [1, 1]
    assert "all nodes" not in one.said()[1]
    if kind == "c10d":
        assert re.search(rf"rendezvous {TIME} \(connect {TIME}, gather {TIME}, find_store {TIME}\)", one.said()[1])


def test_a_restart_has_a_timeline_of_its_own(muster, err):
    path = muster.tmp_path / "events.jsonl"
    process = muster.start("--nproc-per-node=1", f"--events={path}", "--max-restarts=1", "--no-python", "false", stderr=err.file)
    assert process.wait(60) == 1
    first, again = [e for e in read_events(path) if e["event"] == "agent_timeline"]
    assert "plan_seconds" in first and "plan_seconds" not in again
    assert (first["restarts"], again["restarts"]) == (0, 1)
