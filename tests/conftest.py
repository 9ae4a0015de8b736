# SPDX-License-Identifier: Apache-2.0
# What `scripts/test -k PATTERN` asks of the tests from outside: a regular expression, as ctest's; pytest's own -k knows
# other rules.
import os
import re


def pytest_collection_modifyitems(config, items):
    pattern = os.environ.get("MUSTER_TEST_PATTERN")
    if not pattern:
        return
    chosen = [item for item in items if re.search(pattern, item.nodeid)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
