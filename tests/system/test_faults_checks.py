# SPDX-License-Identifier: Apache-2.0
"""What the fault tests look for in the end is found: worlds that never should have been, made up here."""
import os
import subprocess
import time
import types

import pytest

import soak_jobs
from faults_support import Place, Scene, check_worlds
from key_writer import lost_of
from soak_jobs import Record, attribute

GOOD = {"a": [Place(0, 0, 2, 0, 1, 4), Place(1, 0, 2, 0, 1, 4)], "b": [Place(0, 1, 2, 2, 3, 4), Place(1, 1, 2, 2, 3, 4)]}
WRONG = {
    "two ranks with one number": {"b": [Place(0, 1, 2, 1, 2, 4)]},
    "two nodes with one number": {"b": [Place(0, 0, 2, 2, 3, 4)]},
    "a rank beyond the world": {"b": [Place(0, 1, 2, 3, 4, 4)]},
    "two worlds with one generation": {"b": [Place(0, 1, 3, 2, 3, 6)]},
    "a generation twice": {"a": [Place(0, 0, 2, 0, 1, 4)] * 2},
    "a generation that goes back": {"a": [Place(1, 0, 2, 0, 1, 4), Place(0, 0, 2, 0, 1, 4)]},
}
RECORDS = {
    "a rank that runs twice": [Record(0, 4, 0, 2, 10), Record(0, 4, 0, 2, 11), Record(0, 4, 0, 2, 12)],
    "a rank of another node": [Record(2, 4, 0, 2, 10)],
    "a rank of another world": [Record(0, 2, 0, 1, 10)],
}


class Told(Scene):
    """A scene whose agents were told that."""

    def __init__(self, worlds):
        self.id, self.worlds, self.running = "job", worlds, dict.fromkeys(worlds)

    def err(self, name):
        return "".join(f"generation {p.generation}: node {p.node} of {p.nodes}, ranks {p.first} to {p.last} of {p.size}\n"
                       for p in self.worlds[name])


class Ran:
    """An agent whose workers wrote these records."""

    def __init__(self, scene, records):
        self.scene, self.name, self.records = scene, "a", lambda: records


def test_good_worlds_are_good():
    assert set(check_worlds(Told(GOOD))) == {0, 1}
    attribute(Ran(Told(GOOD), [Record(1, 4, 0, 2, 10), Record(0, 4, 0, 2, 11), Record(0, 4, 0, 2, 12)]))


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_world_is_found(wrong):
    with pytest.raises(AssertionError):
        check_worlds(Told({**GOOD, **WRONG[wrong]}))


@pytest.mark.parametrize("wrong", RECORDS)
def test_a_worker_that_belongs_to_no_world_is_found(wrong):
    with pytest.raises(AssertionError):
        attribute(Ran(Told(GOOD), RECORDS[wrong]))


class Forgetful(dict):
    """A store's client as key_writer's: what the store has."""

    has, get = dict.__contains__, dict.get

    def add(self, key, number):
        return self[key] + number


def test_a_key_that_was_acknowledged_and_is_lost_is_found():
    kept = [(b"/k1", b"one"), (b"/k2", b"two")]
    whole = {**dict(kept), b"/count": 2}
    assert lost_of(Forgetful(whole), kept, 2, 3) == []
    assert lost_of(Forgetful({key: value for key, value in whole.items() if key != b"/k2"}), kept, 2, 3) == [b"/k2"]
    assert lost_of(Forgetful({**whole, b"/k1": b"other"}), kept, 2, 3) == [b"/k1"]
    # An increment that was acknowledged, and one that nobody made.
    for count in (1, 4):
        assert lost_of(Forgetful({**whole, b"/count": count}), kept, 2, 3) == [b"/count"]


def test_a_process_that_an_agent_leaves_behind_is_found_once_it_had_its_time(tmp_path):
    jobs = soak_jobs.Jobs(tmp_path)
    ended = time.monotonic()
    agent = types.SimpleNamespace(record=tmp_path / "record", ended=ended, name="a0", scene=types.SimpleNamespace(id="job"),
                                  process=types.SimpleNamespace(returncode=1))
    jobs.buried.append(agent)
    left = subprocess.Popen(["sleep", "1000"], env={**os.environ, "SOAK_RECORD": str(agent.record)})
    try:
        jobs.look()
        assert jobs.buried == [agent]  # it may still be on its way
        agent.ended = ended - soak_jobs.ORPHAN_TIMEOUT - 1
        with pytest.raises(AssertionError, match="has ended .* and left"):
            jobs.look()
    finally:
        left.kill()
        left.wait()
    jobs.look()
    assert not jobs.buried and jobs.checked["agents without orphans"] == 1
