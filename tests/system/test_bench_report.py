# What scripts/bench makes of its figures: growth that is fitted, comparisons, the report, and the run of all benches with its
# deadlines. Series and results are known here; the benches themselves are in test_bench.py.
# SPDX-License-Identifier: Apache-2.0
import html
import html.parser
import importlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))
import compare  # noqa: E402
import growth  # noqa: E402
import measure  # noqa: E402
import metrics  # noqa: E402
import report  # noqa: E402
import whole_run  # noqa: E402

SIZES = (10, 30, 100, 300, 1000)
KNOWN = {"a + b log n": lambda n: 3 + 2 * math.log(n), "a + b n": lambda n: 5 + 0.25 * n, "a + b n log n": lambda n: 2 + 0.01 * n * math.log(n)}


def summary(*samples):
    return measure.summary(samples)


def metric(*samples, better="lower"):
    return metrics.Metric("ms", better, summary(*samples))


@pytest.mark.parametrize("model", KNOWN)
def test_the_model_of_a_known_series_is_found_with_its_numbers(model):
    fitted = growth.fit([(n, KNOWN[model](n)) for n in SIZES])
    assert fitted.model == model
    assert fitted.at(80000) == pytest.approx(KNOWN[model](80000), rel=1e-6)
    assert fitted.error < 1e-6 and fitted.interval(80000) == pytest.approx((fitted.at(80000),) * 2, rel=1e-4)


@pytest.mark.parametrize("model", KNOWN)
def test_noise_of_a_few_percent_leaves_the_truth_in_nine_intervals_of_ten(model):
    dice, inside = random.Random(1), 0
    for _ in range(200):
        fitted = growth.fit([(n, KNOWN[model](n) * (1 + dice.gauss(0, 0.03))) for n in SIZES])
        low, high = fitted.interval(1000)
        inside += low <= KNOWN[model](1000) * (1 + dice.gauss(0, 0.03)) <= high
    assert 160 <= inside <= 198  # the model is chosen anew for each


def test_fewer_than_three_sizes_are_not_fitted_and_an_even_series_does_not_grow():
    assert growth.fit([]) is None and growth.fit([(1, 2.0), (10, 3.0)]) is None
    assert growth.fit([(32, 2.0), (32, 2.1), (32, 2.2)]) is None
    even = growth.fit([(n, 7.0) for n in SIZES])
    assert even.b == pytest.approx(0, abs=1e-9) and even.at(10**6) == pytest.approx(7)


def test_the_size_that_is_left_out_is_predicted_from_all_others():
    points = [(1, 1.0), (2, 2.0), (4, 8.0)]  # a line goes through two of them; what it misses the third by is an error
    line = lambda a, b, n: a[1] + (b[1] - a[1]) / (b[0] - a[0]) * (n - a[0])  # noqa: E731
    errors = [(line(points[1], points[2], 1) - 1) / 1, (line(points[0], points[2], 2) - 2) / 2, (line(points[0], points[1], 4) - 8) / 8]
    assert growth.left_out_error(points, "a + b n") == pytest.approx(math.sqrt(sum(e * e for e in errors) / 3))


def test_the_largest_size_within_a_limit_is_exact():
    assert growth.largest(100, lambda n: 9 * n + 1) == 11
    assert growth.largest(5, lambda n: 9 * n) == 0
    assert growth.largest(5, lambda n: 1) == math.inf


def costs(**changed):
    line = growth.fit([(n, 0.04 * n) for n in SIZES])
    return growth.Costs(**{**dict(descriptors=20000, bytes_per_agent=4000.0, bytes_per_client=1000.0, cpu_us_per_client=25.0, head_connections_per_agent=1.0,
                                  head_bytes_per_client=2000.0, head_cpu_us_per_client=10.0, join=line, failure=line), **changed})


def test_what_breaks_first_follows_from_the_measured_costs():
    rows = growth.limits(costs())
    assert [row.ends_at for row in rows] == sorted(row.ends_at for row in rows)
    assert rows[0].what == "descriptors, each rank at the head's store" and rows[0].ends_at == (20000 - 64) // 9
    by_name = {(row.what, row.at_target) for row in rows}
    assert ("descriptors, --store-proxy", "10,000 connections") in by_name
    assert ("memory, each rank at the head's store", f"{12000 * 10000 / 2**20:,.0f} MiB") in by_name
    # 0.04 ms of join and 8 x 25 us of check-in a node: 0.24 ms
    assert next(row for row in rows if row.what == "time to join, each rank at the head's store").ends_at == pytest.approx(600 / 0.00024, rel=0.01)


