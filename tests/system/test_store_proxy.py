# SPDX-License-Identifier: Apache-2.0
"""The workers' store behind their agents (--store-proxy), over nodes that are network namespaces of this machine."""
import json
import os
import pathlib
import re
import subprocess

import pytest

from elastic_support import PORT, SECRET, SHOW, job, write  # noqa: F401
from launcher_support import BIN, clean_environment, wait_for

# Every rank says who it is and what it sees; rank 0 then asks the kernel who listens, and who is connected to the head.
LISTENERS = """
import json, os, socket, struct, sys
"""


def test_workers_reach_their_store_on_loopback_by_default_with_a_secret(job, tmp_path):
    it = job(2)
    script = write(tmp_path, "show.py", SHOW)
    it.start(0, 1, script, MUSTER_SECRET=SECRET)
    it.start(1, 2, script, MUSTER_SECRET=SECRET)
    assert it.codes(0, 1) == [0, 0], (it.err(0), it.err(1))
    workers = it.workers(0, 1)
    assert [w["RANK"] for w in workers] == list("012")
    assert {(w["MASTER_ADDR"], w["GLOO_SOCKET_IFNAME"], w["TORCHELASTIC_USE_AGENT_STORE"]) for w in workers} == {
        ("127.0.0.1", "eth0", "True")}
