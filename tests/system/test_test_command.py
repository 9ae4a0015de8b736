# SPDX-License-Identifier: Apache-2.0
"""scripts/test itself: a test that fails once is run twice more alone in CI, and is named instead of failing the run."""
import ctypes
import pathlib
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
FLAKY = """
import pathlib
COUNT = pathlib.Path(__file__).with_name("runs")
def test_that_fails(request):
    runs = int(COUNT.read_text()) if COUNT.exists() else 0
    COUNT.write_text(str(runs + 1))
    assert runs not in FAILING_RUNS
"""


@pytest.fixture
def checks(monkeypatch, tmp_path):
    """The modules of scripts/checks; their results go into a directory of the test."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("CI", "true")
    from checks import results, steps
    monkeypatch.setattr(steps, "RESULTS", tmp_path)
    return results, steps


@pytest.mark.parametrize("failing, code, line", [
    ({0}, 0, "flaky: "),
    ({0, 2}, 1, "failed: "),
    ({0, 1, 2}, 1, "failed: "),
])
def test_a_failed_test_runs_twice_more_alone(checks, tmp_path, capsys, failing, code, line):
    results, steps = checks
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "test_flaky.py").write_text(FLAKY.replace("FAILING_RUNS", repr(failing)))
    suite = results.Results()

    def run(name):
        return steps.run(name, [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"--rootdir={tmp_path}",
                                f"--junitxml={tmp_path}/r.xml", str(tmp_path / "sub")],
                         60, quiet=True)

    suite.add_junit("outside", tmp_path / "r.xml", run("outside"), lambda case: run(f"{case.name}, alone").ok)
    assert suite.finish(1) == code
    out = capsys.readouterr().out
    assert line in out and "test_flaky" in out


def test_a_process_that_is_left_behind_fails_the_run_beside_a_flaky_test(checks, tmp_path, capsys):
    results, steps = checks
    report = tmp_path / "r.xml"
    command = ["sh", "-c", "sleep 1000 & exit 8"]
    try:
        steps.prepare()  # its orphans become children of this process
        step = steps.run("net", command, 60, quiet=True)
    finally:
        ctypes.CDLL(None).prctl(steps._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert step.problem.startswith("exit status 8; left processes behind: ") and "sleep 1000" in step.problem
    report.write_text('<testsuite><testcase name="a"><failure message="once"/></testcase><testcase name="b"/></testsuite>')
    suite = results.Results()
    suite.add_junit("net", report, step, lambda case: True)
    assert suite.finish(1) == 1
    out = capsys.readouterr().out
    assert "flaky: net: a" in out and "failed: net: exit status 8; left processes behind: " in out