def test_without_series_or_agents_only_what_was_measured_is_judged():
    rows = growth.limits(costs(join=None, failure=None, head_connections_per_agent=0.0))
    assert {row.what.split(",")[0] for row in rows} == {"descriptors", "memory", "local ports behind one address"}


@pytest.mark.parametrize("a, b, better, verdict", [
    ((10, 11, 12), (20, 21, 22), "lower", "worse"), ((10, 11, 12), (20, 21, 22), "higher", "better"), ((20, 21, 22), (10, 11, 12), "lower", "better"),
    ((10, 11, 12), (11, 12, 13), "lower", "within spread"), ((10, 11, 12), (10, 11, 12), "lower", "within spread"),
    ((5, 5, 5), (5, 5, 5), "lower", "within spread"), ((10,), (20, 21, 22), "lower", "one sample"), ((0, 0, 0), (1, 1, 1), "lower", "worse")])
def test_a_metric_moved_when_its_quartiles_have_nothing_in_common(a, b, better, verdict):
    row = compare.judged("x", metric(*a, better=better), metric(*b, better=better))
    assert row.verdict == verdict


def test_what_moved_most_comes_first_and_what_one_lacks_is_named():
    a = {"far": metric(10, 11, 12), "near": metric(10, 11, 12), "same": metric(1, 2, 3), "gone": metric(1, 2)}
    b = {"near": metric(14, 15, 16), "far": metric(100, 101, 102), "same": metric(1, 2, 3), "new": metric(1, 2)}
    rows, only_a, only_b = compare.compared(a, b)
    assert [(row.metric, row.verdict) for row in rows] == [("far", "worse"), ("near", "worse"), ("same", "within spread")]
    assert rows[0].ratio == pytest.approx(101 / 11) and (only_a, only_b) == (["gone"], ["new"])


def bench(*arguments, **more):
    return subprocess.run([ROOT / "scripts/bench", *map(str, arguments)], text=True, capture_output=True, timeout=200, **more)


def test_compare_prints_what_moved_between_two_files_and_ends_with_0(tmp_path):
    for name, factor in (("a", 1), ("b", 3)):
        (tmp_path / name).mkdir()
        value = json.loads((ROOT / "tests/bench/results/logs.json").read_text())
        value["ways"] = {way: metrics.scaled(each, factor if way == "muster" else 1) for way, each in value["ways"].items()}
        (tmp_path / name / "logs.json").write_text(json.dumps(value))
    done = bench("--compare", tmp_path / "a", tmp_path / "b" / "logs.json")
    assert done.returncode == 0, done.stderr
    first = next(line for line in done.stdout.splitlines() if line.startswith("logs: "))
    assert first.startswith("logs: 8 ranks: muster ") and "3.00  better" in first
    assert re.search(r"^1 of \d+ metrics moved beyond the spread: 1 better, 0 worse", done.stdout, re.M), done.stdout
    assert re.search(r"load during: logs \d+\.\d", done.stdout)


@pytest.mark.parametrize("text, words", [(None, "No such file"), ("{", "not JSON"), ("[]", "not a result"), ("{}", "not a result"), ('{"rows": 3}', "not a result"),
                                         ('{"benches": {"other": {}}}', "there is no bench 'other'"), ('{"benches": {"train": {"status": "ok"}}}', "not a result"),
                                         ('{"machine": 3, "rows": [], "ranks": 2}', "not a result")])
def test_a_bad_result_is_one_line(tmp_path, text, words):
    path = tmp_path / "all_reduce.json"
    if text is not None:
        path.write_text(text)
    for command in (["--compare", ROOT / "tests/bench/results", path], ["report", path, "--output", tmp_path / "r.html"]):
        done = bench(*command)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr and str(path) in done.stderr, done.stderr
        assert not done.stdout


@pytest.mark.parametrize("arguments, words", [(["--compare", "a"], "two files"), (["other"], "there is no 'other'"), (["all", "--only=x"], "there is no bench 'x'"),
                                              (["all", "--quick", "--save"], "too small"), (["all", "--minutes=0"], "--minutes")])
