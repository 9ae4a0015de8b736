# The scripts' own behaviour: what lint refuses and why, what scripts/test counts, what scripts/setup says elsewhere.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from checks import figures, include_layers, readme, results, selection, source_rules, steps  # noqa: E402


@pytest.mark.parametrize("name, kind, target, resolved, why", [
    ("rendezvous/base/env.cc", '"', "launcher/job/job.h", "launcher/job/job.h", "knows nothing of processes"),
    ("launcher/agent/agent.cc", "<", "muster/init.h", "worker_runtime/include/muster/init.h", "share the environment's names"),
    ("worker_runtime/core/device.cc", '"', "rendezvous/server/server.h", "rendezvous/server/server.h", "public headers and base"),
    ("worker_runtime/core/device.cc", '"', "worker_runtime/nn/plan.h", "worker_runtime/nn/plan.h", "does not let worker_runtime/core include"),
    ("rendezvous/store/wire.cc", "<", "boost/asio.hpp", None, "Asio lives in"),
    ("rendezvous/store/wire.cc", "<", "sys/socket.h", None, "knows no sockets"),
    ("worker_runtime/nn/plan.cc", "<", "cuda_runtime.h", None, "never required"),
    ("worker_runtime/include/muster/init.h", "<", "boost/json.hpp", None, "only the standard library"),
    ("launcher/agent/agent.cc", "<", "CLI/CLI.hpp", None, "one .cc per binary"),
    ("launcher/agent/agent.cc", '"', "job.h", None, "no such file"),
])
def test_an_include_that_points_up_is_refused_with_its_reason(name, kind, target, resolved, why):
    allowed, problems = include_layers._allowed()
    assert problems == []
    assert why in include_layers.check_include(name, kind, target, resolved, allowed, set())


@pytest.mark.parametrize("name, kind, target, resolved", [
    ("rendezvous/server/server.cc", "<", "boost/asio.hpp", None),
    ("launcher/job/worker_env.cc", '"', "rendezvous/base/env_contract.h", "rendezvous/base/env_contract.h"),
    ("worker_runtime/groups/nccl/nccl_group.cc", "<", "nccl.h", None),
    ("worker_runtime/training/ddp.cc", '"', "worker_runtime/core/rng.h", "worker_runtime/core/rng.h"),
    ("tests/unit/launcher/job_test.cc", '"', "launcher/job/job.h", "launcher/job/job.h"),
])
def test_an_include_that_points_down_is_allowed(name, kind, target, resolved):
    allowed, _ = include_layers._allowed()
    assert include_layers.check_include(name, kind, target, resolved, allowed, set()) is None


def test_the_table_of_folders_refuses_an_arrow_that_points_up(monkeypatch):
    monkeypatch.setattr(include_layers, "FOLDERS", [("launcher/a", "b", "why"), ("launcher/b", "a", "why")])
    _, problems = include_layers._allowed()
    assert problems == ["include_layers.py: launcher/b may not include launcher/a: it does not stand lower in the table"]


def test_the_picture_leaves_out_arrows_that_follow_from_others(monkeypatch):
    monkeypatch.setattr(include_layers, "FOLDERS", [("launcher/a", "b c", ""), ("launcher/b", "c", ""), ("launcher/c", "", "")])
    assert [line.strip() for line in include_layers.picture().splitlines() if "-->" in line] == \
        ["La --> Lb", "Lb --> Lc"]


def test_file_rules_name_what_is_wrong():
    text = "// no licence\nint x;  \n\tint y;\n// caf\u00e9 TO" "DO\nend"
    found = " | ".join(what for _, what in source_rules._check_code("a.cc", text))
    for part in ("SPDX", "white space", "tab", "ASCII", "left in the tree", "no newline"):
        assert part in found


