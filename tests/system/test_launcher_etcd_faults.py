# SPDX-License-Identifier: Apache-2.0
"""Agents and etcd itself are killed, frozen and started anew while a job over etcd runs."""
import base64
import json
import re
import signal
import subprocess

import pytest

from elastic_support import STAY, write
from etcd_support import LEASE, Etcd, EtcdJob, etcd, job  # noqa: F401
from launcher_support import alive, clean_environment, wait_for


def generations(text):
    return [int(g) for g in re.findall(r"info: generation (\d+): node", text)]


def begin(job, script, *names, nnodes="2:3", restarts=2, conf=""):
    """Starts the first, which is elected, and then the others."""
    job.start(names[0], script, nnodes=nnodes, restarts=restarts, conf=conf)
    job.said(names[0], "this agent runs the coordinator")
    for name in names[1:]:
        job.start(name, script, nnodes=nnodes, restarts=restarts, conf=conf)


def test_a_killed_agent_uses_a_restart_and_the_rest_goes_on(job, tmp_path):
    script = write(tmp_path, "stay.py", STAY)
    begin(job, script, "a", "b", "c")
    pids = job.started("3.0", 0, 1, 2)
    job.running["b"].kill()
    job.started("2.1", 0, 1)
    assert re.search(r"lost node \d \(host-b\): .*; restart 1 of 2", job.err("c")), job.err("c")
    wait_for(lambda: not any(alive(pid) for pid in pids), "the first generation's workers to be gone")
    (tmp_path / "go").touch()
    assert job.codes("a", "c") == [0, 0], job.err("a")


def test_the_coordinator_s_agent_is_killed_and_generation_and_budget_go_on(job, etcd, tmp_path):
    script = write(tmp_path, "stay.py", STAY)
    # All three are in the first generation, however late the last one comes.
    begin(job, script, "a", "b", "c", restarts=1, conf="last_call_timeout=4")
    job.started("3.0", 0, 1, 2)
    first = etcd.coordinator()
    job.running[first].kill()
    job.started("2.1", 0, 1)
    rest = sorted({"a", "b", "c"} - {first})
    assert any("takes over the coordinator of job none: generation 0, 0 of 1" in job.err(n) for n in rest)
    assert all(generations(job.err(n)) == [0, 1] for n in rest)
    # The budget is spent, whoever counts: the next loss ends the job.
    heir = etcd.coordinator()
    other, = {*rest} - {heir}
    job.running[other].kill()
    assert job.codes(heir) == [76]
    assert re.search(rf"lost node \d \(host-{other}\): .*exit status 76", job.err(heir)), job.err(heir)


def test_a_coordinator_s_agent_that_is_told_to_go_hands_over_at_once(job, etcd, tmp_path):
    script = write(tmp_path, "stay.py", STAY)
    begin(job, script, "a", "b", "c", restarts=0, conf="lease_ttl=600")
    job.started("3.0", 0, 1, 2)
    job.forget("2.0")
    job.running["a"].send_signal(signal.SIGTERM)
    assert job.codes("a") == [143]
    # Nothing waits for a lease of ten minutes, and no restart is used: there is none.
    job.started("2.0", 0, 1)
    (tmp_path / "go").touch()
    assert job.codes("b", "c") == [0, 0], job.err("b")
    assert etcd.keys() == []


@pytest.mark.parametrize("away", ["a moment", "longer than the lease"])
def test_workers_notice_nothing_of_an_etcd_that_is_killed_and_started_anew(job, etcd, tmp_path, away):
    script = write(tmp_path, "stay.py", STAY)
    begin(job, script, "a", "b", nnodes=2, restarts=0)
    pids = job.started("2.0", 0, 1)
    etcd.kill()
    if away != "a moment":
        # By its own clock, for it can ask nobody.
        job.said("a", "no longer runs the coordinator of job none: etcd has not renewed its lease in time")
    etcd.start()
    if away != "a moment":
        wait_for(lambda: any("takes over the coordinator of job none: generation 0, 0 of 0" in job.err(n) for n in "ab"),
                 "a coordinator")
        for name in "ab":
            job.said(name, "host-a is back|host-b is back|answers again")
    wait_for(lambda: "/muster/none/state" in etcd.keys(), "the state to be there")
    assert all(alive(pid) for pid in pids)
    # It is the same job, and can end.
    (tmp_path / "go").touch()
    assert job.codes("a", "b") == [0, 0], (job.err("a"), job.err("b"))
    assert all(generations(job.err(n)) == [0] for n in "ab")


