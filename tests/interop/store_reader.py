# SPDX-License-Identifier: Apache-2.0
"""Looks into a store on behalf of a test."""
from datetime import timedelta

from checks_support import client


def keys(host, port, names):
    """For each name whether the store has it."""
    store = client(host, port)
    found = {}
    for name in names:
        try:
            store.wait([name], timedelta(milliseconds=100))
            found[name] = True
        except RuntimeError:
            found[name] = False
            store = client(host, port)
    return found
