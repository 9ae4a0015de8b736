# SPDX-License-Identifier: Apache-2.0
"""/healthz and /metrics of muster and musterd, and the events, seen from outside: by sockets, promtool and Prometheus."""
import contextlib
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess

import pytest

from launcher_support import BIN, clean_environment, muster, wait_for  # noqa: F401
from metrics_support import ask, check_with_promtool, events, health, listens_at, metrics, prometheus  # noqa: F401
from ports import free_port

# Says how far it is, and ends as the test says by the file "go<rank>.<restarts>".
WORK = """
import os, signal, sys
e = os.environ
rank, restart = e["RANK"], e["TORCHELASTIC_RESTART_COUNT"]
with open(e["MUSTER_PROGRESS_FILE"], "w") as file: file.write("epoch 2 step %d loss 0.3" % (140 + int(rank)))
open("pid%s.%s" % (rank, restart), "w").close()
go = "go%s.%s" % (rank, restart)
while not os.path.exists(go): signal.sigtimedwait([], 0.02)
code = int(open(go).read() or 0)
if code: raise ValueError("boom")
"""


class Watched:
    """One muster with --metrics-addr=0 and --events, whose stderr is in a file."""

    def __init__(self, muster, name, *options, workers=2):
        self.tmp_path = muster.tmp_path
        self.events_file = self.tmp_path / f"{name}.jsonl"
        self.stderr = self.tmp_path / f"{name}.err"
        script = muster.script("work.py", WORK)
        with open(self.stderr, "w") as err:
            self.process = muster.start(f"--nproc-per-node={workers}", "--metrics-addr=0", f"--events={self.events_file}",
                                        *options, script, stdout=subprocess.DEVNULL, stderr=err)
        self.address = listens_at(self.stderr.read_text)

    def started(self, *ranks, restart=0):
        wait_for(lambda: all((self.tmp_path / f"pid{rank}.{restart}").exists() for rank in ranks), self.stderr.read_text(), 30)

    def release(self, *ranks, restart=0, code=0):
        for rank in ranks:
            new = self.tmp_path / f"new{rank}"
            new.write_text(str(code))
            new.rename(self.tmp_path / f"go{rank}.{restart}")

    def events(self):
        return events(self.events_file)