def test_an_etcd_that_stays_away_ends_the_job_with_a_clear_line(job, etcd, tmp_path):
    script = write(tmp_path, "stay.py", STAY)
    begin(job, script, "a", "b", nnodes=2, restarts=3, conf="reconnect_timeout=1")
    pids = job.started("2.0", 0, 1)
    etcd.kill()
    assert job.codes("a", "b") == [76, 76], job.err("a")
    for name in "ab":
        assert re.search(rf"lost .*etcd at {etcd.endpoint}: connect {etcd.endpoint}: Connection refused \(tried for \d.*"
                         r"exit status 76", job.err(name)), job.err(name)
    wait_for(lambda: not any(alive(pid) for pid in pids), "workers to be gone")


def test_an_etcd_that_goes_while_nodes_gather_ends_in_a_clear_line(job, etcd):
    job.start("a", "true", nnodes=2, conf="reconnect_timeout=1")
    job.said("a", "this agent runs the coordinator")
    etcd.kill()
    assert job.codes("a") == [69]
    assert re.search(rf"rendezvous: etcd at {etcd.endpoint}: .*exit status 69", job.err("a")), job.err("a")


def test_an_agent_cut_off_from_etcd_gives_way_and_never_runs_a_second_coordinator(job, etcd, tmp_path):
    # As if its etcd member were cut off: the lease ends though the agent lives.
    script = write(tmp_path, "stay.py", STAY)
    begin(job, script, "a", "b", "c", restarts=0, conf="last_call_timeout=60")
    pids = job.started("3.0", 0, 1, 2)
    key = json.loads(etcd.ctl("get", "/muster/none/coordinator", "-w", "json"))["kvs"][0]
    etcd.ctl("lease", "revoke", f"{key['lease']:x}")
    job.said("a", "no longer runs the coordinator")
    wait_for(lambda: any("takes over the coordinator of job none: generation 0, 0 of 0" in job.err(n) for n in "abc"),
             "a coordinator")
    assert all(alive(pid) for pid in pids)  # it asked for another lease, and was there in time
    (tmp_path / "go").touch()
    assert job.codes("a", "b", "c") == [0, 0, 0], [job.err(n) for n in "abc"]
    assert all(generations(job.err(n)) == [0] for n in "abc")


def test_a_state_whose_lease_is_lost_is_written_again_at_once(job, etcd, tmp_path):
    script = write(tmp_path, "stay.py", STAY)
    begin(job, script, "a", "b", nnodes="1:2", restarts=1)
    job.started("2.0", 0, 1)
    leases = []
    for _ in range(2):
        entry = lambda: json.loads(etcd.ctl("get", "/muster/none/state", "-w", "json")).get("kvs", [{}])[0]
        leases.append(entry()["lease"])
        etcd.ctl("lease", "revoke", f"{leases[-1]:x}")
        wait_for(lambda: entry().get("lease", leases[-1]) != leases[-1], f"the state to be there again: {job.err('a')}", 30)
    # So that whoever comes next goes on with it.
    job.running["a"].kill()
    job.said("b", "takes over the coordinator of job none: generation \\d, 0 of 1")
    job.started("1.1", 0)
    (tmp_path / "go").touch()
    assert job.codes("b") == [0], job.err("b")


def test_a_frozen_coordinator_is_replaced_and_is_told_so_when_it_wakes(job, tmp_path):
    script = write(tmp_path, "stay.py", STAY)
    begin(job, script, "a", "b", "c", conf="keep_alive_interval=1,keep_alive_max_attempt=3")
    job.started("3.0", 0, 1, 2)
    job.running["a"].send_signal(signal.SIGSTOP)
    job.started("2.1", 0, 1)
    job.running["a"].send_signal(signal.SIGCONT)
    job.said("a", "no longer runs the coordinator")
    # It is a node like any other now, and the world grows again.
    job.started("3.1", 0, 1, 2)
    (tmp_path / "go").touch()
    assert job.codes("a", "b", "c") == [0, 0, 0], [job.err(n) for n in "abc"]


