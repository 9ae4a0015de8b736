# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard: a real Prometheus that scrapes a real job answers the query of every panel."""
import json
import re
import subprocess

import pytest

from launcher_support import ROOT, muster, wait_for  # noqa: F401
from metrics_support import listens_at, prometheus, recorded_gpus  # noqa: F401
from test_metrics import daemon  # noqa: F401

FOLDER = ROOT / "launcher/telemetry/prometheus"
DASHBOARD = json.loads((FOLDER / "muster_dashboard.json").read_text())

# Advances until the file "stop" is there. Rank 1 of the first attempt fails for a reason that has a class.
WORK = """
import os, signal
e = os.environ
rank, attempt, step = int(e["RANK"]), e["TORCHELASTIC_RESTART_COUNT"], 0
while not os.path.exists("stop"):
    step += 1 + rank
    with open(e["MUSTER_PROGRESS_FILE"], "w") as file: file.write("epoch 2 step %d loss 0.3" % step)
    signal.sigtimedwait([], 0.2)
    if rank == 1 and attempt == "0" and os.path.exists("fail"): raise ValueError("boom")
"""


def queries():
    """Title of a panel -> its queries."""
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in panels}


def filled(query, run_id, host=".*"):
    """As Grafana sends it."""
    out = query.replace("$run_id", run_id).replace("$host", host).replace("$__rate_interval", "1m")
    assert "$" not in out, out
    return out


def start_job(muster, endpoint, *options):
    """Two agents that both serve metrics, and their addresses."""
    env = recorded_gpus(muster.tmp_path / "gpus", 2)  # one for each rank of a node
    script = muster.script("work.py", WORK)
    addresses = []
    for host in ("host0", "host1"):
        stderr = muster.tmp_path / f"{host}.err"
        with open(stderr, "w") as err:
            muster.start("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=muster", f"--rdzv-endpoint={endpoint}", "--rdzv-id=bert",
                         f"--local-addr={host}", "--metrics-addr=0", *options, script, env=env, stdout=subprocess.DEVNULL, stderr=err)
        addresses.append(listens_at(stderr.read_text))
    return addresses


def every_agent(daemon, addresses):
    return {"static_configs": [{"targets": addresses}]}


def first_agent(daemon, addresses):
    """One target for the whole job, as README.md has it."""
    return {"metrics_path": "/federate", "scrape_interval": "2s", "scrape_timeout": "2s",
            "http_sd_configs": [{"url": f"http://{daemon.address}/sd", "refresh_interval": "1s"}],
            "relabel_configs": [{"source_labels": ["__meta_muster_node"], "regex": "0", "action": "keep"}, {"regex": "host", "action": "labeldrop"}]}


@pytest.mark.parametrize("target", (every_agent, first_agent))
def test_every_panel_and_every_alert_rule_is_answered_by_a_prometheus_that_scrapes_a_job(muster, daemon, prometheus, target):
    d = daemon()
    addresses = start_job(muster, f"127.0.0.1:{d.port}", "--max-restarts=2")
    server = prometheus(rules=[FOLDER / "muster_alerts.yml"], musterd=d.address, muster=target(d, addresses))
    server.finds("count(muster_worker_step > 0)", 4)
    (muster.tmp_path / "fail").touch()
    server.finds("min(muster_job_restarts_used)", 1)
    server.finds("count(rate(muster_worker_step[1m]) > 0)", 4)

    for name, variable in (("run_id", "label_values(muster_agent_info, run_id)"),
                           ("host", 'label_values(muster_agent_info{run_id="$run_id"}, host)')):
        (query,) = [it["definition"] for it in DASHBOARD["templating"]["list"] if it["name"] == name]
        assert query == variable
    assert {labels["host"] for labels, _ in server.query('muster_agent_info{run_id="bert"}')} == {"host0", "host1"}

    for title, exprs in queries().items():
        for expr in exprs:
            wait_for(lambda expr=expr: server.query(filled(expr, "bert")), f"{title}: {filled(expr, 'bert')}", 30)
            assert server.query(filled(expr, "another")) == [] or "run_id" not in expr, title
    # NVIDIA's dashboard 12239, but for what README.md says is not there.
    for metric in ("GPU_TEMP", "POWER_USAGE", "SM_CLOCK", "GPU_UTIL", "FB_USED"):
        instance = "|".join({labels["instance"] for labels, _ in server.query("muster_agent_info")})
        for labels, count in ((f'instance=~"{instance}", gpu=~"0|1"', 4), ('Hostname=~"host0", gpu=~"0|1"', 2)):
            assert len(server.query(f"DCGM_FI_DEV_{metric}{{{labels}}}")) == count, labels
    assert server.query("count({__name__=~'DCGM_FI_PROF_.*'})") == []
    # The chosen host alone.
    (total,) = server.query(filled(queries()["Ranks that run"][0], "bert", "host1"))
    assert total[1] == 2
    assert server.query(filled(queries()["Failures of workers by cause"][0], "bert") + ' > 0') == [({"cause": "exception"}, 1.0)]

    (alert,) = wait_for(lambda: server.query('ALERTS{alertname="MusterWorkerFailed",alertstate="firing"}'), "the alert", 30)
    assert (alert[0]["run_id"], alert[0]["cause"]) == ("bert", "exception")
    assert server.query('ALERTS{alertstate="firing",alertname=~"MusterHang|Musterd.*|MusterGpu.*|MusterNodeAway"}') == []
    rules = [rule for group in server.api("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 10 and {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    (muster.tmp_path / "stop").touch()
    assert [process.wait(60) for process in muster.started] == [0, 0]


def test_the_dashboard_is_one_that_grafana_imports():
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["uid"] and DASHBOARD["title"]
    assert [it["name"] for it in DASHBOARD["templating"]["list"]] == ["datasource", "run_id", "host"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24 and not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"] and panel["datasource"]["uid"] == "${datasource}", panel["title"]
    documented = "".join((ROOT / part / "reference.md").read_text() for part in ("launcher", "rendezvous"))
    for expr in sum(queries().values(), []):
        for metric in re.findall(r"\bmusterd?_\w+", expr):
            assert f"`{re.sub('_(sum|count)$', '', metric)}`" in documented, metric