def test_a_name_of_a_test_that_ctest_would_split_is_found(monkeypatch):
    monkeypatch.setattr(source_rules.selection, "cases", lambda source: ["one, and two", "one; two"])
    found = list(source_rules._forgotten_tests())
    assert found and all("'one; two': ctest takes it for two tests" in problem for problem in found)


def test_a_figure_of_the_readme_that_no_result_has_is_found():
    text = "a\n<!-- figures: from tests/bench/results -->\nold\n<!-- end -->\nb\n"
    new = figures.rewritten("README.md", text)
    assert new.startswith("a\n<!-- figures: ") and new.endswith("<!-- end -->\nb\n") and "posix_spawn loop" in new
    assert figures.rewritten("README.md", new) == new


def test_a_path_the_readme_names_must_exist():
    assert readme.check("README.md", "see `scripts/test` and `scripts/{setup,lint}`") == []
    assert readme.check("README.md", "see `launcher/no_such_file.cc`.") == \
        ["README.md:1: there is no launcher/no_such_file.cc"]


CTEST = """<testsuite tests="3"><testcase name="unit/a: works" classname="unit/a: works" status="run"/>
<testcase name="gpu/b: sums" classname="gpu/b: sums" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>Filters: sums
SKIP: no GPU here
</system-out></testcase>
<testcase name="unit/c: fails" classname="unit/c: fails" status="fail"><failure message=""/></testcase></testsuite>"""


def test_ctest_results_are_counted_with_the_reason_of_each_skip(tmp_path):
    (tmp_path / "dev.xml").write_text(CTEST)
    cases = results.read_junit(tmp_path / "dev.xml")
    assert [(c.name, c.outcome, c.reason) for c in cases] == [
        ("unit/a: works", "passed", ""), ("gpu/b: sums", "skipped", "no GPU here"), ("unit/c: fails", "failed", "")]


def finish(capsys, monkeypatch, cases, ci):
    monkeypatch.setenv("CI", ci)
    summary = results.Results()
    summary.cases = cases
    code = summary.finish(1.0)
    return code, capsys.readouterr().out.splitlines()


def test_the_last_line_counts_and_each_skip_has_a_line(capsys, monkeypatch):
    cases = [results.Case("a", "passed"), results.Case("b", "skipped", "no GPU here")]
    code, lines = finish(capsys, monkeypatch, cases, "true")
    assert code == 0
    assert lines[-2:] == ["skipped: b: no GPU here", "1 passed, 0 failed, 1 skipped"]


def test_ci_refuses_a_skip_for_another_reason(capsys, monkeypatch):
    cases = [results.Case("a", "passed"), results.Case("b", "skipped", "no torch")]
    assert finish(capsys, monkeypatch, cases, "true")[0] == 1
    assert finish(capsys, monkeypatch, cases, "")[0] == 0


FAILED = """<testsuite><testcase name="unit/c: fails" classname="unit/c: fails" status="fail"><failure message="x"/></testcase></testsuite>"""


@pytest.mark.parametrize("ci, passes, outcome, runs", [
    ("true", [True, True], "flaky", 2), ("true", [True, False], "failed", 2), ("true", [False], "failed", 1), ("", [], "failed", 0)])
def test_in_ci_a_failed_test_that_passes_twice_alone_is_flaky(tmp_path, monkeypatch, ci, passes, outcome, runs):
    monkeypatch.setenv("CI", ci)
    (tmp_path / "dev.xml").write_text(FAILED)
    asked = []

    def again(case):
        asked.append(case.plain)
        return passes[len(asked) - 1]

    summary = results.Results()
    summary.add_junit("dev", tmp_path / "dev.xml", steps.Step("dev", 8, 1.0, "exit status 8"), again)
    assert [c.outcome for c in summary.cases] == [outcome]
    assert asked == ["unit/c: fails"] * runs


