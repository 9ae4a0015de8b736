# SPDX-License-Identifier: Apache-2.0
"""The alert rules, by promtool: they are rules, and each fires when it should, and only then."""
import re
import shutil
import subprocess

import pytest
import yaml

from launcher_support import ROOT

FOLDER = ROOT / "launcher/telemetry/prometheus"
RULES = FOLDER / "muster_alerts.yml"
TESTS = ROOT / "tests/system/muster_alerts_test.yml"

pytestmark = pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool (Debian: prometheus)")


def promtool(*words):
    return subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=120)


def alerts():
    return {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


def test_each_alert_fires_on_its_series_and_not_on_others():
    checked = promtool("check", "rules", RULES)
    assert (checked.returncode, checked.stderr) == (0, "") and f"{len(alerts())} rules found" in checked.stdout, checked
    tested = promtool("test", "rules", TESTS)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    silent, fires = set(), set()
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for it in test["promql_expr_test"]:
            (fires if it["exp_samples"] else silent).add(re.search(r'alertname="(\w+)"', it["expr"]).group(1))
        for it in test.get("alert_rule_test", []):
            (fires if it["exp_alerts"] else silent).add(it["alertname"])
    assert fires == silent == set(alerts())


def test_alerts_say_how_bad_it_is_and_what_to_do_and_name_metrics_that_exist():
    documented = "".join((ROOT / part / "reference.md").read_text() for part in ("launcher", "rendezvous"))
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), name
        assert rule["annotations"].keys() == {"summary", "description"}, name
        for metric in re.findall(r"\bmusterd?_\w+", rule["expr"]):
            assert f"`{metric}`" in documented, f"{name}: {metric}"
