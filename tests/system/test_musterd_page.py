# SPDX-License-Identifier: Apache-2.0
"""musterd's page of its jobs, and the targets that it names to Prometheus."""
import html
import http.client
import json
import os
import re
import shutil
import signal
import subprocess

import pytest

from browser import browser  # noqa: F401
from launcher_support import muster, wait_for  # noqa: F401
from metrics_support import ask, listens_at, prometheus  # noqa: F401
from ports import free_port
from test_dashboard import start_job
from test_metrics import daemon  # noqa: F401

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>&\"'"
SECRET = "not a secret, 16 bytes or more"


def get(address, path, **headers):
    """Status, headers and text."""
    connection = http.client.HTTPConnection(*address.rsplit(":", 1), timeout=20)
    connection.request("GET", path, headers={name.capitalize(): value for name, value in headers.items()})
    answer = connection.getresponse()
    out = answer.status, answer.headers, answer.read().decode()
    connection.close()
    return out


def token_of(d):
    return wait_for(lambda: "?token=" in d.path.read_text() and d.path.read_text(), "the token").split("?token=")[1].split()[0]


def secret_file(tmp_path, name="secret", text=SECRET):
    path = tmp_path / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_prometheus_finds_the_agents_of_all_jobs_at_a_musterd(muster, daemon, prometheus, tmp_path):
    d = daemon(f"--secret-file={secret_file(tmp_path)}")
    addresses = start_job(muster, f"127.0.0.1:{d.port}", f"--secret-file={tmp_path / 'secret'}")
    assert ask(d.address, "/sd")[0] == 401
    discovery = {"url": f"http://{d.address}/sd", "refresh_interval": "1s",
                 "authorization": {"type": "Bearer", "credentials": token_of(d)}}  # Prometheus 2.42 has no default type here
    server = prometheus(musterd=d.address, muster={"http_sd_configs": [discovery]})
    server.finds('count(up{job="muster",run_id="bert"} == 1)', 2)
    assert sorted((labels["instance"], labels["host"]) for labels, _ in server.query('up{job="muster"}')) == sorted(
        zip(addresses, ("host0", "host1"), strict=True))
    server.finds('count by (run_id) (muster_worker_step{run_id="bert"})', 4)
    (muster.tmp_path / "stop").touch()
    assert [process.wait(60) for process in muster.started] == [0, 0]
    wait_for(lambda: json.loads(get(d.address, "/sd", authorization=f"Bearer {token_of(d)}")[2]) == [], "the job's end")


def test_an_agent_without_metrics_is_no_target(muster, daemon):
    d = daemon()
    muster.start("--nnodes=1", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{d.port}", "--rdzv-id=quiet",
                 "--no-python", "sleep", "6001", stderr=subprocess.DEVNULL)
    wait_for(lambda: "quiet" in get(d.address, "/")[2], "the job")
    status, headers, text = get(d.address, "/sd")
    assert (status, headers["Content-Type"], json.loads(text)) == (200, "application/json", [])


def test_the_page_lists_jobs_and_links_to_theirs_and_names_stay_text(muster, daemon, browser):
    d = daemon()
    assert "There are no jobs." in get(d.address, "/")[2]
    with open(muster.tmp_path / "err", "w") as err:
        process = muster.start("--nnodes=1:2", "--max-restarts=3", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{d.port}",
                               f"--rdzv-id={HOSTILE}", "--local-addr=host0", "--metrics-addr=0", "--rdzv-conf=last_call_timeout=0.1",
                               "--no-python", "sleep", "6002", stderr=err)
    job_address = listens_at((muster.tmp_path / "err").read_text)
    muster.start("--nnodes=2", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{d.port}", "--rdzv-id=lonely",
                 "--no-python", "true", stderr=subprocess.DEVNULL)
    status, headers, text = wait_for(lambda: (it := get(d.address, "/"))[2].count(">running<") == 1 and "lonely" in it[2] and it, "both")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'nonce-") and "script" not in policy and "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
    assert "<script" not in text and "<img" not in text
    assert f'<a href="http://{job_address}/"><bdi>{html.escape(HOSTILE).replace("&#x27;", chr(39))}</bdi></a>' in text
    assert "0 of 3" in text and "1 of 1:2" in text and ">gathering<" in text and "1 of 2" in text
    chromium = browser()
    chromium.open(f"http://{d.address}/")
    chromium.wait("document.title === 'musterd: jobs' && document.querySelectorAll('tr').length === 3")
    assert chromium.value("document.querySelectorAll('script, img').length") == 0
    assert chromium.value("[...document.querySelectorAll('td a')].map(link => link.textContent)") == [HOSTILE]
    assert chromium.problems == []
    (target,) = json.loads(get(d.address, "/sd")[2])
    assert target == {"targets": [job_address], "labels": {"run_id": HOSTILE, "host": "host0", "__meta_muster_node": "0"}}
    process.terminate()
    process.wait(60)


