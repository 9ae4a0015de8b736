# SPDX-License-Identifier: Apache-2.0
"""What holds for a job holds on all of its nodes: rules about restarts, ranks of the world in views and prefixes."""
import re

import pytest

from elastic_support import job, write

BACKENDS = ["static", "c10d"]


def start_both(job, backend, *args):
    one = job(2)
    for node in range(2):
        more = [f"--node-rank={node}", f"--master-addr={one.nodes.address(0)}", "--master-port=29511"] if backend == "static" else []
        one.start(node, 2, *more, *args, backend=backend, restarts=2)
    return one


TRY = """
import os, signal, sys
e = os.environ
open("tried_%s_%s" % (e["TORCHELASTIC_RESTART_COUNT"], e["RANK"]), "w").close()
if e["RANK"] == "3":
    while not all(os.path.exists("tried_%s_%d" % (e["TORCHELASTIC_RESTART_COUNT"], rank)) for rank in range(4)): pass
    sys.exit(CODE)
signal.pause()
"""


def tries(tmp_path):
    return sorted(path.name for path in tmp_path.glob("tried_*"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_exit_code_that_is_not_retried_ends_all_nodes_at_once(job, tmp_path, backend):
    script = write(tmp_path, "try.py", TRY.replace("CODE", "70"))
    both = start_both(job, backend, "--no-restart-on=2,64-78", script)
    assert both.codes(0, 1) == [70, 70]
    assert tries(tmp_path) == [f"tried_0_{rank}" for rank in range(4)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_pause_before_a_restart_is_made_once_for_all_nodes(job, tmp_path, backend):
    script = write(tmp_path, "try.py", TRY.replace("CODE", "9"))
    both = start_both(job, backend, "--restart-backoff=0.1:0.15", script)
    assert both.codes(0, 1) == [9, 9]
    assert tries(tmp_path) == [f"tried_{attempt}_{rank}" for attempt in range(3) for rank in range(4)]
    for node in range(2):
        pauses = re.findall(r"restart in (\S+) s \(--restart-backoff\)", both.err(node))
        assert [float(pause) for pause in pauses] == [0.1, 0.15], both.err(node)


# Each line in one piece: under --view=rank0 rank 0 writes to the terminal itself.
SPEAK = """
import os
rank = os.environ["RANK"]
os.write(1, f"out {rank}\\n".encode())
os.write(2, f"err {rank}\\n".encode())
if rank in "13": os.write(2, b"ValueError: loss is nan\\n")
"""


def lines(text, pattern):
    return sorted(line for line in text.splitlines() if re.search(pattern, line))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_filter_of_ranks_means_those_of_the_world(job, tmp_path, backend):
    both = start_both(job, backend, "--ranks-filter=2", write(tmp_path, "speak.py", SPEAK))
    assert both.codes(0, 1) == [0, 0]
    # By node: which of the two is the first one is theirs to find out.
    assert [lines(both.out(node), "^out") + lines(both.err(node), "^err") for node in (0, 1)] in (
        [[], ["out 2", "err 2"]], [["out 2", "err 2"], []])


@pytest.mark.parametrize("backend", BACKENDS)
def test_view_rank0_shows_the_world_s_rank_0_and_no_other_node_s(job, tmp_path, backend):
    both = start_both(job, backend, "--view=rank0", write(tmp_path, "speak.py", SPEAK))
    assert both.codes(0, 1) == [0, 0]
    assert lines(both.out(0) + both.out(1), "^out") == ["out 0"]
    assert lines(both.err(0) + both.err(1), "err .$") == ["err 0"], both.err(0) + both.err(1)
    # The others from their first error on.
    said = sorted(re.sub(r"host\d", "host", line) for line in lines(both.err(0) + both.err(1), "ValueError"))
    assert said == [f"[host {rank}]:ValueError: loss is nan" for rank in (1, 3)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_prefix_counts_generations_on_every_node(job, tmp_path, backend):
    script = write(tmp_path, "once.py", """
import os, signal, sys
e = os.environ
print("here", flush=True)
if e["TORCHELASTIC_RESTART_COUNT"] == "0":
    if e["RANK"] == "3": sys.exit(1)
    signal.pause()
""")
    both = start_both(job, backend, "-t", "1", "--log-line-prefix-template=${rank} g${generation} r${restart}|", script)
    assert both.codes(0, 1) == [0, 0]
    said = {line for line in (both.out(0) + both.out(1)).splitlines() if line.endswith("|here")}
    generations = {int(m[1]): int(m[2]) for line in said if (m := re.search(r" g(\d+) r(\d+)\|", line))}
    assert sorted(generations.values()) == [0, 1], said
    last = max(generations)
    assert {f"{rank} g{last} r1|here" for rank in range(4)} <= said
