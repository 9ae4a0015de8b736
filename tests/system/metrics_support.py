# SPDX-License-Identifier: Apache-2.0
"""What tests of /healthz, /metrics and --events share: asking, reading, and a Prometheus of their own."""
import http.client
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request

import pytest

from launcher_support import BIN, ROOT, clean_environment, wait_for
from ports import free_port


def ask(address, path="/metrics", method="GET"):
    """Status and text of one answer."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def health(address):
    return json.loads(ask(address, "/healthz")[1])


def metrics(address):
    """Sample -> value, as in {'muster_workers{state="running"}': 2.0}."""
    text = ask(address)[1]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}


def events(path):
    """Each line whole, with what every line has."""
    text = path.read_text() if path.exists() else ""
    assert text == "" or text.endswith("\n")
    out = [json.loads(line) for line in text.splitlines()]
    for event in out:
        assert {"time", "monotonic", "event", "run_id", "host", "restarts"} <= event.keys()
    assert [e["monotonic"] for e in out] == sorted(e["monotonic"] for e in out)
    return out


def recorded_gpus(path, count):
    """The environment of a node whose GPUs say what an H200 said while it trained a ResNet-50 (gpu_launch.json, of scripts/gpu_check)."""
    results = json.loads((ROOT / "tests/bench/results/gpu_launch.json").read_text())["results"]
    (row,) = [row for row in results if row["name"] == "figures of NVML"]
    (gpu,) = row["page"]["nodes"][0]["gpus"]
    said = {line.split("{")[0].removeprefix("DCGM_FI_DEV_"): float(line.rsplit(" ", 1)[1]) for line in row["metrics"]}
    figures = {"util": "%d/%d" % (said["GPU_UTIL"], said["MEM_COPY_UTIL"]), "total": gpu["memory_total_bytes"] >> 20,
               "power": round(1000 * said["POWER_USAGE"]), "energy": round(said["TOTAL_ENERGY_CONSUMPTION"]),
               "temperature": "%d/%d" % (said["GPU_TEMP"], said["MEMORY_TEMP"]), "clock": "%d/%d" % (said["SM_CLOCK"], said["MEM_CLOCK"])}
    path.write_text("".join(f"GPU-{i} 00ab:1{i}:00.0 {gpu['memory_used_bytes'] >> 20} 0 0 - "
                            + " ".join(f"{name}={value}" for name, value in figures.items()) + "\n" for i in range(count)))
    return clean_environment(MUSTER_NVML_LIBRARY=BIN / "libfake_nvml.so", FAKE_NVML=path)


def listens_at(read_stderr, seconds=30):
    """The address that a program with port 0 names on stderr."""
    said = wait_for(lambda: re.search(r"metrics at http://([^/]+)/metrics", read_stderr()), "the address", seconds)
    return said.group(1)


def check_with_promtool(text):
    if not shutil.which("promtool"):
        pytest.skip("no promtool (Debian: prometheus)")
    result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout + result.stderr) == (0, ""), text


class Prometheus:
    def __init__(self, tmp_path, targets, rules=()):
        """`targets`: name -> address, or the settings of a scrape config. `rules`: files."""
        self.port = free_port()
        config = tmp_path / "prometheus.yml"
        jobs = [{"job_name": name, **(it if isinstance(it, dict) else {"static_configs": [{"targets": [it]}]})}
                for name, it in targets.items()]
        config.write_text(json.dumps({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rule) for rule in rules], "scrape_configs": jobs}))
        self.log = open(tmp_path / "prometheus.log", "w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log, cwd=tmp_path)

    def api(self, path):
        """What it answers, as its HTTP API's `data`; nothing while it does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=20) as answer:
                return json.load(answer)["data"]
        except OSError:
            return {}

    def query(self, expression):
        """Label sets with values."""
        result = self.api(f"query?query={urllib.parse.quote(expression)}").get("result", [])
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def finds(self, expression, value):
        """Waits for this one value: after a scrape that came too late there is none until the next."""
        wait_for(lambda: [found for _, found in self.query(expression)] == [value],
                 f"{expression} to be {value}, not {self.query(expression)}", 60)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture
def prometheus(tmp_path):
    if not shutil.which("prometheus"):
        pytest.skip("no prometheus (Debian: prometheus)")
    made = []

    def make(rules=(), **targets):
        made.append(Prometheus(tmp_path, targets, rules))
        return made[-1]

    yield make
    for one in made:
        one.close()