def test_a_flaky_test_is_named_and_counts_as_passed_a_failed_one_with_the_command_that_repeats_it(capsys, monkeypatch):
    cases = [results.Case("dev: a", "flaky", "boom", 1.0, "a"), results.Case("dev: b (c)", "failed", "boom", 1.0, "b (c)")]
    code, lines = finish(capsys, monkeypatch, cases, "true")
    assert code == 1
    assert "flaky: dev: a: failed once (boom), then passed 2 times alone" in lines
    assert "  repeat it: scripts/test -k 'b\\ \\(c\\)'" in lines
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"


def test_a_pattern_finds_its_programs_without_a_build():
    programs, files = selection.find("unit/unit_store:")
    assert programs == ["unit_store"] and files == []
    assert selection.find("test_in_ci_a_failed_test")[1] == ["tests/system/test_scripts.py"]
    assert selection.find("process/emulated_gpu_ops:")[0] == ["emulated_gpu_ops"]
    assert selection.find("no test has this name") == ([], [])


def test_a_suite_that_died_without_results_is_a_failure(tmp_path):
    summary = results.Results()
    summary.add_junit("dev", tmp_path / "absent.xml", steps.Step("dev", 8, 1.0, "exit status 8"))
    assert [(c.outcome, c.reason) for c in summary.cases] == [("failed", "exit status 8")]


def test_a_failed_build_is_a_failure_and_a_good_one_no_test():
    summary = results.Results()
    summary.add_step(steps.Step("build dev", 0, 1.0))
    summary.add_step(steps.Step("build asan", 1, 1.0, "exit status 1"))
    assert [(c.name, c.outcome) for c in summary.cases] == [("build asan", "failed")]


STEP = """
import pathlib, sys
sys.path.insert(0, {scripts!r})
from checks import steps
steps.RESULTS = pathlib.Path({results!r})
steps.prepare()
step = steps.run("subject", {command!r}, {seconds})
print("PROBLEM", step.problem)
"""


@pytest.mark.parametrize("command, seconds, problem", [
    (["sh", "-c", "exit 3"], 20, "exit status 3"),
    (["sh", "-c", "setsid sleep 600 & exit 0"], 20, "left processes behind"),
    (["sleep", "600"], 1, "not finished after 1 s"),
])
def test_a_step_that_fails_hangs_or_leaves_processes_is_told(run, root, tmp_path, command, seconds, problem):
    code = STEP.format(scripts=str(root / "scripts"), results=str(tmp_path / "results"), command=command, seconds=seconds)
    done = run(sys.executable, "-B", "-c", code)
    assert problem in done.stdout.split("PROBLEM", 1)[1], done.stdout + done.stderr


def test_setup_on_another_system_names_what_is_missing(run, root, tmp_path):
    for program in ("bash", "sed", "dirname", "python3"):
        os.symlink(shutil.which(program), tmp_path / program)
    done = run(root / "scripts/setup", env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "cmake (command)" in done.stderr
    assert "ninja (command)" in done.stderr


@pytest.mark.parametrize("ci, code", [("true", 1), ("", 0)])
def test_setup_without_the_current_pytorch_says_so_and_fails_in_ci(run, root, tmp_path, ci, code):
    (tmp_path / "scripts").mkdir()
    shutil.copy(root / "scripts/setup", tmp_path / "scripts/setup")
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), "CI": ci}
    done = run(tmp_path / "scripts/setup", "--full", env={**os.environ, **nowhere})
    assert done.returncode == code, done.stderr
    assert "could not be had" in done.stderr
    assert not os.path.lexists(tmp_path / ".venv/torch")


def test_setup_refuses_an_unknown_option(run, root):
    done = run(root / "scripts/setup", "--no-such-option")
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr


def test_every_script_says_what_it_does(run, root):
    scripts = [path for path in (root / "scripts").iterdir() if path.is_file()]
    assert len(scripts) >= 7
    for script in scripts:
        done = run(script, "--help")
        assert done.returncode == 0 and len(done.stdout.splitlines()) >= 3, script