def listening_sockets(pid):
    """How many sockets of a process listen for TCP."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            if line.split()[3] == "0A":
                inodes.add(f"socket:[{line.split()[9]}]")
    out = 0
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            out += os.readlink(fd) in inodes
    return out


def test_health_is_answered_before_the_nodes_have_met_and_until_the_end(muster):
    static = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    first = Watched(muster, "first", *static, "--node-rank=0", workers=1)
    assert health(first.address)["state"] == "rendezvous"
    assert "generation" not in health(first.address)
    second = Watched(muster, "second", *static, "--node-rank=1", workers=1)
    first.started(0, 1)
    for it, node in ((first, 0), (second, 1)):
        assert wait_for(lambda it=it: (h := health(it.address))["state"] == "running" and h, "the workers") | {
            "seconds_in_state": 0, "run_id": "", "host": ""} == {
            "status": "ok", "state": "running", "seconds_in_state": 0, "run_id": "", "host": "", "node": node,
            "generation": 0, "restarts": 0, "nodes": 2, "world_size": 2, "max_restarts": 0, "workers": 1, "workers_running": 1}
    second.release(1)
    # It waits for the other node.
    wait_for(lambda: metrics(second.address)['muster_workers{state="succeeded"}'] == 1, "the worker's end")
    assert health(second.address)["workers_running"] == 0
    first.release(0)
    assert (first.process.wait(60), second.process.wait(60)) == (0, 0)
    assert [e["event"] for e in second.events()] == [
        "start", "rendezvous", "joined", "worker_started", "running", "agent_timeline", "worker_ended", "generation_over", "end"]
    assert [e["node"] for e in second.events() if "node" in e] == [1] * 7


def test_metrics_tell_of_each_rank_and_of_restarts(muster):
    it = Watched(muster, "job", "--max-restarts=2", "--rdzv-id=run 7\\\"")
    it.started(0, 1)
    now = wait_for(lambda: (m := metrics(it.address)).get('muster_worker_step{rank="1",local_rank="1"}') and m, "a step")
    status, text = ask(it.address)
    assert status == 200
    check_with_promtool(text)
    assert 'run_id="run 7\\\\\\""' in text
    assert now['muster_agent_state{state="running"}'] == 1
    assert now['muster_workers{state="running"}'] == 2
    assert (now["muster_job_world_size"], now["muster_job_restarts_used"], now["muster_job_restarts_max"]) == (2, 0, 2)
    for rank in (0, 1):
        labels = f'{{rank="{rank}",local_rank="{rank}"}}'
        assert now["muster_worker_step" + labels] == 140 + rank
        assert now["muster_worker_epoch" + labels] == 2
        assert now["muster_worker_progress_age_seconds" + labels] >= 0
        assert now["muster_worker_resident_memory_bytes" + labels] > 1 << 20
        assert now["muster_worker_cpu_seconds_total" + labels] >= 0
        assert sum(key.startswith(f'muster_worker_info{{rank="{rank}"') for key in now) == 1
    assert now["muster_rendezvous_duration_seconds_count"] == 1
    assert now['muster_start_phase_seconds{phase="rendezvous"}'] >= 0 and now['muster_start_phase_seconds{phase="spawn"}'] > 0
    assert now["process_resident_memory_bytes"] > 1 << 20
    assert now["process_start_time_seconds"] > 1.7e9

    it.release(1, code=1)
    it.started(0, 1, restart=1)
    after = wait_for(lambda: (m := metrics(it.address))['muster_workers{state="running"}'] == 2 and
                     m["muster_job_restarts_used"] == 1 and m, "the restart")
    assert after['muster_worker_failures_total{cause="exception"}'] == 1
    assert after["muster_worker_starts_total"] == 4
    assert after["muster_restart_duration_seconds_count"] == 1
    check_with_promtool(ask(it.address)[1])
    it.release(0, 1, restart=1)
    assert it.process.wait(60) == 0

    told = it.events()
    assert [e["event"] for e in told if not e["event"].startswith("worker_")] == [
        "start", "rendezvous", "joined", "running", "agent_timeline", "stop", "generation_over",
        "rendezvous", "joined", "running", "agent_timeline", "generation_over", "end"]
    (failed,) = [e for e in told if e.get("result") == "failed" and e["event"] == "worker_ended"]
    assert (failed["rank"], failed["exit_code"], failed["cause"], failed["error"]) == (1, 1, "exception", "ValueError: boom")
    assert failed["where"].endswith("work.py:10")
    (stopped,) = [e for e in told if e.get("result") == "stopped"]
    assert (stopped["rank"], stopped["signal"]) == (0, "SIGTERM")
    overs = [e for e in told if e["event"] == "generation_over"]
    assert [(e["next"], e["result"]) for e in overs] == [("restart", "failed"), ("end", "succeeded")]
    again = [e for e in told if e["event"] == "running"][1]
    assert again["restarts"] == 1 and again["generation"] == 1 and again["restart_seconds"] > 0
    assert told[-1]["exit_status"] == 0


def test_a_hang_and_the_stages_of_a_stop_are_events(muster):
    # Deaf within milliseconds, and silent from the beginning: whatever it said while it starts would be a sign of life.
    stubborn = "trap '' TERM ABRT; exec sleep 6009"
    path = muster.tmp_path / "events.jsonl"
    result = muster.run("--nproc-per-node=1", "--hang-timeout=1:1", "--on-hang=stop", "--shutdown-timeout=0.5",
                        "--no-python", f"--events={path}", "/bin/sh", "-c", stubborn,
                        env=clean_environment(PATH="/usr/bin:/bin"))
    assert result.returncode == 124, result.stderr
    told = events(path)
    (hang,) = [e for e in told if e["event"] == "hang"]
    assert hang["rank"] == 0 and hang["text"]
    assert [e["signal"] for e in told if e["event"] == "stop"] == ["SIGTERM", "SIGABRT", "SIGKILL"]
    (ended,) = [e for e in told if e["event"] == "worker_ended"]
    assert (ended["signal"], ended["result"], ended["cause"]) == ("SIGKILL", "failed", "hang")


def test_nothing_listens_unless_it_was_asked_for(muster):
    script = muster.script("work.py", WORK)
    counts = []
    for option in ([], ["--metrics-addr=0"]):
        for old in muster.tmp_path.glob("*0.0"):
            old.unlink()
        process = muster.start("--nproc-per-node=1", *option, script, stderr=subprocess.DEVNULL)
        wait_for(lambda: (muster.tmp_path / "pid0.0").exists(), "the worker")
        counts.append(listening_sockets(process.pid))
        (muster.tmp_path / "go0.0").touch()
        assert process.wait(60) == 0
    assert counts[1] == counts[0] + 1


def test_unauthenticated_peers_do_not_keep_a_page_from_its_readers(muster):
    it = Watched(muster, "job", workers=1)
    it.started(0)
    wait_for(lambda: health(it.address)["state"] == "running", "all that a running job has open")
    host, port = it.address.rsplit(":", 1)
    before = len(os.listdir(f"/proc/{it.process.pid}/fd"))
    peers = []
    for i in range(300):
        peer = socket.create_connection((host, int(port)), 20)
        peer.sendall([b"", b"GET /metrics HTTP/1.1\r\nX: ", b"\x16\x03\x01" * 50, b"GET /metrics HTTP/1.1\r\n\r\n"][i % 4])
        peers.append(peer)
    for _ in range(5):
        assert health(it.address)["state"] == "running"
        assert metrics(it.address)['muster_workers{state="running"}'] == 1
    assert len(os.listdir(f"/proc/{it.process.pid}/fd")) <= before + 40
    for peer in peers:
        peer.close()
    wait_for(lambda: len(os.listdir(f"/proc/{it.process.pid}/fd")) <= before, "their descriptors to be closed")
    it.release(0)
    assert it.process.wait(60) == 0


def test_what_cannot_be_had_is_told_before_anything_is_started(muster):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, status, words in (
                ([f"--metrics-addr={port}"], 75, f"port: {port}"),
                (["--metrics-addr=nowhere"], 2, "--metrics-addr=nowhere: not a port"),
                (["--metrics-addr=1.2.3.4:9"], 71, "no address of this host"),
                (["--events=/no/such/dir/events"], 2, "--events=/no/such/dir/events: No such file")):
            result = muster.run("--nproc-per-node=1", *options, "touch", "started")
            assert (result.returncode, result.stdout) == (status, "") and words in result.stderr, result
    result = muster.run("--dry-run", "--events=planned.jsonl", "--metrics-addr=0", "--nproc-per-node=1", "touch", "started")
    assert result.returncode == 0
    assert not (muster.tmp_path / "planned.jsonl").exists() and not (muster.tmp_path / "started").exists()


def test_a_full_disk_is_told_once_and_costs_nothing_but_events(muster):
    result = muster.run("--nproc-per-node=4", "--events=/dev/full", "true")
    assert result.returncode == 0
    assert result.stderr.count("could not write events to /dev/full: No space left on device") == 1


class Daemon:
    def __init__(self, tmp_path, *options, metrics_addr="0"):
        self.path = tmp_path / "musterd.err"
        with open(self.path, "w") as err:
            self.process = subprocess.Popen(
                [BIN / "musterd", "--host=127.0.0.1", "--port=0", f"--metrics-addr={metrics_addr}", *options], stderr=err)
        self.address = listens_at(self.path.read_text)
        self.port = int(self.path.read_text().split("listening on 127.0.0.1:")[1].split()[0])

    def close(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def daemon(tmp_path):
    made = []
    yield lambda *options, **more: made.append(Daemon(tmp_path, *options, **more)) or made[-1]
    for one in made:
        one.close()


VALIDATE = bytes.fromhex("00cef7853c")


def put(client, key, value):
    client.sendall(b"\x01" + b"".join(len(text).to_bytes(8, "little") + text for text in (key, value)))


def test_prometheus_reads_agents_and_daemon(muster, daemon, prometheus):
    d = daemon()
    nodes = [Watched(muster, f"node{node}", "--nnodes=2", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{d.port}",
                     "--rdzv-id=watched", f"--local-addr=host{node}", workers=1) for node in (0, 1)]
    nodes[0].started(0, 1)
    check_with_promtool(ask(d.address)[1])
    server = prometheus(musterd=d.address, node0=nodes[0].address, node1=nodes[1].address)
    server.finds("sum(up)", 3)
    steps = wait_for(lambda: (s := server.query("muster_worker_step")) and len(s) == 2 and s, "the ranks' steps", 60)
    assert sorted((labels["rank"], value) for labels, value in steps) == [("0", 140.0), ("1", 141.0)]
    server.finds('sum(muster_agent_state{state="running"})', 2)
    server.finds('musterd_job_nodes{run_id="watched",state="member"}', 2)
    server.finds('musterd_job_phase{run_id="watched",phase="running"}', 1)
    with socket.create_connection(("127.0.0.1", d.port), 20) as client:
        client.sendall(VALIDATE)
        put(client, b"a", b"b")
        wait_for(lambda: metrics(d.address)["musterd_store_operations_total"] >= 2, "the operations")
        assert metrics(d.address)["musterd_store_keys"] == 1
        assert metrics(d.address)["musterd_store_connections"] == 1
    with socket.create_connection(("127.0.0.1", d.port), 20) as peer:
        peer.sendall(b"\x63" * 64)
        peer.settimeout(20)
        try:
            peer.recv(1)
        except OSError:
            pass
    wait_for(lambda: metrics(d.address)['musterd_refusals_total{peer="store",reason="protocol"}'] == 1, "the refusal")
    nodes[0].release(0, 1)
    assert [it.process.wait(60) for it in nodes] == [0, 0]


def test_prometheus_reads_all_nodes_of_a_job_from_its_first_one(muster, daemon, prometheus):
    d = daemon()
    script = muster.script("work.py", WORK)
    for node, options in enumerate((["--metrics-addr=0"], ["--metrics-addr=0"], [])):
        with open(muster.tmp_path / f"host{node}.err", "w") as err:
            muster.start("--nnodes=3", f"--node-rank={node}", "--nproc-per-node=1", "--rdzv-backend=muster",
                         f"--rdzv-endpoint=127.0.0.1:{d.port}", "--rdzv-id=one", f"--local-addr=host{node}", *options, script,
                         stdout=subprocess.DEVNULL, stderr=err)
    nodes = [listens_at((muster.tmp_path / f"host{node}.err").read_text) for node in (0, 1)]
    for rank, address in enumerate(nodes):
        wait_for(lambda key=f'muster_worker_step{{rank="{rank}",local_rank="0"}}', address=address: key in metrics(address), "steps", 60)
    assert ask(nodes[1], "/federate")[0] == 404
    status, text = ask(nodes[0], "/federate")
    assert status == 200
    check_with_promtool(text)
    target = {"http_sd_configs": [{"url": f"http://{d.address}/sd", "refresh_interval": "1s"}], "metrics_path": "/federate",
              "scrape_timeout": "8s", "scrape_interval": "8s", "relabel_configs": [
                  {"source_labels": ["__meta_muster_node"], "regex": "0", "action": "keep"}, {"regex": "host", "action": "labeldrop"}]}
    server = prometheus(muster=target)
    server.finds('count(up{job="muster",run_id="one"} == 1)', 1)
    up = wait_for(lambda: server.query("muster_agent_up"), "a scrape", 60)
    assert {labels["node"]: value for labels, value in up} == {"0": 1, "1": 1, "2": 0}  # which has no --metrics-addr
    assert {labels["host"] for labels, _ in server.query("muster_agent_info")} == {"host0", "host1"}
    steps = {labels["node"]: value for labels, value in server.query("muster_worker_step")}
    assert steps == {"0": 140, "1": 141}
    # One that is there and does not answer.
    muster.started[1].send_signal(signal.SIGSTOP)
    try:
        text = ask(nodes[0], "/federate")[1]
    finally:
        muster.started[1].send_signal(signal.SIGCONT)
    assert 'muster_agent_up{node="0"} 1' in text and 'muster_agent_up{node="1"} 0' in text
    assert 'muster_worker_step{node="0",' in text and 'muster_worker_step{node="1",' not in text
    for rank in range(3):
        (muster.tmp_path / f"new{rank}").write_text("1")
        (muster.tmp_path / f"new{rank}").rename(muster.tmp_path / f"go{rank}.0")
    assert all(process.wait(60) for process in muster.started)
    assert any(line.startswith('musterd_job_end_age_seconds{run_id="one",result="failed"}') for line in metrics(d.address))


def test_a_daemon_whose_disk_is_full_says_that_it_is_not_well(daemon, tmp_path):
    d = daemon(f"--state-dir={tmp_path / 'state'}")
    assert ask(d.address, "/healthz")[0] == 200
    with socket.create_connection(("127.0.0.1", d.port), 20) as client:
        client.sendall(VALIDATE)
        put(client, b"a", b"b")
        # Counted when it is on the disk: the connection's beginning may share its sync or not.
        wait_for(lambda: metrics(d.address)["musterd_state_log_records_total"] == 1 and
                 metrics(d.address)["musterd_state_log_sync_duration_seconds_count"] == 1, "the record")
        soft, hard = resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        put(client, b"c", b"d" * 1000)
        wait_for(lambda: ask(d.address, "/healthz")[0] == 503, "503")
        assert health(d.address)["status"] == "stalled"
        wait_for(lambda: metrics(d.address)["musterd_state_log_stalled"] == 1, "the metric")
        check_with_promtool(ask(d.address)[1])
        resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (soft, hard))
        wait_for(lambda: ask(d.address, "/healthz")[0] == 200, "200 again")
    d.process.send_signal(signal.SIGTERM)
    assert d.process.wait(30) == 0


def test_the_start_of_a_daemon_whose_page_cannot_be_had_fails(tmp_path):
    for address, status in (("nowhere", 2), ("1.2.3.4:9", 1)):
        result = subprocess.run([BIN / "musterd", "--host=127.0.0.1", "--port=0", f"--metrics-addr={address}"],
                                capture_output=True, text=True, timeout=60)
        assert result.returncode == status and "--metrics-addr" in result.stderr, result
        assert json.dumps(result.stdout) == '""'
