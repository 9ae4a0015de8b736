# SPDX-License-Identifier: Apache-2.0
"""How long each phase of the start took, seen from outside."""
import json

import pytest

from hang_support import err
from launcher_support import muster
from test_hang_nodes import job

PHASES = ["plan", "preflight", "prepare", "rendezvous", "spawn"]


def read_events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_phase_of_the_start_is_told_as_an_event(muster, err):
    path = muster.tmp_path / "events.jsonl"
    process = muster.start("--nproc-per-node=2", f"--events={path}", "--no-python", "true", stderr=err.file)
    assert process.wait(60) == 0
    assert err.text() == ""
    (agent,) = [e for e in read_events(path) if e["event"] == "agent_timeline"]
    assert all(agent[f"{phase}_seconds"] >= 0 for phase in PHASES)


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_each_of_several_nodes_tells_of_its_own_start(job, tmp_path, kind):
    one = job(kind)
    path = tmp_path / "events.jsonl"  # of both
    one.start("--hang-timeout=off", f"--events={path}", "--no-python", nodes=2, program="/bin/true")
    assert one.codes() == [0, 0]
    starts = [e for e in read_events(path) if e["event"] == "agent_timeline"]
    assert sorted(e["node"] for e in starts) == [0, 1]
    for start in starts:
        phases = PHASES + (["connect", "gather", "find_store"] if kind == "c10d" else [])
        assert all(start[f"{phase}_seconds"] >= 0 for phase in phases), start


def test_a_restart_has_a_timeline_of_its_own(muster, err):
    path = muster.tmp_path / "events.jsonl"
    process = muster.start("--nproc-per-node=1", f"--events={path}", "--max-restarts=1", "--no-python", "false", stderr=err.file)
    assert process.wait(60) == 1
    first, again = [e for e in read_events(path) if e["event"] == "agent_timeline"]
    assert "plan_seconds" in first and "plan_seconds" not in again
    assert (first["restarts"], again["restarts"]) == (0, 1)
