# SPDX-License-Identifier: Apache-2.0
"""muster --doctor: who reaches whom, over nodes that are network namespaces of this machine."""
import re

from elastic_support import SECRET, job  # noqa: F401
from launcher_support import MUSTER, clean_environment, muster
from netns import ip


def examine(it, *more, count=None, **how):
    count = count or len(it.nodes.names)
    for node in range(count):
        it.start(node, 1, "--doctor", f"--node-rank={node}", *more, "a-program-that-is-not-there", nnodes=count, **how)
    codes = it.codes(*range(count))
    return codes, it.out(0)


def cells(text, row):
    """The row's cells of the table, by what separates them."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"host{row}  ")]
    return re.split(r"  +", line)[1:]


def test_where_every_node_reaches_every_other_the_table_says_by_what_and_how_fast(job):  # noqa: F811
    it = job(3)
    codes, text = examine(it)
    assert codes == [0, 0, 0], (text, it.err(0), it.err(1))
    assert text.splitlines()[0].split() == ["from", "\\", "to", "host0", "host1", "host2"]
    for row in range(3):
        for column, cell in enumerate(cells(text, row)):
            assert cell == "-" if row == column else re.fullmatch(r"\d+\.\d\d ms eth0", cell), text
    assert "does not reach" not in text and "verdict: 3 nodes, every node reaches every other" in text
    assert (it.out(1), it.out(2)) == ("", "")


def test_a_pair_that_is_cut_is_named_with_what_was_tried_and_all_nodes_end_with_74(job):  # noqa: F811
    it = job(3)
    it.nodes.lose(1, 2)
    codes, text = examine(it, MUSTER_SECRET=SECRET)
    assert codes == [74, 74, 74], (text, it.err(0))
    assert cells(text, 1)[2] == "timeout" and cells(text, 2)[1] == "timeout" and "ms eth0" in cells(text, 0)[2]
    assert "host1 does not reach host2: 10.77.0.3 (eth0): timeout" in text
    assert "hint: no answer at all: a firewall drops what comes" in text
    assert "verdict: 3 nodes, 2 of 6 paths do not work" in text
    assert all("failed" not in it.err(node) for node in range(3))  # no report of a failure that is none


def test_a_missing_route_is_told_from_silence(job):  # noqa: F811
    it = job(3)
    ip("-n", it.nodes.names[1], "route", "add", "unreachable", "10.77.0.3")
    codes, text = examine(it)
    assert codes == [74, 74, 74], (text, it.err(0))
    assert cells(text, 1)[2] == "no route" and "hint: no route" in text
    assert "host1 does not reach host2: 10.77.0.3 (eth0): no route" in text


def test_a_second_network_that_leads_nowhere_is_a_remark_with_the_interface_that_works(job):  # noqa: F811
    it = job(2)
    ip("-n", it.nodes.names[1], "link", "add", "ib0", "type", "bridge")
    ip("-n", it.nodes.names[1], "addr", "add", "192.168.9.1/24", "dev", "ib0")
    ip("-n", it.nodes.names[1], "link", "set", "ib0", "up")
    codes, text = examine(it)
    assert codes == [0, 0], (text, it.err(0))
    assert "remark: 192.168.9.1 (ib0) of host1 is not reached by 1 of 1 nodes; what chooses it hangs" in text
    assert "hint: every node reaches every other by --iface=eth0" in text
    it.close()
    codes, text = examine(it, "--iface=eth0")
    assert codes == [0, 0] and "remark: 192.168.9.1" not in text


def test_the_doctor_works_with_a_static_rendezvous_and_with_one_node(job, muster):  # noqa: F811
    it = job(2)
    for node in range(2):
        it.spawn(node, node, MUSTER, "--doctor", "--nnodes=2", f"--node-rank={node}", f"--master-addr={it.nodes.address(0)}",
                 "--master-port=29555", f"--local-addr=host{node}", env=clean_environment())
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    assert "verdict: 2 nodes, every node reaches every other" in it.out(0)
    alone = muster.run("--doctor")
    assert alone.returncode == 0 and alone.stdout.endswith("verdict: one node, there is nobody to reach\n")
    refused = muster.run("--doctor", "--exec")
    assert refused.returncode == 2 and "--doctor" in refused.stderr
