# SPDX-License-Identifier: Apache-2.0
"""The status page of a job as a person meets it: in Chromium, with sorting, filters, logs of other nodes, a failure that
arrives; who may see it; and what it costs when nobody looks."""
import hashlib
import hmac
import http.client
import http.server
import json
import os
import re
import subprocess
import threading
import urllib.request

import pytest

from browser import browser  # noqa: F401
from launcher_support import BIN, ROOT, muster, wait_for  # noqa: F401
from metrics_support import ask, listens_at, metrics, recorded_gpus
from ports import free_port

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"

# Makes steps and says so, with texts that try to become markup, until the test lets it go on ("go"), or fail ("fail<rank>", the
# first time).
# "slow<rank>": its work takes the whole step, and the others wait for it. "still": a pipe in which it waits for somebody to write, rank 1
# before it has come to the collective in which rank 0 is.
WORK = """
import os, signal, sys
HOSTILE = %r
rank, say = os.environ["RANK"], os.environ["MUSTER_PROGRESS_FILE"]
print(HOSTILE, "rank", rank, flush=True)
step = 0
def report(phase):
    with open(say + ".new", "w") as file: file.write("epoch 1 step %%d/90000 loss %%.4f images/s %%d %%s" %% (step, 2 / step, 500, phase))
    os.rename(say + ".new", say)
while not os.path.exists("go"):
    if step and os.path.exists("still"):
        report("forward" if rank == "1" else "all_reduce")
        open("still").read()
        continue
    step += 1
    slow = os.path.exists("slow" + rank)
    for part in range(4):
        report("forward" if slow or part < 1 else "all_reduce")
        signal.sigtimedwait([], 0.05)
    print("rank", rank, "step", step, flush=True)
    if os.path.exists("fail" + rank) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": raise ValueError("boom " + HOSTILE)
""" % HOSTILE