def test_a_job_all_of_whose_agents_were_killed_can_be_started_anew(job, tmp_path):
    script = write(tmp_path, "stay.py", STAY)
    begin(job, script, "a", "b", nnodes=2, restarts=0)
    job.started("2.0", 0, 1)
    for name in "ab":
        job.running[name].kill()
        job.running[name].wait()
    for name in "cd":
        job.start(name, script, nnodes=2, restarts=0)
    for name in "cd":
        job.said(name, "generation 1: node . of 2")  # no number is used twice
    (tmp_path / "go").touch()
    assert job.codes("c", "d") == [0, 0], job.err("c")


def test_a_job_all_of_whose_agents_were_killed_can_be_started_anew_while_a_lease_of_theirs_lasts(job, etcd, tmp_path):
    script = write(tmp_path, "stay.py", STAY)

    def entries():
        """Key and value of the nodes and of their coordinator."""
        found = json.loads(etcd.ctl("get", "/muster/none/coordinator", "/muster/none/nodes0", "-w", "json"))["kvs"]
        return [(base64.b64decode(e["key"]).decode(), base64.b64decode(e["value"]).decode()) for e in found]

    begin(job, script, "a", "b", nnodes=2, restarts=0)
    job.started("2.0", 0, 1)
    for name in "ab":
        job.running[name].kill()
        job.running[name].wait()
    # The leases of both end one after the other, once the newcomers wait for it.
    leases = [re.search(r"lease (\w+) granted", etcd.ctl("lease", "grant", "120")).group(1) for _ in "ab"]
    for key, value in entries():
        etcd.ctl("put", f"--lease={leases['host-b' in value]}", key, value)
    for name in "cd":
        job.start(name, script, nnodes=2, restarts=0)
    wait_for(lambda: sum("/nodes/" in key for key, _ in entries()) == 4, "the newcomers' keys")
    for lease in leases:
        etcd.ctl("lease", "revoke", lease)
    (tmp_path / "go").touch()
    assert job.codes("c", "d") == [0, 0], job.err("c")
    assert "generation 1: node 0 of 2" in job.err("c") + job.err("d")


def test_an_etcd_that_asks_who_is_there_is_refused_with_the_reason(job, etcd):
    for words in ("role add root", "user add root:secret", "user grant-role root root", "auth enable"):
        etcd.ctl(*words.split())
    job.start("a", "true", nnodes=2, conf="join_timeout=20")
    assert job.codes("a", timeout=40) == [69]
    assert re.search(rf"{etcd.endpoint}: it asks who is there.*muster does not log in.*exit status 69", job.err("a")), job.err("a")


def fill(etcd, folder):
    """Puts values until etcd's space is exceeded, from when on it refuses every write but keeps its leases."""
    value = folder / "value"
    value.write_text("x" * 1_000_000)
    for number in range(64):
        done = subprocess.run(["etcdctl", f"--endpoints={etcd.endpoint}", "put", f"fill{number}"], stdin=value.open(), timeout=20,
                              text=True, capture_output=True, env={**clean_environment(), "ETCDCTL_API": "3"})
        if "space exceeded" in done.stderr:
            return
    raise AssertionError(f"etcd is not full: {done.stderr}")


def make_room(etcd):
    etcd.ctl("del", "--prefix", "fill")
    etcd.ctl("compact", str(json.loads(etcd.ctl("get", "any", "-w", "json"))["header"]["revision"]))
    etcd.ctl("defrag")
    etcd.ctl("alarm", "disarm")


def test_a_full_etcd_ends_no_job_that_runs_and_starts_none(tmp_path):
    etcd = Etcd(tmp_path, "--quota-backend-bytes=16000000").start()
    job = EtcdJob(tmp_path, etcd.endpoint)
    try:
        script = write(tmp_path, "stay.py", STAY)
        begin(job, script, "a", "b", nnodes=2)
        pids = job.started("2.0", 0, 1)
        fill(etcd, tmp_path)
        job.start("c", "true", nnodes=2, conf="join_timeout=3", options=["--rdzv-id=other"])
        assert job.codes("c") == [69], job.err("c")
        assert re.search(r"database space exceeded.*etcdctl.*exit status 69", job.err("c")), job.err("c")
        assert all(alive(pid) for pid in pids)  # the lease was renewed meanwhile, or they would be gone
        (tmp_path / "go").touch()
        job.said("a", "space exceeded.*the end of the job waits")
        assert all(process.poll() is None for process in (job.running["a"], job.running["b"]))
        make_room(etcd)
        assert job.codes("a", "b") == [0, 0], (job.err("a"), job.err("b"))
    finally:
        job.close()
        etcd.close()