def test_wrong_arguments_are_told_before_anything_is_built(arguments, words):
    done = bench(*arguments, env={**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"})
    assert done.returncode == 2 and words in done.stderr.strip().splitlines()[-1]


def test_a_series_that_no_model_foretells_is_not_drawn_out():
    cell = lambda ms: {**{step: {"ms": summary(ms, ms)} for step in ("join", "failure", "again", "finish")}, "bytes_per_agent": summary(9, 9)}  # noqa: E731
    value = json.loads((ROOT / "tests/bench/results/rendezvous.json").read_text())
    value["nodes"] = {"10": cell(5.0), "100": cell(0.4), "1000": cell(300.0)}
    growing = report.Growth({"rendezvous": value})
    assert not growing.fits and any("join: the best model" in line and "misses a size" in line for line in growing.unfit)
    assert {limit.what.split(",")[0] for limit in growing.limits} == {"descriptors", "memory", "local ports behind one address"}


class Page(html.parser.HTMLParser):
    """Tags and what they refer to."""

    def __init__(self):
        super().__init__()
        self.tags, self.references = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href", "xlink:href") and not value.startswith("#")]


def read_page(text):
    page = Page()
    page.feed(text)
    return page


def shown_launch():
    """muster's figure of 256 ranks, as the report has it."""
    figure = json.loads((ROOT / "tests/bench/results/launch.json").read_text())["sizes"]["256"]["tools"]["muster"]
    return "{} [{}, {}]".format(*(compare.number(figure[name]) for name in ("median", "p25", "p75")))


def test_the_report_is_one_file_with_a_plot_and_values_of_every_figure(tmp_path):
    if not (ROOT / ".venv/matplotlib").is_dir():
        pytest.skip("no matplotlib here: scripts/setup --full installs it")
    results = metrics.load([ROOT / "tests/bench/results"])
    text, has_plots = report.page(results)
    page = read_page(text)
    assert has_plots and page.references == [] and "script" not in page.tags
    assert page.tags.count("svg") == page.tags.count("figure") == page.tags.count("figcaption") > 15
    for svg in text.split("<svg")[1:]:
        xml.etree.ElementTree.fromstring("<svg" + svg[:svg.index("</svg>")] + "</svg>")
    for words in ("Unit: ms from start to exit", shown_launch(), "What breaks first", html.escape(report.ASSUMPTIONS), "90 % interval", "Joins over nodes",
                  "All-reduce over bytes", "Store over connections"):
        assert words in text, words
    assert re.search(r"load \d+\.\d at the end, \d+\.\d before, on \d+ cores", text)


def test_without_matplotlib_the_report_has_tables_and_says_so(monkeypatch):
    monkeypatch.setattr(report, "drawn", lambda specs: None)
    text, has_plots = report.page(metrics.load([ROOT / "tests/bench/results/launch.json"]))
    assert not has_plots and "Without plots: matplotlib is missing" in text and shown_launch() in text and "<svg" not in text
    assert "not measured" in text  # of all that is not in the file


def test_names_in_results_stay_text_in_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "drawn", lambda specs: None)
    value = json.loads((ROOT / "tests/bench/results/logs.json").read_text())
    value["ways"] = {"<script>alert(1)</script>": next(iter(value["ways"].values()))}
    value["machine"]["cpu"] = "<img src=x>"
    (tmp_path / "logs.json").write_text(json.dumps(value))
    page = read_page(report.page(metrics.load([tmp_path]))[0])
    assert "script" not in page.tags and "img" not in page.tags


def test_every_saved_result_is_read():
    results = metrics.load([ROOT / "tests/bench/results"])
    # Those of scripts/gpu_check are of other machines.
    saved = {path.stem for path in (ROOT / "tests/bench/results").glob("*.json") if not path.stem.startswith("gpu_")}
    assert saved == set(results.benches) and saved <= set(metrics.BENCHES)
    found = metrics.metrics(results.benches)
    assert {name.split(":")[0] for name in found} == saved


@pytest.mark.parametrize("name", metrics.BENCHES)
def test_the_options_of_a_quick_run_are_those_of_the_bench(name, monkeypatch):
    class Reached(Exception):
        pass

    def reached(*_):
        raise Reached

    for each in ("machine", "torch_environment", "program"):
        monkeypatch.setattr(measure, each, reached)
    for arguments in (whole_run.QUICK[name], whole_run.ALWAYS.get(name, [])):
        with pytest.raises(Reached):
            importlib.import_module(name).main([*arguments, "--save"])


def python(code):
    return [sys.executable, "-B", "-c", code]


def test_a_bench_that_is_not_done_in_time_is_cut_off_with_all_it_started(tmp_path):
    pids = tmp_path / "pids"
    code = (f"import os, subprocess, sys, time\nother = subprocess.Popen(['setsid', 'sleep', '1000'])\n"
            f"open({str(pids)!r}, 'w').write(str(other.pid))\nprint('half done', flush=True)\ntime.sleep(1000)")
    driver = ("import ctypes, json, pathlib, sys\nsys.path.insert(0, sys.argv[1])\nimport whole_run\n"
              "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
              "print(json.dumps(whole_run.run('logs', [], 5, pathlib.Path(sys.argv[2]), json.loads(sys.argv[3]))))")
    done = subprocess.run([*python(driver), str(ROOT / "tests/bench"), str(tmp_path), json.dumps(python(code))], text=True, capture_output=True, timeout=100)
    outcome = json.loads(done.stdout)
    assert outcome["status"] == "cut off" and outcome["text"] == "not done within 5 s; its last line: half done"
    assert "result" not in outcome and not pathlib.Path(f"/proc/{pids.read_text()}").exists()


def test_a_bench_that_fails_is_reported_with_its_last_line(tmp_path):
    outcome = whole_run.run("logs", [], 60, tmp_path, python("print('a reason'); raise SystemExit(3)"))
    assert outcome["status"] == "failed" and outcome["text"] == "exit status 3: a reason"


def test_what_a_bench_left_out_is_told_beside_its_figures(tmp_path):
    code = f"print('without redis: install it')\nprint('a figure')\nopen({str(tmp_path / 'logs.json')!r}, 'w').write('{{}}')"
    outcome = whole_run.run("logs", [], 60, tmp_path, python(code))
    assert (outcome["status"], outcome["text"], outcome["result"]) == ("ok", "without redis: install it", {})


def test_time_that_is_not_used_goes_to_the_benches_that_follow():
    names = list(metrics.BENCHES)
    first = whole_run.share(285, names[0], names, True)
    assert first == pytest.approx(285 * whole_run.SECONDS[names[0]][1] / sum(seconds for _, seconds in whole_run.SECONDS.values()))
    assert whole_run.share(285 - 1, names[1], names[1:], True) > whole_run.share(285 - first, names[1], names[1:], True)
    assert whole_run.share(20, names[-1], names[-1:], True) == 20
    assert set(whole_run.SECONDS) == set(whole_run.QUICK) == set(names)


def test_peers_that_are_missing_are_offered_in_one_line():
    everything = {peer.name: "1" for peer in whole_run.PEERS}
    assert whole_run.offer(everything) == ""
    line = whole_run.offer({**everything, "mpirun": None, "redis": None})
    assert line == "without mpirun, redis: scripts/setup --bench installs them; or apt-get install openmpi-bin redis-server"


def test_all_writes_one_result_and_one_report_of_what_was_measured_and_what_was_not(bin_dir, tmp_path):
    code = ("import pathlib, sys\nsys.path.insert(0, sys.argv[1])\nimport measure, whole_run\n"
            "whole_run.QUICK.update(dp_vs_ddp=['--batches=8', '--samples=160', '--rounds=2'], parameter_server=['--ranks=1'])\n"
            "sys.exit(whole_run.main(['--quick', '--only=dp_vs_ddp,parameter_server', '--minutes=3', '--output', sys.argv[2]]))")
    build = tmp_path / "tree"  # measure.program looks there
    (build / "build/release").mkdir(parents=True)
    (build / "build/release/bin").symlink_to(bin_dir)
    shutil.copytree(ROOT / "tests/bench", build / "tests/bench", ignore=shutil.ignore_patterns("results"))
    if (ROOT / ".venv").exists():
        (build / ".venv").symlink_to(ROOT / ".venv")
    start = time.monotonic()
    done = subprocess.run([*python(code), str(build / "tests/bench"), str(tmp_path / "out")], text=True, capture_output=True, timeout=200)
    assert done.returncode == 1 and time.monotonic() - start < 190, done.stderr
    whole = json.loads((tmp_path / "out/bench.json").read_text())
    assert {name: each["status"] for name, each in whole["benches"].items()} == {"dp_vs_ddp": "ok", "parameter_server": "failed"}
    row = whole["benches"]["dp_vs_ddp"]["result"]["rows"][0]
    assert len(row["rate"]["samples"]) == 2 and whole["benches"]["dp_vs_ddp"]["result"]["machine"]["load_during"] >= 0
    assert whole["machine"]["cores"] and set(whole["peers"]) == {peer.name for peer in whole_run.PEERS}
    text = (tmp_path / "out/report.html").read_text()
    assert "global batch 8: single" in text and "failed: exit status" in text
    assert done.stdout.count("parameter_server  failed") == 1
