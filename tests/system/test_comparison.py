# The check of launcher/comparison.md: what it refuses and why.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from checks import comparison  # noqa: E402


def comparison_page(*rows, head="| feature | muster | other | test |", sources="- other: <https://example.org/doc>"):
    return "\n".join([head, "| --- | --- | --- | --- |", *rows, "", "## Sources", "", sources, ""])


@pytest.mark.parametrize("page, problem", [
    (comparison_page("| a | yes | no | `system/t.py::test_known` |", "| b | no: by hand | yes | - |"), None),
    (comparison_page("| a | yes | no | - |"), "'a': no test proves what is said of muster"),
    (comparison_page("| a | notes | no | - |"), "'a': no test proves what is said of muster"),
    (comparison_page("| a | yes | no | `system/t.py::test_gone` |"), "there is no test system/t.py::test_gone"),
    (comparison_page("| a | yes | `system/t.py::test_known` |"), "3 cells below 4"),
    (comparison_page("| a | no |  | - |"), "'a': an empty cell"),
    (comparison_page(sources="- other: by hearsay"), "no source with a link for other"),
    (comparison_page(head="| feature | other | muster | test |"), "the second column is muster"),
    ("\n## Sources\n", "no table")])
def test_a_claim_of_the_comparison_without_its_test_or_source_is_found(page, problem):
    problems = comparison.check(page, lambda path, name: (path, name) == ("system/t.py", "test_known"))
    assert problems == [] if problem is None else any(problem in each for each in problems), problems


def test_the_comparison_finds_tests_of_both_languages_by_their_whole_names():
    assert comparison._exists("system/test_comparison.py", "test_the_comparison_finds_tests_of_both_languages_by_their_whole_names")
    assert comparison._exists("unit/worker/checkpoint_test.cc", "the last ones are kept, and the best one")
    assert not comparison._exists("unit/worker/checkpoint_test.cc", "the last ones are kept")
    assert not comparison._exists("system/test_comparison.py", "test_the_comparison")