def test_with_a_secret_nothing_is_shown_without_the_token(muster, daemon, tmp_path):
    (tmp_path / "secrets").mkdir()
    secret_file(tmp_path / "secrets", "private", "the secret of one job only")
    d = daemon(f"--secret-file={secret_file(tmp_path)}", f"--secrets-dir={tmp_path / 'secrets'}")
    for job, secret in (("shared", tmp_path / "secret"), ("private", tmp_path / "secrets/private")):
        muster.start("--nnodes=1", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{d.port}", f"--rdzv-id={job}",
                     f"--secret-file={secret}", "--metrics-addr=0", "--no-python", "sleep", "6003", stderr=subprocess.DEVNULL)
    token = token_of(d)
    wait_for(lambda: get(d.address, f"/?token={token}")[2].count("<tr>") == 2 and
             "Not listed: 1 " in get(d.address, f"/?token={token}")[2], "both jobs")
    for path, headers in (("/", {}), ("/sd", {}), (f"/?token={token[:-1]}", {}), ("/", {"authorization": "Bearer x"}),
                          ("/", {"cookie": "muster_1=" + token})):
        status, _, text = get(d.address, path, **headers)
        assert status == 401 and "shared" not in text, path
    _, headers, text = get(d.address, f"/?token={token}")
    assert "shared" in text and "private" not in text
    address, path = re.search(r'<a href="http://([^/"]+)(/[^"]*)"><bdi>shared<', text).groups()
    assert get(address, path)[0] == 200 and get(address, "/")[0] == 401
    cookie = headers["Set-Cookie"]
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert get(d.address, "/", cookie="other=1; " + cookie.split(";")[0])[0] == 200
    assert [it["labels"]["run_id"] for it in json.loads(get(d.address, "/sd", authorization=f"Bearer {token}")[2])] == ["shared"]
    # Another secret makes another token.
    secret_file(tmp_path, text="another secret of 16 bytes or more")
    d.process.send_signal(signal.SIGHUP)
    wait_for(lambda: get(d.address, f"/?token={token}")[0] == 401, "the new token")


@pytest.mark.parametrize(("host", "status"), [("localhost:1", 200), ("LOCALHOST", 200), ("127.0.0.1", 200), ("[::1]:5", 200),
                                              (os.uname().nodename, 200), ("evil.example", 403), ("127.0.0.1.evil.example:80", 403),
                                              ("10.1.2.3", 403), ("", 403)])
def test_the_page_is_served_under_the_hosts_own_names_only(daemon, host, status):
    d = daemon()
    assert get(d.address, "/", host=host)[0] == status
    assert get(d.address, "/metrics", host=host)[0] == 200


def test_the_page_of_a_musterd_that_listens_on_all_addresses_is_served_under_each(daemon):
    port = free_port()
    d = daemon(metrics_addr=f"0.0.0.0:{port}")
    assert get(f"127.0.0.1:{port}", "/", host=f"10.1.2.3:{port}")[0] == 200
    assert get(f"127.0.0.1:{port}", "/", host="evil.example")[0] == 403
    assert d.process.poll() is None
