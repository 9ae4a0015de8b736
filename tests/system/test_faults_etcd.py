# SPDX-License-Identifier: Apache-2.0
"""An etcd of three members on hosts of their own, of which one is killed or cut off, and agents that lose it alone."""
import re
import shutil

import pytest

from elastic_support import STAY, write
from etcd_support import Cluster, EtcdJob
from launcher_support import alive, wait_for
from netns import Nodes


class Site:
    """Nodes 0 to 2 have etcd's members, agents run on nodes from 3 on."""

    def __init__(self, tmp_path):
        self.nodes = Nodes(5)
        self.etcd = Cluster(tmp_path, self.nodes)
        self.job = EtcdJob(tmp_path, ",".join(self.etcd.endpoints))
        self.script = write(tmp_path, "stay.py", STAY)

    def start(self, name, node, first=0, **rules):
        """`first`: the member that the agent asks first."""
        ends = self.etcd.endpoints
        self.job.start(name, self.script, endpoint=",".join(ends[first:] + ends[:first]), wrap=self.nodes.command(node), **rules)

    def close(self):
        self.job.close()
        self.etcd.close()
        self.nodes.close()


@pytest.fixture
def site(tmp_path):
    if not shutil.which("etcd"):
        pytest.skip("etcd is not installed; scripts/setup does that")
    one = Site(tmp_path)
    yield one
    one.close()


def test_workers_notice_nothing_of_a_member_that_is_killed_be_it_the_leader(site, tmp_path):
    job, first = site.job, site.etcd.leader()
    site.start("a", 3, first, nnodes=2)
    job.said("a", "this agent runs the coordinator")
    site.start("b", 4, first, nnodes=2)
    pids = job.started("2.0", 0, 1)
    site.etcd.members[first].kill()
    # Whoever runs the coordinator, then or now: it is the same generation.
    other = (first + 1) % 3
    wait_for(lambda: site.etcd.ctl(other, "get", "/muster/none/coordinator").stdout, "a coordinator in etcd", 30)
    assert all(alive(pid) for pid in pids)
    (tmp_path / "go").touch()
    assert job.codes("a", "b") == [0, 0], (job.err("a"), job.err("b"))
    for name in "ab":
        assert re.findall(r"info: generation (\d+): node", job.err(name)) == ["0"], job.err(name)


def test_an_agent_whose_member_is_cut_off_hears_of_an_election_from_another(site, tmp_path):
    job = site.job
    site.start("a", 3, first=1, nnodes="1:2", restarts=1)
    job.said("a", "this agent runs the coordinator")
    site.start("b", 4, first=0, nnodes="1:2", restarts=1)
    job.started("2.0", 0, 1)
    # Its watch would be silent there for ever.
    site.etcd.isolate(0)
    job.running["a"].kill()
    job.said("b", "takes over the coordinator of job none: generation \\d, 0 of 1", 60)
    job.started("1.1", 0)
    (tmp_path / "go").touch()
    assert job.codes("b") == [0], job.err("b")


def test_an_agent_that_loses_etcd_alone_is_counted_out_and_is_in_no_other_world(site, tmp_path):
    job = site.job
    rules = {"nnodes": "1:2", "restarts": 1, "conf": "reconnect_timeout=1"}
    site.start("a", 3, **rules)
    job.said("a", "this agent runs the coordinator")
    site.start("b", 4, **rules)
    pids = job.started("2.0", 0, 1)
    for member in range(3):
        site.nodes.lose(4, member)
    job.said("a", r"lost node 1 \(host-b\): .*; restart 1 of 1", 60)
    job.started("1.1", 0)
    assert job.codes("b") == [76], job.err("b")
    assert re.search(r"lost the coordinator at .*: etcd at .*exit status 76", job.err("b")), job.err("b")
    wait_for(lambda: not any(alive(pid) for pid in pids), "the first generation's workers to be gone")
    assert len(re.findall("info: generation", job.err("b"))) == 1
    (tmp_path / "go").touch()
    assert job.codes("a") == [0], job.err("a")
