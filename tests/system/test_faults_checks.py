# SPDX-License-Identifier: Apache-2.0
"""What the fault tests look for in the end is found: worlds that never should have been, made up here."""
import pytest

from faults_support import Place, Scene, check_worlds
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
