# SPDX-License-Identifier: Apache-2.0
"""Clients that the store must refuse, beside one that it must not: run with the newest PyTorch."""
import torch.distributed as dist

from checks_support import client, raises


def a_value_over_the_limit_costs_its_client_only(host, port):
    a, b = client(host, port), client(host, port)
    b.set("k", "v")
    with raises(dist.DistError):
        a.set("big", "x" * ((8 << 20) + 1))
        a.get("k")
    assert b.get("k") == b"v"
    assert b.check(["big"]) is False


def a_counter_of_text_costs_its_client_only(host, port):
    a, b = client(host, port), client(host, port)
    b.set("k", "v")
    with raises(dist.DistError):
        a.add("k", 1)
    assert b.get("k") == b"v"
    with raises(dist.DistError):
        a.get("k")