def headers_of(address, path, **headers):
    """Status, headers and text of one answer."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def status(address):
    code, text = ask(address, "/api/status")
    assert code == 200, text
    return json.loads(text)


def all_report(address):
    """The state of the job once each of its ranks has told of a step."""
    now = status(address)
    steps = now["ranks"]["step"]
    return now if steps and None not in steps else None


class Job:
    """Agents on this machine, each with --metrics-addr=0."""

    def __init__(self, muster, *options, nodes=1, workers=4, env=None, script=None):
        self.muster, self.folder = muster, muster.tmp_path
        script = script or muster.script("work.py", WORK)
        port = free_port()
        self.errors, self.processes = [], []
        for node in range(nodes):
            self.errors.append(self.folder / f"node{node}.err")
            several = [f"--nnodes={nodes}", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"] if nodes > 1 else []
            with open(self.errors[-1], "w") as err:
                self.processes.append(muster.start(
                    f"--nproc-per-node={workers}", "--metrics-addr=0", "-r", "3", f"--log-dir={self.folder}/log{node}", *several, *options,
                    script, stdout=subprocess.DEVNULL, stderr=err, env=env))
        self.addresses = [listens_at(err.read_text, 60) for err in self.errors]
        self.page = f"http://{self.addresses[0]}/"

    def touch(self, name):
        (self.folder / name).touch()

    def ends(self, seconds=60):
        return [process.wait(seconds) for process in self.processes]


def test_a_person_sorts_filters_chooses_a_rank_and_sees_a_failure_arrive(muster, browser):
    job = Job(muster, "--local-addr=<img/src=x/onerror=document.title='taken'>")
    chromium = browser()
    chromium.open(job.page)
    chromium.wait("document.querySelectorAll('#ranks tbody tr').length === 4 && document.querySelector('#link').textContent === 'live'")
    chromium.wait("document.querySelector('#ranks tbody').textContent.includes('/90000')")
    # Sorted by another column, and back: the highest rank first.
    chromium.click("#ranks th[data-name=rank] button")
    chromium.wait("document.querySelector('#ranks tbody tr').dataset.rank === '3'")
    assert chromium.value("document.querySelector('#ranks th[data-name=rank]').ariaSort") == "descending"
    chromium.click("#filter")
    chromium.type("1-2 running")
    chromium.wait("[...document.querySelectorAll('#ranks tbody tr')].map(row => row.dataset.rank).join() === '2,1'")
    assert "<img/src=x" in chromium.value("document.querySelector('#ranks tbody').textContent")
    # A rank by the mouse, the next one by the keyboard; its log follows, and what it wrote stays text.
    chromium.click("#ranks tbody tr")
    chromium.wait("document.querySelector('#log').textContent.includes('rank 2 step')")
    chromium.value("document.querySelector('#map').focus()")
    chromium.key("ArrowRight")
    chromium.wait("document.querySelector('#map').getAttribute('aria-valuetext').startsWith('rank 3, ')")
    chromium.wait("document.querySelector('#log').textContent.includes('rank 3 step')")
    seen = chromium.value("document.querySelector('#log').textContent")
    assert HOSTILE in seen
    chromium.wait(f"document.querySelector('#log').textContent.length > {len(seen)}")
    chromium.wait("document.querySelector('#loss polyline') !== null && document.querySelector('#speed polyline') !== null")
    job.touch("fail2")
    chromium.wait("!document.querySelector('#failure').hidden")
    assert "rank 2" in chromium.value("document.querySelector('#failure p').textContent")
    assert HOSTILE[:30] in chromium.value("document.querySelector('#failure pre').textContent")
    # What a screen reader is told: the failure at once, and a name for whatever one can use.
    told = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in chromium.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    assert "alert" in [role for role, _ in told]
    usable = [(role, name) for role, name in told if role in ("button", "checkbox", "combobox", "searchbox", "slider", "textbox")]
    assert {"button", "checkbox", "combobox", "searchbox", "slider"} <= {role for role, _ in usable} and all(name for _, name in usable), usable
    chromium.wait("document.querySelector('#link').textContent.includes('ended')")
    assert job.ends() == [1]
    assert chromium.value("document.title").startswith("ending: ")
    assert chromium.value("document.querySelectorAll('img, script').length") == 1
    assert chromium.problems == []


def test_a_restart_and_a_hang_arrive_with_their_events_and_reports(muster, browser):
    job = Job(muster, "--max-restarts=1", "--hang-timeout=3:20", workers=2)
    chromium = browser()
    chromium.open(job.page)
    chromium.wait("document.querySelector('#ranks tbody').textContent.includes('/90000')")
    assert "0 of 1" in chromium.value("document.querySelector('#facts').textContent")
    marks = "document.querySelectorAll('#strip line[stroke]').length"
    before = chromium.value(marks)
    job.touch("fail1")
    chromium.wait("document.querySelector('#facts').textContent.includes('1 of 1')")
    chromium.wait("[...document.querySelectorAll('#events li')].some(each => /rank 1: worker_ended .*boom/.test(each.textContent))")
    assert chromium.value(marks) > before
    chromium.wait("job.ranks.step.every(step => step > 10)")
    assert chromium.value("document.querySelector('#hang').hidden")
    os.mkfifo(job.folder / "still")
    chromium.wait("!document.querySelector('#hang').hidden")
    assert re.search(r"rank [01]\b", chromium.value("document.querySelector('#hang p').textContent"))
    report = chromium.value("document.querySelector('#hang pre').textContent")
    assert re.search(r"rank 0\b", report) and re.search(r"rank 1\b", report), report
    assert chromium.value("[...document.querySelectorAll('#events .bad-text')].map(each => each.textContent).includes('hang')")
    assert chromium.problems == []
    job.touch("go")
    (job.folder / "still").write_text("")
    assert job.ends() == [0]


def test_the_first_node_shows_the_ranks_and_the_logs_of_all_nodes_and_asks_for_them_only_while_somebody_looks(muster):
    job = Job(muster, nodes=2, workers=2)
    now = wait_for(lambda: all_report(job.addresses[0]), "both nodes", 60)
    assert now["ranks"]["node"] == [0, 0, 1, 1]
    assert [node["status_address"] for node in now["nodes"]] == job.addresses
    assert set(now["ranks"]["steps"]) == {90000}
    code, _, text = wait_for(lambda: (it := headers_of(job.addresses[0], "/api/log?rank=3&lines=2"))[2].count("\n") == 2 and it, "two lines of the log", 60)
    assert code == 200 and "rank 3 step" in text
    code, _, text = headers_of(job.addresses[1], "/api/status")
    assert (code, "node 0" in text) == (404, True)
    for wrong, expected in (("rank=4", 404), ("rank=-1", 400), ("", 400), ("rank=0&lines=x", 400)):
        assert headers_of(job.addresses[0], f"/api/log?{wrong}")[0] == expected

    def sent():
        return metrics(job.addresses[1])["muster_status_messages_total"]
    before = sent()
    wait_for(lambda: status(job.addresses[0]) and sent() > before, "messages while somebody looks", 60)
    # The lease ends: two answers of the same number, further apart than a message would be.
    wait_for(lambda: unchanged(sent, 3), "the end of the messages", 60)
    job.touch("go")
    assert job.ends() == [0, 0]


def unchanged(read, seconds):
    """Whether a number stays the same for so long."""
    before = read()
    try:
        wait_for(lambda: read() != before, "a change", seconds)
    except AssertionError:
        return True
    return False


def test_an_agent_that_is_watched_ends_in_order_when_many_of_its_workers_end_at_once(muster):
    # SIGCHLD comes until the last moment, and the loop runs on after the agent for the stream's sake.
    script = muster.script("many.sh", "#!/bin/sh\n[ $RANK = 0 ] || exec sleep 1000\nwhile [ ! -e go ]; do sleep 0.02; done; exit 3\n")
    script.chmod(0o700)
    for _ in range(30):
        job = Job(muster, "--no-python", workers=24, script=script)
        with urllib.request.urlopen(f"{job.page}api/events", timeout=60) as stream:
            assert stream.readline().startswith(b"data: {")
            job.touch("go")
            rest = stream.read()
        assert job.ends() == [3]
        assert rest.endswith(b"event: end\ndata: \n\n"), rest[-200:]
        (muster.tmp_path / "go").unlink()


def test_a_stream_goes_on_while_others_are_opened_and_closed(muster):
    job = Job(muster, workers=2)
    wait_for(lambda: all_report(job.addresses[0]), "progress", 60)
    host, port = job.addresses[0].rsplit(":", 1)
    over = threading.Event()

    def open_and_close():
        while not over.wait(0.3):
            connection = http.client.HTTPConnection(host, int(port), timeout=20)
            connection.request("GET", "/api/events")
            connection.getresponse().readline()
            connection.close()

    others = threading.Thread(target=open_and_close)
    others.start()
    try:
        with urllib.request.urlopen(f"{job.page}api/events", timeout=20) as stream:
            for _ in range(4):
                assert stream.readline().startswith(b"data: {") and stream.readline() == b"\n"
    finally:
        over.set()
        others.join()
    job.touch("go")
    assert job.ends() == [0]


def test_a_stream_of_a_job_in_which_nothing_happens_is_silent_and_the_idle_time_goes_on(muster, browser):
    job = Job(muster, workers=2)
    wait_for(lambda: all_report(job.addresses[0]), "progress", 60)
    os.mkfifo(job.folder / "still")
    wait_for(lambda: unchanged(lambda: status(job.addresses[0])["ranks"]["step"], 1), "workers that wait", 60)
    host, port = job.addresses[0].rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=4)
    connection.request("GET", "/api/events")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert json.loads(answer.readline().removeprefix(b"data: "))["job"]["state"] == "running"
    assert answer.readline() == b"\n"
    # What the workers did last may still come; then nothing does.
    with pytest.raises(TimeoutError):
        for _ in range(20):
            answer.readline()
    connection.close()
    chromium = browser()
    chromium.open(job.page)
    chromium.wait("document.querySelectorAll('#ranks tbody tr').length === 2")
    idle = "document.querySelector('#ranks tbody tr').cells[[...document.querySelectorAll('#ranks th')].findIndex(head => head.dataset.name === 'idle_s')].textContent"
    for _ in range(3):
        chromium.wait(f"{idle} !== '{chromium.value(idle)}'")
    job.touch("go")
    (job.folder / "still").write_text("")  # both workers' pipe ends
    assert job.ends() == [0]


def test_with_a_secret_the_page_needs_the_token_and_other_names_are_refused(muster, browser):
    secret = "0123456789abcdef0123456789abcdef"
    job = Job(muster, "--rdzv-id=job-1", workers=1, env={"MUSTER_SECRET": secret})
    address = job.addresses[0]
    said = re.search(r"status page at (http://\S+)", job.errors[0].read_text()).group(1)
    token = hmac.new(secret.encode(), b"status page\0job-1", hashlib.sha256).hexdigest()
    assert said == f"{job.page}?token={token}"
    for path in ("/", "/api/status", "/api/events", "/api/log?rank=0", "/?token=" + "0" * 64, "/?token=", "/?token=" + token[:-1]):
        code, headers, text = headers_of(address, path)
        assert (code, headers["Set-Cookie"]) == (401, None), path
        assert "job-1" not in text
    for path in ("/healthz", "/metrics", "/federate"):
        assert headers_of(address, path)[0] == 200
    assert headers_of(address, "/api/status", Authorization=f"Bearer {token}")[0] == 200
    assert headers_of(address, "/api/status", Authorization=f"Bearer {token[:-1]}0{token[-1]}")[0] == 401
    code, headers, _ = headers_of(address, f"/?token={token}")
    assert code == 200 and "HttpOnly" in headers["Set-Cookie"] and "SameSite=Strict" in headers["Set-Cookie"]
    policies = [headers_of(address, f"/?token={token}")[1]["Content-Security-Policy"] for _ in range(2)]
    assert all(policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "script-src 'nonce-" in policy for policy in policies)
    assert policies[0] != policies[1] and headers["Referrer-Policy"] == "no-referrer"
    assert headers_of(address, "/api/status", Cookie=headers["Set-Cookie"].split(";")[0])[0] == 200
    for name in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert headers_of(address, f"/api/status?token={token}", Host=name)[0] == 403, name
    chromium = browser()
    chromium.open(said)
    chromium.wait("document.querySelectorAll('#ranks tbody tr').length === 1")
    assert chromium.value("location.search") == ""
    assert chromium.value("document.cookie") == ""
    job.touch("go")
    assert job.ends() == [0]
    assert not any(token in each.read_text(errors="replace") for each in job.folder.rglob("*.log"))


def test_a_training_of_the_runtime_tells_its_loss_and_throughput(muster, bin_dir):
    errors = muster.tmp_path / "err"
    with open(errors, "w") as err:
        job = muster.start("--nproc-per-node=2", "--metrics-addr=0", bin_dir / "fashion_mnist", "--device=cpu", "--epochs=1000",
                           "--batch-size=1024", stdout=subprocess.DEVNULL, stderr=err)
    address = listens_at(errors.read_text, 60)

    def told():
        ranks = status(address)["ranks"]
        return ranks if ranks["loss"] and None not in ranks["loss"] + ranks["throughput"] else None
    ranks = wait_for(told, "loss and throughput of both ranks", 120)
    assert all(0 < loss < 3 for loss in ranks["loss"]) and all(speed > 0 for speed in ranks["throughput"])
    job.terminate()
    job.wait(60)


def test_gpus_are_bars_with_the_ranks_that_use_them(muster, browser):
    job = Job(muster, "--gpus=1,0", workers=2, env=recorded_gpus(muster.tmp_path / "gpus", 3))
    chromium = browser()
    chromium.open(job.page)
    chromium.wait("document.querySelectorAll('#gpus > div').length === 3")
    boxes = chromium.value("[...document.querySelectorAll('#gpus > div')].map(box => box.innerText)")
    host = re.escape(status(job.addresses[0])["nodes"][0]["host"])
    for box, title in zip(boxes, ("GPU 0, rank 1", "GPU 1, rank 0", "GPU 2")):
        assert re.match(rf"\s*{host} {title}\n", box), box
        for text in ("busy 100 %", "memory 3.4 GiB of 140.4 GiB", "55 \u00b0C, 533 W, 1980 MHz"):
            assert text in box, box
    bars = chromium.value("[...document.querySelectorAll('#gpus meter')].map(bar => [bar.ariaLabel, bar.value])")
    assert bars[0] == ["busy", 1] and bars[1][0] == "memory" and 0.0245 < bars[1][1] < 0.0246, bars
    # The terminal's table of ranks takes them from there.
    top = subprocess.run([BIN / "musterctl", "top", "--url", job.addresses[0]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60).stdout
    assert re.search(rf"^{host} +0 +1 +100% ", top, re.M) and re.search(rf"^{host} +2 +- +100% ", top, re.M), top
    assert len(re.findall(rf"^[01] +{host} .* 100%$", top, re.M)) == 2, top
    job.touch("go")
    assert job.ends() == [0]


def test_the_rank_that_the_others_wait_for_is_named_on_whatever_node_though_nobody_looks(muster):
    (muster.tmp_path / "slow3").touch()
    job = Job(muster, nodes=2, workers=2)
    wait_for(lambda: [line for line in metrics(job.addresses[0]) if line.startswith('muster_straggler_percent{rank="3"')], "a straggler", 120)
    found = status(job.addresses[0])["straggler"]
    assert (found["rank"], found["phase"]) == (3, "forward")
    assert "rank 3" in found["text"]
    job.touch("go")
    assert job.ends() == [0, 0]
    assert re.search(r"rank 3 on \S+ spends .* forward.*, \d+ % more than the median rank", job.errors[0].read_text())


def big_status(ranks=4096, per_node=8):
    """What a job of so many ranks would send."""
    index = range(ranks)
    slow = ranks * 3 // 10
    columns = {"rank": list(index), "local_rank": [r % per_node for r in index], "node": [r // per_node for r in index],
               "pid": [1000 + r for r in index], "state": ["failed" if r == ranks - 2 else "running" for r in index],
               "epoch": [2] * ranks, "step": [140 + r % 3 for r in index], "steps": [15000] * ranks,
               "phase": ["all_reduce" if r % 5 else "forward" for r in index], "step_s": [0.2 + (r * 7 % 100) / 1000 for r in index],
               "loss": [0.31] * ranks, "throughput": [400 + r * 13 % 200 for r in index], "resident_bytes": [2 ** 31] * ranks,
               "cpu_s": [99.5] * ranks, "idle_s": [0.1] * ranks, "straggler": [r == slow for r in index]}
    nodes = [{"node": n, "host": f"node{n:03}", "state": "running", "age_s": 0.4, "status_address": None, "gpus": []} for n in range(ranks // per_node)]
    return {"job": {"run_id": "pretraining-7b", "program": "train.py", "state": "running", "generation": 3, "restarts": 1, "max_restarts": 10,
                    "nodes": len(nodes), "world_size": ranks, "began": 1.0e9, "now": 1.0e9 + 5000, "version": "0.1.0"},
            "nodes": nodes, "ranks": columns, "straggler": {"rank": slow, "host": f"node{slow // per_node:03}", "phase": "forward", "seconds_per_step": 0.31,
                                                            "percent": 48, "text": f"rank {slow} on node{slow // per_node:03} spends 0.31 s per step in forward, 48 % more than the median rank"},
            "events": [{"time": 1.0e9 + 60 * i, "event": "running", "rank": None, "host": "node000", "text": ""} for i in range(20)],
            "failure": None, "hang": None}


@pytest.fixture(params=[8, 4096])
def big_job(request):
    """Serves the page with the state of so many ranks."""
    page = (ROOT / "launcher/telemetry/status_page.html").read_text().replace("{nonce}", "n")
    state = json.dumps(big_status(request.param), separators=(",", ":"))

    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            events = self.path == "/api/events"
            body = f"data: {state}\n\n" if events else page if self.path == "/" else "rank's log\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if events else "text/html" if self.path == "/" else "text/plain")
            self.end_headers()
            self.wfile.write(body.encode())
            if events:
                self.wfile.flush()
                over.wait(120)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", request.param, len(state)
    over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_all_ranks_are_on_one_map_in_light_and_dark(big_job, browser):
    address, ranks, size = big_job
    assert size < 1 << 20
    failed, slow = ranks - 2, ranks * 3 // 10
    chromium = browser(width=1280, height=1100)

    def pixel(rank, beside=0):
        """The colour in a rank's cell of the map, or beside its corner."""
        at = f"cells[{rank}].x + ({-beside} || cells[{rank}].size / 4)"
        return tuple(chromium.value(f"[...document.querySelector('#map').getContext('2d').getImageData(({at}) * devicePixelRatio, "
                                    f"({at.replace('.x', '.y')}) * devicePixelRatio, 1, 1).data]")[:3])

    def draws(scheme):
        chromium.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        chromium.open(address)
        chromium.wait(f"document.querySelector('#shown').textContent.includes('{ranks} ranks')")
        return pixel(failed), pixel(0), chromium.value("getComputedStyle(document.body).backgroundColor")
    assert draws("dark")[:2] == ((255, 107, 96), (79, 174, 107))
    dark = chromium.value("getComputedStyle(document.body).backgroundColor")
    failure, running, light = draws("light")
    assert (failure, running) == ((198, 40, 40), (46, 125, 70)) and light != dark
    width, height, cell = chromium.value("[document.querySelector('#map').clientWidth, document.querySelector('#map').clientHeight, cells[0].size]")
    assert height < 900 and cell >= 5, "the map of all ranks fits on a screen, and each rank can be seen"
    assert chromium.value("cells.length") == ranks
    assert chromium.value(f"cells.every(each => each.x >= 0 && each.x + each.size <= {width} && each.y + each.size <= {height})")
    # The straggler's mark: around a small cell, in the corner of a large one.
    amber = (255, 179, 0)
    marked = pixel(slow, beside=1) if cell < 19 else tuple(chromium.value(
        f"[...document.querySelector('#map').getContext('2d').getImageData((cells[{slow}].x + cells[{slow}].size - 2) * devicePixelRatio, "
        f"(cells[{slow}].y + 2) * devicePixelRatio, 1, 1).data]")[:3])
    assert marked == amber
    assert chromium.value("document.querySelector('#straggler p').textContent").startswith(f"rank {slow} on node")
    # A rank by a click on the map, and its neighbours by keys.
    place = chromium.value(f"[cells[{slow}].x + cells[{slow}].size / 2, cells[{slow}].y + cells[{slow}].size / 2]")
    chromium.click("#map", *place)
    chromium.wait(f"document.querySelector('#map').ariaValueNow === '{slow}'")
    chromium.value("document.querySelector('#map').focus()")
    for key, rank in (("ArrowLeft", slow - 1), ("End", ranks - 1), ("ArrowUp", None), ("ArrowDown", ranks - 1), ("Home", 0)):
        chromium.key(key)
        if rank is not None:
            chromium.wait(f"document.querySelector('#map').ariaValueNow === '{rank}'")
    # Other figures, other colours: from the lowest to the highest.
    for name in ("step", "throughput"):
        chromium.value(f"(() => {{ const box = document.querySelector('#colour'); box.value = '{name}'; box.dispatchEvent(new Event('change')); }})()")
        low, high = chromium.value(f"[Math.min, Math.max].map(best => job.ranks.{name}.indexOf(best(...job.ranks.{name})))")
        assert sum(pixel(low)) > sum(pixel(high)), "the highest is the darkest"
        assert str(chromium.value(f"Math.max(...job.ranks.{name})")) in chromium.value("document.querySelector('#keys').textContent")
    chromium.click("#filter")
    chromium.type("straggler")
    chromium.wait("document.querySelectorAll('#ranks tbody tr').length === 1")
    chromium.click("#ranks tbody tr")
    chromium.wait(f"document.querySelector('#map').ariaValueNow === '{slow}'")
    assert chromium.problems == []
