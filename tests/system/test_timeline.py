# SPDX-License-Identifier: Apache-2.0
"""--timeline: how long each phase of the start took, seen from outside."""
import json
import re

import pytest

from hang_support import err
from launcher_support import muster
from test_hang_nodes import job

AGENT = r"muster: started on \S+ in [\d.]+ m?s: plan [\d.]+ m?s, preflight [\d.e-]+ m?s, prepare [\d.]+ m?s, rendezvous [\d.]+ m?s.*, spawn [\d.]+ m?s\n"
TIME = r"[\d.]+ m?s"


def read_events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_phase_of_the_start_is_told_as_text_and_as_an_event(muster, err):
    path = muster.tmp_path / "events.jsonl"
    process = muster.start("--nproc-per-node=2", "--timeline", f"--events={path}", "--no-python", "true", stderr=err.file)
    assert process.wait(60) == 0
    assert re.fullmatch(AGENT, err.text())
    (agent,) = [e for e in read_events(path) if e["event"] == "agent_timeline"]
    assert all(agent[f"{phase}_seconds"] >= 0 for phase in ("plan", "preflight", "prepare", "rendezvous", "spawn"))


def test_without_being_asked_nothing_is_said_of_the_start(muster, err):
    process = muster.start("--nproc-per-node=2", "--no-python", "true", stderr=err.file)
    assert process.wait(60) == 0
    assert err.text() == ""


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_each_of_several_nodes_tells_of_its_own_start(job, kind):
    one = job(kind)
    one.start("--timeline", "--hang-timeout=off", "--no-python", nodes=2, program="/bin/true")
    assert one.codes() == [0, 0]
    assert [len(re.findall(AGENT, text)) for text in one.said()] == [1, 1]
    if kind == "c10d":
        assert re.search(rf"rendezvous {TIME} \(connect {TIME}, gather {TIME}, find_store {TIME}\)", one.said()[1])


def test_a_restart_has_a_timeline_of_its_own(muster, err):
    path = muster.tmp_path / "events.jsonl"
    process = muster.start("--nproc-per-node=1", f"--events={path}", "--max-restarts=1", "--no-python", "false", stderr=err.file)
    assert process.wait(60) == 1
    first, again = [e for e in read_events(path) if e["event"] == "agent_timeline"]
    assert "plan_seconds" in first and "plan_seconds" not in again
    assert (first["restarts"], again["restarts"]) == (0, 1)
