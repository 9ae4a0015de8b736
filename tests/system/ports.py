# SPDX-License-Identifier: Apache-2.0
"""Ports of this host for what a test starts."""
import random
import socket

_marks = []  # kept as long as this process: names of the kernel's that belong to a network namespace, as ports do


def free_ports(count):
    """No other test is given these. Below the ephemeral ports, so that no client's connection takes one between now and its use."""
    found = []
    for port in random.sample(range(10000, 19000), 9000):
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0muster-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            mark.close()
            continue
        _marks.append(mark)
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} free ports")


def free_port():
    return free_ports(1)[0]
