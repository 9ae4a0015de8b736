# SPDX-License-Identifier: Apache-2.0
"""Workers that exchange megabytes and count together through the store behind their agents, over lines of 200 ms that lose
5 %, through a restart and a daemon that is killed. Over network namespaces."""
import json
import signal

import pytest

from elastic_support import SECRET, write
from faults_support import check_worlds, stage  # noqa: F401
from launcher_support import wait_for
from test_store_proxy import STORE

# In attempt 0 rank 0 fails while all count and send. Each rank keeps what it was told as it counted.
EXCHANGE = STORE + """
import json, random, sys, threading
SIZE, LINES, EACH, AT_ONCE = 1 << 18, 24, 4, 4
big = lambda r: random.Random(10 * attempt + r).randbytes(SIZE)
told, errors = [], []
def count(line, number):
    for i in range(EACH):
        told.append(line.add(b"count", 1))
        line.add(b"sum", 1000 * rank + i)
        if number == 0 and i == EACH // 2:
            note("half%d_%d" % (rank, attempt))
            if attempt == 0 and rank == 0: os._exit(7)
def count_at_once(line):  # each goes when the one before is answered
    line.socket.sendall(AT_ONCE * (b"\\4" + line.text(b"count") + struct.pack("<q", 1)))
    told.extend(struct.unpack("<q", line.read(8))[0] for _ in range(AT_ONCE))
def exchange(line):
    line.set(b"big%d" % rank, big(rank))
    for other in range(size): assert other == rank or line.get(b"big%d" % other) == big(other), other
def caught(call, *args):
    try: call(Store(), *args)
    except BaseException as error: errors.append(repr(error))
tasks = [(count, number) for number in range(LINES)] + [(count_at_once,), (exchange,)]
threads = [threading.Thread(target=caught, args=task, daemon=True) for task in tasks]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
if store.add(b"done", 1) == size: store.set(b"all", b"")
store.wait(b"all")
each = LINES * EACH + AT_ONCE
assert store.add(b"count", 0) == size * each, store.add(b"count", 0)
assert store.add(b"sum", 0) == LINES * sum(1000 * r + i for r in range(size) for i in range(EACH)), store.add(b"sum", 0)
note("told%d_%d" % (rank, attempt), json.dumps(told))
"""
EACH = 24 * 4 + 4


@pytest.mark.parametrize("stage", [SECRET], indirect=True, ids=[""])
def test_sums_and_megabytes_are_exact_over_lines_of_200_ms_that_lose_5_percent(stage, tmp_path):
    # Jumbo frames, so that megabytes take seconds: with 1,500 bytes TCP gets 20 kB/s through such a line.
    nodes = stage.build(3, bad_lines=(1, 2), delay=0.2, loss=0.05, mtu=9000)
    daemon = stage.daemon(0, f"--state-dir={tmp_path}/state")
    scene = stage.scene("far", daemon.endpoint, backend="muster", nnodes=2, restarts=1)
    script = write(scene.tmp_path, "exchange.py", EXCHANGE)
    for node in (1, 2):
        scene.agent(node, f"--node-rank={node - 1}", "--nproc-per-node=2", program=[script])
    wait_for(lambda: (scene.tmp_path / "half0_0").exists(), f"rank 0 to fail: {scene.err(1)}", 60)
    # Then the same again, with a daemon that is killed meanwhile.
    wait_for(lambda: any((scene.tmp_path / f"half{rank}_1").exists() for rank in range(4)), "workers to count again", 60)
    daemon.signal(signal.SIGKILL)
    daemon.start()
    assert scene.codes(1, 2, timeout=120) == [0, 0], (scene.err(1), scene.err(2))
    told = [json.loads((scene.tmp_path / f"told{rank}_1").read_text()) for rank in range(4)]
    # Each number once.
    assert sorted(sum(told, [])) == list(range(1, 4 * EACH + 1))
    for node in (1, 2):
        assert "lost node" not in scene.err(node)
    assert set(check_worlds(scene)) == {0, 1}
    carried, lost = nodes.end_bad_lines()
    print(f"{nodes.bad_lines_by}: {carried} packets carried, {lost} lost")
    assert lost > 0 and carried > 10 * lost
